"""Tell NIXL which rank of its engine a scheduler process is: its counters carry no other name that lasts."""

from __future__ import annotations

import os
from typing import Any

from dsv41_serving.plan.engine import RANK_VARIABLE
from dsv41_serving.sglang_plugin.drift import Patch


def name_rank(*_args: Any, **_kwargs: Any) -> None:
    """Put the tensor-parallel rank of this process where NIXL looks for it when its agent is made."""
    from sglang.srt.runtime_context import get_parallel  # noqa: PLC0415 - with the scheduler, not with the plug-in

    os.environ[RANK_VARIABLE] = str(get_parallel().tp_rank)


HOOKS = (
    Patch(
        target="sglang.srt.managers.scheduler.configure_scheduler_process",
        signature="(server_args, gpu_id, display_tp_rank=None, display_dp_rank=None, display_moe_ep_rank=None)",
        kind="before",
        hook=name_rank,
        why="NIXL calls an agent by a random name and its pid, so one rank that sends slowly cannot be told from the others",
        effect="NIXL's counters have the label local_rank",
    ),
)
