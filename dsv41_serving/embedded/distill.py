"""Let the student's rows learn from the lessons: a fixed number of Adam steps from a fixed seed."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import torch

from dsv41_serving.embedded.student import Sample, Student

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dsv41_serving.embedded.description import Distillation
    from dsv41_serving.embedded.encoder import ConversationEncoder
    from dsv41_serving.embedded.teacher import Lesson

_REPORT_EVERY = 5  # steps


def distill(
    student: Student,
    lessons: Sequence[Lesson],
    encoder: ConversationEncoder,
    plan: Distillation,
    report: Callable[[str], None],
) -> None:
    """Change `student`'s rows so that V4.1 prompts, thinking off and on, lead to the teacher's words."""
    optimizer = torch.optim.Adam(student.parameters(), lr=plan.learning_rate, betas=plan.betas)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_share(step, plan))
    draws = random.Random(plan.seed)  # noqa: S311  # reproducible draws, no secrets
    plain, thinking = _cycle(lessons, draws), _cycle(lessons, draws)
    batch = plan.answers_per_step + plan.thoughts_per_step
    for step in range(1, plan.steps + 1):
        optimizer.zero_grad()
        # The two kinds differ in length, so each is its own padded batch.
        off = student.compare(
            [draw_sample(next(plain), encoder, plan, draws, thinking=False) for _ in range(plan.answers_per_step)]
        )
        torch.autograd.backward(off.answers * plan.answers_per_step / batch)
        on = student.compare(
            [draw_sample(next(thinking), encoder, plan, draws, thinking=True) for _ in range(plan.thoughts_per_step)]
        )
        torch.autograd.backward((on.answers + on.thoughts) * plan.thoughts_per_step / batch)
        optimizer.step()
        schedule.step()
        if step % _REPORT_EVERY == 0 or step == plan.steps:
            report(
                f"distilling step {step}/{plan.steps}, KL {off.answers.item():.2f} answers, "
                f"{on.answers.item():.2f} answers after thinking, {on.thoughts.item():.2f} thoughts"
            )


def rate_share(step: int, plan: Distillation) -> float:
    """Return the share of the learning rate at `step` (from 0): linear warm-up times cosine decay to the final share."""
    warmup = min(1.0, (step + 1) / max(1, plan.warmup_steps))
    cosine = (1 + math.cos(math.pi * min(step, plan.steps) / plan.steps)) / 2
    return warmup * (plan.final_rate_share + (1 - plan.final_rate_share) * cosine)


def draw_sample(
    lesson: Lesson, encoder: ConversationEncoder, plan: Distillation, draws: random.Random, *, thinking: bool
) -> Sample:
    """Return a sample that puts `lesson`'s question as a client would, sometimes with a system prompt or an effort."""
    messages = [{"role": "user", "content": lesson.question}]
    if draws.random() < plan.system_share:
        messages.insert(0, {"role": "system", "content": draws.choice(plan.system_prompts)})
    effort = draws.choice(plan.efforts) or None
    return Sample(encoder.encode(messages, thinking=thinking, effort=effort), lesson, thinking)


def _cycle(lessons: Sequence[Lesson], draws: random.Random) -> Iterator[Lesson]:
    """Yield the lessons for ever, every round in a new order."""
    while True:
        yield from draws.sample(lessons, len(lessons))
