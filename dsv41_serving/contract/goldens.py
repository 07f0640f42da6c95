"""The golden encodings: conversations under `deploy/contract/encodings/`, each with the exact prompt the V4.1 encoder makes of it.

A case is a file with `about` and `request`; `dsv41 contract goldens --write` adds the rest. A change of encoder or tokenizer
is then a diff a person can read.
"""

from __future__ import annotations

import difflib
import json
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dsv41_serving.errors import InputError
from dsv41_serving.resources import data_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from dsv41_serving.contract.encoder import Encoder, Encoding

TOKENIZER_MODEL = "smollm2-v41"
TOKENIZER_NOTE = f"{TOKENIZER_MODEL}: ids of the embedded model, not DeepSeek's"
_CONTEXT_LINES = 1
_CONTEXT_TOKENS = 4


class Golden(BaseModel):
    """One conversation and what becomes of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(exclude=True)
    about: str
    """What the case is there to show."""
    request: dict[str, Any]
    """The body a client sends, without model and sampling."""
    images: bool = False
    """Whether the conversation has images: an engine that takes text alone must refuse it."""
    refused: str = ""
    """The encoder's reason, when it does not accept the conversation."""
    tokenizer: str = TOKENIZER_NOTE
    prompt: tuple[str, ...] = ()
    """Lines of the prompt, each with its line end."""
    token_ids: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """The prompt."""
        return "".join(self.prompt)


def directory() -> Path:
    """Return where the golden encodings lie."""
    return data_dir("deploy") / "contract" / "encodings"


def read_goldens(folder: Path | None = None) -> list[Golden]:
    """Return every case by name. Raises InputError for a file that is not one."""
    found = []
    for path in sorted((folder or directory()).glob("*.json")):
        try:
            found.append(Golden.model_validate({"name": path.stem, **json.loads(path.read_text(encoding="utf-8"))}))
        except (ValueError, ValidationError) as error:
            problem = " ".join(str(error).split())
            raise InputError(
                f"is not a golden encoding ({problem[:200]})",
                where=str(path),
                remedy='it needs "about" and "request"; `dsv41 contract goldens --write` adds the rest',
            ) from None
    return found


def encode_golden(golden: Golden, encoder: Encoder) -> Golden:
    """Return the case with what `encoder` makes of it, under the contract's defaults: thinking on, no effort named."""
    from dsv41_serving.contract.encoder import RefusedError  # noqa: PLC0415 - reading needs no encoder

    try:
        encoding = encoder.encode(golden.request)
    except RefusedError as error:
        return golden.model_copy(
            update={"refused": str(error), "prompt": (), "token_ids": (), "tokenizer": TOKENIZER_NOTE}
        )
    return golden.model_copy(
        update={
            "refused": "",
            "prompt": tuple(encoding.prompt.splitlines(keepends=True)),
            "token_ids": encoding.token_ids,
            "tokenizer": TOKENIZER_NOTE,
        }
    )


def write_goldens(goldens: Sequence[Golden], encoder: Encoder, folder: Path) -> list[Path]:
    """Write every case as `encoder` has it now; return the files that changed."""
    changed = []
    for golden in goldens:
        path = folder / f"{golden.name}.json"
        text = _as_json(encode_golden(golden, encoder))
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            changed.append(path)
    return changed


def compare(golden: Golden, seen: Encoding, spell: Callable[[int], str], *, by: str) -> list[str]:
    """Return the lines of a diff between the file and `seen`, what `by` makes of the conversation; none when equal.

    `spell` gives the text of one token id. Raises nothing for a refused case: its prompt is empty.
    """
    lines = list(
        difflib.unified_diff(
            golden.prompt,
            seen.prompt.splitlines(keepends=True),
            f"{golden.name}.json",
            by,
            n=_CONTEXT_LINES,
        )
    )
    text = [line.rstrip("\n") for line in lines]
    if golden.token_ids != seen.token_ids:
        text.append(_describe_tokens(golden.token_ids, seen.token_ids, spell, by))
    return text


def compare_with_encoder(golden: Golden, encoder: Encoder) -> list[str]:
    """Return the diff between the file and what `encoder` makes of the conversation now; none when equal."""
    from dsv41_serving.contract.encoder import Encoding  # noqa: PLC0415 - reading needs no encoder

    now = encode_golden(golden, encoder)
    if now.refused != golden.refused:
        return [
            f"{golden.name}: refused {golden.refused or 'no'!r} in the file, {now.refused or 'no'!r} by the encoder"
        ]
    return compare(golden, Encoding(now.text, now.token_ids), encoder.spell, by="encoder")


def _describe_tokens(expected: tuple[int, ...], seen: tuple[int, ...], spell: Callable[[int], str], by: str) -> str:
    at = next(
        (i for i, pair in enumerate(zip(expected, seen, strict=False)) if pair[0] != pair[1]),
        min(len(expected), len(seen)),
    )

    def around(ids: tuple[int, ...]) -> str:
        return " ".join(f"{i}={spell(i)!r}" for i in ids[at : at + _CONTEXT_TOKENS]) or "the end"

    return f"tokens differ from number {at} on ({len(expected)} in the file, {len(seen)} by {by}): file {around(expected)}; {by} {around(seen)}"


@cache
def embedded_encoder() -> Encoder:
    """Return the encoder over the embedded model's tokenizer, read from the package that ships it; no model is needed."""
    from gguf import GGUFReader  # noqa: PLC0415 - with torch, seconds of imports

    from dsv41_serving.contract.encoder import Encoder  # noqa: PLC0415
    from dsv41_serving.embedded import gguf_source, load_description, source, special_tokens  # noqa: PLC0415
    from dsv41_serving.embedded.description import Converted  # noqa: PLC0415

    description = load_description(TOKENIZER_MODEL)
    if not isinstance(description, Converted):
        raise InputError(f"{TOKENIZER_MODEL} is not a converted model", remedy="restore deploy/models/")
    tokenizer = gguf_source.read_tokenizer(gguf_source.read_fields(GGUFReader(source.locate(description.source))))
    special_tokens.add_special_tokens(tokenizer, description.renames, first_new_id=len(tokenizer["model"]["vocab"]))
    return Encoder(json.dumps(tokenizer))


def _as_json(golden: Golden) -> str:
    """Return the file of a case: indented, but the token ids on one line."""
    values = golden.model_dump(mode="json", exclude_defaults=True)
    values["tokenizer"] = golden.tokenizer
    ids = values.pop("token_ids", None)
    text = json.dumps(values, indent=1, ensure_ascii=False)
    if ids is not None:
        text = f'{text.removesuffix("}").rstrip()},\n "token_ids": {json.dumps(ids)}\n}}'
    return text + "\n"
