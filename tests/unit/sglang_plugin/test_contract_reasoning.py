"""A constrained answer after reasoning: the turn cannot end inside, and room is left for what is demanded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dsv41_serving.sglang_plugin.contract.reasoning import hold_reasoning, leave_room

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

END_OF_TURN, MARKUP, CLOSE, WORD = 3, 4, 5, 6
IDS = {"<end>": [END_OF_TURN], "<markup>": [MARKUP]}
TOKENIZER = SimpleNamespace(encode=lambda text, **_: IDS[text])


def parser(*excluded: str) -> Any:
    """Return a reasoning parser that keeps `excluded` out of reasoning."""
    return SimpleNamespace(detector=SimpleNamespace(think_excluded_tokens=list(excluded)))


def untouched() -> Any:
    """Return what the constructor leaves without strict thinking."""
    return SimpleNamespace(think_excluded_token_ids=None, enable_token_filter=False, _token_filter_fn=None)


def test_requests_with_a_grammar_get_the_filter_of_strict_thinking() -> None:
    backend, inner = untouched(), SimpleNamespace(is_support_token_filter=True, set_token_filter=print)
    hold_reasoning(None, backend, inner, parser("<end>", "<markup>"), TOKENIZER)
    assert vars(backend) == {
        "think_excluded_token_ids": [END_OF_TURN, MARKUP],
        "enable_token_filter": True,
        "_token_filter_fn": print,
    }


@pytest.mark.parametrize(
    ("inner_filters", "excluded", "strict"), [(True, ("<end>",), True), (False, ("<end>",), False), (True, (), False)]
)
def test_strict_thinking_and_backends_or_parsers_without_a_filter_are_left_alone(
    inner_filters: bool,  # noqa: FBT001
    excluded: tuple[str, ...],
    strict: bool,  # noqa: FBT001
) -> None:
    backend, inner = untouched(), SimpleNamespace(is_support_token_filter=inner_filters, set_token_filter=print)
    hold_reasoning(None, backend, inner, parser(*excluded), TOKENIZER, strict)
    assert (backend.think_excluded_token_ids, backend.enable_token_filter) == (None, False)


@pytest.mark.parametrize(
    ("budget", "constrained", "limit", "after"),
    [(-1, True, 101, 50), (7, True, 101, 7), (0, True, 101, 0), (-1, False, 101, -1), (-1, True, None, -1)],
)
def test_reasoning_ends_at_half_of_the_limit_unless_it_has_a_budget(
    budget: int,
    constrained: bool,  # noqa: FBT001
    limit: int | None,
    after: int,
) -> None:
    grammar = SimpleNamespace(grammar=object() if constrained else None, max_think_tokens=budget)
    leave_room(None, None, SimpleNamespace(grammar=grammar, sampling_params=SimpleNamespace(max_new_tokens=limit)))
    assert grammar.max_think_tokens == after


def test_a_request_without_reasoning_has_no_such_grammar() -> None:
    """Its grammar is the bare one, or none."""
    for grammar in (None, SimpleNamespace()):
        leave_room(None, None, SimpleNamespace(grammar=grammar, sampling_params=SimpleNamespace(max_new_tokens=4)))
        assert not vars(grammar or SimpleNamespace())


def test_sglangs_own_object_does_with_it_what_is_meant() -> None:
    """First no end of turn and no markup, then nothing but the end of the reasoning, then the grammar."""
    from sglang.srt.constrained.reasoner_grammar_backend import ReasonerGrammarObject
    from sglang.srt.constrained.xgrammar_backend import XGrammarGrammarBackend

    inner = SimpleNamespace(fill_vocab_mask=lambda mask, row: mask[row].fill_(0), accept_token=lambda _: None)
    grammar = ReasonerGrammarObject(
        grammar=inner,
        think_end_ids=[CLOSE],
        think_excluded_token_ids=[END_OF_TURN, MARKUP],
        enable_token_filter=True,
        token_filter_fn=XGrammarGrammarBackend.set_token_filter,
    )
    grammar.maybe_init_reasoning(reasoning=True)
    leave_room(None, None, SimpleNamespace(grammar=grammar, sampling_params=SimpleNamespace(max_new_tokens=4)))
    seen = []
    for token in (WORD, WORD, CLOSE, WORD):
        mask = torch.full((1, 1), -1, dtype=torch.int32)
        grammar.fill_vocab_mask(mask, 0)
        seen.append({bit for bit in range(32) if int(mask[0, 0]) >> bit & 1})
        grammar.accept_token(token)
    assert seen == [set(range(32)) - {END_OF_TURN, MARKUP}] * 2 + [{CLOSE}, set()]
