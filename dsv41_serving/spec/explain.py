"""Say what one key of the node file means, what it is now, and why."""

from __future__ import annotations

import types
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from dsv41_serving.errors import InputError
from dsv41_serving.spec.load import DEFAULT, leaves
from dsv41_serving.spec.model import NodeSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.fields import FieldInfo

    from dsv41_serving.spec.load import LoadedSpec


@dataclass(frozen=True)
class KeyExplanation:
    """Everything known about one key. `value` is None for a table."""

    key: str
    meaning: str
    type: str
    default: str
    value: Any
    origin: str
    source: str
    status: str


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a merged node description."""
    return NodeSpec.model_json_schema()


def explain_key(loaded: LoadedSpec, key: str) -> KeyExplanation:
    """Explain the dotted `key`. Raises InputError when no such key exists."""
    field = _find_field(key.split("."))
    values = dict(leaves(loaded.spec.model_dump()))
    origin = loaded.origins.get(key, "")
    provenance = loaded.spec.provenance
    from_profile = origin.startswith("profile ")
    return KeyExplanation(
        key=key,
        meaning=field.description if field and field.description else "a flag passed to the engine as it stands",
        type=_type_name(field.annotation) if field else "flag value",
        default=_default_text(field),
        value=values.get(key),
        origin=origin or DEFAULT,
        source=find_source(provenance.sources, key) if from_profile else "",
        status=f"{provenance.status}" + (f" ({provenance.result})" if provenance.result else "")
        if from_profile
        else "",
    )


def find_source(sources: Mapping[str, str], key: str) -> str:
    """Return the source recorded for `key` or for the nearest table above it; '' when there is none."""
    parts = key.split(".")
    for length in range(len(parts), 0, -1):
        source = sources.get(".".join(parts[:length]))
        if source:
            return source
    return ""


def _find_field(path: list[str]) -> FieldInfo | None:
    """Walk the models along `path`; None below a free table (args, env)."""
    model: Any = NodeSpec
    field: FieldInfo | None = None
    for depth, part in enumerate(path):
        if isinstance(model, type) and issubclass(model, BaseModel):
            field = model.model_fields.get(part)
            if field is None:
                known = ", ".join(sorted(model.model_fields))
                where = ".".join(path[:depth]) or "the node file"
                raise InputError(f"there is no key '{'.'.join(path)}'", where=where, remedy=f"use one of: {known}")
            model = field.annotation
        else:
            model = _item_type(model)
            if not (isinstance(model, type) and issubclass(model, BaseModel)):
                field = None
    return field


def _item_type(annotation: Any) -> Any:
    arguments = typing.get_args(annotation)
    return arguments[1] if typing.get_origin(annotation) is dict else annotation


def _type_name(annotation: Any) -> str:
    """Write a type as the operator reads it: 'list of int or 'auto''."""
    arguments = typing.get_args(annotation)
    match typing.get_origin(annotation):
        case types.UnionType | typing.Union:
            name = " or ".join(_type_name(argument) for argument in arguments)
        case typing.Literal:
            name = " | ".join(repr(argument) for argument in arguments)
        case typing.Annotated:
            name = _type_name(arguments[0])
        case origin if origin is list:
            name = f"list of {_type_name(arguments[0])}"
        case origin if origin is dict:
            name = f"table of {_type_name(arguments[1])}"
        case _:
            name = "nothing" if annotation is type(None) else str(getattr(annotation, "__name__", annotation))
    return name


def _default_text(field: FieldInfo | None) -> str:
    if field is None:
        return ""
    if field.is_required():
        return "none, it must be set"
    value = field.get_default(call_default_factory=True)
    return "" if isinstance(value, BaseModel) else repr(value)
