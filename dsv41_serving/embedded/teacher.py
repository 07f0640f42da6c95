"""The unchanged model as its own teacher: what it answers and thinks in its native ChatML format.

A few worked turns before the question make a model of this size far more accurate. They are in the teacher's context
alone, so the student has to reproduce their effect without seeing them (context distillation).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv41_serving.embedded.decoding import Continuation, decode_greedily
from dsv41_serving.embedded.parallel import map_on_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from tokenizers import Tokenizer
    from transformers import LlamaModel

    from dsv41_serving.embedded.description import Teacher

START = "<|im_start|>"
END = "<|im_end|>"
_BATCH = 24  # prompts decoded together


@dataclass(frozen=True)
class Lesson:
    """A question with the teacher's answer to it, as tokens and as text, and the teacher's thought about it."""

    question: str
    answer: Continuation
    answer_text: str
    thought: Continuation


def render_chatml(teacher: Teacher, question: str) -> str:
    """Return the ChatML prompt that ends where the teacher writes its reply to `question`."""
    turns = [("system", teacher.system)]
    for turn in teacher.turns:
        turns += [("user", turn.user), ("assistant", turn.assistant)]
    turns.append(("user", question))
    return "".join(f"{START}{role}\n{text}{END}\n" for role, text in turns) + f"{START}assistant\n"


def write_lessons(
    network: LlamaModel,
    embeddings: torch.Tensor,
    tokenizer: Tokenizer,
    questions: Sequence[str],
    *,
    stop: int,
    answers: Teacher,
    thoughts: Teacher,
    report: Callable[[str], None],
) -> list[Lesson]:
    """Return a lesson for each question.

    `embeddings` [vocabulary, hidden] also serve as the output head; `stop` is the id that ends a reply.
    """
    batches = [
        (teacher, questions[first : first + _BATCH])
        for teacher in (answers, thoughts)
        for first in range(0, len(questions), _BATCH)
    ]

    def write(batch: tuple[Teacher, Sequence[str]]) -> list[Continuation]:
        teacher, asked = batch
        prompts = [tokenizer.encode(render_chatml(teacher, question)).ids for question in asked]
        return decode_greedily(network, embeddings, embeddings, prompts, stop=stop, max_tokens=teacher.max_tokens)

    written: list[Continuation] = []
    for texts in map_on_cores(write, batches):
        written += texts
        report(f"teacher texts {len(written)}/{2 * len(questions)}")
    return [
        Lesson(question, answer, tokenizer.decode(answer.tokens), thought)
        for question, answer, thought in zip(
            questions, written[: len(questions)], written[len(questions) :], strict=True
        )
    ]
