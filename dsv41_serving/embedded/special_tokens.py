"""The special tokens of DeepSeek-V4.1 and the surgery that gives them to another model's tokenizer.

The spellings are those of deepseek_recipe 0.2.0 as SGLang 0.5.23 configures it (its image token is the checkpoint's
`<｜deepseek_image｜>`) and SGLang's own task tokens. The token ids of the real V4.1 tokenizer are unknown: the ids that
arise here belong to the embedded models alone.
"""

from __future__ import annotations

# ruff: noqa: RUF001, RUF002  # the tokens are spelt with full-width bars
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

BEGIN: Final = "<｜begin▁of▁sentence｜>"
END: Final = "<｜end▁of▁sentence｜>"
PAD: Final = "<｜▁pad▁｜>"
SYSTEM: Final = "<｜System｜>"
USER: Final = "<｜User｜>"
ASSISTANT: Final = "<｜Assistant｜>"
THINK: Final = "<think>"
THINK_END: Final = "</think>"
LATEST_REMINDER: Final = "<｜latest_reminder｜>"
DSML: Final = "｜DSML｜"
IMAGE: Final = "<｜deepseek_image｜>"

TASKS: Final = ("<｜action｜>", "<｜query｜>", "<｜authority｜>", "<｜domain｜>", "<｜title｜>", "<｜read_url｜>")
GROUNDING: Final = (
    "<｜ref｜>",
    "<｜/ref｜>",
    "<｜box｜>",
    "<｜/box｜>",
    "<｜point｜>",
    "<｜/point｜>",
    "<｜polygon｜>",
    "<｜/polygon｜>",
)

# Without one of these, SGLang refuses to start or a request of a kind the contract promises fails with 400.
REQUIRED: Final = (
    BEGIN,
    END,
    SYSTEM,
    USER,
    ASSISTANT,
    THINK,
    THINK_END,
    LATEST_REMINDER,
    DSML,
    IMAGE,
)
ALL: Final = (*REQUIRED, PAD, *TASKS, *GROUNDING)

# Dropped from text when a server skips special tokens; the rest are markup that the output parser reads.
_CONTROL: Final = frozenset({BEGIN, END, PAD})

# The form of a tokenizer.json file: nested JSON objects, read and written by the `tokenizers` library.
TokenizerJson = dict[str, Any]


def added_ids(tokenizer: Mapping[str, Any]) -> dict[str, int]:
    """Return spelling → id of the added vocabulary of a parsed tokenizer.json."""
    return {token["content"]: token["id"] for token in tokenizer["added_tokens"]}


def add_special_tokens(tokenizer: TokenizerJson, renames: Mapping[str, str], first_new_id: int) -> None:
    """Give `tokenizer` every token of `ALL`, in place.

    `renames` maps an existing token's spelling to the special token that takes its id (the model then keeps what it
    learned about that id). Tokens that are neither present nor renamed are appended from `first_new_id` on, in the
    order of `ALL`. Raises KeyError when a token to rename does not exist, ValueError when an id is already taken.
    """
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    entries = {token["content"]: token for token in tokenizer["added_tokens"]}
    for old, new in renames.items():
        if new in entries or new in vocabulary:
            raise ValueError(f"the tokenizer already has {new!r}; renaming {old!r} would make it ambiguous")
        token_id = entries[old]["id"] if old in entries else vocabulary[old]
        entry = _entry(token_id, new)
        if old in entries:
            tokenizer["added_tokens"][tokenizer["added_tokens"].index(entries.pop(old))] = entry
        else:
            tokenizer["added_tokens"].append(entry)
        entries[new] = entry
        if old in vocabulary:
            del vocabulary[old]
            vocabulary[new] = token_id
    next_id = first_new_id
    taken = set(vocabulary.values()) | {entry["id"] for entry in entries.values()}
    for spelling in ALL:
        if spelling in entries:
            continue
        if next_id in taken:
            raise ValueError(
                f"id {next_id} for {spelling!r} is already taken; first_new_id must lie above the vocabulary"
            )
        tokenizer["added_tokens"].append(_entry(next_id, spelling))
        next_id += 1
    tokenizer["added_tokens"].sort(key=lambda token: token["id"])


def _entry(token_id: int, spelling: str) -> dict[str, object]:
    return {
        "id": token_id,
        "content": spelling,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": spelling in _CONTROL,
    }
