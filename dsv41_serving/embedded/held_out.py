"""Judge a distilled model on prompts it never saw, and refuse one that is not good enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dsv41_serving.embedded.decoding import Continuation, decode_greedily
from dsv41_serving.embedded.parallel import map_on_cores
from dsv41_serving.embedded.student import Sample
from dsv41_serving.errors import Dsv41Error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenizers import Tokenizer
    from transformers import LlamaModel

    from dsv41_serving.embedded.description import HeldOut, Thresholds
    from dsv41_serving.embedded.encoder import ConversationEncoder
    from dsv41_serving.embedded.student import Student
    from dsv41_serving.embedded.teacher import Lesson


@dataclass(frozen=True)
class SpecialIds:
    """The ids that decide whether a text is well formed."""

    end: int
    think_end: int
    all: frozenset[int]


def count_clean(texts: Sequence[Continuation], ids: SpecialIds) -> int:
    """Return how many texts have words and no special token but a final end of sentence."""
    return sum(
        bool(words := text.tokens[:-1] if text.ended else text.tokens) and not ids.all.intersection(words)
        for text in texts
    )


def count_closed(texts: Sequence[Continuation], ids: SpecialIds) -> int:
    """Return how many texts close their thought exactly once, with words before and after and nothing special in them."""
    closed = 0
    for text in texts:
        words = text.tokens[:-1] if text.ended else text.tokens
        if words.count(ids.think_end) == 1:
            at = words.index(ids.think_end)
            closed += 0 < at < len(words) - 1 and not ids.all.intersection(words[:at] + words[at + 1 :])
    return closed


def count_expected(texts: Sequence[Continuation], prompts: Sequence[HeldOut], tokenizer: Tokenizer) -> tuple[int, int]:
    """Return how many answers contain what their prompt expects (case ignored), and how many prompts expect something."""
    judged = [
        (tokenizer.decode(text.tokens).lower(), prompt.expect) for text, prompt in zip(texts, prompts, strict=True)
    ]
    asked = [(answer, expect) for answer, expect in judged if expect]
    return sum(any(word.lower() in answer for word in expect) for answer, expect in asked), len(asked)


def compare_held_out(student: Student, lessons: Sequence[Lesson], encoder: ConversationEncoder) -> tuple[float, float]:
    """Return the mean divergence on held-out prompts: of answers with thinking off, of thoughts with thinking on."""

    @torch.no_grad()
    def compare(task: tuple[Lesson, bool]) -> float:
        lesson, thinking = task
        prompt = encoder.encode([{"role": "user", "content": lesson.question}], thinking=thinking)
        found = student.compare(Sample(prompt, lesson, thinking))
        return (found.thought if thinking else found.answer).item()

    found = list(map_on_cores(compare, [(lesson, thinking) for thinking in (False, True) for lesson in lessons]))
    count = len(lessons)
    return sum(found[:count]) / count, sum(found[count:]) / count


def measure(
    network: LlamaModel,
    student: Student,
    lessons: Sequence[Lesson],
    prompts: Sequence[HeldOut],
    *,
    initial: tuple[float, float],
    encoder: ConversationEncoder,
    tokenizer: Tokenizer,
    ids: SpecialIds,
    max_tokens: int,
) -> dict[str, float | int]:
    """Return the numbers that go into the manifest and that `judge` compares. Shares are 0 to 1, KL in nats a token.

    `initial` is the divergence before distillation. `lessons` and `prompts` are the held-out ones, in one order.
    """
    final = compare_held_out(student, lessons, encoder)
    embeddings, head = student.tables()

    def write(thinking: bool) -> list[Continuation]:  # noqa: FBT001  # called by map alone
        conversations = [encoder.encode([{"role": "user", "content": p.prompt}], thinking=thinking) for p in prompts]
        return decode_greedily(network, embeddings, head, conversations, stop=ids.end, max_tokens=max_tokens)

    answers, thoughts = map_on_cores(write, (False, True))
    expected, asked = count_expected(answers, prompts, tokenizer)
    count = len(prompts)
    return {
        "held_out_prompts": count,
        "max_tokens": max_tokens,
        "kl_answers_initial": round(initial[0], 4),
        "kl_answers": round(final[0], 4),
        "kl_thoughts_initial": round(initial[1], 4),
        "kl_thoughts": round(final[1], 4),
        "answers_clean": count_clean(answers, ids) / count,
        "answers_ended": sum(text.ended for text in answers) / count,
        "answers_expected": round(expected / asked, 4) if asked else 1.0,
        "thoughts_closed": count_closed(thoughts, ids) / count,
    }


def judge(check: dict[str, float | int], thresholds: Thresholds, name: str) -> None:
    """Raise Dsv41Error, naming every missed threshold, when the numbers of `measure` are not good enough."""
    bounds = [
        ("kl_answers", "max", thresholds.kl_answers_max),
        ("kl_answers", "max", thresholds.kl_share_max * check["kl_answers_initial"]),
        ("answers_clean", "min", thresholds.answers_clean_min),
        ("answers_ended", "min", thresholds.answers_ended_min),
        ("answers_expected", "min", thresholds.answers_expected_min),
        ("thoughts_closed", "min", thresholds.thoughts_closed_min),
    ]
    missed = [
        f"{key} {check[key]} ({side} {limit:.3g})"
        for key, side, limit in bounds
        if (check[key] > limit if side == "max" else check[key] < limit)
    ]
    if missed:
        raise Dsv41Error(
            f"the held-out check missed {', '.join(missed)}",
            where=name,
            remedy="report this line with the processor's name; the model 'canary' needs no distillation",
        )
