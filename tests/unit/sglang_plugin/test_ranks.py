"""NIXL's counters name the rank of the process they are of."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING

from sglang.srt import runtime_context

from dsv41_serving.plan.engine import RANK_VARIABLE
from dsv41_serving.sglang_plugin.ranks import HOOKS, name_rank

if TYPE_CHECKING:
    import pytest


def test_the_rank_stands_where_nixl_looks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As SGLang's own context gives it, before the agent is made; the contract's plug-in checks the target."""
    monkeypatch.setenv(RANK_VARIABLE, "none")
    monkeypatch.setattr(runtime_context, "get_parallel", lambda: SimpleNamespace(tp_rank=3))
    name_rank("server arguments", 0, display_tp_rank=None)
    assert os.environ[RANK_VARIABLE] == "3"
    (hook,) = HOOKS
    assert hook.kind == "before"
