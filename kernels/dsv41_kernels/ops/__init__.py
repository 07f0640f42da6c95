"""One directory per op: problem.py (formula, shapes, cost), reference.py, kernel.py, stock.py (the engine's path)."""
