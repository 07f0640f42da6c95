"""The counts and the verdict of the held-out check."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from dsv41_serving.embedded.decoding import Continuation, decode_greedily
from dsv41_serving.embedded.description import HeldOut, Thresholds
from dsv41_serving.embedded.held_out import SpecialIds, count_clean, count_closed, count_expected, judge, measure
from dsv41_serving.embedded.student import Sample, Student
from dsv41_serving.embedded.teacher import Lesson
from dsv41_serving.errors import Dsv41Error

if TYPE_CHECKING:
    from transformers import LlamaModel

END, THINK_END, USER = 2, 90, 91
IDS = SpecialIds(END, THINK_END, frozenset({1, END, THINK_END, USER}))


def text(*tokens: int) -> Continuation:
    """A text of these tokens."""
    return Continuation(list(tokens), torch.zeros(len(tokens), 1), ended=tokens[-1] == END)


@pytest.mark.parametrize(
    ("tokens", "clean"),
    [
        ((5, 6, END), True),
        ((5, 6), True),
        ((END,), False),
        ((5, USER, 6, END), False),
        ((5, THINK_END), False),
    ],
)
def test_clean_answers(tokens: tuple[int, ...], clean: bool) -> None:  # noqa: FBT001
    """An answer needs words and no special token inside; reaching the limit is not garbage."""
    assert count_clean([text(*tokens)], IDS) == clean


@pytest.mark.parametrize(
    ("tokens", "closed"),
    [
        ((5, THINK_END, 6, END), True),
        ((5, THINK_END, 6), True),
        ((5, 6, END), False),
        ((THINK_END, 6, END), False),
        ((5, THINK_END, END), False),
        ((5, THINK_END, 6, THINK_END, 7, END), False),
        ((5, USER, THINK_END, 6, END), False),
    ],
)
def test_closed_thoughts(tokens: tuple[int, ...], closed: bool) -> None:  # noqa: FBT001
    """A thought counts when words, one </think> and more words come, with nothing special between."""
    assert count_closed([text(*tokens)], IDS) == closed


def test_expected_words() -> None:
    """An answer is right when it contains one of the expected strings, whatever its case; others are not judged."""
    tokenizer = Tokenizer(
        models.WordLevel({"rome": 0, "paris": 1, "[unk]": 2}, unk_token="[unk]")  # noqa: S106  # a word
    )  # a word, not a password
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    prompts = [HeldOut(prompt="a", expect=("Rome", "Roma")), HeldOut(prompt="b", expect=("Rome",)), HeldOut(prompt="c")]
    assert count_expected([text(0), text(1), text(1)], prompts, tokenizer) == (1, 2)


THRESHOLDS = Thresholds(
    max_tokens=8,
    kl_answers_max=0.4,
    kl_share_max=0.5,
    thoughts_closed_min=0.8,
    answers_clean_min=0.9,
    answers_ended_min=0.7,
    answers_expected_min=0.6,
)
GOOD: dict[str, float | int] = {
    "kl_answers_initial": 1.0,
    "kl_answers": 0.2,
    "answers_clean": 1.0,
    "answers_ended": 0.8,
    "answers_expected": 0.7,
    "thoughts_closed": 0.9,
}


def test_a_good_model_passes() -> None:
    """Numbers at or above every threshold raise nothing."""
    judge(GOOD, THRESHOLDS, "toy")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"kl_answers": 0.45}, r"kl_answers 0\.45 \(max 0\.4\)"),
        ({"kl_answers": 0.3, "kl_answers_initial": 0.5}, r"kl_answers 0\.3 \(max 0\.25\)"),
        ({"thoughts_closed": 0.5}, r"thoughts_closed 0\.5 \(min 0\.8\)"),
        (
            {"answers_clean": 0.8, "answers_ended": 0.1},
            r"answers_clean 0\.8 \(min 0\.9\), answers_ended 0\.1 \(min 0\.7\)",
        ),
        ({"answers_expected": 0.0}, r"answers_expected 0\.0 \(min 0\.6\)"),
    ],
)
def test_a_missed_threshold_fails_the_preparation(change: dict[str, float], line: str) -> None:
    """The one line names the model, every missed number with its bound, and what to do."""
    with pytest.raises(Dsv41Error, match=rf"^toy: the held-out check missed {line}; report this line"):
        judge({**GOOD, **change}, THRESHOLDS, "toy")


class FakeEncoder:
    """Renders a question as its length, so that the tiny vocabulary suffices."""

    def encode(self, messages: list[dict[str, str]], *, thinking: bool) -> list[int]:
        """Return begin, the question's length and, without thinking, a token that stands for </think>."""
        return [1, len(messages[0]["content"])] + ([] if thinking else [39])


def test_measuring(tiny_network: LlamaModel, tiny_embeddings: torch.Tensor) -> None:
    """The manifest gets the divergence by the student's own account and shares of what it really writes."""
    end, think_end = 2, 39
    student = Student(
        tiny_network, tiny_embeddings, initial_rows={38: tiny_embeddings[4]}, end=end, think_end=think_end
    )
    texts = decode_greedily(
        tiny_network, tiny_embeddings, tiny_embeddings, [[9, 4], [9, 5], [9, 6], [9, 7]], stop=end, max_tokens=4
    )
    lessons = [Lesson("x" * (4 + i), texts[i], "", texts[2 + i]) for i in range(2)]
    encoder = FakeEncoder()
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(40)}, unk_token="w0"))  # noqa: S106  # a word
    embeddings, head = student.tables()
    written = decode_greedily(
        tiny_network,
        embeddings,
        head,
        [encoder.encode([{"content": lesson.question}], thinking=False) for lesson in lessons],
        stop=end,
        max_tokens=6,
    )
    ids = SpecialIds(end, think_end, frozenset({1, end, think_end}))
    found = measure(
        tiny_network,
        student,
        lessons,
        [
            HeldOut(prompt=lessons[0].question, expect=(f"w{written[0].tokens[0]}",)),
            HeldOut(prompt=lessons[1].question),
        ],
        initial=(3.0, 4.0),
        encoder=encoder,
        tokenizer=tokenizer,
        ids=ids,
        max_tokens=6,
    )
    answers = [
        student.compare(Sample(encoder.encode([{"content": each.question}], thinking=False), each, thinking=False))
        for each in lessons
    ]
    assert found["kl_answers"] == pytest.approx(sum(each.answer.item() for each in answers) / 2, abs=1e-3)
    assert (found["kl_answers_initial"], found["kl_thoughts_initial"], found["held_out_prompts"]) == (3.0, 4.0, 2)
    assert found["answers_expected"] == 1.0
    assert found["answers_clean"] == count_clean(written, ids) / 2
    assert found["answers_ended"] == sum(text.ended for text in written) / 2
