"""The gate: independent observations, each of which can fail alone."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from dsv41_serving.check.gate import check_engine, compare_counters
from dsv41_serving.check.metrics import MetricsPage
from dsv41_serving.check.result import Finding, all_passed, as_rows, as_table
from dsv41_serving.errors import InputError
from dsv41_serving.facts import read_process
from dsv41_serving.plan.model import Placement
from dsv41_serving.run import supervise
from dsv41_serving.run.gate import check_running
from dsv41_serving.run.record import Records
from dsv41_serving.run.stack import Stack
from tests.unit.plan.machines import plan_for
from tests.unit.run.fake_plan import ANYWHERE, fake_plan
from tests.unit.run.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from dsv41_serving.facts import Facts
    from dsv41_serving.plan import Plan

NOTHING = MetricsPage("")


def page(prompt: int = 0, generated: int = 0, moved: float = 0.0, failed: int = 0) -> MetricsPage:
    """Return the page of an engine; counters come with labels."""
    return MetricsPage(
        f'sglang:prompt_tokens_total{{tp_rank="0"}} {prompt}\n'
        f'sglang:generation_tokens_total{{tp_rank="0"}} {generated}\n'
        f'sglang:kv_transfer_total_mb_sum{{tp_rank="0"}} {moved}\n'
        f"sglang:num_transfer_failed_reqs_total {failed}\n"
    )


def compare(plan: Plan, before: list[MetricsPage], after: list[MetricsPage]) -> dict[tuple[str, str], Finding]:
    """Return the findings by service and counter."""
    names = [engine.name for engine in plan.engines]
    found = compare_counters(plan, dict(zip(names, before, strict=True)), dict(zip(names, after, strict=True)))
    return {(finding.service, finding.seen.split(" ", 1)[0].removeprefix("sglang:")): finding for finding in found}


def test_both_engines_and_the_hand_off_must_have_moved(plan: Plan) -> None:
    """Prompt tokens on prefill, bytes between them, generated tokens on decode."""
    found = compare(plan, [page(10, 0, 1.0), page(0, 20)], [page(15, 0, 1.5), page(0, 27)])
    assert {key: (finding.check, finding.passed) for key, finding in found.items()} == {
        ("prefill", "prompt_tokens_total"): ("used", True),
        ("prefill", "kv_transfer_total_mb_sum"): ("hand-off", True),
        ("decode", "generation_tokens_total"): ("used", True),
    }
    assert found["prefill", "kv_transfer_total_mb_sum"].seen == "sglang:kv_transfer_total_mb_sum moved by 0.5 MiB"


@pytest.mark.parametrize(
    ("after", "still"),
    [
        ([page(0, 0, 1.0), page(0, 5)], ("prefill", "prompt_tokens_total")),
        ([page(5, 0, 0.0), page(0, 5)], ("prefill", "kv_transfer_total_mb_sum")),
        ([page(5, 0, 1.0), page(5, 0)], ("decode", "generation_tokens_total")),
    ],
)
def test_a_counter_that_stood_still_fails(plan: Plan, after: list[MetricsPage], still: tuple[str, str]) -> None:
    """The answer came from somewhere else."""
    found = compare(plan, [page(), page()], after)
    assert [key for key, finding in found.items() if not finding.passed] == [still]
    assert found[still].remedy.startswith("the answer did not come through this engine")


def test_a_counter_that_is_not_there_yet_counts_from_zero(plan: Plan) -> None:
    """SGLang exports some of them with the first request."""
    found = compare(plan, [NOTHING, NOTHING], [page(5, 0, 1.0), page(0, 5)])
    assert all(finding.passed for finding in found.values())
    assert not any(finding.passed for finding in compare(plan, [NOTHING, NOTHING], [NOTHING, NOTHING]).values())


def test_a_failed_transfer_fails_the_gate(plan: Plan) -> None:
    """Though the retry answered."""
    found = compare(plan, [page(failed=3), page()], [page(5, 0, 1.0, failed=4), page(0, 5)])
    failed = [finding for finding in found.values() if not finding.passed]
    assert [(finding.service, finding.check, finding.seen) for finding in failed] == [
        ("router", "hand-off", "1 transfers failed")
    ]


def test_replicas_count_together(two_sockets: Facts) -> None:
    """One request uses one of them; which one is the router's choice."""
    plan = plan_for(two_sockets, "h200x8", "shape=replicas")
    found = compare(plan, [page(), page()], [page(), page(5, 5)])
    assert {key: finding.passed for key, finding in found.items()} == {
        ("replica0+replica1", "generation_tokens_total"): True
    }


