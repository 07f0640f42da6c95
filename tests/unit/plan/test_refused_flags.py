"""Free flags and variables may add to the plan; what belongs to the plan or goes around the contract is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dsv41_serving.errors import InputError
from dsv41_serving.plan.flags import REFUSED, REFUSED_BY_ROUTER
from dsv41_serving.spec import load_spec
from tests.unit.plan.machines import plan_for, turn_into

if TYPE_CHECKING:
    import argparse

    from dsv41_serving.facts import Facts


@pytest.mark.parametrize(
    ("override", "line"),
    [
        (
            "engine.args.chat-template='x.jinja'",
            (
                "key engine.args.chat-template: --chat-template is refused: "
                "it bypasses V4.1's own prompt encoder: tool calls and thinking break; remove it"
            ),
        ),
        (
            "engines.decode.args.chat_template='x.jinja'",
            (
                "key engines.decode.args.chat_template: --chat-template is refused: "
                "it bypasses V4.1's own prompt encoder: tool calls and thinking break; remove it"
            ),
        ),
        (
            "engine.args.--chat-template='x.jinja'",
            (
                "key engine.args.--chat-template: --chat-template is refused: "
                "it bypasses V4.1's own prompt encoder: tool calls and thinking break; remove it"
            ),
        ),
        (
            "engine.args.chat-temp='x.jinja'",
            (
                "key engine.args.chat-temp: --chat-temp (short for --chat-template) is refused: "
                "it bypasses V4.1's own prompt encoder: tool calls and thinking break; remove it"
            ),
        ),
        (
            "engine.args.config='more.yaml'",
            (
                "key engine.args.config: --config is refused: "
                "a second file could set anything behind the plan; write its settings here"
            ),
        ),
        (
            "engines.prefill.args.tool-call-parser='qwen'",
            (
                "key engines.prefill.args.tool-call-parser: --tool-call-parser is refused: it is set from the contract "
                "so that every engine has the same; set contract.tool_call_parser instead"
            ),
        ),
        (
            "engine.args.port=1",
            "key engine.args.port: --port is refused: the plan sets it; set engines.NAME.port instead",
        ),
        (
            "engine.args.log_level='info'",
            "key engine.args.log_level: is not how a flag is written here; write log-level",
        ),
        (
            "engine.env.CUDA_VISIBLE_DEVICES='0'",
            (
                "key engine.env.CUDA_VISIBLE_DEVICES: CUDA_VISIBLE_DEVICES is refused: the plan sets it; "
                "set engines.NAME.gpus instead"
            ),
        ),
        (
            "engines.decode.env.SGLANG_DEFAULT_THINKING='0'",
            (
                "key engines.decode.env.SGLANG_DEFAULT_THINKING: SGLANG_DEFAULT_THINKING is refused: "
                "it is set from the contract so that every engine has the same; set contract.thinking instead"
            ),
        ),
        (
            "router.args.port=1",
            "key router.args.port: --port is refused: the plan sets it; set router.port instead",
        ),
        (
            "router.args.api-key='secret'",
            (
                "key router.args.api-key: --api-key is refused: keys never stand on a command line; set router.api_key_file instead"
            ),
        ),
        (
            "router.args.prefill='http://elsewhere'",
            (
                "key router.args.prefill: --prefill is refused: the workers are the engines of the shape; "
                "set shape instead"
            ),
        ),
    ],
)
def test_settings_that_go_around_the_plan_are_refused(two_sockets: Facts, override: str, line: str) -> None:
    """In whatever spelling the parsers would take them."""
    with pytest.raises(InputError) as error:
        plan_for(two_sockets, "h200x8", override)
    assert str(error.value) == f"--set, {line}"


def test_every_spelling_of_a_refused_flag_is_refused(
    engine_parser: argparse.ArgumentParser, router_parsers: dict[str, argparse.ArgumentParser]
) -> None:
    """SGLang has several names for some of its flags."""
    for parser, refused in (
        (engine_parser, REFUSED),
        *((parser, REFUSED_BY_ROUTER) for parser in router_parsers.values()),
    ):
        for action in parser._actions:
            names = {option.removeprefix("--") for option in action.option_strings}
            assert not names & refused.keys() or names <= refused.keys()


def test_no_other_flag_looks_like_the_beginning_of_a_refused_one(
    engine_parser: argparse.ArgumentParser, router_parsers: dict[str, argparse.ArgumentParser]
) -> None:
    """Otherwise the refusal of short forms would take a legitimate flag away."""
    for parser, refused in (
        (engine_parser, REFUSED),
        *((parser, REFUSED_BY_ROUTER) for parser in router_parsers.values()),
    ):
        options = {option.removeprefix("--") for option in parser._option_string_actions if option.startswith("--")}
        lost = {option for option in options - refused.keys() for full in refused if full.startswith(option)}
        assert lost == set()


def test_whatever_the_plan_sets_is_refused_as_a_free_flag(two_sockets: Facts) -> None:
    """Otherwise a free flag would replace it in silence. Flags of the profile's own args are free."""
    free = load_spec(profile="rtxpro6000x8").spec.engine.args.keys()
    for service in plan_for(turn_into(two_sockets, "rtxpro6000x8"), "rtxpro6000x8").services:
        refused = REFUSED if service.is_engine else REFUSED_BY_ROUTER
        flags = {item.removeprefix("--") for item in service.argv[3:] if item.startswith("--")}
        assert flags - free <= refused.keys()


def test_a_flag_the_engine_does_not_know_is_its_own_to_refuse(
    two_sockets: Facts, engine_parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan passes free flags on; SGLang stops at start and says which."""
    flags = plan_for(two_sockets, "h200x8", "engine.args.no-such-flag=1").engines[0].argv[3:]
    with pytest.raises(SystemExit):
        engine_parser.parse_args(flags)
    assert "unrecognized arguments: --no-such-flag 1" in capsys.readouterr().err
