"""Read a profile and a node file, merge them, and say of every value where it came from."""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from dsv41_serving.errors import InputError
from dsv41_serving.resources import data_dir
from dsv41_serving.spec.model import NodeSpec
from dsv41_serving.spec.table import ContradictionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pydantic_core import ErrorDetails

COMMAND_LINE = "--set"
DEFAULT = "default"
_ENGINE_KEY = 3  # parts of engines.NAME.KEY


@dataclass(frozen=True)
class LoadedSpec:
    """A validated spec and the origin of each of its values.

    `origins` maps a dotted leaf key to 'default', the path of a profile or node file, or '--set'.
    """

    spec: NodeSpec
    origins: Mapping[str, str]

    def find_origin(self, key: str) -> str:
        """Return who set `key`; for a table, the operator's file before the profile."""
        return _find_origin(key.split("."), self.origins, DEFAULT)


class SpecError(InputError):
    """Every mistake of a node file, one line each."""

    def __init__(self, problems: Sequence[InputError]) -> None:
        """Hold `problems` in the order they were found."""
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


def profile_names() -> list[str]:
    """Return the names of the profiles that ship with this project, sorted."""
    return sorted(path.stem for path in (data_dir("deploy") / "profiles").glob("*.toml"))


def load_spec(
    node_file: Path | None = None, *, profile: str | None = None, overrides: Sequence[str] = ()
) -> LoadedSpec:
    """Merge profile, node file and `overrides` ('a.b=value', TOML values) into one validated spec.

    `profile` names the profile when the node file does not, or when there is no node file. Raises SpecError with one line
    per mistake, each naming file, key, value and remedy.
    """
    layers: list[tuple[str, dict[str, Any]]] = []
    if node_file is not None:
        layers.append((str(node_file), _read_toml(node_file)))
    if overrides:
        layers.append((COMMAND_LINE, _parse_overrides(overrides)))
    name = _choose_profile(layers, profile)
    profile_file = data_dir("deploy") / "profiles" / f"{name}.toml"
    layers.insert(0, (f"profile {name}", {"profile": name, **_read_toml(profile_file)}))

    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, layer in layers:
        _merge(merged, layer, origin, origins, ())
    try:
        spec = NodeSpec.model_validate(merged)
    except ValidationError as error:
        raise SpecError(_explain_all(error.errors(), merged, origins, layers[-1][0])) from None
    for key, _ in leaves(spec.model_dump()):
        origins.setdefault(key, DEFAULT)
    return LoadedSpec(spec=_expand_paths(spec), origins=origins)


def leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of every value in nested tables; an empty table counts as a value."""
    for key, value in table.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{dotted}.")
        else:
            yield dotted, value


def _choose_profile(layers: Sequence[tuple[str, Mapping[str, Any]]], asked: str | None) -> str:
    """Return the profile the layers name, else the one that is `asked` for; the two may not disagree."""
    origin, name = next(
        ((origin, layer["profile"]) for origin, layer in reversed(layers) if "profile" in layer), ("--profile", asked)
    )
    where = f"{origin}, key profile"
    names = profile_names()
    if name is None:
        file = next((origin for origin, _ in layers if origin != COMMAND_LINE), None)
        where = f"{file}, key profile" if file else "--profile"
        raise InputError("no profile is named", where=where, remedy=f"name one of: {', '.join(names)}")
    if not isinstance(name, str):
        raise InputError(f"value {_show(name)} cannot be used", where=where, remedy=f"name one of: {', '.join(names)}")
    if name not in names:
        raise InputError(f"there is no profile '{name}'", where=where, remedy=_suggest(name, names))
    if asked not in (None, name):
        raise InputError(
            f"'{name}' is set here, but --profile asks for '{asked}'",
            where=where,
            remedy="leave --profile out, or change the key with --set profile=NAME",
        )
    return name


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            "no such file", where=str(path), remedy="name another with --node, or use --profile NAME without a file"
        ) from None
    except OSError as error:
        raise InputError(
            f"cannot be read ({error.strerror})", where=str(path), remedy="name a file this user may read"
        ) from None
    except UnicodeDecodeError as error:
        raise InputError(f"is not UTF-8 ({error.reason})", where=str(path), remedy="save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"is not TOML: {error}", where=str(path), remedy="correct that line") from None


def _parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise InputError(
                f"'{text}' is not KEY=VALUE", where=COMMAND_LINE, remedy="write, for example, router.port=30001"
            )
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            parsed = value.strip()
        table = result
        *parents, last = key.strip().split(".")
        for parent in parents:
            if not isinstance(table.get(parent), dict):
                table[parent] = {}  # of two overrides of one key the later one holds
            table = table[parent]
        table[last] = parsed
    return result


def _merge(
    into: dict[str, Any], layer: Mapping[str, Any], origin: str, origins: dict[str, str], path: tuple[str, ...]
) -> None:
    for key, value in layer.items():
        here = (*path, key)
        dotted = ".".join(here)
        if isinstance(value, dict) is not isinstance(into.get(key), dict):
            # A table takes the place of a value or the other way round: what was set there before is gone.
            for stale in [k for k in origins if k == dotted or k.startswith(f"{dotted}.")]:
                del origins[stale]
        if isinstance(value, dict):
            if not isinstance(into.get(key), dict):
                into[key] = {}
            if not value:
                origins[dotted] = origin
            _merge(into[key], value, origin, origins, here)
        else:
            into[key] = value
            origins[dotted] = origin


def _explain_all(
    details: Sequence[ErrorDetails], merged: Mapping[str, Any], origins: Mapping[str, str], last: str
) -> list[InputError]:
    """Explain each mistake once: a value that fits no branch of a union is reported by pydantic for every branch."""
    problems: dict[str, InputError] = {}
    for detail in details:
        problem = _explain(detail, merged, origins, last)
        known = problems.get(problem.where)
        if known is None:
            problems[problem.where] = problem
            continue
        alternative = problem.remedy.removeprefix("it should be ")
        if known.problem == problem.problem and alternative not in known.remedy:
            remedy = f"{known.remedy} or {alternative}"
            problems[problem.where] = InputError(known.problem, where=known.where, remedy=remedy)
    return list(problems.values())


def _explain(detail: ErrorDetails, merged: Mapping[str, Any], origins: Mapping[str, str], last: str) -> InputError:
    """Turn one pydantic error into one line: file, key, value, remedy."""
    kind, value = detail["type"], detail["input"]
    path = _key_path(detail, merged)
    contradiction = detail["ctx"]["error"] if kind == "value_error" else None
    if isinstance(contradiction, ContradictionError):
        path += contradiction.key.split(".")
    key = ".".join(path)
    origin = _find_origin(path, origins, last)
    if kind == "extra_forbidden":
        known = _known_keys(path[:-1])
        return InputError("unknown key", where=f"{origin}, key {key}", remedy=_suggest(path[-1], known))
    if kind == "missing" and (meant := _find_meant(path, merged)):
        where = f"{origin}, key {'.'.join(path[:-1])}"
        return InputError("no shape runs this engine", where=where, remedy=f"did you mean '{meant}'?")
    if kind == "missing":
        return InputError(
            "is missing", where=f"{origin}, key {key}", remedy="add it; `dsv41 config explain KEY` says what it means"
        )
    if contradiction is not None:
        return InputError(str(contradiction), where=f"{origin}, key {key}")
    remedy = detail["msg"].replace("Input should be", "it should be").replace("String should", "it should")
    if kind in {"dict_type", "model_type"}:
        remedy = f"it should be a table: [{key}]"
    return InputError(f"value {_show(value)} cannot be used", where=f"{origin}, key {key}", remedy=remedy)


def _show(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)


def _find_meant(path: Sequence[str], merged: Mapping[str, Any]) -> str:
    """Return the engine that `path`, engines.NAME.KEY, was meant for: one that a shape names when NAME is nearly that."""
    if path[0] != "engines" or len(path) != _ENGINE_KEY:
        return ""
    shapes = merged.get("shapes")
    lists = shapes.values() if isinstance(shapes, dict) else ()
    named = {name for names in lists if isinstance(names, list) for name in names if isinstance(name, str)}
    return "" if path[1] in named else next(iter(difflib.get_close_matches(path[1], sorted(named), n=1)), "")


def _key_path(detail: ErrorDetails, merged: Mapping[str, Any]) -> list[str]:
    """Return the keys of a location, in which pydantic also names the branches of unions: they are no part of the input.

    The path ends before the items of a list that is one branch of a union: then the value as a whole fits none of them.
    """
    path: list[str] = []
    place: Any = merged
    in_union = False
    for part in detail["loc"]:
        if isinstance(place, dict) and part in place:
            place = place[part]
        elif isinstance(place, list) and isinstance(part, int):
            if in_union:
                break
            place = place[part]
        elif detail["type"] != "missing":
            in_union = True
            continue
        path.append(str(part))
    return path


def _find_origin(path: Sequence[str], origins: Mapping[str, str], last: str) -> str:
    """Return who set the value at `path` or, when nobody did, its nearest neighbours: the operator before the profile."""
    for length in range(len(path), 0, -1):
        prefix = ".".join(path[:length])
        near = [origin for key, origin in origins.items() if key == prefix or key.startswith(f"{prefix}.")]
        if near:
            return min(reversed(near), key=lambda origin: (origin == DEFAULT, origin.startswith("profile ")))
    return last


def _known_keys(path: Sequence[str]) -> list[str]:
    """Return the keys the table at `path` may have."""
    model: Any = NodeSpec
    for part in path:
        field = model.model_fields.get(part) if isinstance(model, type) and issubclass(model, BaseModel) else None
        annotation = field.annotation if field else model
        arguments = [a for a in getattr(annotation, "__args__", ()) if isinstance(a, type) and issubclass(a, BaseModel)]
        model = arguments[0] if arguments else annotation
    return sorted(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []


def _suggest(wrong: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(wrong, known, n=1)
    return f"did you mean '{close[0]}'?" if close else f"use one of: {', '.join(known)}"


def _expand_paths(spec: NodeSpec) -> NodeSpec:
    """Resolve '~' once, so that a plan made for a service user does not change meaning in another process."""
    node = spec.node.model_copy(
        update={key: os.path.expanduser(getattr(spec.node, key)) for key in ("state_dir", "cache_dir")}  # noqa: PTH111 - text, not a Path
    )
    model = spec.model.model_copy(update={"path": os.path.expanduser(spec.model.path)})  # noqa: PTH111
    files = ("api_key_file", "tls_cert_file", "tls_key_file")
    router = spec.router.model_copy(update={key: os.path.expanduser(getattr(spec.router, key)) for key in files})  # noqa: PTH111
    return spec.model_copy(update={"node": node, "model": model, "router": router})
