"""`explain`, `top` and the questions they ask: against a Prometheus that answers from a table."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from rich.console import Console

from dsv41_serving.canary.result import CanaryResults, CanaryRun, Step
from dsv41_serving.errors import InputError
from dsv41_serving.observe.explain import explain, gather, show_samples
from dsv41_serving.observe.prometheus import NoPrometheusError, Prometheus, Sample
from dsv41_serving.observe.runbook import Evidence, Section, find_section, read_runbook
from dsv41_serving.observe.top import ROWS, show_top, view

if TYPE_CHECKING:
    from pathlib import Path

ALERT = {
    "labels": {"alertname": "Dsv41CanaryFailing", "severity": "page"},
    "annotations": {"summary": "the canary's conversation fails on n"},
    "state": "firing",
    "activeAt": "2026-11-30T01:02:03.4Z",
}


def prometheus(
    answers: dict[str, list[tuple[dict[str, str], float]]], alerts: list[dict[str, Any]] | None = None
) -> Prometheus:
    """Return a server that knows `answers` by expression."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/api/v1/alerts":
            return _success({"alerts": alerts or []})
        rows = answers.get(request.url.params["query"], [])
        result = [{"metric": labels, "value": [0, str(value)]} for labels, value in rows]
        return _success({"resultType": "vector", "result": result})

    made = Prometheus("http://prometheus")
    made._client = httpx.Client(transport=httpx.MockTransport(answer), base_url="http://prometheus")
    return made


def _success(data: dict[str, Any]) -> httpx.Response:
    return httpx.Response(200, json={"status": "success", "data": data})


def refusing(status: int, body: dict[str, Any]) -> Prometheus:
    made = Prometheus("http://prometheus")
    transport = httpx.MockTransport(lambda _: httpx.Response(status, json=body))
    made._client = httpx.Client(transport=transport, base_url="http://prometheus")
    return made


def test_an_explanation_has_state_meaning_evidence_and_remedy_in_this_order(tmp_path: Path) -> None:
    section = Section("Dsv41CanaryFailing", "It fails.", (Evidence("query", "up"), Evidence("canary", "")), "Mend it.")
    lines = list(
        explain(section, prometheus({"up": [({"service": "decode", "node": "n"}, 0)]}, [ALERT]), str(tmp_path))
    )
    assert lines == [
        "Dsv41CanaryFailing: firing since 2026-11-30T01:02:03: the canary's conversation fails on n",
        "",
        "It fails.",
        "",
        "query up",
        "    service=decode  0",
        "",
        "canary",
        "    the canary has not run on this node",
        "",
        "Mend it.",
    ]


def test_without_prometheus_the_rest_is_still_told(tmp_path: Path) -> None:
    nobody = Prometheus("http://127.0.0.1:9")
    section = find_section("CanaryFailing")
    lines = list(explain(section, nobody, str(tmp_path)))
    assert lines[0] == "Dsv41CanaryFailing: no Prometheus answers at http://127.0.0.1:9 (ConnectError)"
    assert "    nothing runs on this node" in lines


def test_a_refused_query_is_told_in_prometheus_words() -> None:
    broken = refusing(400, {"status": "error", "error": "parse error"})
    with pytest.raises(NoPrometheusError, match="Prometheus refuses it: parse error"):
        broken.query("sum(")


def test_evidence_is_what_the_files_say(tmp_path: Path) -> None:
    step = Step(name="answer", seen="''", problem="empty content")
    run = CanaryRun(finished_at=1.0, seconds=1.0, first_token_s=None, generated_tokens=3, steps=(step,))
    CanaryResults(tmp_path).add(run)
    server = prometheus({})
    assert gather(Evidence("canary", ""), server, str(tmp_path))[0] == "FAIL  answer    empty content; ''"
    (tmp_path / "contract").mkdir()
    (tmp_path / "contract" / "round.json").write_text(json.dumps({"misses": ["MISS  x"], "drift": ["model: a, now b"]}))
    assert gather(Evidence("contract", ""), server, str(tmp_path)) == ["MISS  x", "DRIFT model: a, now b"]
    (tmp_path / "log").mkdir()
    log = '\x1b[31mCUDA error\x1b[0m\n10.0.0.1 - "GET /health HTTP/1.1" 200 OK\n10.0.0.1 - "GET /metrics HTTP/1.1" 200 OK\n'
    (tmp_path / "log" / "decode.log").write_text(log)
    assert gather(Evidence("log", "decode"), server, str(tmp_path)) == ["CUDA error"]


