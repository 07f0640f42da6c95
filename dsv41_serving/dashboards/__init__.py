"""The dashboards: rows of panels as data, turned into Grafana's JSON. `BOARDS` is all of them.

`python -m dsv41_serving.dashboards` writes monitoring/dashboards/; a test compares every byte.
"""

from __future__ import annotations

from dsv41_serving.dashboards import main, node, slo

BOARDS = (main.BOARD, node.BOARD, slo.BOARD)
