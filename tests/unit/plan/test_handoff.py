"""The table [handoff]: which engines load its plug-in, and what they are told."""

from __future__ import annotations

import pytest

from dsv41_serving.errors import InputError
from dsv41_serving.facts import Facts
from dsv41_serving.plan.engine import HANDOFF_PLUGIN
from dsv41_serving.spec.model import Handoff
from tests.unit.plan.machines import plan_for, turn_into


@pytest.mark.parametrize("profile", ["h200x8", "b200x8", "rtxpro6000x8", "embedded"])
def test_both_engines_of_a_pair_are_told_the_same_and_packing_is_off(two_sockets: Facts, profile: str) -> None:
    """No measurement on a GPU speaks for it yet."""
    for engine in plan_for(turn_into(two_sockets, profile), profile, "shape='pd'").engines:
        assert HANDOFF_PLUGIN in engine.env["SGLANG_PLUGINS"].split(",")
        assert Handoff.model_validate_json(engine.env["DSV41_HANDOFF"]) == Handoff(packed=False, slots=4, slot_mib=32)


def test_what_the_operator_writes_reaches_the_engines(two_sockets: Facts) -> None:
    for engine in plan_for(two_sockets, "h200x8", "handoff={packed=true, slots=8, slot_mib=64}").engines:
        assert Handoff.model_validate_json(engine.env["DSV41_HANDOFF"]) == Handoff(packed=True, slots=8, slot_mib=64)


@pytest.mark.parametrize("overrides", [("shape='single'",), ("engine.transfer_backend='mooncake'",)])
def test_engines_that_hand_nothing_over_with_nixl_do_not_load_it(
    two_sockets: Facts, overrides: tuple[str, ...]
) -> None:
    for engine in plan_for(two_sockets, "embedded", *overrides).engines:
        assert HANDOFF_PLUGIN not in engine.env["SGLANG_PLUGINS"].split(",")
        assert "DSV41_HANDOFF" not in engine.env


def test_packing_over_another_transport_is_refused(two_sockets: Facts) -> None:
    with pytest.raises(
        InputError, match=r"handoff\.packed: it packs for NIXL and engine\.transfer_backend is 'mooncake'"
    ):
        plan_for(two_sockets, "h200x8", "handoff.packed=true", "engine.transfer_backend='mooncake'")
