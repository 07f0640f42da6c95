"""Are the ports free, and will they stay free until the services bind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.plan.ports import find_conflicts
from dsv41_serving.preflight.check import Check, failed, passed, warned
from dsv41_serving.spec.model import LOOPBACK

if TYPE_CHECKING:
    from dsv41_serving.preflight.check import Outcome, Scene

_BACKLOG = 1024


def judge_ports(scene: Scene) -> Outcome | None:
    """Return whether every port of the plan is free, or held by what we run ourselves."""
    foreign = [
        listener
        for listener in scene.facts.listeners
        if listener.pid is None or not scene.traces.own_pids.intersection({listener.pid, *listener.holders})
    ]
    conflicts = find_conflicts(scene.plan.services, foreign)
    if conflicts:
        ports = ", ".join(f"{each.where}: {each.problem}" for each in conflicts)
        first = conflicts[0].problem.split()[1]
        return failed(ports, f"sudo ss -ltnp 'sport = :{first}'; stop that process, or set another port")
    count = sum(len(service.ports) for service in scene.plan.services)
    held = ", held by what runs here" if scene.traces.running else " free"
    return passed(f"{count} ports{held}")


def judge_ephemeral(scene: Scene) -> Outcome | None:
    """Return whether the kernel leaves the ports alone: it gives ports of this range to any outgoing connection."""
    span = scene.host.port_range
    if span is None:
        return None
    ports = sorted({port for service in scene.plan.services for port in service.ports.values()})
    exposed = [port for port in ports if span[0] <= port <= span[1] and port not in scene.host.reserved_ports]
    if exposed:
        named = ",".join(map(str, exposed))
        return warned(
            f"port {named} may be given to an outgoing connection (ports {span[0]}-{span[1]})",
            f"sudo sysctl -w net.ipv4.ip_local_reserved_ports={named}",
        )
    return passed(f"outside {span[0]}-{span[1]}")


def judge_bootstrap(scene: Scene) -> Outcome | None:
    """Return whether prefill and decode mean the same bootstrap port."""
    flags = {
        engine.name: engine.argv[engine.argv.index("--disaggregation-bootstrap-port") + 1]
        for engine in scene.plan.engines
        if "--disaggregation-bootstrap-port" in engine.argv
    }
    if not flags:
        return None
    if len(set(flags.values())) > 1:
        return failed(
            ", ".join(f"{name}: {port}" for name, port in flags.items()), "set engines.prefill.bootstrap_port alone"
        )
    return passed(f"port {next(iter(flags.values()))} on {' and '.join(flags)}")


def judge_loopback(scene: Scene) -> Outcome | None:
    """Return whether the loopback interface is up: engines listen there and nowhere else."""
    if scene.host.loopback_up is False:
        return failed("lo is down", "sudo ip link set lo up")
    return passed("up" if scene.host.loopback_up else "not visible")


def judge_exposure(scene: Scene) -> Outcome | None:
    """Return whether what leaves the machine is encrypted; that it needs a key the description itself insists on."""
    router = scene.spec.router
    if router.host not in LOOPBACK and not router.tls_cert_file:
        return warned(
            f"the router listens on {router.host} in plain HTTP: keys and prompts can be read on the way",
            "set router.tls_cert_file and router.tls_key_file",
        )
    if scene.spec.hosts:
        return warned(
            "KV and the key pass between hosts unencrypted, and the hand-off asks for no key",
            "keep that network to these hosts; the units let engines talk to nobody else",
        )
    return passed(f"engines on loopback, router on {router.host}")


def judge_secrets(scene: Scene) -> Outcome | None:
    """Return whether files with keys are there, and closed to others."""
    absent = [f"{key}: {file.path}" for key, file in scene.secrets.items() if not file.exists]
    open_files = [
        file.path for key, file in scene.secrets.items() if file.open_to_others and not key.endswith("cert_file")
    ]
    if absent:
        return failed(f"is not there: {', '.join(absent)}", "sudo install -m 600 FILE there, or correct the path")
    if open_files:
        return warned(f"others may read {', '.join(open_files)}", f"sudo chmod o-r {' '.join(open_files)}")
    return passed(", ".join(file.path for file in scene.secrets.values())) if scene.secrets else None


def judge_backlog(scene: Scene) -> Outcome | None:
    """Return whether bursts of connections can wait to be accepted."""
    found = scene.host.somaxconn
    if found is not None and found < _BACKLOG:
        return warned(f"net.core.somaxconn = {found}", f"sudo sysctl -w net.core.somaxconn={_BACKLOG * 4}")
    return passed(f"net.core.somaxconn = {found}")


CHECKS = (
    Check(
        "ports",
        "Are the ports free?",
        "sglang#20952, hermes-agent docs: a stale server answered",
        judge_ports,
        needs_plan=True,
    ),
    Check(
        "ephemeral",
        "Will the kernel leave the ports alone?",
        "kernel documentation, ip_local_port_range",
        judge_ephemeral,
        needs_plan=True,
    ),
    Check(
        "bootstrap",
        "Do prefill and decode mean one bootstrap port?",
        "sglang#20952, #21268",
        judge_bootstrap,
        needs_plan=True,
    ),
    Check("loopback", "Is loopback up?", "engines listen there alone", judge_loopback),
    Check("exposure", "Is what leaves the machine encrypted?", "smg: binds in plain HTTP", judge_exposure),
    Check("secrets", "Are files with keys there, and closed?", "systemd LoadCredential fails with 243", judge_secrets),
    Check("backlog", "Can connections wait to be accepted?", "kernel documentation, somaxconn", judge_backlog),
)
