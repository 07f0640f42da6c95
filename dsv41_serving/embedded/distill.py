"""Let the student's rows learn from the lessons: a fixed number of Adam steps from a fixed seed."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import torch

from dsv41_serving.embedded.parallel import map_on_cores
from dsv41_serving.embedded.student import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dsv41_serving.embedded.description import Distillation
    from dsv41_serving.embedded.encoder import ConversationEncoder
    from dsv41_serving.embedded.student import Student
    from dsv41_serving.embedded.teacher import Lesson

_REPORT_EVERY = 5  # steps


def distill(
    student: Student,
    lessons: Sequence[Lesson],
    encoder: ConversationEncoder,
    plan: Distillation,
    report: Callable[[str], None],
) -> None:
    """Change `student`'s rows so that V4.1 prompts, thinking off and on, lead to the teacher's words.

    The rows end rounded to bf16.
    """
    parameters = student.parameters()
    optimizer = torch.optim.Adam(parameters, lr=plan.learning_rate, betas=plan.betas)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_share(step, plan))
    draws = random.Random(plan.seed)  # noqa: S311  # reproducible draws, no secrets
    plain, thinking = _cycle(lessons, draws), _cycle(lessons, draws)

    def differentiate(sample: Sample) -> tuple[float, float, tuple[torch.Tensor, ...]]:
        found = student.compare(sample)
        gradients = torch.autograd.grad(found.answer + found.thought, parameters)
        return found.answer.item(), found.thought.item(), gradients

    for step in range(1, plan.steps + 1):
        # The long samples first, so that no core is left waiting for one.
        samples = [draw_sample(thinking, encoder, plan, draws, thinking=True) for _ in range(plan.thoughts_per_step)]
        samples += [draw_sample(plain, encoder, plan, draws, thinking=False) for _ in range(plan.answers_per_step)]
        answers, thoughts, gradients = zip(*map_on_cores(differentiate, samples), strict=True)
        for parameter, each in zip(parameters, zip(*gradients, strict=True), strict=True):
            parameter.grad = torch.stack(each).mean(0)
        optimizer.step()
        schedule.step()
        if step % _REPORT_EVERY == 0 or step == plan.steps:
            report(
                f"distilling step {step}/{plan.steps}, KL {sum(answers) / len(samples):.2f} answers, "
                f"{sum(thoughts) / plan.thoughts_per_step:.2f} thoughts"
            )
    student.round_rows()


def rate_share(step: int, plan: Distillation) -> float:
    """Return the share of the learning rate at `step` (from 0): linear warm-up times cosine decay to the final share."""
    warmup = min(1.0, (step + 1) / max(1, plan.warmup_steps))
    cosine = (1 + math.cos(math.pi * min(step, plan.steps) / plan.steps)) / 2
    return warmup * (plan.final_rate_share + (1 - plan.final_rate_share) * cosine)


def draw_sample(
    lessons: Iterator[Lesson], encoder: ConversationEncoder, plan: Distillation, draws: random.Random, *, thinking: bool
) -> Sample:
    """Return a sample that puts the next lesson's question as a client would.

    Sometimes a system prompt stands first, sometimes another lesson is an earlier turn of the conversation.
    """
    lesson = next(lessons)
    messages = [{"role": "user", "content": lesson.question}]
    if draws.random() < plan.history_share:
        earlier = next(lessons)
        messages = [
            {"role": "user", "content": earlier.question},
            {"role": "assistant", "content": earlier.answer_text},
            *messages,
        ]
    if draws.random() < plan.system_share:
        messages.insert(0, {"role": "system", "content": draws.choice(plan.system_prompts)})
    effort = draws.choice(plan.efforts) or None
    return Sample(encoder.encode(messages, thinking=thinking, effort=effort), lesson, thinking)


def _cycle(lessons: Sequence[Lesson], draws: random.Random) -> Iterator[Lesson]:
    """Yield the lessons for ever, every round in a new order."""
    while True:
        yield from draws.sample(lessons, len(lessons))
