"""Write a table of settings as command-line flags, and refuse flags that belong to the plan. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dsv41_serving.spec.model import FlagValue

_SAME_ON_BOTH = "it is set from the contract so that every engine has the same; set contract.{key} instead"
_OWNED = "the plan sets it; set {key} instead"

# Flag of SGLang -> why it may not stand in `args`.
REFUSED: dict[str, str] = {
    "chat-template": "it bypasses V4.1's own prompt encoder: tool calls and thinking break; remove it",
    "completion-template": "it bypasses V4.1's own prompt encoder; remove it",
    "hf-chat-template-name": "it bypasses V4.1's own prompt encoder; remove it",
    "swa-full-tokens-ratio": "a copied ratio starves the sliding-window pool and hangs long prompts (sglang#31205); remove it",
    "api-key": "keys come from a credential file, never from a command line; set router.api_key_credential",
    "admin-api-key": "keys come from a credential file, never from a command line; remove it",
    "served-model-name": _SAME_ON_BOTH.format(key="served_model_name"),
    "reasoning-parser": _SAME_ON_BOTH.format(key="reasoning_parser"),
    "tool-call-parser": _SAME_ON_BOTH.format(key="tool_call_parser"),
    "default-chat-template-kwargs": _SAME_ON_BOTH.format(key="thinking"),
    "sampling-defaults": _SAME_ON_BOTH.format(key="temperature or contract.top_p"),
    "model-path": _OWNED.format(key="model.path"),
    "model": _OWNED.format(key="model.path"),
    "host": _OWNED.format(key="engines.NAME.host"),
    "port": _OWNED.format(key="engines.NAME.port"),
    "device": _OWNED.format(key="engine.device"),
    "dtype": _OWNED.format(key="engine.dtype"),
    "context-length": _OWNED.format(key="engine.context_length"),
    "page-size": _OWNED.format(key="engine.page_size"),
    "tp": _OWNED.format(key="engines.NAME.tp"),
    "tp-size": _OWNED.format(key="engines.NAME.tp"),
    "tensor-parallel-size": _OWNED.format(key="engines.NAME.tp"),
    "ep": _OWNED.format(key="engines.NAME.ep"),
    "ep-size": _OWNED.format(key="engines.NAME.ep"),
    "expert-parallel-size": _OWNED.format(key="engines.NAME.ep"),
    "base-gpu-id": _OWNED.format(key="engines.NAME.gpus"),
    "mem-fraction-static": _OWNED.format(key="engines.NAME.memory_fraction"),
    "max-total-tokens": _OWNED.format(key="engines.NAME.max_total_tokens"),
    "max-running-requests": _OWNED.format(key="engines.NAME.max_running_requests"),
    "chunked-prefill-size": _OWNED.format(key="engines.NAME.chunked_prefill_size"),
    "cuda-graph-bs-decode": _OWNED.format(key="engines.NAME.graph_batch_sizes"),
    "disaggregation-mode": _OWNED.format(key="engines.NAME.role"),
    "disaggregation-bootstrap-port": _OWNED.format(key="engines.NAME.bootstrap_port"),
    "disaggregation-transfer-backend": _OWNED.format(key="engine.transfer_backend"),
    "nccl-port": "the plan derives it from engines.NAME.port; remove it",
    "enable-metrics": "metrics are always on; remove it",
    "enable-cache-report": _SAME_ON_BOTH.format(key="cache_report"),
}


def check_args(args: Mapping[str, FlagValue], where: str) -> None:
    """Raise InputError when `args` (table `where` of the node file) sets a flag that may not stand there."""
    for flag in args:
        reason = REFUSED.get(flag.lstrip("-").replace("_", "-"))
        if reason:
            raise InputError(f"--{flag.lstrip('-')} is refused: {reason}", where=f"key {where}.{flag}")
        if flag.startswith("-"):
            raise InputError("write the flag without leading '-'", where=f"key {where}.{flag}")


def flag_args(args: Mapping[str, FlagValue]) -> Iterator[str]:
    """Yield argv items: true -> the bare flag, false -> nothing, a list -> the flag and each item."""
    for flag, value in args.items():
        if value is False:
            continue
        yield f"--{flag}"
        if value is True:
            continue
        if isinstance(value, list):
            yield from (str(item) for item in value)
        else:
            yield str(value)
