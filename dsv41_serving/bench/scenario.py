"""The loads that are measured, and the prompts they are made of. Pure.

The protocol is that of the seed measurement of V4.1: token ids uniform from a fixed seed, special tokens left out, no chat
template, the same prompts for every configuration, an exact number of output tokens at temperature 0, end of sentence ignored.
"""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dsv41_serving.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

SEED = 42
_MINIMUM = 16  # tokens, of a scaled prompt or answer
ROOM = 8  # tokens of the context kept free


@dataclass(frozen=True)
class Turn:
    """One request: tokens in and out, and how many of the first ones it shares with its group."""

    prompt: int
    answer: int
    group: int = 0
    shared: int = 0


@dataclass(frozen=True)
class Scenario:
    """One load: requests, and how many of them are sent at once."""

    name: str
    says: str
    turns: tuple[Turn, ...]
    at_once: int

    def scale(self, factor: float, context: int) -> Scenario:
        """Return the scenario with lengths times `factor`, and within `context`."""
        return replace(self, turns=tuple(_scale(turn, factor, context) for turn in self.turns))


def _scale(turn: Turn, factor: float, context: int) -> Turn:
    answer = max(_MINIMUM, round(turn.answer * factor))
    prompt = min(max(_MINIMUM, round(turn.prompt * factor)), context - answer - ROOM)
    shared = min(round(turn.shared * factor), prompt - 1)
    return replace(turn, prompt=prompt, answer=answer, shared=max(0, shared))


def _repeat(prompt: int, answer: int, count: int) -> tuple[Turn, ...]:
    return tuple(Turn(prompt, answer) for _ in range(count))


def list_scenarios(context: int) -> dict[str, Scenario]:
    """Return every scenario by name; `long` fills the context."""
    agents = tuple(Turn(16_384, 400, group, 15_360) for group in range(4) for _ in range(4))
    mixed = tuple(turn for _ in range(8) for turn in (Turn(16_384, 64), Turn(512, 1_024)))
    scenarios = (
        Scenario("single", "one request of 4,096 tokens in, 1,024 out", _repeat(4_096, 1_024, 1), 1),
        Scenario("c1", "one at a time", _repeat(4_096, 256, 4), 1),
        Scenario("c16", "16 at once", _repeat(4_096, 256, 32), 16),
        Scenario("c64", "64 at once", _repeat(4_096, 256, 128), 64),
        Scenario("long", "one prompt that fills the context", _repeat(context, 128, 1), 1),
        Scenario("agent", "16 agent turns in 4 conversations that share their beginnings", agents, 8),
        Scenario("mixed", "long prompts beside long answers", mixed, 8),
    )
    return {scenario.name: scenario for scenario in scenarios}


def choose_scenarios(names: Sequence[str], context: int, factor: float) -> list[Scenario]:
    """Return the scenarios `names`, scaled, each once. Raises InputError for a name that is none."""
    known = list_scenarios(context)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(f"no scenario '{unknown[0]}'", remedy=f"use one of: {', '.join(known)}")
    return [known[name].scale(factor, context) for name in dict.fromkeys(names)]


def expect_room(prompts: Iterable[int], answer: int, context: int) -> None:
    """Raise InputError when a prompt of one of these lengths and an answer do not fit into a context; all in tokens."""
    longest, most = max(prompts), context - answer - ROOM
    if longest > most:
        raise InputError(
            f"{longest:,} tokens and an answer of {answer} do not fit into the context of {context:,}",
            where="--prompt",
            remedy=f"at most {most:,}, or raise engine.context_length",
        )


@dataclass(frozen=True)
class PromptSet:
    """The requests of a scenario as text, in the form the load generator reads, and a hash that names them."""

    lines: tuple[str, ...]
    sha256: str
    tokens: int
    """Tokens of all prompts together."""


class Words:
    """Text of an exact number of tokens from a tokenizer: uniform over its plain words, from a fixed seed.

    A word is a token that is text by itself and is read back as itself, so that text and ids are the same prompt. The
    router of a pair takes text alone.
    """

    def __init__(self, encode: Callable[[str], list[int]], pieces: Iterable[str]) -> None:
        """Use the tokenizer's `encode` and its `pieces`, one text for each token that is not special.

        Raises InputError when none of them is a word.
        """
        self._encode = encode
        # A word that starts with a blank joins with no neighbour in a byte-level vocabulary.
        self._pieces = [
            piece for piece in pieces if piece.startswith(" ") and piece[1:].isascii() and piece[1:].isalpha()
        ]
        if not self._pieces:
            raise InputError("the tokenizer has no plain words", remedy="name the directory of the served model")

    def write(self, tokens: int, seed: str) -> str:
        """Return text of exactly `tokens` tokens; another `seed` gives other words."""
        choice = random.Random(f"{SEED}/{seed}")  # noqa: S311 - reproducible on purpose
        words = choice.choices(self._pieces, k=tokens)
        # Whatever the tokenizer adds or joins is made up for at the end.
        while (count := len(self._encode("".join(words)))) != tokens:
            words = (
                words[: tokens - count] if count > tokens else [*words, *choice.choices(self._pieces, k=tokens - count)]
            )
        return "".join(words)


def write_prompts(scenario: Scenario, words: Words) -> PromptSet:
    """Return the requests of `scenario`: no two share a beginning unless the scenario says so."""
    lines, tokens = [], 0
    for number, turn in enumerate(scenario.turns):
        shared = words.write(turn.shared, f"{scenario.name}/group {turn.group}") if turn.shared else ""
        own = words.write(turn.prompt - turn.shared, f"{scenario.name}/{number}")
        answer = words.write(turn.answer, f"{scenario.name}/answer")  # its length alone counts
        lines.append(json.dumps({"conversations": [{"value": shared + own}, {"value": answer}]}))
        tokens += turn.prompt
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return PromptSet(tuple(lines), digest, tokens)
