"""The main board: is it serving, what users feel, and where in the path of a request the time and the memory go."""

from __future__ import annotations

from dsv41_serving.dashboards.annotations import ANNOTATIONS
from dsv41_serving.dashboards.main.cache import CACHE
from dsv41_serving.dashboards.main.engine import DECODE_ENGINE
from dsv41_serving.dashboards.main.hand_off import HAND_OFF
from dsv41_serving.dashboards.main.memory import MEMORY
from dsv41_serving.dashboards.main.now import NOW
from dsv41_serving.dashboards.main.router import ROUTER
from dsv41_serving.dashboards.main.users import ANATOMY, USERS
from dsv41_serving.dashboards.panel import Board

BOARD = Board(
    uid="dsv41-main",
    title="DeepSeek-V4.1: serving",
    description="Is it serving, how full are the KV pools, where does the time of a request go.",
    rows=(NOW, ANATOMY, USERS, MEMORY, HAND_OFF, CACHE, DECODE_ENGINE, ROUTER),
    annotations=ANNOTATIONS,
)
