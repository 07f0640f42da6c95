"""What a soak counts, and when it calls the outcome sound."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from dsv41_serving.bench import soak
from dsv41_serving.bench.handoff import read_page
from dsv41_serving.bench.soak import KINDS, Outcome, count_mismatches, describe, place_kills
from dsv41_serving.errors import InputError


def test_an_outcome_is_kept_as_json_and_shown_as_lines() -> None:
    outcome = Outcome(restarts={"decode": 1}, seconds=12.5)
    Outcome.add(outcome.requests, "answer: same", 2)
    Outcome.add(outcome.requests, "answer: same")
    Outcome.add(outcome.handoffs, "packed", 3)
    assert json.loads(json.dumps(asdict(outcome)))["requests"] == {"answer: same": 3}
    lines = describe(outcome)
    assert lines[:3] == [
        "requests              answer: same 3",
        "handoffs              packed 3",
        "fallbacks             none",
    ]
    assert lines[-1] == "seconds               12.5"


@pytest.mark.parametrize(
    "fault",
    [
        {"checksum_mismatches": 1},
        {"slots_busy_at_end": 1.0},
        {"kv_used_at_end": 16.0},
        {"queued_at_end": 1.0},
        {"handoffs": {}},
        {"requests": {"answer: same": 2, "long answer: error": 1}},
    ],
)
def test_whatever_is_corrupted_or_left_behind_is_not_sound(fault: dict[str, object]) -> None:
    """Nor is a soak without a hand-off, nor one with a request that failed although no engine was killed meanwhile."""
    assert Outcome(handoffs={"packed": 3}, requests={"answer: cut off": 2}).sound
    assert not Outcome(**{"handoffs": {"packed": 3}, **fault}).sound


def test_mismatches_are_counted_in_the_logs_of_every_decode_engine(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "decode.log").write_text("KV checksum mismatch req=1\nfine\n")
    (tmp_path / "log" / "decode.log.1").write_text("KV checksum mismatch req=2\nKV checksum mismatch req=3\n")
    (tmp_path / "log" / "prefill.log").write_text("KV checksum mismatch\n")
    assert count_mismatches(str(tmp_path)) == 3


def test_the_kinds_of_clients_are_shares_of_all() -> None:
    assert sum(KINDS.values()) == 100


def test_engines_are_killed_in_turn_and_evenly_spread() -> None:
    assert place_kills(10_000, 3) == {2_500: "decode", 5_000: "prefill", 7_500: "decode"}
    assert place_kills(10_000, 0) == {}


def test_every_kill_happens_with_every_slot_taken_or_none_is_begun() -> None:
    """A kill waits for AT_ONCE requests after its place: with too few they would never come."""
    with pytest.raises(InputError, match="23 requests are too few to kill an engine 2 times") as error:
        asyncio.run(
            soak.run_soak(None, "", None, handoffs=23, restarts=2, longest=8, client=None, say=print)  # type: ignore[arg-type]
        )
    assert error.value.remedy == "send 24 or more, or fewer --restarts"
    assert max(place_kills(24, 2)) + soak.AT_ONCE - 1 < 24


def test_engines_that_compare_no_checksums_are_refused() -> None:
    """Nothing would be found corrupted, whatever was: the result would say "sound"."""
    compares, silent = (SimpleNamespace(argv=("engine", *more)) for more in ((soak.CHECKSUM,), ()))
    plan = SimpleNamespace(node="a", engines=(compares, silent))
    with pytest.raises(InputError, match="node a: the engines do not compare the KV they hand over") as error:
        asyncio.run(
            soak.run_soak(plan, "", None, handoffs=24, restarts=2, longest=8, client=None, say=print)  # type: ignore[arg-type]
        )
    assert error.value.remedy == "start them with --set engine.args.disaggregation-enable-kv-checksum=true"


def test_a_pair_that_was_killed_counts_anew_even_when_it_soon_counts_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three looks at one engine: 100, killed, 120. That is 220, although nothing ever fell between two looks."""
    engine = SimpleNamespace(name="decode", kind="decode", metrics_url="http://decode/metrics")
    state = {"pid": 1, "packed": 100}

    def kill(pid: int, _signal: int) -> None:
        state.update(pid=pid + 1, packed=0)

    class Records:
        def __init__(self, _directory: str) -> None:
            self.read_services = lambda: [SimpleNamespace(name="decode", pid=state["pid"])]
            self.read_stack = lambda: SimpleNamespace(state="ready")

    def page(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text=f'dsv41_handoff_transfers_total{{path="packed"}} {state["packed"]}\n')

    async def life() -> dict[str, int]:
        async with httpx.AsyncClient(transport=httpx.MockTransport(page)) as client:
            counting = soak._Soak(SimpleNamespace(node="a", engines=(engine,)), "", client, print)  # type: ignore[arg-type]
            await counting.count()
            await counting._kill("decode")
            state["packed"] = 120
            await counting.count()
            return counting.outcome.handoffs

    monkeypatch.setattr(soak, "Records", Records)
    monkeypatch.setattr("os.kill", kill)
    assert asyncio.run(life()) == {"packed": 220}


def test_fallbacks_are_told_apart_by_their_reason() -> None:
    page = """# TYPE dsv41_handoff_fallbacks counter
dsv41_handoff_fallbacks_total{reason="no_slot"} 2.0
dsv41_handoff_fallbacks_total{reason="layout"} 1.0
"""
    assert read_page(page) == {
        "dsv41_handoff_fallbacks_total{no_slot}": 2.0,
        "dsv41_handoff_fallbacks_total{layout}": 1.0,
    }
