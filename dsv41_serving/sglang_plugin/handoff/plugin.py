"""The entry point `dsv41_handoff` of `sglang.srt.plugins`."""

from __future__ import annotations

import logging
import os

from dsv41_serving.sglang_plugin import drift
from dsv41_serving.spec.model import Handoff

PLUGIN = "dsv41_handoff"
VARIABLE = "DSV41_HANDOFF"

logger = logging.getLogger(__name__)


def register() -> None:
    """Apply the hooks of the hand-off; they act in schedulers alone, and a forked one has them from its parent.

    SGLang calls this in every process. An SGLang that was started by hand, without the table, is left as it is. Exits with
    status 2 and one line when the table cannot be read or SGLang or NIXL is another version than the hooks are for.
    """
    if VARIABLE not in os.environ:
        return
    with drift.stop_on_drift(PLUGIN):
        drift.check_versions()
        table = drift.read_table(VARIABLE, Handoff)
        from dsv41_serving.sglang_plugin.handoff import packed, rest, waterfall  # noqa: PLC0415 - torch and the engine

        clock = waterfall.Waterfall()
        # A hook that comes later stands outside: the waterfall sees what packing does as part of SGLang's functions.
        packing = packed.make_hooks(table, clock) if table.packed else ()
        hooks = (*packing, *waterfall.make_hooks(clock), *rest.make_hooks(table.rest_us))
        drift.apply(hooks)
    logger.info("%s: %d hooks in force, packed: %s", PLUGIN, len(hooks), table.packed)
