"""Has an earlier run left processes, shared memory, sockets or records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.preflight.check import Check, failed, passed, warned

if TYPE_CHECKING:
    from dsv41_serving.preflight.check import Outcome, Scene

_CLEAN = "dsv41 preflight --clean"


def judge_orphans(scene: Scene) -> Outcome | None:
    """Return whether processes of an ended run still live."""
    orphans = {left.service: left.pids for left in scene.traces.leftovers if left.pids}
    if orphans:
        named = ", ".join(f"{name}: pid {', '.join(map(str, pids))}" for name, pids in orphans.items())
        return failed(named, _CLEAN)
    return passed("none")


def judge_shared_memory(scene: Scene) -> Outcome | None:
    """Return whether an ended run still holds shared memory."""
    names = [name for left in scene.traces.leftovers for name in left.shared_memory]
    if names:
        return warned(f"{len(names)} segments in /dev/shm: {', '.join(names[:3])}", _CLEAN)
    return passed("none")


def judge_sockets(scene: Scene) -> Outcome | None:
    """Return whether directories with sockets of an ended run are left."""
    paths = [path for left in scene.traces.leftovers for path in left.directories]
    if paths:
        return warned(", ".join(paths), _CLEAN)
    return passed("none")


def judge_records(scene: Scene) -> Outcome | None:
    """Return whether the records say what is: a service that was killed with its supervisor still reads as running."""
    if scene.traces.stale:
        return warned(f"{', '.join(scene.traces.stale)} is recorded as running and is gone", _CLEAN)
    running = scene.traces.running
    return passed(f"running now: {', '.join(running)}" if running else "nothing is recorded as running")


def judge_strangers(scene: Scene) -> Outcome | None:
    """Return whether engines run here that this node does not know."""
    strangers = scene.traces.strangers
    if strangers:
        first = strangers[0]
        command = " ".join(" ".join(first.command).split())[:60]
        return warned(
            f"{len(strangers)} not recorded here, never touched by --clean; first pid {first.pid} of uid {first.uid}: {command}",
            f"ps -o pid,ppid,user,lstart,args -p {','.join(str(each.pid) for each in strangers[:8])}; stop them where they were started",
        )
    return passed("none")


CHECKS = (
    Check("orphans", "Has an ended run left processes?", "vllm#55510, sglang#23627, dynamo#1889", judge_orphans),
    Check("shared-memory", "Has it left shared memory?", "local-ai-registry#55", judge_shared_memory),
    Check(
        "sockets", "Has it left sockets?", "dsv41-deploy-public: a restart joined the old head process", judge_sockets
    ),
    Check(
        "records", "Do the records say what is?", "a supervisor that was killed writes no last record", judge_records
    ),
    Check("strangers", "Do other engines run here?", "hermes-agent docs: a stale container answered", judge_strangers),
)
