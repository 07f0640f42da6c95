"""The watch keeps what is served, says what drifted and how to mend it, and writes a page that Prometheus reads."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dsv41_serving.check.access import Access
from dsv41_serving.contract import watch
from dsv41_serving.contract.clauses import CLAUSES
from dsv41_serving.contract.fingerprint import REMEDIES, UNKNOWN, Drift, compare_fingerprints
from dsv41_serving.contract.watch import WATCHED, Watch
from tests.unit.contract.fake_deployment import FakeDeployment, as_deployment

if TYPE_CHECKING:
    from dsv41_serving.contract.round import Round

TOKENS_PER_ROUND = 200


@pytest.fixture
def served(tmp_path: Path) -> Path:
    directory = tmp_path / "served"
    directory.mkdir()
    (directory / "generation_config.json").write_text('{"temperature": 0.6}', encoding="utf-8")
    return directory


def look(tmp_path: Path, *faults: str, **options: Any) -> Round:
    """Return a round of a deployment with `faults`; the watch remembers the rounds before it."""
    watch = Watch(tmp_path / "state")
    return asyncio.run(watch.look(as_deployment(FakeDeployment(*faults)), tmp_path / "served", **options))


def page(tmp_path: Path) -> dict[tuple[str, str], float]:
    text = Watch(tmp_path / "state").page.read_text(encoding="utf-8")
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.usefixtures("served")
class TestRounds:
    def test_first_good_round_is_the_baseline_and_the_same_again_is_no_drift(self, tmp_path: Path) -> None:
        first, second = look(tmp_path), look(tmp_path)
        assert first.kept
        assert second.kept
        assert first.fingerprint == second.fingerprint == Watch(tmp_path / "state").read_baseline()
        assert len(second.as_lines()) == 1
        assert set(first.fingerprint) == {
            *(
                f"{what} {engine}"
                for what in ("model", "prompts", "in force", "versions")
                for engine in ("prefill", "decode")
            ),
            "model router",
            "generation config",
        }
        assert UNKNOWN not in first.fingerprint.values()

    def test_round_stays_under_its_tokens(self, tmp_path: Path) -> None:
        assert 0 < look(tmp_path).generated_tokens < TOKENS_PER_ROUND

    def test_router_with_an_old_name_is_named_with_its_command(self, tmp_path: Path) -> None:
        look(tmp_path)
        stale = look(tmp_path, "router-old-name")
        assert [drift.item for drift in stale.drift] == ["model router"]
        assert not stale.kept
        line = next(line for line in stale.as_lines() if line.startswith("DRIFT"))
        assert "was deepseek-v4.1-flash, is /models/v41" in line
        assert "systemctl restart dsv41-router" in line

    @pytest.mark.parametrize(
        ("fault", "items"),
        [
            ("engine-path", {"model decode"}),
            ("other-encoder", {"prompts prefill", "prompts decode"}),
            ("engine-differs", {"in force decode"}),
            ("version-changed", {"versions decode"}),
        ],
    )
    def test_what_drifted_is_said(self, tmp_path: Path, fault: str, items: set[str]) -> None:
        look(tmp_path)
        changed = look(tmp_path, fault)
        assert {drift.item for drift in changed.drift} == items
        assert all(drift.remedy in str(drift) for drift in changed.drift)

    def test_edited_sampling_file_is_drift(self, tmp_path: Path) -> None:
        look(tmp_path)
        (tmp_path / "served" / "generation_config.json").write_text("{}", encoding="utf-8")
        assert [drift.item for drift in look(tmp_path).drift] == ["generation config"]

    def test_drift_stays_until_accepted(self, tmp_path: Path) -> None:
        look(tmp_path)
        assert look(tmp_path, "version-changed").drift
        assert look(tmp_path, "version-changed").drift
        assert look(tmp_path, "version-changed", accept=True).kept
        assert look(tmp_path, "version-changed").kept

    def test_bad_round_is_no_baseline(self, tmp_path: Path) -> None:
        assert not look(tmp_path, "thinking-default-off").kept
        assert Watch(tmp_path / "state").read_baseline() == {}
        assert look(tmp_path).kept

    def test_page_says_what_the_round_found(self, tmp_path: Path) -> None:
        look(tmp_path)
        done = look(tmp_path, "router-old-name")
        found = page(tmp_path)
        assert found["dsv41_contract_clause_kept", "model-listed"] == 0
        assert found["dsv41_contract_clause_kept", "thinking-off"] == 1
        assert found["dsv41_contract_drift", "model router"] == 1
        assert found["dsv41_contract_drifted_items", ""] == 1
        assert found["dsv41_contract_round_generated_tokens", ""] == done.generated_tokens
        assert found["dsv41_contract_round_timestamp_seconds", ""] == pytest.approx(done.finished_at)

    def test_round_is_kept_as_json(self, tmp_path: Path) -> None:
        look(tmp_path)
        done = look(tmp_path, "engine-path")
        stored = json.loads((tmp_path / "state" / "contract" / "round.json").read_text(encoding="utf-8"))
        assert stored["kept"] is False
        assert stored["clauses"]["model-listed"] == "miss"
        assert stored["drift"] == [str(drift) for drift in done.drift]


def test_unreachable_server_is_unknown_and_no_baseline(tmp_path: Path) -> None:
    """Without the served directory the sampling file is unknown too."""
    done = look(tmp_path)
    assert done.fingerprint["generation config"] == UNKNOWN
    assert Watch(tmp_path / "state").read_baseline() == {}


class _EnoughError(Exception):
    """Ends a watch that would go on."""


@pytest.mark.usefixtures("served")
def test_watch_goes_on_until_told_otherwise_and_accepts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look(tmp_path)
    fake = FakeDeployment("version-changed")
    monkeypatch.setattr(watch, "of_plan", lambda _plan, _client: as_deployment(fake))
    rounds: list[Round] = []

    def note(done: Round) -> None:
        rounds.append(done)
        fake.faults.clear()
        if len(rounds) == 3:
            raise _EnoughError

    plan = SimpleNamespace(state_dir=str(tmp_path / "state"), model=SimpleNamespace(path=str(tmp_path / "served")))
    with pytest.raises(_EnoughError):
        asyncio.run(
            watch.watch_contract(plan, access=Access(""), interval_s=0.01, once=False, accept=True, on_round=note)  # type: ignore[arg-type]
        )
    assert [len(done.drift) for done in rounds] == [0, 1, 1]


def test_watched_clauses_exist() -> None:
    assert set(WATCHED) <= {clause.name for clause in CLAUSES}


def test_comparison_sees_what_came_and_went() -> None:
    assert compare_fingerprints({"a": "1", "b": "2"}, {"b": "3", "c": "4"}) == [
        Drift("a", "1", "absent"),
        Drift("b", "2", "3"),
        Drift("c", "absent", "4"),
    ]


def test_every_remedy_names_a_command() -> None:
    assert all("`" in remedy for _, remedy in REMEDIES)
