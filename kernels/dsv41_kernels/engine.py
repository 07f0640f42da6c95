"""Reach the engine's code for comparison: import a module, or lift one function out of a module too heavy to import.

Nothing of the engine is copied into this project: both read the installed package when a benchmark asks for it.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pathlib
from typing import TYPE_CHECKING, Any

from dsv41_kernels.op import StockUnavailableError

if TYPE_CHECKING:
    from types import ModuleType


def import_engine(name: str) -> ModuleType:
    """Import an engine module. Raises StockUnavailableError with the cause."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:
        raise StockUnavailableError(f"{name} does not import here: {error}") from error


def lift(module: str, qualified_name: str, namespace: dict[str, Any]) -> Any:
    """Define one function, method or class of `module` from its source, in `namespace`, without importing the module.

    For methods of classes whose modules import half the engine. `namespace` must hold the globals that the code uses.
    Raises StockUnavailableError when module or name is missing.
    """
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, OSError) as error:
        raise StockUnavailableError(f"{module} is not installed: {error}") from error
    if found is None or found.origin is None:
        raise StockUnavailableError(f"{module} is not installed")
    body: list[ast.stmt] = ast.parse(pathlib.Path(found.origin).read_text(encoding="utf-8")).body
    for part in qualified_name.split("."):
        named = [node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == part]
        if not named:
            raise StockUnavailableError(f"{module} has no {qualified_name}")
        wanted, body = named[0], named[0].body
    future = ast.parse("from __future__ import annotations").body
    code = compile(ast.Module(body=[*future, wanted], type_ignores=[]), found.origin, "exec")
    exec(code, namespace)  # noqa: S102  (the engine's own source, from the installed package)
    return namespace[wanted.name]
