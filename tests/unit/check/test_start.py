"""What must hold before anything is started."""

from __future__ import annotations

import socket
from importlib import metadata
from typing import TYPE_CHECKING

import pytest

from dsv41_serving.check import start
from dsv41_serving.check.start import PINNED, check_start, check_versions, find_checkpoint
from dsv41_serving.errors import EXIT_BAD_INPUT, EngineDriftError, InputError
from dsv41_serving.facts import Listener, read_facts
from dsv41_serving.plan.ports import describe_owner, find_conflicts

if TYPE_CHECKING:
    from pathlib import Path

    from dsv41_serving.facts import Facts
    from dsv41_serving.plan import Plan


def listener(
    port: int, pid: int | None = 77, command: tuple[str, ...] | None = ("python3", "-m", "engine")
) -> Listener:
    """Return a listener on `port`."""
    return Listener(
        port=port,
        address="127.0.0.1",
        uid=1000,
        pid=pid,
        holders=() if pid is None else (pid,),
        start_ticks=None,
        start_time=None,
        cgroup=None,
        command=command,
    )


def test_these_versions_are_the_ones_the_project_is_written_for() -> None:
    """Hooks, flags, log texts and metric names are those of exactly these."""
    assert PINNED == {"sglang": "0.5.23", "sglang-router": "0.3.2", "smg": "1.13.0", "nixl": "1.5.1"}


def install(monkeypatch: pytest.MonkeyPatch, **versions: str | None) -> None:
    """Pretend that these versions are installed; None: not at all."""
    installed = {**PINNED, **{name.replace("_", "-"): version for name, version in versions.items()}}

    def version(package: str) -> str:
        found = installed[package]
        if found is None:
            raise metadata.PackageNotFoundError(package)
        return found

    monkeypatch.setattr(start, "version", version)


def test_the_pinned_versions_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them."""
    install(monkeypatch)
    check_versions()


@pytest.mark.parametrize(
    ("versions", "line"),
    [
        (
            {"sglang": "0.5.24"},
            (
                "sglang: version 0.5.24 is installed, this release is written for 0.5.23; "
                "install the environment from requirements.lock"
            ),
        ),
        (
            {"sglang_router": "0.3.1"},
            (
                "sglang-router: version 0.3.1 is installed, this release is written for 0.3.2; "
                "install the environment from requirements.lock"
            ),
        ),
        ({"nixl": None}, "nixl: is not installed; install nixl 1.5.1 from requirements.lock"),
    ],
)
def test_another_version_is_refused(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str | None], line: str
) -> None:
    """One line, exit code 2."""
    install(monkeypatch, **versions)
    with pytest.raises(EngineDriftError) as error:
        check_versions()
    assert str(error.value) == line
    assert error.value.exit_code == EXIT_BAD_INPUT


def test_free_ports_and_enough_memory_pass(plan: Plan, two_sockets: Facts) -> None:
    """Other listeners of the machine do not matter."""
    assert two_sockets.listeners
    check_start(plan, two_sockets, plan.services)


@pytest.mark.parametrize(
    ("port", "where"),
    [
        (30100, "prefill (http)"),
        (30101, "prefill (rendezvous)"),
        (8998, "prefill (bootstrap)"),
        (30201, "decode (rendezvous)"),
        (30202, "decode (nixl)"),
        (30001, "router (http)"),
        (29000, "router (metrics)"),
    ],
)
def test_a_taken_port_is_said_with_its_owner(plan: Plan, two_sockets: Facts, port: int, where: str) -> None:
    """Every port of the plan counts, not only those for HTTP."""
    busy = two_sockets.model_copy(update={"listeners": (*two_sockets.listeners, listener(port))})
    with pytest.raises(InputError) as error:
        check_start(plan, busy, plan.services)
    assert str(error.value).startswith(
        f"{where}: port {port} is in use by pid 77 (python3 -m engine); stop that process"
    )
    assert error.value.exit_code == EXIT_BAD_INPUT


def test_only_the_ports_of_what_starts_must_be_free(plan: Plan, two_sockets: Facts) -> None:
    """Prefill may run already when decode starts."""
    busy = two_sockets.model_copy(update={"listeners": (listener(30100),)})
    check_start(plan, busy, [plan.service("decode")])


def test_every_conflict_is_found_once(plan: Plan) -> None:
    """In the order of the ports, though a port has listeners of both families."""
    conflicts = find_conflicts(plan.services, [listener(30200), listener(30100), listener(30100), listener(22)])
    assert [conflict.where for conflict in conflicts] == ["prefill (http)", "decode (http)"]


def test_a_real_listener_is_found(plan: Plan) -> None:
    """This process is the owner."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        service = plan.service("prefill").model_copy(update={"ports": {"http": port}})
        (conflict,) = find_conflicts([service], read_facts().listeners)
    assert f"port {port} is in use by pid " in str(conflict)


def test_an_owner_that_may_not_be_seen_is_said_by_its_user() -> None:
    """Another user's process, seen without privileges; a long command is cut."""
    assert describe_owner(listener(1, pid=None, command=None)) == (
        "a process of uid 1000 that this user may not inspect"
    )
    assert describe_owner(listener(1, command=("x" * 200,))) == f"pid 77 ({'x' * 80}…)"
    assert describe_owner(listener(1, command=("y" * 80,))) == f"pid 77 ({'y' * 80})"


def test_too_little_memory_comes_before_ports(plan: Plan, two_sockets: Facts) -> None:
    """Stopping a process would not be enough."""
    memory = two_sockets.memory.model_copy(update={"available_bytes": 79_000_000_000})
    busy = two_sockets.model_copy(update={"listeners": (listener(30100),), "memory": memory})
    with pytest.raises(InputError, match=r"host memory: 74\.5 GiB needed, 73\.6 GiB available, 0\.9 GiB short"):
        check_start(plan, busy, plan.services)


def test_only_what_is_about_to_start_needs_memory(plan: Plan, two_sockets: Facts) -> None:
    """The other engine already has what it needs; the router needs nothing worth counting."""
    memory = two_sockets.memory.model_copy(update={"available_bytes": 40_000_000_000})
    half = two_sockets.model_copy(update={"memory": memory})
    check_start(plan, half, (plan.service("decode"),))
    with pytest.raises(InputError, match="host memory: 74"):
        check_start(plan, half, plan.services)
    check_start(
        plan, half.model_copy(update={"memory": memory.model_copy(update={"available_bytes": 1})}), (plan.router,)
    )


def with_checkpoint(plan: Plan, manifest: str, checkpoint: str) -> Plan:
    """Return the plan for another model."""
    return plan.model_copy(
        update={"model": plan.model.model_copy(update={"manifest": manifest, "checkpoint": checkpoint})}
    )


def test_a_checkpoint_that_is_not_made_here_must_have_a_path(plan: Plan) -> None:
    """It is too large to fetch by surprise."""
    with pytest.raises(InputError) as error:
        find_checkpoint(with_checkpoint(plan, "deepseek-v4.1-flash", ""), print)
    assert str(error.value) == (
        "key model.path: 'deepseek-v4.1-flash' is fetched, not made here; set it to the directory of the checkpoint"
    )


def test_an_absent_checkpoint_is_named(plan: Plan, tmp_path: Path) -> None:
    """One line with the directory."""
    absent = tmp_path / "absent"
    with pytest.raises(InputError) as error:
        find_checkpoint(with_checkpoint(plan, "deepseek-v4.1-flash", str(absent)), print)
    assert str(absent) in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.exit_code == EXIT_BAD_INPUT
