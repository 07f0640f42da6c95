"""Make the model write a given text: a grammar that allows nothing else.

A toy model cannot be talked into two parallel calls with 400 characters of arguments, and a large one cannot be relied on
to make them. What follows from the text (parsing, streaming, no markup in content) is the contract all the same.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dsv41_serving.embedded.special_tokens import DSML

if TYPE_CHECKING:
    from collections.abc import Mapping

# V4.1's markup for calls, as deepseek_recipe 0.2.0 renders it in a prompt with tools.
_BLOCK = "\n\n<{d} calls>\n{calls}</{d} calls>"
_CALL = '<{d} invoke name="{name}">\n{parameters}</{d} invoke>\n'
_PARAMETER = '<{d} parameter name="{name}" string="{is_text}">{value}</{d} parameter>\n'


def dictate(text: str) -> dict[str, str]:
    """Return the request field that lets the model write `text` and nothing else."""
    return {"ebnf": f"root ::= {json.dumps(text, ensure_ascii=False)}"}


def write_calls(*calls: tuple[str, Mapping[str, Any]]) -> str:
    """Return the markup of `calls`, each a tool's name and its arguments."""
    written = "".join(
        _CALL.format(
            d=DSML,
            name=name,
            parameters="".join(
                _PARAMETER.format(
                    d=DSML,
                    name=key,
                    is_text="true" if isinstance(value, str) else "false",
                    value=value if isinstance(value, str) else json.dumps(value, ensure_ascii=False),
                )
                for key, value in arguments.items()
            ),
        )
        for name, arguments in calls
    )
    return _BLOCK.format(d=DSML, calls=written)
