"""`model.synthetic_seed`: engines that draw their weights, for measuring without a checkpoint."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

import pytest

from dsv41_kernels.serve import weights
from dsv41_serving.errors import InputError
from dsv41_serving.facts import Facts
from dsv41_serving.plan.engine import HANDOFF_PLUGIN, SYNTHETIC_PLUGIN
from tests.unit.plan.machines import plan_for, turn_into

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("shape", ["pd", "replicas"])
def test_both_engines_draw_the_same_weights(two_sockets: Facts, shape: str) -> None:
    """Each on its GPU."""
    plan = plan_for(turn_into(two_sockets, "h200x2-rank"), "h200x2-rank", f"shape='{shape}'", "model.synthetic_seed=7")
    assert [engine.placement.gpus for engine in plan.engines] == [(0,), (1,)]
    for engine in plan.engines:
        assert engine.argv[engine.argv.index("--load-format") + 1] == "dummy"
        assert engine.env[weights.VARIABLE] == "7"
        assert engine.env["SGLANG_PLUGINS"].split(",") == [
            *("dsv41_contract", SYNTHETIC_PLUGIN),
            *([HANDOFF_PLUGIN] if shape == "pd" else []),
        ]


def test_a_checkpoint_is_read(two_sockets: Facts) -> None:
    """Without a seed nothing is drawn."""
    for engine in plan_for(two_sockets, "h200x8").engines:
        assert "--load-format" not in engine.argv
        assert weights.VARIABLE not in engine.env
        assert SYNTHETIC_PLUGIN not in engine.env["SGLANG_PLUGINS"]


def test_the_plugin_is_an_entry_point() -> None:
    """SGLang finds it by this name."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    entry = importlib.metadata.EntryPoint(SYNTHETIC_PLUGIN, groups["sglang.srt.plugins"][SYNTHETIC_PLUGIN], "")
    assert entry.load() is weights.register


@pytest.mark.parametrize(
    ("profile", "override", "message"),
    [
        (
            "embedded",
            "model.synthetic_seed=1",
            "--set, key model.synthetic_seed: only an engine on GPUs draws its weights; remove it",
        ),
        (
            "h200x8",
            "engine.env={DSV41_SYNTHETIC_SEED='1'}",
            "DSV41_SYNTHETIC_SEED is refused: the plan sets it; set model.synthetic_seed instead",
        ),
    ],
)
def test_a_seed_where_it_cannot_be(two_sockets: Facts, profile: str, override: str, message: str) -> None:
    """One line says what and how to mend it."""
    with pytest.raises(InputError) as error:
        plan_for(two_sockets, profile, override)
    assert message in str(error.value)
