"""The table [contract] on every engine: the same flags, the same environment, no way around it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dsv41_serving.errors import InputError
from dsv41_serving.plan.engine import CONTRACT_PLUGIN, PLATFORM
from dsv41_serving.spec import load_spec
from tests.unit.plan.machines import plan_for, turn_into

if TYPE_CHECKING:
    from dsv41_serving.facts import Facts

CASES = [
    ("embedded", "pd"),
    ("h200x8", "pd"),
    ("h200x8", "replicas"),
    ("b200x8", "pd"),
    ("rtxpro6000x8", "replicas"),
    ("gb300x4", "tp4"),
]
VARIABLES = (
    "DSV41_CONTRACT",
    "SGLANG_PLUGINS",
    "SGLANG_DEFAULT_THINKING",
    "SGLANG_DSV41_REASONING_EFFORT",
    "SGLANG_MAX_THINK_TOKENS",
)
FLAGS = (
    "--served-model-name",
    "--reasoning-parser",
    "--tool-call-parser",
    "--default-chat-template-kwargs",
    "--sampling-defaults",
    "--enable-cache-report",
    "--enable-strict-thinking",
)
TABLE = (
    "contract.served_model_name=other",
    "contract.aliases=['one', 'two']",
    "contract.thinking=false",
    "contract.reasoning_effort=42",
    "contract.max_thinking_tokens=9",
    "contract.cache_report=false",
)


def flags_of(argv: tuple[str, ...]) -> dict[str, str]:
    """Return the contract's flags with their values; a bare flag has the next flag, which does not matter here."""
    return {flag: argv[argv.index(flag) + 1] for flag in FLAGS if flag in argv}


@pytest.mark.parametrize(("profile", "shape"), CASES)
def test_every_engine_gets_the_same(two_sockets: Facts, profile: str, shape: str) -> None:
    plan = plan_for(turn_into(two_sockets, profile), profile, f"shape={shape}", *TABLE)
    contracts = [{name: engine.env.get(name) for name in VARIABLES} for engine in plan.engines]
    assert all(contract == contracts[0] for contract in contracts)
    table = json.loads(contracts[0].pop("DSV41_CONTRACT") or "")
    assert table == plan.contract.model_dump()
    assert (table["served_model_name"], table["aliases"]) == ("other", ["one", "two"])
    assert contracts[0] == {
        "SGLANG_PLUGINS": ",".join(
            (
                *(["dsv41_embedded"] if profile == "embedded" else []),
                "dsv41_contract",
                *(["dsv41_handoff"] if shape == "pd" else []),
            )
        ),
        "SGLANG_DEFAULT_THINKING": "false",
        "SGLANG_DSV41_REASONING_EFFORT": "42",
        "SGLANG_MAX_THINK_TOKENS": "9",
    }
    for engine in plan.engines:
        flags = flags_of(engine.argv)
        assert flags.pop("--enable-strict-thinking")
        assert flags == {
            "--served-model-name": "other",
            "--reasoning-parser": "deepseek-v41",
            "--tool-call-parser": "deepseekv41",
            "--default-chat-template-kwargs": '{"thinking": false}',
            "--sampling-defaults": "model",
        }


def test_thinking_without_a_limit_leaves_strict_thinking_off(two_sockets: Facts) -> None:
    """It masks logits on every step, which costs."""
    for engine in plan_for(two_sockets, "h200x8").engines:
        assert "--enable-strict-thinking" not in engine.argv
        assert "SGLANG_MAX_THINK_TOKENS" not in engine.env


@pytest.mark.parametrize(
    ("overrides", "written"),
    [
        ((), {"do_sample": True, "temperature": 0.6, "top_p": 0.95}),
        (("contract.temperature=checkpoint",), {"do_sample": True, "top_p": 0.95}),
        (("contract.top_p=checkpoint", "contract.temperature=1"), {"do_sample": True, "temperature": 1.0}),
        (("contract.top_p=checkpoint", "contract.temperature=checkpoint"), {}),
    ],
)
def test_what_generation_config_says_over_the_checkpoint(
    two_sockets: Facts, overrides: tuple[str, ...], written: dict[str, object]
) -> None:
    assert plan_for(two_sockets, "h200x8", *overrides).model.generation_config == written


@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        ("engine.args.preferred-sampling-params='{}'", "set contract.temperature or contract.top_p instead"),
        ("engine.args.stream-response-default-include-usage=true", "set contract.stream_usage instead"),
        ("engine.args.enable-strict-thinking=true", "set contract.max_thinking_tokens instead"),
        ("engine.args.allow-auto-truncate=true", "a client is told that its prompt is too long; remove it"),
        ("engine.args.trust-request-chat-template=true", "bypasses V4.1's own prompt encoder; remove it"),
        ("engine.args.tokenizer-worker-num=2", "the contract is held in the one server process; remove it"),
        ("engine.args.grpc-port=5", "gRPC goes around it; remove it"),
        ("engine.args.smg-grpc-mode=true", "gRPC goes around it; remove it"),
        ("engines.decode.env.DSV41_CONTRACT='{}'", "it is the table [contract]; set its keys instead"),
        ("engine.env.SGLANG_PLUGINS='other'", "it names the plug-ins of this project; remove it"),
        ("engine.env.SGLANG_MAX_THINK_TOKENS='5'", "set contract.max_thinking_tokens instead"),
        ("engine.env.SGLANG_GRPC_PORT='5'", "gRPC goes around it; remove it"),
    ],
)
def test_no_way_around_the_table(two_sockets: Facts, override: str, remedy: str) -> None:
    with pytest.raises(InputError) as error:
        plan_for(two_sockets, "h200x8", override)
    assert str(error.value).endswith(remedy)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (
            ("contract.max_tokens=10", "contract.max_tokens_limit=5"),
            "--set, key contract.max_tokens: 10 is above max_tokens_limit 5; lower it",
        ),
        (
            ("contract.aliases=['deepseek-v4.1-flash']",),
            "--set, key contract.aliases: 'deepseek-v4.1-flash' is served_model_name; remove it here",
        ),
    ],
)
def test_a_table_that_contradicts_itself(overrides: tuple[str, ...], line: str) -> None:
    with pytest.raises(InputError) as error:
        load_spec(profile="embedded", overrides=overrides)
    assert str(error.value) == line


def test_the_names_of_the_plug_ins_are_those_of_the_package() -> None:
    """SGLang finds them by entry point; a name that is not one is silently no plug-in."""
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["sglang.srt.platforms"].keys() == {PLATFORM}
    assert CONTRACT_PLUGIN in project["entry-points"]["sglang.srt.plugins"]
