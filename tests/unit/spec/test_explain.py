"""One key: what it means, what it is, where it comes from, and why."""

from __future__ import annotations

import pytest

from dsv41_serving.errors import InputError
from dsv41_serving.spec import KeyExplanation, explain_key, load_spec
from dsv41_serving.spec.explain import find_source

SOURCES = {"engine": "a recipe", "engine.args": "the source code", "engine.args.dtype": "a measurement"}


def explain(key: str, *overrides: str) -> KeyExplanation:
    """Explain `key` of an H200 node."""
    return explain_key(load_spec(profile="h200x8", overrides=overrides), key)


def test_a_value_of_the_profile_has_a_source_and_a_status() -> None:
    """The status is that of the profile: nobody has measured it."""
    explanation = explain("engines.decode.memory_fraction")
    assert explanation.meaning == "Share of GPU memory for weights and KV pools (--mem-fraction-static)."
    assert (explanation.type, explanation.default, explanation.value) == ("float or nothing", "None", 0.92)
    assert explanation.origin == "profile h200x8"
    assert explanation.source.startswith("Dynamo recipe, V4.1-Flash on H200")
    assert explanation.status == "unmeasured"


def test_a_value_of_the_operator_is_their_own() -> None:
    """The source of the profile's value says nothing about it."""
    explanation = explain("router.port", "router.port=31000")
    assert (explanation.type, explanation.default, explanation.value) == ("int", "30001", 31000)
    assert (explanation.origin, explanation.source, explanation.status) == ("--set", "", "")


def test_a_default_is_said_to_be_one() -> None:
    """Nobody set it."""
    explanation = explain("contract.thinking")
    assert (explanation.type, explanation.default, explanation.value) == ("bool", "True", True)
    assert (explanation.origin, explanation.source) == ("default", "")


def test_a_table_has_meaning_and_origin_but_no_value() -> None:
    """`config show` prints its values."""
    explanation = explain("engine.args")
    assert explanation.meaning == "Further SGLang flags without '--' for every engine; false leaves a flag out."
    assert explanation.type == "table of bool or int or float or str or list of int or list of str"
    assert explanation.value is None
    assert explanation.origin == "profile h200x8"
    assert explain("engines").type == "table of tables"
    assert explain("router").type == "table"
    assert explain("engines.decode").origin == "profile h200x8"
    assert explain("engines.decode", "engines.decode.port=31000").origin == "--set"


def test_a_free_flag_means_what_its_table_means() -> None:
    """SGLang's own manual explains the flag; here stand its value and why."""
    explanation = explain("engine.args.moe-runner-backend")
    assert explanation.meaning.startswith("Entry of engine.args. Further SGLang flags")
    assert (explanation.value, explanation.origin) == ("marlin", "profile h200x8")
    assert "marlin pads" in explanation.source
    assert explain("engine.env.UCX_TLS").type == "str"


def test_a_flag_nobody_set_has_no_value() -> None:
    """It is a key all the same."""
    explanation = explain("engine.args.log-level")
    assert (explanation.value, explanation.origin, explanation.source) == (None, "default", "")


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (
            "model.port",
            "model: there is no key 'model.port'; use one of: name, path, revision, synthetic_seed",
        ),
        (
            "port",
            (
                "the node file: there is no key 'port'; use one of: contract, engine, engines, handoff, hosts, kernels, memory, "
                "model, monitoring, node, profile, provenance, router, shape, shapes"
            ),
        ),
        (
            "engines.third.tp",
            "engines: there is no engine 'third'; use one of: prefill, decode, replica0, replica1, whole",
        ),
        (
            "router.port.x",
            "router.port: there is no key 'router.port.x'; ask for it alone: it is a value, not a table",
        ),
    ],
)
def test_a_key_that_does_not_exist(key: str, line: str) -> None:
    """The keys that do are named."""
    with pytest.raises(InputError) as error:
        explain(key)
    assert str(error.value) == line


@pytest.mark.parametrize(
    ("key", "source"),
    [
        ("engine.args.dtype", "a measurement"),
        ("engine.args.other", "the source code"),
        ("engine.device", "a recipe"),
        ("router.port", ""),
        ("engin", ""),
    ],
)
def test_the_nearest_source_counts(key: str, source: str) -> None:
    """That of the key itself, else of the table above it."""
    assert find_source(SOURCES, key) == source
