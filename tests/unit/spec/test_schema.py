"""The JSON Schema says the same as the models: editors and other programs may rely on it."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import pytest

from dsv41_serving.spec import json_schema, load_spec, profile_names


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    """Return a validator of node descriptions."""
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def dump(profile: str) -> dict[str, Any]:
    """Return the merged description of `profile` as plain data."""
    return load_spec(profile=profile).spec.model_dump(mode="json")


@pytest.mark.parametrize("profile", profile_names())
def test_every_profile_is_valid(validator: jsonschema.Draft202012Validator, profile: str) -> None:
    """A schema that refuses a shipped profile would be wrong."""
    assert [error.message for error in validator.iter_errors(dump(profile))] == []


@pytest.mark.parametrize(
    ("table", "key", "value", "message"),
    [
        ((), "shap", "pd", "Additional properties are not allowed ('shap' was unexpected)"),
        (("router",), "hots", "x", "Additional properties are not allowed ('hots' was unexpected)"),
        (("engines", "decode"), "tpp", 4, "Additional properties are not allowed ('tpp' was unexpected)"),
        (("router",), "port", 80, "80 is less than the minimum of 1024"),
        (("contract",), "thinking", "yes", "'yes' is not of type 'boolean'"),
        (("engine",), "device", "gpu", "'gpu' is not one of ['cuda', 'cpu']"),
    ],
)
def test_a_mistake_is_refused(
    validator: jsonschema.Draft202012Validator, table: tuple[str, ...], key: str, value: object, message: str
) -> None:
    """Unknown keys at every depth, ranges, types and choices."""
    description = copy.deepcopy(dump("h200x8"))
    place = description
    for part in table:
        place = place[part]
    place[key] = value
    assert [error.message for error in validator.iter_errors(description)] == [message]


def test_every_key_is_explained() -> None:
    """A key without a meaning is one nobody can set."""
    tables = {"the node file": json_schema(), **json_schema()["$defs"]}
    silent = [
        f"{name}.{key}"
        for name, table in tables.items()
        for key, entry in table.get("properties", {}).items()
        if not entry.get("description")
    ]
    assert silent == []
