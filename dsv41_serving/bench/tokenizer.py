"""The tokenizer of the served model, read without the model's config.json, which transformers need not know."""

from __future__ import annotations

import tempfile
from pathlib import Path

from dsv41_serving.bench.scenario import Words
from dsv41_serving.errors import InputError

_CONFIG = "config.json"
_WEIGHTS = frozenset({".safetensors", ".bin", ".pt"})


def link_tokenizer(model: Path, place: Path) -> Path:
    """Return a directory of the name of `model` below `place` that holds links to its files but for config.json and weights.

    AutoTokenizer reads a config.json that lies beside the tokenizer, and transformers 5 fails on that of an architecture it does
    not know when it names YaRN scaling, as V4.1's does. Raises InputError when there is no tokenizer.json in `model`.
    """
    if not (model / "tokenizer.json").is_file():
        raise InputError("no tokenizer there (tokenizer.json)", where=str(model), remedy="start the deployment once")
    directory = place / model.name
    directory.mkdir(parents=True, exist_ok=True)
    for file in model.iterdir():
        link = directory / file.name
        if file.is_file() and file.name != _CONFIG and file.suffix not in _WEIGHTS and not link.is_symlink():
            link.symlink_to(file.resolve())
    return directory


def load_words(model: str | Path) -> Words:
    """Return the words of the tokenizer in directory `model`. Raises InputError when it cannot be loaded."""
    from transformers import AutoTokenizer  # noqa: PLC0415 - seconds, and only here

    with tempfile.TemporaryDirectory(prefix="dsv41-tokenizer-") as place:
        directory = link_tokenizer(Path(model), Path(place))
        try:
            found = AutoTokenizer.from_pretrained(str(directory))
        except Exception as error:  # noqa: BLE001 - what a broken file trips transformers over has any type
            line = (str(error).splitlines() or [type(error).__name__])[0]
            raise InputError(
                f"the tokenizer cannot be read ({line})",
                where=str(model),
                remedy="compare its files with the manifest: dsv41 model --hashes",
            ) from None
    special = set(found.all_special_tokens)
    tokens = [token for token in found.convert_ids_to_tokens(list(range(len(found)))) if token not in special]
    # Byte-level vocabularies write a blank as U+0120, SentencePiece as U+2581.
    return Words(
        lambda text: list(found.encode(text)), (token.replace("\u0120", " ").replace("\u2581", " ") for token in tokens)
    )
