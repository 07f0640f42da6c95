"""A failure leaves one file that says what was known, without keys and without growing for ever."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest

from dsv41_serving.errors import InputError
from dsv41_serving.plan.model import Plan
from dsv41_serving.run import incident
from dsv41_serving.run.incident import failed, remove_oldest, save_incident
from tests.unit.run.fake_plan import fake_plan

RESULT = {"SERVICE_RESULT": "oom-kill", "EXIT_CODE": "killed", "EXIT_STATUS": "KILL", "HOME": "/secret"}


def read_bundle(path: Path) -> dict[str, str]:
    with tarfile.open(path) as bundle:
        members = bundle.getmembers()
        assert {Path(member.name).parent.name for member in members} == {path.name.removesuffix(".tar.gz")}
        streams = {Path(member.name).name: bundle.extractfile(member) for member in members}
        return {name: stream.read().decode() for name, stream in streams.items() if stream is not None}


def with_key(plan: Plan, file: Path) -> Plan:
    router = plan.router.model_copy(update={"credentials": {"api-key": str(file)}})
    return plan.model_copy(update={"services": (*plan.engines, router)})


@pytest.mark.parametrize(("result", "expected"), [("success", False), ("exit-code", True), ("watchdog", True)])
def test_systemd_says_whether_the_service_failed(result: str, expected: bool) -> None:  # noqa: FBT001
    assert failed({"SERVICE_RESULT": result}) is expected


def test_stop_that_nobody_describes_counts_as_failure() -> None:
    assert failed({})


def test_bundle_holds_what_was_known_and_no_key(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("hunter2-hunter2\n")
    plan = with_key(fake_plan(tmp_path / "state"), tmp_path / "key")
    log = tmp_path / "state" / "log" / "decode.log"
    log.parent.mkdir(parents=True)
    log.write_text(
        "KVTransferError: aborted\n"
        "config: hunter2-hunter2\n"
        "GET /v1 authorization: Bearer abcdef123456\n"
        "hf_token=hf_aaaabbbbcccc api_key='sk-0123456789'\n"
    )
    dump = tmp_path / "state" / "crash" / "host" / "crash_dump.pkl"
    dump.parent.mkdir(parents=True)
    dump.write_bytes(b"what clients wrote")
    path = save_incident(plan, plan.service("decode"), (), RESULT)
    assert path.parent == tmp_path / "state" / "incidents"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    parts = read_bundle(path)
    summary = json.loads(parts["incident.json"])
    assert summary["result"] == {key: RESULT[key] for key in ("SERVICE_RESULT", "EXIT_CODE", "EXIT_STATUS")}
    assert (summary["service"], summary["crash_dumps"]) == ("decode", [str(dump)])
    assert Plan.model_validate_json(parts["plan.json"]).service("decode") == plan.service("decode")
    assert parts["service.log"] == (
        "KVTransferError: aborted\n"
        "config: [removed]\n"
        "GET /v1 authorization: Bearer [removed]\n"
        "hf_token=[removed] api_key='[removed]'\n"
    )
    everything = "".join(parts.values())
    assert not [word for word in ("hunter2", "abcdef", "hf_aaaa", "sk-01", "clients wrote") if word in everything]


def test_long_log_is_kept_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incident, "PART_BYTES", 10)
    plan = fake_plan(tmp_path)
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "prefill.log").write_text("0123456789the end...")
    assert incident.collect_parts(plan, plan.service("prefill"), (), {})["service.log"] == "the end..."


def test_oldest_bundles_go_by_number_and_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incident, "KEPT", 3)
    for day in range(1, 6):
        (tmp_path / f"2026010{day}T000000Z-decode.tar.gz").write_bytes(b"x" * 100)
    remove_oldest(tmp_path)
    assert sorted(path.name[:8] for path in tmp_path.iterdir()) == ["20260103", "20260104", "20260105"]
    monkeypatch.setattr(incident, "KEPT_BYTES", 250)
    remove_oldest(tmp_path)
    assert sorted(path.name[:8] for path in tmp_path.iterdir()) == ["20260104", "20260105"]
    monkeypatch.setattr(incident, "KEPT_BYTES", 1)
    remove_oldest(tmp_path)
    assert [path.name[:8] for path in tmp_path.iterdir()] == ["20260105"]


def test_directory_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    plan = fake_plan(tmp_path)
    (tmp_path / "incidents").write_text("in the way")
    with pytest.raises(
        InputError, match=r"incidents, key node\.state_dir: the incident cannot be saved \(File exists\)"
    ):
        save_incident(plan, plan.service("decode"), (), os.environ)