def test_without_a_log_file_the_journal_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "journalctl").write_text('#!/bin/sh\necho "CUDA error of $2"\n')
    (tmp_path / "journalctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert gather(Evidence("log", "decode"), prometheus({}), str(tmp_path)) == ["CUDA error of dsv41-decode"]
    (tmp_path / "journalctl").write_text("#!/bin/sh\nexit 1\n")
    (line,) = gather(Evidence("log", "decode"), prometheus({}), str(tmp_path))
    assert line.startswith("the journal cannot be read; as root: journalctl --unit dsv41-decode")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert gather(Evidence("log", "decode"), prometheus({}), str(tmp_path)) == ["no log of decode on this machine"]


def test_samples_are_told_apart_by_what_differs() -> None:
    samples = [Sample({"__name__": "x", "node": "n", "tp_rank": "0", "service": "decode"}, 0.123456789), Sample({}, 3)]
    assert show_samples(samples) == ["service=decode  0.123457", "value  3"]
    assert show_samples([]) == ["nothing"]
    assert show_samples([Sample({"gpu": str(n)}, n) for n in range(14)])[-1] == "and 2 more"


def test_an_alert_is_found_without_prefix_and_in_any_case_and_a_wrong_one_is_answered_with_a_near_one() -> None:
    assert find_section("kvpoolfull").alert == "Dsv41KvPoolFull"
    assert find_section("Dsv41KvPoolFull").alert == "Dsv41KvPoolFull"
    with pytest.raises(InputError, match="did you mean Dsv41KvPoolFull"):
        find_section("Dsv41KvPoolFul")


def test_every_service_whose_log_is_asked_for_exists() -> None:
    logs = {e.argument for section in read_runbook().values() for e in section.evidence if e.kind == "log"}
    assert logs <= {"prefill", "decode", "router"}


TOP = {
    "dsv41_release_info": [({"node": "left", "release": "0.1.0-abc"}, 1)],
    "dsv41_canary_passed": [({}, 0)],
    "dsv41:ttft_seconds:p50": [({}, 0.25)],
    "dsv41:ttft_seconds:p99": [({}, float("nan"))],
    'dsv41:kv_free:ratio{pool="full"}': [({"service": "decode"}, 0.05), ({"service": "prefill"}, 1)],
    'dsv41_kv_exhaustion_seconds{pool="full"}': [({"service": "decode"}, float("inf"))],
    next(row.expression for row in ROWS if row.name == "hand-off"): [({"service": "prefill"}, 45.678)],
}
TICKET = {**ALERT, "labels": {"alertname": "Dsv41KvPoolFull", "severity": "ticket"}, "annotations": {"summary": "full"}}


def draw(server: Prometheus, width: int) -> Console:
    """Return a terminal of `width` columns on which the numbers stand."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, record=True)
    console.print(view(server))
    return console


@pytest.mark.parametrize("width", [80, 120])
def test_top_shows_what_fires_and_numbers_in_their_units_by_service(width: int) -> None:
    server = prometheus(TOP, [TICKET, ALERT, {**ALERT, "state": "pending"}])
    lines = draw(server, width).export_text().splitlines()
    assert max(map(len, lines)) <= width
    rows = [" ".join(line.split()) for line in lines]
    assert rows[0].startswith("left 0.1.0-abc ")
    assert rows[1:4] == [
        "page CanaryFailing: the canary's conversation fails on n",
        "ticket KvPoolFull: full",
        "dsv41 explain NAME says what to do",
    ]
    assert rows[5:] == [
        "decode prefill",
        "canary FAILED",
        "first token, p50 250 ms",
        "KV free 5.0% 100.0%",
        "KV full in never",
        "hand-off 45.7 GB/s",
    ]


def test_top_draws_what_is_bad_in_red() -> None:
    red = [part.text.strip() for part in draw(prometheus(TOP), 80)._record_buffer if part.style and part.style.bold]
    assert [text for text in red if text not in {"", "decode", "prefill"}] == ["FAILED", "5.0%"]


def test_a_long_alert_does_not_push_the_numbers_off_a_small_terminal() -> None:
    alerts = [{**ALERT, "annotations": {"summary": "word " * 60}}]
    lines = draw(prometheus(TOP, alerts), 80).export_text().splitlines()
    assert len(lines) == 10
    assert lines[1].endswith("…")


def test_top_without_prometheus_says_what_to_do() -> None:
    with pytest.raises(InputError, match=r"no Prometheus answers at .*--prometheus URL"):
        show_top(Prometheus("http://127.0.0.1:9"), once=True, every_s=1.0)


def test_no_row_of_top_is_there_twice() -> None:
    assert len({row.name for row in ROWS}) == len({row.expression for row in ROWS}) == len(ROWS)
