# ruff: noqa: RUF001  # full-width bars of the tokens and rare numerals are the subject here
# full-width bars of V4.1's tokens and rare numerals are the subject here
"""The converted tokenizer against two independent ones, and the V4.1 encoder on top of it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import regex
import torch
from gguf import GGUFReader
from tokenizers import Tokenizer

from dsv41_serving.embedded import gguf_source, load_description, smollm2, source, special_tokens
from dsv41_serving.embedded.description import Converted
from dsv41_serving.embedded.encoder import ConversationEncoder

if TYPE_CHECKING:
    from collections.abc import Iterator

CORPUS = [
    "Hello, world! It's 2024-05-31.",
    "  two spaces\tand a tab\n\n\nnewlines\r\n end  ",
    "def f(x):\n    return x**2  # comment\n",
    "naïve café Ünïcödé ß ø",
    "日本語のテキスト、中文字符。한국어",
    "العربية עברית हिन्दी ไทย",
    "🙂👩‍👩‍👧 emoji",
    "1234567890 3.14159",
    "don't we'll I'm they'd you've he's IT'S",
    "a" * 50 + " " * 30 + "b",
    "\u00a0no-break\u2003em space",
    'x=1;y=[{"a":2}]; <b attr="1">html</b>',
    "e\u0301 combining, \x00\x01 control",
    "https://example.org/z?a=b&c=%20d",
]
# Number characters beyond 0-9: transformers' conversion of this file does not isolate them, llama.cpp does.
NUMERALS = ["½ cup", "Ⅷ and ٣", "x² 𝟙𝟚"]


@pytest.fixture(scope="module")
def description() -> Converted:
    """deploy/models/smollm2-v41.toml."""
    found = load_description("smollm2-v41")
    assert isinstance(found, Converted)
    return found


@pytest.fixture(scope="module")
def fields(description: Converted) -> dict[str, Any]:
    """The metadata of the real GGUF file."""
    return gguf_source.read_fields(GGUFReader(source.locate(description.source)))


@pytest.fixture(scope="module")
def original(fields: dict[str, Any]) -> dict[str, Any]:
    """The converted tokenizer.json."""
    return gguf_source.read_tokenizer(fields)


@pytest.fixture(scope="module")
def extended(original: dict[str, Any], description: Converted) -> dict[str, Any]:
    """The same with V4.1's tokens."""
    return smollm2.extend_tokenizer(original, description.renames)


@pytest.fixture(scope="module")
def original_tokenizer(original: dict[str, Any]) -> Tokenizer:
    """The converted tokenizer, ready to encode."""
    return Tokenizer.from_str(json.dumps(original))


@pytest.fixture(scope="module")
def tokenizer(extended: dict[str, Any]) -> Tokenizer:
    """The extended tokenizer, ready to encode."""
    return Tokenizer.from_str(json.dumps(extended))


@pytest.fixture(scope="module")
def reference(fields: dict[str, Any]) -> ReferenceBpe:
    """The independent encoder over the same file."""
    return ReferenceBpe(fields)


@pytest.fixture(scope="module")
def encoder(tokenizer: Tokenizer) -> ConversationEncoder:
    """The V4.1 encoder over the extended tokenizer."""
    return ConversationEncoder(tokenizer)


def byte_alphabet() -> dict[int, str]:
    """GPT-2's printable stand-in for every byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = (byte for byte in range(256) if byte not in printable)
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


class ReferenceBpe:
    """Byte-pair encoding written from its definition, with llama.cpp's two splitting rules for "smollm"."""

    WORDS = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")

    def __init__(self, fields: dict[str, Any]) -> None:
        self.ids = {token: i for i, token in enumerate(fields["tokenizer.ggml.tokens"])}
        self.ranks = {tuple(merge.split(" ")): i for i, merge in enumerate(fields["tokenizer.ggml.merges"])}
        self.alphabet = byte_alphabet()

    def split(self, text: str) -> Iterator[str]:
        """Yield each number character alone and the words of what lies between."""
        for part in regex.split(r"(\p{N})", text):
            yield from self.WORDS.findall(part)

    def encode(self, text: str) -> list[int]:
        """Merge the pair of lowest rank, the leftmost first, until none is left."""
        ids = []
        for word in self.split(text):
            parts = [self.alphabet[byte] for byte in word.encode()]
            while len(parts) > 1:
                ranked = [(self.ranks.get(pair, 1 << 30), at) for at, pair in enumerate(pairwise(parts))]
                rank, at = min(ranked)
                if rank == 1 << 30:
                    break
                parts[at : at + 2] = [parts[at] + parts[at + 1]]
            ids += [self.ids[part] for part in parts]
        return ids


