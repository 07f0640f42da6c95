"""The baseline is measured when there is none, none that holds, or a bad one; what must not be served on stops the start."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dsv41_serving.cli.context import Context
from dsv41_serving.cli.run import _foresee
from dsv41_serving.errors import GateError, InputError
from dsv41_serving.facts import read_facts
from dsv41_serving.spec import load_spec
from dsv41_serving.transport import baseline
from dsv41_serving.transport.collective import _wait, try_collective
from dsv41_serving.transport.proof import (
    Collective,
    explain_stale,
    hands_over,
    list_environments,
    read_proof,
    store_proof,
)
from tests.unit.plan.machines import plan_for
from tests.unit.transport.test_parts import make_pair, make_proof

if TYPE_CHECKING:
    from dsv41_serving.plan import Plan
    from dsv41_serving.transport.proof import Proof

FACTS = read_facts()


def plan_in(directory: Path, *overrides: str) -> Plan:
    return plan_for(FACTS, "embedded", f"node.state_dir={directory}", *overrides)


def holding(plan: Plan, *pairs: Any, **changes: object) -> Proof:
    """Return a proof that holds for `plan` here."""
    values = {
        "kernel_release": FACTS.kernel_release,
        "driver_version": FACTS.driver_version,
        "environment": list_environments(plan),
    }
    return make_proof(*(pairs or (make_pair(),))).model_copy(update={**values, **changes})


def keep(plan: Plan, measured: Proof, monkeypatch: pytest.MonkeyPatch) -> tuple[Proof | None, list[str], int]:
    """Return what is kept, what was said, and how often it was measured."""
    calls: list[bool] = []

    def prove(*_: object, short: bool, **__: object) -> Proof:
        calls.append(short)
        return measured

    monkeypatch.setattr(baseline, "prove_transport", prove)
    said: list[str] = []
    spec = load_spec(profile="embedded").spec
    kept = baseline.keep_baseline(spec, plan, FACTS, arguments=["--profile", "embedded"], say=said.append)
    assert all(calls)  # in the short form
    return kept, said, len(calls)


def test_a_first_start_measures_and_the_next_one_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_in(tmp_path)
    fresh = holding(plan)
    assert keep(plan, fresh, monkeypatch) == (fresh, [], 1)
    assert read_proof(str(tmp_path)) == fresh
    assert keep(plan, fresh, monkeypatch) == (fresh, [], 0)


@pytest.mark.parametrize(
    "changes",
    [{"kernel_release": "1.0"}, {"driver_version": "1"}, {"environment": {}}],
    ids=["kernel", "driver", "environment"],
)
def test_a_stale_one_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]
) -> None:
    plan = plan_in(tmp_path)
    store_proof(holding(plan, **changes), str(tmp_path))
    assert keep(plan, holding(plan), monkeypatch)[2] == 1


def test_another_transport_setting_makes_it_stale(tmp_path: Path) -> None:
    proof = holding(plan_in(tmp_path))
    assert explain_stale(proof, plan_in(tmp_path), FACTS) == ""
    changed = plan_in(tmp_path, "engines.decode.env.UCX_TLS=tcp")
    assert explain_stale(proof, changed, FACTS) == "measured before UCX_TLS of decode changed"


def test_a_slow_lane_is_said_and_measured_again_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_in(tmp_path)
    slow = {"lane": "tcp", "best_gb_s": 1.2, "reason": "sockets", "remedy": "add cma"}
    proof = holding(plan, make_pair(lane="tcp", reason="sockets", remedy="add cma"), **slow)
    said = ["hand-off: 1.20 GB/s over tcp: sockets; mend: add cma"]
    assert keep(plan, proof, monkeypatch)[1:] == (said, 1)
    assert keep(plan, holding(plan), monkeypatch)[1:] == ([], 1)


def test_wrong_bytes_and_wrong_sums_stop_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_in(tmp_path)
    with pytest.raises(GateError, match=r"prefill:0 -> decode:0: other bytes arrive than were sent over shm"):
        keep(plan, holding(plan, make_pair(matched=False)), monkeypatch)
    hung = Collective(engine="prefill", gpus=(0, 1), bus_gb_s=0.0, problem="did not end within 180 s")
    with pytest.raises(GateError, match=r"all-reduce over the GPUs of prefill: did not end within 180 s"):
        keep(plan, holding(plan, collectives=(hung,)), monkeypatch)


def test_a_shape_without_a_pair_has_no_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_in(tmp_path, "shape=single")
    assert keep(plan, holding(plan), monkeypatch) == (None, [], 0)


def test_between_hosts_nothing_is_proven_at_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof moves memory within one host; the gate of the router sees the bytes arrive."""
    plan = plan_in(tmp_path)
    assert hands_over(plan)
    decode = plan.service("decode")
    spread = plan.model_copy(update={"elsewhere": (decode.model_copy(update={"name": "decode-1"}),)})
    assert not hands_over(spread)
    assert keep(spread, holding(plan), monkeypatch) == (None, [], 0)


def test_a_unit_starts_though_the_node_file_beside_its_plan_is_broken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It runs the stored plan; without one a broken file is bad input."""
    plan = plan_in(tmp_path)
    node_file = tmp_path / "node.toml"
    for text, said in (("profile = 3", "profile"), ('profile = "h200x2-rank"\nno_such = 1', "no_such")):
        node_file.write_text(text)
        _foresee(Context(node_file, None, (), Path("/"), tmp_path / "plan.json"), plan, FACTS, plan.services)
        assert said in capsys.readouterr().err
        with pytest.raises(InputError):
            _foresee(Context(node_file, None, (), Path("/")), plan, FACTS, plan.services)
    assert not (tmp_path / "transport").exists()


# --- the all-reduce, over gloo --------------------------------------------------------------------------------------


def test_ranks_that_cannot_start_say_why() -> None:
    found = try_collective("prefill", (0, 1), {}, ranks=2, backend="no-such", elements=8)
    assert found.problem.startswith("rank 0 ended with 1: ")
    assert found.bus_gb_s == 0.0


def test_ranks_that_never_end_are_called_hung(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            assert _wait([process], tmp_path, 0.2).startswith("did not end within 0 s: IOMMU translation or ACS")
        finally:
            process.kill()
