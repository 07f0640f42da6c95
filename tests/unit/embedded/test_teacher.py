"""The teacher's ChatML context and the lessons it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers import Tokenizer, models, pre_tokenizers

from dsv41_serving.embedded.decoding import decode_greedily
from dsv41_serving.embedded.description import Teacher, Turn
from dsv41_serving.embedded.teacher import render_chatml, write_lessons

if TYPE_CHECKING:
    import torch
    from transformers import LlamaModel

TEACHER = Teacher(system="s", turns=(Turn(user="a", assistant="b"),), max_tokens=3)


def test_chatml() -> None:
    """System prompt, worked turns and the question, ending where the reply begins."""
    assert render_chatml(TEACHER, "q") == (
        "<|im_start|>system\ns<|im_end|>\n"
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    )


def test_lessons_are_the_models_own_words(tiny_network: LlamaModel, tiny_embeddings: torch.Tensor) -> None:
    """Each question gets what the network writes after the answering and after the thinking context."""
    words = {"[unk]": 0, "s": 4, "t": 5, "a": 6, "b": 7, "q": 8, "r": 9}
    words |= {f"w{i}": i for i in range(10, 40)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[unk]"))  # noqa: S106  # a word
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    thinker = TEACHER.model_copy(update={"system": "t", "max_tokens": 2})
    reported: list[str] = []
    lessons = write_lessons(
        tiny_network,
        tiny_embeddings,
        tokenizer,
        ["q", "r"],
        stop=2,
        answers=TEACHER,
        thoughts=thinker,
        report=reported.append,
    )
    assert [lesson.question for lesson in lessons] == ["q", "r"]
    assert reported == ["teacher texts 2/4", "teacher texts 4/4"]
    for lesson in lessons:
        for text, teacher in ((lesson.answer, TEACHER), (lesson.thought, thinker)):
            prompt = tokenizer.encode(render_chatml(teacher, lesson.question)).ids
            alone = decode_greedily(
                tiny_network, tiny_embeddings, tiny_embeddings, [prompt], stop=2, max_tokens=teacher.max_tokens
            )
            assert text.tokens == alone[0].tokens
        assert lesson.answer_text == tokenizer.decode(lesson.answer.tokens)
