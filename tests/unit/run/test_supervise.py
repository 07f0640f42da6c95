"""One service from its start to its end, with a program that plays it."""

from __future__ import annotations

import asyncio
import io
import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dsv41_serving.errors import EXIT_CHECK_FAILED, GateError
from dsv41_serving.run import supervise
from dsv41_serving.run.history import StartHistory
from dsv41_serving.run.session import session_members
from dsv41_serving.run.supervise import Supervisor
from tests.unit.run.fake_plan import fake_plan
from tests.unit.run.waiting import PATIENCE_S
from tests.unit.run.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from dsv41_serving.plan import Plan
    from dsv41_serving.run.record import ServiceRecord

REAL_LINES = [
    "Load weight begin. avail mem=17.18 GB",
    "Load weight end. elapsed=0.04 s, type=LlamaForCausalLM",
    "max_total_num_tokens=32768, chunked_prefill_size=1024",
]


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "GATE_RETRY_S", 0.02)


class Watched(Watch["ServiceRecord"]):
    """A supervisor, what it prints, and every state it went through."""

    def __init__(self, plan: Plan, name: str = "prefill", *, impatient_in: str = "") -> None:
        """Supervise service `name` of `plan`; from phase `impatient_in` on, its start may take no more time."""
        super().__init__()
        self.output = io.BytesIO()
        self.impatient_in = impatient_in
        self.supervisor = Supervisor(plan, plan.service(name), output=self.output, on_change=self.note, pin=False)

    def note(self, record: ServiceRecord) -> None:
        """Keep the record; however long the phases before take on a busy machine, only this one runs out of time."""
        super().note(record)
        if record.phase == self.impatient_in:
            self.supervisor.service = self.supervisor.service.model_copy(update={"start_timeout_s": 0.1})

    def live(self, life: Callable[[Supervisor], Awaitable[Any]]) -> Any:
        """Run `life` on the supervisor and end whatever it leaves."""

        async def run() -> Any:
            try:
                return await asyncio.wait_for(life(self.supervisor), PATIENCE_S)
            finally:
                await self.supervisor.stop(drain=False)

        return asyncio.run(run())

    def states(self) -> list[tuple[str, str]]:
        """Return the states and phases, each once in a row."""
        seen: list[tuple[str, str]] = []
        for record in self.records:
            if not seen or seen[-1] != (record.state, record.phase):
                seen.append((record.state, record.phase))
        return seen

    def fail(self) -> str:
        """Return the line of a start that must fail."""
        with pytest.raises(GateError) as error:
            self.live(Supervisor.start)
        assert error.value.exit_code == EXIT_CHECK_FAILED
        return str(error.value)


def test_the_lane_that_ucx_chose_is_recorded(tmp_path: Path) -> None:
    """As soon as it is printed, in the midst of whatever the service does."""
    table = [
        "[1.5] [vm:1:0]   | initiator intra-node cfg#1                               |",
        "[1.5] [vm:1:0]   | remote memory write by ucp_put* from host memory to host |",
        "[1.5] [vm:1:0]   | 0..inf | zero-copy   | cma/memory                        |",
    ]
    watched = Watched(fake_plan(tmp_path, {"prefill": {"lines": [*REAL_LINES, *table]}}))

    async def life(supervisor: Supervisor) -> ServiceRecord:
        await supervisor.start()
        ready = supervisor.record
        await supervisor.stop()
        return ready

    assert watched.live(life).lane == "shm"


