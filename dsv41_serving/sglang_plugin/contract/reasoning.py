"""A constrained answer begins after the reasoning, so the reasoning must come to its end.

SGLang 0.5.23 applies the grammar of a format or of a required tool call once the model has closed its reasoning, and lets it
end its turn before that: the client gets neither JSON nor a call, with finish_reason stop. What keeps the end of turn out of
the reasoning is there, in `--enable-strict-thinking`, which however masks every request that thinks.
"""

from __future__ import annotations

from typing import Any

from dsv41_serving.sglang_plugin.drift import Patch


def hold_reasoning(
    _result: None,
    backend: Any,
    grammar_backend: Any,
    reasoning_parser: Any,
    tokenizer: Any,
    enable_strict_thinking: bool = False,  # noqa: FBT001, FBT002 - the target's signature
) -> None:
    """Filter the tokens that strict thinking excludes from the reasoning of requests with a grammar."""
    if enable_strict_thinking or not grammar_backend.is_support_token_filter:
        return
    excluded = reasoning_parser.detector.think_excluded_tokens or ()
    backend.think_excluded_token_ids = [
        token for text in excluded for token in tokenizer.encode(text, add_special_tokens=False)
    ] or None
    backend.enable_token_filter = backend.think_excluded_token_ids is not None
    backend._token_filter_fn = grammar_backend.set_token_filter  # noqa: SLF001 - what strict thinking sets


def leave_room(_result: None, _manager: Any, request: Any) -> None:
    """End the reasoning of a constrained answer at half of the tokens it may have, unless something else ends it.

    Called when the grammar of `request` is known, and before it runs.
    """
    grammar, limit = request.grammar, request.sampling_params.max_new_tokens
    if getattr(grammar, "grammar", None) is not None and grammar.max_think_tokens < 0 and limit is not None:
        grammar.max_think_tokens = limit // 2


HOOKS = (
    Patch(
        target="sglang.srt.constrained.reasoner_grammar_backend.ReasonerGrammarBackend.__init__",
        signature="(self, grammar_backend, reasoning_parser, tokenizer, enable_strict_thinking=False)",
        kind="after",
        hook=hold_reasoning,
        why="a model that ends its turn while it reasons gives no JSON and no call, whatever the request demands",
        effect="with a grammar, neither the end of turn nor the markup of calls can stand in the reasoning",
    ),
    Patch(
        target="sglang.srt.constrained.grammar_manager.GrammarManager._apply_request_reasoning_config",
        signature="(self, req)",
        kind="after",
        hook=leave_room,
        why="reasoning that goes on until the answer's limit leaves nothing for the JSON or the call",
        effect="with a grammar, reasoning ends at half of the limit; a budget of the request or the table stays",
    ),
)
