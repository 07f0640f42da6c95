"""What the student compares with the teacher, and what of it may learn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from dsv41_serving.embedded.decoding import decode_greedily
from dsv41_serving.embedded.student import Sample, Student
from dsv41_serving.embedded.teacher import Lesson

if TYPE_CHECKING:
    from transformers import LlamaModel

END, THINK_END, USER = 2, 39, 38


@pytest.fixture
def lesson(tiny_network: LlamaModel, tiny_embeddings: torch.Tensor) -> Lesson:
    """What the tiny network says and thinks about two prompts."""
    answer, thought = decode_greedily(
        tiny_network, tiny_embeddings, tiny_embeddings, [[5, 6, 7], [8, 9, 10]], stop=END, max_tokens=5
    )
    return Lesson("a question", answer, "an answer", thought)


@pytest.fixture
def student(tiny_network: LlamaModel, tiny_embeddings: torch.Tensor) -> Student:
    """Two rows learn, started beside two others."""
    return Student(
        tiny_network,
        tiny_embeddings,
        initial_rows={USER: tiny_embeddings[4] + 0.1, THINK_END: tiny_embeddings[6] - 0.1},
        end=END,
        think_end=THINK_END,
    )


def divergence_by_definition(
    network: LlamaModel, student: Student, prompt: list[int], words: list[int], teacher: torch.Tensor
) -> float:
    """Mean over `words` of sum p log(p/q); `teacher` is p, [len(words), vocabulary]."""
    rows, head = student._frozen.clone(), student._head.clone()
    for token, row in zip(student._row_ids, student.rows.detach(), strict=True):
        rows[token] = row
    head[THINK_END] = student.think_end_row.detach()
    states = network(inputs_embeds=rows[prompt + words][None]).last_hidden_state[0]
    total = 0.0
    for i in range(len(words)):
        q = (head @ states[len(prompt) - 1 + i]).softmax(-1)
        p = teacher[i]
        total += float(sum(p[v] * (p[v].log() - q[v].log()) for v in range(len(p)) if p[v] > 0))
    return total / len(words)


def test_divergence_of_an_answer(student: Student, lesson: Lesson, tiny_network: LlamaModel) -> None:
    """With thinking off it is the mean KL divergence along the teacher's answer after the V4.1 prompt."""
    prompt = [1, USER, 12, THINK_END]
    teacher = (lesson.answer.states @ student._head.T).softmax(-1)
    found = student.compare(Sample(prompt, lesson, thinking=False))
    expected = divergence_by_definition(tiny_network, student, prompt, lesson.answer.tokens, teacher)
    assert found.answer.item() == pytest.approx(expected, rel=1e-3)
    assert found.thought.item() == 0


def test_divergence_with_thinking(student: Student, lesson: Lesson, tiny_network: LlamaModel) -> None:
    """A thought comes first; where the teacher would end it, the target closes it, and the answer follows."""
    prompt = [1, USER, 12]
    thought = [THINK_END if token == END else token for token in lesson.thought.tokens]
    teacher = (lesson.thought.states @ student._head.T).softmax(-1)
    teacher[:, THINK_END] += teacher[:, END]
    teacher[:, END] = 0
    found = student.compare(Sample(prompt, lesson, thinking=True))
    assert found.thought.item() == pytest.approx(
        divergence_by_definition(tiny_network, student, prompt, thought, teacher), rel=1e-3
    )
    answer = (lesson.answer.states @ student._head.T).softmax(-1)
    assert found.answer.item() == pytest.approx(
        divergence_by_definition(tiny_network, student, prompt + thought, lesson.answer.tokens, answer), rel=1e-3
    )


def test_only_the_rows_learn(student: Student, lesson: Lesson, tiny_network: LlamaModel) -> None:
    """A gradient reaches the learned rows and no weight of the network."""
    loss = student.compare(Sample([1, USER, 12], lesson, thinking=True))
    (loss.answer + loss.thought).backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in student.parameters())
    assert all(parameter.grad is None for parameter in tiny_network.parameters())


def test_tables_change_the_learned_rows_alone(student: Student, tiny_embeddings: torch.Tensor) -> None:
    """The stored tables are the teacher's but for the learned rows, which can be rounded to bf16."""
    student.round_rows()
    rows, head = student.tables()
    kept = [token for token in range(len(rows)) if token not in (USER, THINK_END)]
    assert torch.equal(rows[kept], tiny_embeddings[kept])
    assert torch.equal(rows[USER], (tiny_embeddings[4] + 0.1).bfloat16().float())
    assert torch.equal(head[THINK_END], (tiny_embeddings[END] / 2).bfloat16().float())
    assert torch.equal(head[:THINK_END], tiny_embeddings[:THINK_END])
