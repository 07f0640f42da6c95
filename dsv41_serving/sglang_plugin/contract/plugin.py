"""The entry point `dsv41_contract` of `sglang.srt.plugins`."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys

from dsv41_serving.errors import EngineDriftError
from dsv41_serving.sglang_plugin import drift
from dsv41_serving.spec.model import Contract

PLUGIN = "dsv41_contract"
VARIABLE = "DSV41_CONTRACT"

logger = logging.getLogger(__name__)


def register() -> None:
    """Apply the contract in the server process; SGLang also calls this in its workers, which serve no HTTP.

    An SGLang that was started by hand, without the table, is left as it is. Exits with status 2 and one line when the
    table cannot be read or SGLang is not the version the hooks are for: SGLang goes on after an `Exception` of a
    plug-in, not after `SystemExit`. Whether the contract is in force is asked by the gate, at `GET /contract`.
    """
    if VARIABLE not in os.environ or multiprocessing.parent_process() is not None:
        return
    try:
        drift.check_versions({"sglang": drift.VERSIONS["sglang"]})
        contract = _read_contract()
        from dsv41_serving.sglang_plugin.contract.hooks import make_hooks  # noqa: PLC0415 - imports the web framework

        hooks = make_hooks(contract)
        drift.apply(hooks)
    except EngineDriftError as error:
        sys.stderr.write(f"{PLUGIN}: {error}\n")
        sys.stderr.flush()
        raise SystemExit(error.exit_code) from None
    logger.info("%s: %d hooks in force for %s", PLUGIN, len(hooks), contract.served_model_name)


def _read_contract() -> Contract:
    try:
        return Contract.model_validate_json(os.environ[VARIABLE])
    except ValueError as error:
        raise EngineDriftError(
            f"is no table of a contract ({str(error).splitlines()[0]})",
            where=f"environment {VARIABLE}",
            remedy="start the engine with `dsv41 run` or `dsv41 up`",
        ) from None
