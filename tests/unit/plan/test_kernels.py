"""The table [kernels]: which engines load the plug-in, and what it is told."""

from __future__ import annotations

import typing

import pytest

from dsv41_kernels.plugin import start
from dsv41_kernels.plugin.modes import Mode, parse
from dsv41_serving.errors import InputError
from dsv41_serving.facts import Facts
from dsv41_serving.plan.engine import HANDOFF_PLUGIN, KERNELS_PLUGIN
from dsv41_serving.spec.model import KernelMode, KernelOp
from tests.unit.plan.machines import plan_for


def test_the_spec_offers_the_ops_and_modes_that_the_plugin_takes() -> None:
    """Another op in kernels/ fails here until the spec names it."""
    assert list(typing.get_args(KernelOp)) == [integration.op for integration in start.integrations()]
    assert set(typing.get_args(KernelMode)) == {mode.value for mode in Mode}


def test_no_engine_loads_the_kernels_unless_told_to(two_sockets: Facts) -> None:
    """The default is the engine's own path."""
    for engine in plan_for(two_sockets, "h200x8").engines:
        assert KERNELS_PLUGIN not in engine.env["SGLANG_PLUGINS"].split(",")
        assert "DSV41_KERNELS" not in engine.env


def test_every_engine_is_told_the_same(two_sockets: Facts) -> None:
    """What the plan writes is what the plug-in reads."""
    overrides = ("kernels.load=true", "kernels.ops={compress='on', sparse_decode='shadow'}", "kernels.shadow_every=7")
    for engine in plan_for(two_sockets, "h200x8", *overrides).engines:
        assert engine.env["SGLANG_PLUGINS"].split(",") == ["dsv41_contract", KERNELS_PLUGIN, HANDOFF_PLUGIN]
        read = parse(engine.env["DSV41_KERNELS"], list(typing.get_args(KernelOp)))
        assert read == {"compress": Mode.ON, "sparse_decode": Mode.SHADOW}
        assert engine.env["DSV41_KERNELS_SHADOW_EVERY"] == "7"


@pytest.mark.parametrize(
    ("profile", "overrides", "message"),
    [
        ("embedded", ["kernels.load=true"], "the kernels need GPUs and engine.device is 'cpu'; set it to false"),
        (
            "h200x8",
            ["kernels.ops={compress='on'}"],
            "the plug-in is not loaded; set kernels.load = true, or remove the ops",
        ),
    ],
)
def test_a_contradiction_is_named(two_sockets: Facts, profile: str, overrides: list[str], message: str) -> None:
    """One line says what and how to mend it."""
    with pytest.raises(InputError) as error:
        plan_for(two_sockets, profile, *overrides)
    assert message in str(error.value)


def test_an_unknown_op_is_refused(two_sockets: Facts) -> None:
    """A misspelt op is an error of the node file, not of an engine that does not start."""
    with pytest.raises(InputError, match="compres"):
        plan_for(two_sockets, "h200x8", "kernels.load=true", "kernels.ops={compres='on'}")
