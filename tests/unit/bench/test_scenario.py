"""Prompts: exact lengths, the same every time, nothing shared that should not be."""

from __future__ import annotations

import json
import re

import pytest

from dsv41_serving.bench.scenario import Words, choose_scenarios, list_scenarios, write_prompts
from dsv41_serving.errors import InputError

PIECES = [" alpha", " beta", " gamma", "joined", " 12", " d!", " delta", ""]


def encode(text: str) -> list[int]:
    """One token a word, as a byte-level vocabulary does with plain words."""
    return [PIECES.index(piece) for piece in re.findall(r" \w+", text)]


@pytest.fixture
def words() -> Words:
    return Words(encode, PIECES)


def test_words_are_plain_and_as_many_as_asked(words: Words) -> None:
    """No digits, no marks, nothing that would join with its neighbour."""
    text = words.write(500, "seed")
    assert len(encode(text)) == 500
    assert set(text.split()) == {"alpha", "beta", "gamma", "delta"}


def test_the_same_seed_gives_the_same_text(words: Words) -> None:
    assert words.write(50, "x") == words.write(50, "x") != words.write(50, "y")


def test_what_the_tokenizer_adds_is_made_up_for() -> None:
    """A beginning-of-sentence token counts as one of the prompt's."""
    added = Words(lambda text: [99, *encode(text)], PIECES)
    assert len(encode(added.write(20, "x"))) == 19


def test_a_tokenizer_without_words_is_bad_input() -> None:
    with pytest.raises(InputError, match="has no plain words"):
        Words(encode, ["1", "!", ""])


def test_scenarios_scale_and_stay_within_the_context() -> None:
    (single,) = choose_scenarios(["single"], 524_288, 1.0)
    assert (single.turns[0].prompt, single.turns[0].answer, single.at_once) == (4096, 1024, 1)
    (small,) = choose_scenarios(["single"], 8192, 1 / 16)
    assert (small.turns[0].prompt, small.turns[0].answer) == (256, 64)
    (long,) = choose_scenarios(["long"], 8192, 1.0)
    assert long.turns[0].prompt == 8192 - 128 - 8
    assert all(
        turn.prompt + turn.answer <= 8192 and turn.shared < turn.prompt
        for scenario in choose_scenarios(list(list_scenarios(8192)), 8192, 4.0)
        for turn in scenario.turns
    )


def test_an_unknown_scenario_is_bad_input() -> None:
    with pytest.raises(InputError, match="no scenario 'fast'; use one of: single, c1"):
        choose_scenarios(["fast"], 8192, 1.0)


def test_prompts_of_a_group_share_their_beginning_and_no_others(words: Words) -> None:
    (agent,) = choose_scenarios(["agent"], 8192, 1 / 64)
    prompts = write_prompts(agent, words)
    texts = [json.loads(line)["conversations"][0]["value"] for line in prompts.lines]
    shared = agent.turns[0].shared
    heads = [" ".join(text.split()[:shared]) for text in texts]
    assert len(set(heads)) == 4
    assert [heads.index(head) // 4 for head in heads] == [turn.group for turn in agent.turns]
    assert len(set(texts)) == 16
    assert all(len(encode(text)) == turn.prompt for text, turn in zip(texts, agent.turns, strict=True))
    assert prompts.tokens == sum(turn.prompt for turn in agent.turns)


def test_answers_carry_the_lengths_the_generator_reads(words: Words) -> None:
    (mixed,) = choose_scenarios(["mixed"], 8192, 1 / 16)
    lengths = [len(encode(json.loads(line)["conversations"][1]["value"])) for line in write_prompts(mixed, words).lines]
    assert lengths == [turn.answer for turn in mixed.turns]


def test_the_hash_names_the_prompts(words: Words) -> None:
    first, again = (write_prompts(choose_scenarios(["c1"], 8192, 1.0)[0], words) for _ in range(2))
    other = write_prompts(choose_scenarios(["c1"], 8192, 0.5)[0], words)
    assert first == again
    assert first.sha256 != other.sha256