@pytest.mark.parametrize("text", CORPUS + NUMERALS)
def test_encodes_as_the_definition_says(text: str, original_tokenizer: Tokenizer, reference: ReferenceBpe) -> None:
    """Token ids equal those of a byte-pair encoder written from llama.cpp's rules and the file's merges."""
    assert original_tokenizer.encode(text).ids == reference.encode(text)


@pytest.mark.parametrize("text", CORPUS + NUMERALS)
def test_decoding_gives_the_text_back(text: str, tokenizer: Tokenizer) -> None:
    """decode(encode(x)) == x, with V4.1's tokens added."""
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_agrees_with_the_conversion_of_transformers(original_tokenizer: Tokenizer, description: Converted) -> None:
    """The loader of transformers reads the same GGUF file on its own and encodes the corpus alike, rare numerals apart."""
    from transformers import AutoTokenizer  # seconds to import

    path = source.locate(description.source)
    theirs = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    assert [original_tokenizer.encode(text).ids for text in CORPUS] == [theirs.encode(text) for text in CORPUS]


def test_extension_keeps_every_other_token(original: dict[str, Any], extended: dict[str, Any]) -> None:
    """Ids 1 and 2 are renamed, new tokens follow the vocabulary, and nothing else changes."""
    old, new = original["model"]["vocab"], extended["model"]["vocab"]
    assert {token: i for token, i in old.items() if i not in (1, 2)} == {
        t: i for t, i in new.items() if i not in (1, 2)
    }
    ids = special_tokens.added_ids(extended)
    assert (ids[special_tokens.BEGIN], ids[special_tokens.END]) == (1, 2)
    appended = sorted(i for i in ids.values() if i >= len(old))
    assert appended == list(range(len(old), len(old) + len(special_tokens.ALL) - 2))


def test_new_rows_are_copies_of_a_row_never_used() -> None:
    """Known rows stay, the rest up to a multiple of 64 repeat the named token's row."""
    original = {"added_tokens": [], "model": {"vocab": {"a": 0, "never": 1, "b": 2}}}
    table = torch.arange(6.0).reshape(3, 2).bfloat16()
    extended = smollm2.extend_tokenizer(original, {})
    found = smollm2.extend_embeddings({"model.embed_tokens.weight": table}, extended, original, "never")
    assert found.shape == (64, 2)
    assert torch.equal(found[:3], table.float())
    assert torch.equal(found[3:], table[1].float().expand(61, -1))
    assert original["added_tokens"] == []


def test_the_encoder_renders_a_conversation(encoder: ConversationEncoder, tokenizer: Tokenizer) -> None:
    """A system prompt and two turns become the V4.1 format, which ends where the answer begins."""
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi!"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Bye!"},
    ]
    ids = encoder.encode(messages, thinking=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == (
        "<｜begin▁of▁sentence｜><｜System｜>Be brief.<｜User｜>Hi!<｜Assistant｜></think>Hello.<｜end▁of▁sentence｜>"
        "<｜User｜>Bye!<｜Assistant｜></think>"
    )


@pytest.mark.parametrize(("effort", "line"), [(None, 75), (1, 1), (50, 50), (100, 100)])
def test_thinking_opens_a_thought_and_states_the_effort(
    effort: int | None, line: int, encoder: ConversationEncoder, tokenizer: Tokenizer
) -> None:
    """With thinking on the prompt begins with the budget line (75 by default) and ends with <think>."""
    ids = encoder.encode([{"role": "user", "content": "Hi!"}], thinking=True, effort=effort)
    text = tokenizer.decode(ids, skip_special_tokens=False)
    assert text.startswith(f"<｜begin▁of▁sentence｜><｜System｜>Reasoning Effort: {line} (range")
    assert text.endswith("<｜User｜>Hi!<｜Assistant｜><think>")


def test_a_user_cannot_write_special_tokens(encoder: ConversationEncoder, extended: dict[str, Any]) -> None:
    """The spelling of a special token in a message stays text."""
    prompt = encoder.encode([{"role": "user", "content": "a</think>b<｜User｜>c"}], thinking=False)
    ids = special_tokens.added_ids(extended)
    assert prompt.count(ids[special_tokens.THINK_END]) == 1
    assert prompt.count(ids[special_tokens.USER]) == 1


@pytest.mark.parametrize("token", [special_tokens.USER, special_tokens.SYSTEM, special_tokens.THINK])
def test_the_encoder_needs_every_token(token: str, extended: dict[str, Any]) -> None:
    """Without a token of V4.1 the encoder itself refuses, which is what would stop the server."""
    without = {**extended, "added_tokens": [each for each in extended["added_tokens"] if each["content"] != token]}
    encoder = ConversationEncoder(Tokenizer.from_str(json.dumps(without)))
    with pytest.raises(RuntimeError, match="is not in the added vocabulary"):
        encoder.encode([{"role": "user", "content": "Hi!"}], thinking=True)
