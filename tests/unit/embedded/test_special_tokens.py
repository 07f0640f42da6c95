"""Adding V4.1's tokens to a tokenizer.json."""

from __future__ import annotations

from typing import Any

import pytest

from dsv41_serving.embedded import special_tokens
from dsv41_serving.embedded.special_tokens import ALL, BEGIN, END, REQUIRED, add_special_tokens, added_ids


def tokenizer() -> dict[str, Any]:
    """Four words, of which two are control tokens listed in both vocabularies, as in real files."""
    return {
        "added_tokens": [{"id": 1, "content": "<s>"}, {"id": 2, "content": "</s>"}],
        "model": {"vocab": {"a": 0, "<s>": 1, "</s>": 2, "b": 3}},
    }


def test_every_token_is_present_afterwards() -> None:
    """The added vocabulary holds all of V4.1's tokens, each with its own id, ordered by id."""
    changed = tokenizer()
    add_special_tokens(changed, {"<s>": BEGIN, "</s>": END}, first_new_id=4)
    ids = added_ids(changed)
    assert set(ALL) == set(ids)
    assert list(ids.values()) == [1, 2, *range(4, 4 + len(ALL) - 2)]


def test_a_renamed_token_keeps_its_id_everywhere() -> None:
    """Both vocabularies know the new spelling under the old id and no longer the old spelling."""
    changed = tokenizer()
    add_special_tokens(changed, {"<s>": BEGIN}, first_new_id=4)
    assert added_ids(changed)[BEGIN] == changed["model"]["vocab"][BEGIN] == 1
    assert "<s>" not in changed["model"]["vocab"]
    assert "<s>" not in added_ids(changed)


def test_only_control_tokens_are_skipped_in_text() -> None:
    """Begin, end and pad are control tokens; thinking and tool marks must stay readable for the output parser."""
    changed = tokenizer()
    add_special_tokens(changed, {"<s>": BEGIN, "</s>": END}, first_new_id=4)
    control = {token["content"] for token in changed["added_tokens"] if token["special"]}
    assert control == {BEGIN, END, special_tokens.PAD}


def test_an_occupied_id_is_refused() -> None:
    """New ids must lie above the vocabulary; a collision would give one row to two tokens."""
    with pytest.raises(ValueError, match=r"id 3 for .* is already taken"):
        add_special_tokens(tokenizer(), {}, first_new_id=3)


def test_renaming_to_a_present_token_is_refused() -> None:
    """A tokenizer that already has the token must not get it twice."""
    changed = tokenizer()
    changed["added_tokens"].append({"id": 9, "content": END})
    with pytest.raises(ValueError, match="already has"):
        add_special_tokens(changed, {"</s>": END}, first_new_id=10)


def test_renaming_an_absent_token_is_refused() -> None:
    """A wrong name in the model's description does not pass in silence."""
    with pytest.raises(KeyError, match="<nothing>"):
        add_special_tokens(tokenizer(), {"<nothing>": END}, first_new_id=4)


def test_required_tokens_are_those_of_the_encoder() -> None:
    """The spellings are the encoder's own, but for the image token, where SGLang uses the checkpoint's."""
    recipe = pytest.importorskip("deepseek_recipe")
    kinds = ("Bos", "Eos", "System", "User", "Assistant", "ThinkingStart", "ThinkingEnd", "LatestReminder", "Dsml")
    spelt = {getattr(recipe.SpecialToken, kind).default_str() for kind in kinds}
    assert spelt == set(REQUIRED) - {special_tokens.IMAGE}
    grounding = ("Ref", "RefEnd", "Box", "BoxEnd", "Point", "PointEnd", "Polygon", "PolygonEnd")
    assert {getattr(recipe.SpecialToken, kind).default_str() for kind in grounding} == set(special_tokens.GROUNDING)
