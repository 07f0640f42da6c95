"""SmolLM2-135M-Instruct with DeepSeek-V4.1's chat tokens: a toy model on the real contract."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from gguf import GGUFReader
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaModel

from dsv41_serving.embedded import gguf_source, held_out, source, special_tokens
from dsv41_serving.embedded.distill import distill
from dsv41_serving.embedded.encoder import ConversationEncoder
from dsv41_serving.embedded.model_directory import write_model_directory
from dsv41_serving.embedded.parallel import one_core_per_operation
from dsv41_serving.embedded.student import Student
from dsv41_serving.embedded.teacher import write_lessons

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from dsv41_serving.embedded.description import Converted
    from dsv41_serving.embedded.special_tokens import TokenizerJson

_VOCABULARY_MULTIPLE = 64  # divides evenly over any tensor-parallel group of one node


def build(description: Converted, directory: Path, report: Callable[[str], None]) -> dict[str, float | int]:
    """Write the model into `directory` and return the numbers of its held-out check.

    Raises Dsv41Error when the check misses a threshold, InputError when the source package is not as pinned.
    """
    with one_core_per_operation():
        return _build(description, directory, report)


def _build(description: Converted, directory: Path, report: Callable[[str], None]) -> dict[str, float | int]:
    report("reading the source weights")
    path = source.locate(description.source)
    reader = GGUFReader(path)
    fields = gguf_source.read_fields(reader)
    config = gguf_source.read_config(fields, path)
    original = gguf_source.read_tokenizer(fields)
    report("converting weights")
    weights = gguf_source.read_weights(reader, config)
    tokenizer = extend_tokenizer(original, description.renames)
    embeddings = extend_embeddings(weights, tokenizer, original, description.unused_token)
    network = _load_network(config, weights)
    student, check = _teach(description, network, embeddings, original, tokenizer, report=report)
    held_out.judge(check, description.thresholds, description.name)
    report("writing the model")
    rows, head = student.tables()
    weights["model.embed_tokens.weight"], weights["lm_head.weight"] = rows.bfloat16(), head.bfloat16()
    write_model_directory(
        directory,
        config={**config, "vocab_size": len(embeddings), "tie_word_embeddings": False},
        weights=weights,
        tokenizer=tokenizer,
        sampling=description.sampling,
    )
    return check


def extend_tokenizer(original: TokenizerJson, renames: Mapping[str, str]) -> TokenizerJson:
    """Return a copy of `original` with every V4.1 token, renamed or appended after its vocabulary."""
    tokenizer: TokenizerJson = json.loads(json.dumps(original))
    special_tokens.add_special_tokens(tokenizer, renames, first_new_id=len(original["model"]["vocab"]))
    return tokenizer


def extend_embeddings(
    weights: Mapping[str, torch.Tensor], tokenizer: TokenizerJson, original: TokenizerJson, unused_token: str
) -> torch.Tensor:
    """Return the embedding table [padded vocabulary, hidden] in fp32, new rows equal to the never-used token's.

    As output rows they then have the logit of a token that the model never writes.
    """
    table = weights["model.embed_tokens.weight"].float()
    size = 1 + max(special_tokens.added_ids(tokenizer).values())
    padded = -(-size // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE
    unused = table[original["model"]["vocab"][unused_token]]
    return torch.cat([table, unused.expand(padded - len(table), -1)])


def _load_network(config: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> LlamaModel:
    """Return the transformer in fp32, frozen. fp32, because not every processor multiplies bf16 quickly."""
    network = LlamaModel(LlamaConfig(**{**config, "torch_dtype": "float32"}))
    prefix = "model."
    network.load_state_dict(
        {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}
    )
    network.train(mode=False)
    network.requires_grad_(requires_grad=False)
    return network


def _teach(
    description: Converted,
    network: LlamaModel,
    embeddings: torch.Tensor,
    original: TokenizerJson,
    tokenizer: TokenizerJson,
    *,
    report: Callable[[str], None],
) -> tuple[Student, dict[str, float | int]]:
    chatml, v41 = Tokenizer.from_str(json.dumps(original)), Tokenizer.from_str(json.dumps(tokenizer))
    encoder = ConversationEncoder(v41)
    ids = special_tokens.added_ids(tokenizer)
    end, think_end = ids[special_tokens.END], ids[special_tokens.THINK_END]
    student = Student(
        network,
        embeddings,
        initial_rows={
            ids[token]: torch.stack([embeddings[chatml.encode(piece).ids[0]] for piece in pieces]).mean(0)
            for token, pieces in description.initial_rows.items()
        },
        end=end,
        think_end=think_end,
    )
    questions = [*description.training_prompts, *(each.prompt for each in description.held_out)]
    lessons = write_lessons(
        network,
        embeddings,
        chatml,
        questions,
        stop=end,
        answers=description.answers,
        thoughts=description.thoughts,
        report=report,
    )
    training, unseen = lessons[: len(description.training_prompts)], lessons[len(description.training_prompts) :]
    initial = held_out.compare_held_out(student, unseen, encoder)
    distill(student, training, encoder, description.distillation, report)
    report("held-out check")
    check = held_out.measure(
        network,
        student,
        unseen,
        description.held_out,
        initial=initial,
        encoder=encoder,
        tokenizer=v41,
        ids=held_out.SpecialIds(end, think_end, frozenset(ids.values())),
        max_tokens=description.thresholds.max_tokens,
    )
    return student, check