def test_a_service_is_ready_when_its_gate_has_passed(tmp_path: Path) -> None:
    """Phases in order, the output untouched, pid and session recorded, nothing left at the end."""
    watched = Watched(fake_plan(tmp_path, {"prefill": {"lines": REAL_LINES, "tail": "50%\rdone\n"}}))

    async def life(supervisor: Supervisor) -> ServiceRecord:
        await supervisor.start()
        ready = supervisor.record
        assert ready.alive
        assert ready.pid in session_members(ready.pid or 0)
        assert _is_directory(ready.tmp_dir)
        await supervisor.stop()
        return ready

    ready = watched.live(life)
    assert (ready.state, ready.phase, ready.problem) == ("ready", "ready", "")
    assert watched.states() == [
        ("starting", "importing"),
        ("starting", "loading weights"),
        ("starting", "allocating KV"),
        ("starting", "opening port"),
        ("starting", "serving HTTP"),
        ("starting", "gate"),
        ("ready", "ready"),
        ("draining", "draining"),
        ("draining", "stopping"),
        ("stopped", "stopped"),
    ]
    serving = "INFO:     Application startup complete."
    assert watched.output.getvalue().decode() == "\n".join([*REAL_LINES, f"50%\rdone\n{serving}\n"])
    assert session_members(ready.pid) == []
    assert not Path(ready.tmp_dir).exists()


def warming(state_dir: Path, *lengths: int, **faults: object) -> Watched:
    """A prefill engine that answers prompts of `lengths` before it is ready."""
    plan = fake_plan(state_dir, {"prefill": {"lines": REAL_LINES, **faults}})
    services = tuple(
        service.model_copy(update={"warm_up": lengths}) if service.name == "prefill" else service
        for service in plan.services
    )
    return Watched(plan.model_copy(update={"services": services}))


def test_an_engine_answers_the_prompts_of_its_plan_before_it_is_ready(tmp_path: Path) -> None:
    """Each length alone and without a peer, the shortest eight times at once; then its prefix cache is emptied, though it is busy first."""
    watched = warming(tmp_path, 20, 3, busy_flushes=2)

    async def life(supervisor: Supervisor) -> ServiceRecord:
        await supervisor.start()
        return supervisor.record

    assert watched.live(life).state == "ready"
    asked = [line.split() for line in watched.output.getvalue().decode().splitlines() if line.startswith("/")]
    assert [line[:3] for line in asked[:2]] == [["/generate", "20", "0"], ["/generate", "3", "1"]]
    assert sorted(int(line[2]) for line in asked[2:10]) == list(range(2, 10))
    assert len({line[4] for line in asked[:10]}) == 10  # no two prompts begin alike
    assert {tuple(line[:2]) for line in asked[2:10]} == {("/generate", "3")}
    assert [line[0] for line in asked[10:]] == ["/flush_cache"] * 3
    assert all(int(line[4]) >= 1_000 and int(line[3]) < 20_000 for line in asked[:10])
    states = watched.states()
    assert states[states.index(("starting", "gate")) + 1 :][:2] == [("starting", "warming up"), ("ready", "ready")]
    assert "8 prompts of 3 tokens at once" in {record.detail for record in watched.records}


def test_a_prompt_that_fails_while_warming_up_fails_the_start(tmp_path: Path) -> None:
    line = warming(tmp_path, 3, 20, longest=10).fail()
    assert line == (
        "prefill: a prompt of 20 tokens failed while warming up (400 too long); read its log; "
        "[engine] warm_up_tokens = [] starts without"
    )


def test_an_engine_that_dies_while_warming_up_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "_DYING_S", PATIENCE_S)
    line = warming(tmp_path, 3, 20, crash_at=20).fail()
    assert line.startswith("prefill: ended with status 3 while warming up; last line: /generate 3 0 ")


def test_the_service_gets_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own settings over ours, a temporary directory of its own, and compiled modules are kept."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("INHERITED", "yes")
    plan = fake_plan(tmp_path)
    service = plan.service("prefill").model_copy(update={"env": {"OWN": "1", "PLACE": "file://{TMPDIR}/x"}})
    watched = Watched(plan.model_copy(update={"services": (service,)}))

    async def life(supervisor: Supervisor) -> tuple[dict[str, str], str]:
        await supervisor.start()
        return _read_environment(supervisor.record.pid), supervisor.record.tmp_dir

    env, tmp_dir = watched.live(life)
    assert (env["OWN"], env["INHERITED"], env["TMPDIR"]) == ("1", "yes", tmp_dir)
    assert env["PLACE"] == f"file://{tmp_dir}/x"
    assert "PYTHONDONTWRITEBYTECODE" not in env


