"""What this engine has in force, for `GET /contract`: the table it was given, and what SGLang made of it."""

from __future__ import annotations

import hashlib
import os
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from dsv41_serving.sglang_plugin.contract.requests import Engine

if TYPE_CHECKING:
    from dsv41_serving.spec.model import Contract

PATH = "/contract"
PACKAGES = ("sglang", "deepseek-recipe")


def read_engine(app: Any) -> Engine:
    """Return what the rules need to know of the engine behind SGLang's FastAPI application `app`, once it serves."""
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest  # noqa: PLC0415

    chat = app.state.openai_serving_chat
    return Engine(
        context_length=chat.tokenizer_manager.context_len,
        sampling=dict(chat.default_sampling_params),
        chat_fields=frozenset(ChatCompletionRequest.model_fields),
        completion_fields=frozenset(CompletionRequest.model_fields),
    )


def report_contract(app: Any, contract: Contract, engine: Engine) -> dict[str, Any]:
    """Return the table, its fingerprint, what SGLang has in force, and the versions that decide how prompts look."""
    chat = app.state.openai_serving_chat
    manager = chat.tokenizer_manager
    return {
        "contract": contract.model_dump(),
        "fingerprint": fingerprint(contract),
        "in_force": {
            "served_model_name": manager.served_model_name,
            "reasoning_parser": chat.reasoning_parser,
            "tool_call_parser": chat.tool_call_parser,
            "encoder": chat.chat_encoding_spec,
            "thinking": chat.default_chat_template_kwargs.get("thinking"),
            "reasoning_effort": os.environ.get("SGLANG_DSV41_REASONING_EFFORT", ""),
            "sampling": dict(engine.sampling),
            "context_length": engine.context_length,
            "strict_thinking": manager.config_value("enable_strict_thinking"),
            "seeds": manager.config_value("speculative_algorithm") is None,
            "cache_report": manager.config_value("enable_cache_report"),
        },
        "role": manager.config_value("disaggregation_mode"),
        "versions": {name: version(name) for name in PACKAGES},
    }


def fingerprint(contract: Contract) -> str:
    """Return the SHA-256 of the table, in hexadecimal."""
    return hashlib.sha256(contract.model_dump_json().encode()).hexdigest()
