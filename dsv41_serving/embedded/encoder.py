"""Render conversations to token ids exactly as the server does: through SGLang's own use of deepseek_recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Message = Mapping[str, str]


class ConversationEncoder:
    """Encodes conversations for one tokenizer. Raises RuntimeError when a special token is not in its vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Attach the V4.1 encoder to `tokenizer`."""
        from sglang.srt.parser.deepseek_recipe_renderer import DeepSeekRecipe  # noqa: PLC0415  # seconds to import

        self._recipe = DeepSeekRecipe("dsv41", tokenizer)

    def encode(self, messages: Sequence[Message], *, thinking: bool, effort: int | None = None) -> list[int]:
        """Return the prompt ids, up to and including the token after which the model writes.

        `effort` is the reasoning budget, 1 to 100; None leaves the server's default (75). Ignored without `thinking`.
        """
        body = {"messages": [dict(message) for message in messages], "thinking": thinking}
        return cast("list[int]", self._recipe.encode(body, effort_budget=effort if thinking else None))