def test_a_start_is_remembered_and_expected(tmp_path: Path) -> None:
    """The second start says how long each phase took the first time."""
    plan = fake_plan(tmp_path, {"prefill": {"lines": REAL_LINES}})
    Watched(plan).live(Supervisor.start)
    expected = StartHistory(tmp_path, "prefill").expected_s("gate")
    assert expected is not None
    again = Watched(plan)
    again.live(Supervisor.start)
    gate = next(record for record in again.records if record.phase == "gate")
    assert gate.expected_s == expected
    assert next(record for record in again.records if record.state == "ready").expected_s is None


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        pytest.param(
            {"lines": [*REAL_LINES, "RuntimeError: no memory", "shutting down"], "exit": 3},
            "prefill: ended with status 3 while opening port; last line: RuntimeError: no memory; read its log",
            id="the last error counts",
        ),
        pytest.param(
            {"lines": ["usage: ...", "launch_server.py: error: unrecognized arguments: --no-such-flag"], "exit": 2},
            "prefill: ended with status 2 while importing; "
            "last line: launch_server.py: error: unrecognized arguments: --no-such-flag; read its log",
            id="an unknown flag",
        ),
        pytest.param(
            {"lines": ["one", "two"], "exit": 0},
            "prefill: ended with status 0 while importing; last line: two; read its log",
            id="without an error the last line",
        ),
        pytest.param(
            {"tail": "killed", "exit": 1},
            "prefill: ended with status 1 while importing; last line: killed; read its log",
            id="a last line without an end",
        ),
        pytest.param(
            {"noise": 200_000, "lines": ["RuntimeError: no memory"], "exit": 3},
            "prefill: ended with status 3 while importing; last line: RuntimeError: no memory; read its log",
            id="after more than a pipe holds",
        ),
        pytest.param(
            {"exit": 1},
            "prefill: ended with status 1 while importing; last line: it printed nothing; read its log",
            id="silence",
        ),
    ],
)
def test_a_service_that_ends_early_says_why(tmp_path: Path, settings: dict[str, Any], line: str) -> None:
    """The line most likely to say why, from its own output."""
    watched = Watched(fake_plan(tmp_path, {"prefill": settings}))
    assert watched.fail() == line
    failed = next(record for record in watched.records if record.state == "failed")
    assert failed.problem == line
    assert session_members(failed.pid or 0) == []
    assert StartHistory(tmp_path, "prefill").expected_s("importing") is None


