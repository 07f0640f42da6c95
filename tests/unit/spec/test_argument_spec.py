"""The argument spec of the Ansible role is the node file's schema."""

from __future__ import annotations

from pathlib import Path

from dsv41_serving.spec.argument_spec import node_options, update

FILE = Path(__file__).parents[3] / "ansible/roles/node/meta/argument_specs.yml"


def test_the_committed_spec_is_what_the_schema_makes() -> None:
    """Otherwise: python -m dsv41_serving.spec.argument_spec ansible/roles/node/meta/argument_specs.yml."""
    text = FILE.read_text(encoding="utf-8")
    assert update(text) == text


def test_types_and_choices_come_from_the_schema() -> None:
    options = node_options()
    assert options["router"]["options"]["port"]["type"] == "int"
    assert options["engine"]["options"]["device"]["choices"] == ["cuda", "cpu"]
    assert options["contract"]["options"]["aliases"] == {
        "type": "list",
        "description": "Further model ids clients may send; answers carry served_model_name.",
        "elements": "str",
    }
    assert options["contract"]["options"]["temperature"]["type"] == "raw", "a number or a word"
    assert options["engines"]["type"] == "dict"
    assert "options" not in options["engines"], "names of engines are the operator's"
    assert not any(option.get("required") for option in options.values()), "the profile supplies what is left out"
