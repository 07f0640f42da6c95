"""The entry point `dsv41_contract` of `sglang.srt.plugins`."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys

from dsv41_serving.errors import EngineDriftError, InputError
from dsv41_serving.sglang_plugin import drift
from dsv41_serving.sglang_plugin.contract import key
from dsv41_serving.spec.model import Contract

PLUGIN = "dsv41_contract"
VARIABLE = "DSV41_CONTRACT"

logger = logging.getLogger(__name__)


def register() -> None:
    """Apply the contract: all of it in the server process, what concerns sampling also in a scheduler of its own.

    SGLang calls this in every process. A scheduler that was forked has the hooks already, and they are not applied twice.
    An SGLang that was started by hand, without the table, is left as it is. Exits with status 2 and one line when the
    table or the key cannot be read or SGLang is not the version the hooks are for: SGLang goes on after an `Exception` of a
    plug-in, not after `SystemExit`. Whether the contract is in force is asked by the gate, at `GET /contract`.
    """
    if VARIABLE not in os.environ:
        return
    serves = multiprocessing.parent_process() is None
    # A spawned process has loaded the module of what it runs; the detokenizer samples nothing.
    if not serves and "sglang.srt.managers.scheduler" not in sys.modules:
        return
    with drift.stop_on_drift(PLUGIN):
        drift.check_versions({"sglang": drift.VERSIONS["sglang"]})
        contract = drift.read_table(VARIABLE, Contract)
        from dsv41_serving.sglang_plugin import ranks  # noqa: PLC0415 - needed here alone
        from dsv41_serving.sglang_plugin.contract import hooks, reasoning, seeds  # noqa: PLC0415 - web framework, torch

        served = hooks.make_hooks(contract, _read_key()) if serves else ()
        table = (*served, *reasoning.HOOKS, *seeds.HOOKS, *ranks.HOOKS)
        drift.apply(table)
    logger.info("%s: %d hooks in force for %s", PLUGIN, len(table), contract.served_model_name)


def _read_key() -> str:
    try:
        return key.find_key()
    except InputError as error:
        raise EngineDriftError(error.problem, where=error.where, remedy=error.remedy) from None