@pytest.mark.parametrize("listens", [True, False])
def test_a_port_taken_while_the_service_loads_is_named(tmp_path: Path, listens: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """At once and with its owner: the engine itself goes on for minutes, and then blames something else."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        if listens:
            other.listen()
        port = other.getsockname()[1]
        refusal = f"ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', {port}): address already in use"
        watched = Watched(fake_plan(tmp_path, {"prefill": {"lines": [*REAL_LINES, refusal], "hang": True}}))
        line = watched.fail()
    owner = f"pid {os.getpid()} (" if listens else "an outgoing connection while"
    assert line.startswith(f"prefill: port {port} was taken by {owner}")
    assert "ip_local_port_range" in line
    assert session_members(watched.records[-1].pid or 0) == []


def test_lack_of_memory_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel ends whichever process it likes; what the service itself prints then means little."""
    kills = iter([3, 5])
    monkeypatch.setattr(supervise, "count_oom_kills", lambda: next(kills))
    line = Watched(fake_plan(tmp_path, {"prefill": {"exit": 9}})).fail()
    assert line.startswith(
        "prefill: ended with status 9 (the kernel ended 2 process(es) for lack of memory meanwhile) while"
    )


def test_a_start_without_progress_is_given_up(tmp_path: Path) -> None:
    """It says in which phase, and nothing of it is left."""
    plan = fake_plan(tmp_path, {"prefill": {"lines": REAL_LINES[:1], "hang": True}})
    watched = Watched(plan, impatient_in="loading weights")
    assert watched.fail() == "prefill: no progress for 0 s (phase loading weights); read its log"
    pid = watched.records[-1].pid
    assert pid is not None
    assert session_members(pid) == []


@pytest.mark.parametrize("chatty", [False, True])
def test_a_gate_that_keeps_failing_is_given_up(tmp_path: Path, chatty: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Also when the service logs every request of the gate: that is no progress."""
    settings = {"model": "other", "chatty": chatty}
    watched = Watched(fake_plan(tmp_path, {"prefill": settings}), impatient_in="gate")
    line = watched.fail()
    assert line.startswith("prefill: no progress for 0 s (FAIL  prefill   model        /v1/models says ['other']; ")
    assert any(record.phase == "gate" and record.detail == "/v1/models says ['other']" for record in watched.records)


def test_a_gate_is_asked_again_until_it_passes(tmp_path: Path) -> None:
    """An engine that opens its port before it can compute is not ready, then it is."""
    state = tmp_path / "state.json"
    state.write_text('{"healthy": false}')
    watched = Watched(fake_plan(tmp_path, {"prefill": {"state": str(state)}}))

    async def life(supervisor: Supervisor) -> str:
        start = asyncio.create_task(supervisor.start())
        failing = await watched.see(lambda record: record.detail != "")
        assert failing.state == "starting"
        await asyncio.to_thread(_replace, state, {})
        await start
        return failing.detail

    assert watched.live(life) == "/health_generate says 503"
    assert watched.states()[-3:-1] == [("ready", "ready"), ("draining", "stopping")]


def test_a_stranger_on_the_port_is_not_taken_for_the_service(tmp_path: Path) -> None:
    """It answers everything right, and is somebody else's process."""
    plan = fake_plan(tmp_path)
    stranger = Watched(plan)
    mute = fake_plan(tmp_path / "other", {"prefill": {"lines": ["Application startup complete"], "hang": True}})
    ours = plan.service("prefill").model_copy(update={"argv": mute.service("prefill").argv})
    watched = Watched(plan.model_copy(update={"services": (ours,)}), impatient_in="gate")

    async def life(supervisor: Supervisor) -> str:
        await stranger.supervisor.start()
        try:
            with pytest.raises(GateError) as error:
                await supervisor.start()
        finally:
            await stranger.supervisor.stop(drain=False)
        return str(error.value)

    line = watched.live(life)
    assert f"port {ours.port} belongs to pid {stranger.records[0].pid} (" in line
    assert "stop that process; two services must not share a port" in line


def test_a_drain_waits_for_running_requests(tmp_path: Path) -> None:
    """It says what it waits for, and stops when there is nothing left."""
    state = tmp_path / "state.json"
    state.write_text('{"running": 2}')
    watched = Watched(fake_plan(tmp_path, {"prefill": {"state": str(state)}}))

    async def life(supervisor: Supervisor) -> None:
        await supervisor.start()
        stop = asyncio.create_task(supervisor.stop())
        waiting = await watched.see(lambda record: record.detail == "2 running")
        assert waiting.alive
        await asyncio.to_thread(_replace, state, {"running": 0})
        await stop

    watched.live(life)
    assert not any("gave up" in record.detail for record in watched.records)


def test_a_drain_is_bounded(tmp_path: Path) -> None:
    """A request that never ends does not keep the service alive."""
    watched = Watched(fake_plan(tmp_path, {"prefill": {"running": 1}}, drain_timeout_s=0.1))

    async def life(supervisor: Supervisor) -> None:
        await supervisor.start()
        await supervisor.stop()

    watched.live(life)
    assert [record.detail for record in watched.records if "gave up" in record.detail] == ["gave up: 1 running"]
    assert watched.records[-1].state == "stopped"


def test_a_service_that_ignores_the_request_to_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With everything it has started."""
    monkeypatch.setattr(supervise, "ENGINE_EXIT_S", 0.1)
    watched = Watched(fake_plan(tmp_path, {"prefill": {"deaf": True}}))

    async def life(supervisor: Supervisor) -> int:
        await supervisor.start()
        await supervisor.stop(drain=False)
        return await supervisor.wait()

    assert watched.live(life) == -9
    assert session_members(watched.records[-1].pid or 0) == []


def test_engine_on_gpus_has_the_time_sglang_takes_to_release_them(tmp_path: Path) -> None:
    """It looks for its end every 5 s and gives its schedulers 15 s more."""
    engine = fake_plan(tmp_path).service("prefill")
    on_gpu = engine.model_copy(update={"placement": engine.placement.model_copy(update={"gpus": (0,)})})
    assert supervise.exit_patience_s(on_gpu) > 20.0
    assert supervise.exit_patience_s(engine) == 2.0
    assert supervise.exit_patience_s(fake_plan(tmp_path, drain_timeout_s=30.0).router) == 32.0


def test_workers_do_not_outlive_the_service(tmp_path: Path) -> None:
    """They hold GPU memory, ports and shared memory."""
    watched = Watched(fake_plan(tmp_path, {"prefill": {"worker": True}}))

    async def life(supervisor: Supervisor) -> int:
        await supervisor.start()
        members = session_members(supervisor.record.pid or 0)
        await supervisor.stop(drain=False)
        return len(members)

    assert watched.live(life) == 2
    assert session_members(watched.records[-1].pid or 0) == []


def test_workers_of_a_start_that_fails_are_ended(tmp_path: Path) -> None:
    """The main process has ended by itself."""
    watched = Watched(fake_plan(tmp_path, {"prefill": {"worker": True, "lines": ["ValueError: bad"], "exit": 1}}))
    assert watched.fail().startswith("prefill: ended with status 1 while importing; last line: ValueError: bad")
    assert session_members(watched.records[-1].pid or 0) == []


def test_an_end_is_seen_though_workers_live_on(tmp_path: Path) -> None:
    """They keep the output open; the main process is what counts."""
    watched = Watched(fake_plan(tmp_path, {"prefill": {"worker": True}}))

    async def life(supervisor: Supervisor) -> int:
        await supervisor.start()
        assert supervisor.record.pid is not None
        os.kill(supervisor.record.pid, 9)
        return await supervisor.wait()

    assert watched.live(life) == -9


def test_the_end_of_a_service_is_seen(tmp_path: Path) -> None:
    """With its status; the record then says that it failed."""
    watched = Watched(fake_plan(tmp_path))

    async def life(supervisor: Supervisor) -> int:
        await supervisor.start()
        assert supervisor.record.pid is not None
        os.kill(supervisor.record.pid, 9)
        status = await supervisor.wait()
        supervisor.note_failure(f"ended with status {status}")
        return status

    assert watched.live(life) == -9
    failed = next(record for record in watched.records if record.state == "failed")
    assert (failed.problem, failed.restarts) == ("ended with status -9", 0)


def test_stopping_what_was_never_started(tmp_path: Path) -> None:
    """Says so and does nothing."""
    watched = Watched(fake_plan(tmp_path), "router")
    assert watched.supervisor.record.detail == "for prefill and decode"
    watched.live(lambda supervisor: supervisor.stop())
    assert watched.states() == [("stopped", "stopped")]


def _is_directory(path: str) -> bool:
    return Path(path).is_dir()


def _read_environment(pid: int | None) -> dict[str, str]:
    raw = Path(f"/proc/{pid}/environ").read_bytes().decode()
    return dict(item.split("=", 1) for item in raw.split("\0") if item)


def _replace(path: Path, state: dict[str, Any]) -> None:
    """Replace the file at once: the service reads it at any moment."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(state))
    fresh.replace(path)
