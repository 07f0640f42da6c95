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
    path = key.split(".")
    meaning, annotation, field = _describe(path)
    if path[0] == "engines" and len(path) > 1 and path[1] not in loaded.spec.engines:
        known = ", ".join(loaded.spec.engines)
        raise InputError(f"there is no engine '{path[1]}'", where="engines", remedy=f"use one of: {known}")
    is_set = any(known == key or known.startswith(f"{key}.") for known in loaded.origins)
    origin = loaded.find_origin(key) if is_set else DEFAULT
    provenance = loaded.spec.provenance
    from_profile = origin.startswith("profile ")
    return KeyExplanation(
        key=key,
        meaning=meaning,
        type=_type_name(annotation),
        default=_default_text(field),
        value=dict(leaves(loaded.spec.model_dump())).get(key),
        origin=origin,
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


def _describe(path: list[str]) -> tuple[str, Any, FieldInfo | None]:
    """Walk the models along `path`; return meaning, type and field. An entry of a free table (args, env) has no field."""
    meaning, annotation, field = "", NodeSpec, None  # type: str, Any, FieldInfo | None
    for depth, part in enumerate(path):
        where = ".".join(path[:depth])
        if _is_table(annotation):
            field = annotation.model_fields.get(part)
            if field is None:
                raise InputError(
                    f"there is no key '{'.'.join(path)}'",
                    where=where or "the node file",
                    remedy=f"use one of: {', '.join(sorted(annotation.model_fields))}",
                )
            meaning, annotation = field.description or "", field.annotation
        elif typing.get_origin(annotation) is dict:
            meaning, annotation, field = f"Entry of {where}. {meaning}", typing.get_args(annotation)[1], None
        else:
            raise InputError(
                f"there is no key '{'.'.join(path)}'",
                where=where,
                remedy="ask for it alone: it is a value, not a table",
            )
    return meaning, annotation, field


def _is_table(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


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
            name = "table of tables" if _is_table(arguments[1]) else f"table of {_type_name(arguments[1])}"
        case _ if _is_table(annotation):
            name = "table"
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