def test_samples_of_one_name_are_summed_over_their_labels() -> None:
    """Every rank exports its own."""
    metrics = MetricsPage('a{r="0"} 1\na{r="1"} 2\nb 5\n')
    assert (metrics.get("a"), metrics.get("b"), metrics.get("c")) == (3.0, 5.0, None)
    assert (metrics.total("a", "b"), metrics.total("c")) == (8.0, 0.0)
    with pytest.raises(ValueError, match=r"."):
        MetricsPage("<html>\n")


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask the gate of a starting service again at once."""
    monkeypatch.setattr(supervise, "GATE_RETRY_S", 0.02)


def with_stack(plan: Plan, look: Callable[[], Awaitable[Any]]) -> Any:
    """Run `look` while the stack of programs runs."""

    async def run() -> Any:
        ready = asyncio.Event()
        stack = Stack(
            plan,
            open_log=lambda _: io.BytesIO(),
            on_state=lambda record: ready.set() if record.state == "ready" else None,
        )
        running = asyncio.create_task(stack.run())
        waiting = asyncio.create_task(ready.wait())
        try:
            await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE_S)
            assert ready.is_set()
            return await look()
        finally:
            stack.request_stop(drain=False)
            await asyncio.wait_for(running, PATIENCE_S)

    return asyncio.run(run())


def summarize(findings: list[Finding]) -> list[tuple[str, str, bool]]:
    """Return who was checked for what, and whether it passed."""
    return [(finding.service, finding.check, finding.passed) for finding in findings]


@pytest.mark.usefixtures("fast")
def test_the_gate_by_hand_looks_at_what_runs(tmp_path: Path) -> None:
    """Every check of every service, in order; one role alone when asked for."""
    plan = fake_plan(tmp_path)

    async def look() -> tuple[list[Finding], list[Finding]]:
        return await check_running(plan, None, ()), await check_running(plan, "decode", ())

    everything, decode = with_stack(plan, look)
    assert summarize(everything) == [
        ("prefill", "identity", True),
        ("prefill", "model", True),
        ("prefill", "contract", True),
        ("prefill", "forward", True),
        ("decode", "identity", True),
        ("decode", "model", True),
        ("decode", "contract", True),
        ("decode", "forward", True),
        ("router", "identity", True),
        ("router", "workers", True),
        ("router", "model", True),
        ("router", "contract", True),
        ("router", "conversation", True),
        ("prefill", "used", True),
        ("prefill", "hand-off", True),
        ("decode", "used", True),
    ]
    assert summarize(decode) == [("decode", check, True) for check in ("identity", "model", "contract", "forward")]
    assert "'Name the capital of France.' -> 5 tokens: 'Paris.'" in [finding.seen for finding in everything]


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(
    ("service", "fault", "checks", "seen"),
    [
        ("prefill", {"model": "default"}, ["identity", "model"], "/v1/models says ['default']"),
        ("prefill", {"contract": None}, ["identity", "model", "contract"], "prefill: /contract says 404: "),
        ("prefill", {"healthy": False}, ["identity", "model", "contract", "forward"], "/health_generate says 503"),
        ("router", {"healthy": False}, ["identity", "workers"], "/readiness says 503: ok"),
        ("router", {"model": "default"}, ["identity", "workers", "model"], "/v1/models says ['default']"),
        (
            "router",
            {"finish_reason": "abort"},
            ["identity", "workers", "model", "contract", "conversation"],
            "finish_reason is 'abort'",
        ),
        (
            "prefill",
            {"page": "<html>"},
            ["identity", "workers", "model", "contract", "conversation"],
            "ValueError: ",
        ),
    ],
)
def test_the_first_fault_ends_the_gate(
    tmp_path: Path, service: str, fault: dict[str, Any], checks: list[str], seen: str
) -> None:
    """A service that was ready a moment ago is judged by what it is now."""
    state = tmp_path / "state.json"
    plan = fake_plan(tmp_path, {service: {"state": str(state)}})

    async def look() -> list[Finding]:
        await asyncio.to_thread(state.write_text, json.dumps(fault))
        return await check_running(plan, "router" if "page" in fault else service, ())

    findings = with_stack(plan, look)
    assert [finding.check for finding in findings] == checks
    assert [finding.passed for finding in findings] == [True] * (len(checks) - 1) + [False]
    assert findings[-1].seen.startswith(seen)
    assert findings[-1].remedy


def test_what_was_not_started_cannot_pass(tmp_path: Path) -> None:
    """Each service is said to be absent; an unknown one is bad input."""
    plan = fake_plan(tmp_path)
    findings = asyncio.run(check_running(plan, None, ()))
    assert summarize(findings) == [(name, "identity", False) for name in ("prefill", "decode", "router")]
    assert findings[0].as_line() == "FAIL  prefill   identity     it was not started on this node; `dsv41 up`"
    with pytest.raises(InputError) as error:
        asyncio.run(check_running(plan, "decoder", ()))
    assert str(error.value) == "shape pd: this plan has no service 'decoder'; use one of: prefill, decode, router"


def test_a_service_that_does_not_answer_fails_with_its_reason(tmp_path: Path) -> None:
    """The port is ours and speaks no HTTP."""
    plan = fake_plan(tmp_path)
    service = plan.service("prefill")
    mute = "import socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1])))\nprint('open', flush=True)\n"
    mute += "while True: s.accept()[0].close()"
    command = [sys.executable, "-I", "-S", "-c", mute, str(service.port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = read_process(process.pid)
        assert found is not None
        findings = asyncio.run(check_engine(plan, service, process.pid, found.start_ticks))
        process.kill()
    assert summarize(findings) == [("prefill", "identity", True), ("prefill", "model", False)]
    # Which of the two depends on whether the request was written before the end of the connection was seen.
    assert findings[-1].seen.partition(":")[0] in {"RemoteProtocolError", "ReadError"}


@pytest.mark.usefixtures("fast")
def test_weights_must_lie_on_the_gpus_of_the_plan(tmp_path: Path, two_sockets: Facts) -> None:
    """An engine that runs elsewhere, or on the CPU, answers just as well."""
    plan = fake_plan(tmp_path)
    placed = plan.service("prefill").model_copy(update={"placement": Placement(gpus=(0, 1), numa_node=None, cpus=())})
    plan = plan.model_copy(update={"services": (placed, *plan.services[1:])})
    full = [gpu.model_copy(update={"memory_used_bytes": gpu.memory_total_bytes * 9 // 10}) for gpu in two_sockets.gpus]

    async def look() -> list[list[Finding]]:
        record = Records(tmp_path).read_services(plan)[0]
        assert record.pid is not None
        assert record.start_ticks is not None
        gpus = [full, [full[0], two_sockets.gpus[1]], full[:1]]
        return [await check_engine(plan, placed, record.pid, record.start_ticks, seen) for seen in gpus]

    # The stack itself starts without a look at GPUs: this machine has none of them.
    loaded, half, absent = with_stack(fake_plan_without_gpus(plan), look)
    assert loaded[-1].as_line() == "pass  prefill   gpu memory   GPU 0 90%, GPU 1 90%"
    assert half[-1].as_line() == (
        "FAIL  prefill   gpu memory   GPU 0 90%, GPU 1 0%; GPU 1 holds no weights: the engine runs elsewhere"
    )
    assert not absent[-1].passed


@pytest.mark.usefixtures("fast")
def test_an_engine_must_keep_to_the_numa_node_of_the_plan(tmp_path: Path) -> None:
    """The stack of programs was bound to no node; a plan that says otherwise is not what runs."""
    plan = fake_plan(tmp_path)
    bound = plan.service("prefill").model_copy(update={"placement": Placement(gpus=(), numa_node=0, cpus=())})

    async def look() -> list[Finding]:
        record = Records(tmp_path).read_services(plan)[0]
        assert record.pid is not None
        assert record.start_ticks is not None
        return await check_engine(plan, bound, record.pid, record.start_ticks)

    last = with_stack(plan, look)[-1]
    assert (last.check, last.passed) == ("placement", False)


@pytest.mark.usefixtures("fast")
def test_a_starting_engine_is_asked_for_its_weights_until_they_are_there(
    tmp_path: Path, two_sockets: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPUs are read anew each time the gate is tried: they were empty when the plan was made."""
    full = [gpu.model_copy(update={"memory_used_bytes": gpu.memory_total_bytes // 2}) for gpu in two_sockets.gpus]
    seen = [two_sockets, two_sockets.model_copy(update={"gpus": tuple(full)})]
    monkeypatch.setattr(supervise, "read_facts", lambda: seen.pop(0) if len(seen) > 1 else seen[0])
    plan = fake_plan(tmp_path)
    placed = plan.service("prefill").model_copy(update={"placement": Placement(gpus=(0, 1), numa_node=None, cpus=())})
    plan = plan.model_copy(update={"services": (placed, *plan.services[1:])})

    async def look() -> dict[str, bool]:
        return Records(tmp_path).read_services(plan)[0].checks

    assert with_stack(plan, look)["gpu memory"]
    assert len(seen) == 1


def fake_plan_without_gpus(plan: Plan) -> Plan:
    """Return the plan with every service placed anywhere."""
    anywhere = [service.model_copy(update={"placement": ANYWHERE}) for service in plan.services]
    return plan.model_copy(update={"services": tuple(anywhere)})


def test_findings_are_lines_rows_and_a_table() -> None:
    """For logs, programs and people; a remedy stands only where something failed."""
    good = Finding(service="decode", check="forward", passed=True, seen="200", remedy="read its log")
    bad = Finding(service="router", check="workers", passed=False, seen="503", remedy="restart it")
    assert good.as_line() == "pass  decode    forward      200"
    assert bad.as_line() == "FAIL  router    workers      503; restart it"
    assert as_rows([bad]) == [
        {"service": "router", "check": "workers", "passed": False, "seen": "503", "remedy": "restart it"}
    ]
    console = Console(width=100)
    with console.capture() as capture:
        console.print(as_table([good, bad]))
    lines = [" ".join(line.replace("│", " ").split()) for line in capture.get().splitlines()]
    assert "decode forward pass 200" in lines
    assert "router workers FAIL 503; restart it" in lines


def test_nothing_checked_is_nothing_passed() -> None:
    """An empty gate is shut."""
    good = Finding(service="decode", check="forward", passed=True, seen="200")
    bad = Finding(service="decode", check="forward", passed=False, seen="503")
    assert all_passed([good, good])
    assert not all_passed([good, bad])
    assert not all_passed([])
