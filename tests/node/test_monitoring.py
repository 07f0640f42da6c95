"""Servers from pinned archives: Prometheus in the place of Debian's package, Grafana, which has none; and back."""

from __future__ import annotations

import functools
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from dsv41_serving.embedded.manifest import hash_file
from tests.node.conftest import Operator, Play
from tests.node.machine import Machine
from tests.node.test_deploy import failing_targets

STAND_IN = Path(__file__).with_name("stand_in.py").read_bytes()


def program_of(machine: Machine) -> str:
    return machine.run("readlink /proc/$(systemctl show -P MainPID prometheus)/exe").stdout.strip()


def ask_grafana(machine: Machine) -> dict[str, Any]:
    """Return what the stand-in found, as soon as it listens."""
    url = "http://127.0.0.1:3000"
    found: dict[str, Any] = json.loads(
        machine.run(f"curl -sS --retry 60 --retry-delay 1 --retry-connrefused {url}").stdout
    )
    return found


def pack(archive: Path, program: str, content: bytes) -> Path:
    """Write an archive that holds `program`, a path below a first directory as in a release, and return it."""
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        entry = tarfile.TarInfo(f"{archive.name.removesuffix('.tar.gz')}/{program}")
        entry.size, entry.mode = len(content), 0o755
        tar.addfile(entry, io.BytesIO(content))
    return archive


@contextmanager
def served(directory: Path, machine: Machine) -> Iterator[str]:
    """Serve `directory` over HTTP to the network of `machine`; yield its URL."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(directory))
    with ThreadingHTTPServer((f"{machine.network.prefix}.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{machine.network.prefix}.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def monitor(operator: Operator, **binaries: dict[str, str]) -> Play:
    """Apply the monitoring alone, with these archives."""
    operator.variables["dsv41_binaries"] = binaries
    operator.write_inventory()
    return operator.play("deploy", "--tags", "monitoring")


def pin(archive: Path, where: str = "") -> dict[str, str]:
    return {"archive": where or str(archive), "sha256": hash_file(archive)}


def complaint(play: Play) -> str:
    """Return the one line with which a play failed, without the wrapping of Ansible's output."""
    assert play.code != 0
    return " ".join(play.output.split())


def test_pinned_archives_are_run_and_another_is_refused(operator: Operator) -> None:
    """One from a mirror directory, one by URL, then the other way round; Grafana's holds the stand-in of this directory."""
    node = operator.node
    mirror = operator.directory / "mirror"
    mirror.mkdir()
    prometheus = pack(mirror / "prometheus-2.42.tar.gz", "prometheus", (node.root / "usr/bin/prometheus").read_bytes())
    grafana, newer = (pack(mirror / f"grafana-{name}.tar.gz", "bin/grafana", STAND_IN) for name in ("a", "b"))

    play = monitor(operator, prometheus={**pin(prometheus), "sha256": "0" * 64})
    assert f"{prometheus} has sha256 {hash_file(prometheus)}, the inventory says {'0' * 64}" in complaint(play)
    assert program_of(node) == "/usr/bin/prometheus"

    with served(mirror, node) as url:
        play = monitor(operator, prometheus=pin(prometheus, f"{url}/{prometheus.name}"), grafana=pin(grafana))
        assert play.code == 0, play.output[-6000:]
        assert program_of(node).startswith(f"/opt/dsv41/binaries/prometheus-{hash_file(prometheus)[:12]}/")
        assert failing_targets(node) == set()
        found = ask_grafana(node)
        assert found.pop("uid") == int(node.run("stat -c %u /proc/$(systemctl show -P MainPID grafana)").stdout) > 0
        assert found == {
            "home": f"/opt/dsv41/binaries/grafana-{hash_file(grafana)[:12]}",
            "sources": {"dsv41 Prometheus": "http://127.0.0.1:9090", "dsv41 Alertmanager": "http://127.0.0.1:9093"},
            "boards": ["dsv41-main", "dsv41-node", "dsv41-slo"],
        }
        assert monitor(operator, **operator.variables["dsv41_binaries"]).changed == 0

        wrong = {**pin(newer, f"{url}/{newer.name}"), "sha256": "0" * 64}
        play = monitor(operator, prometheus=pin(prometheus), grafana=wrong)
        refused = f"{wrong['archive']} has sha256 {hash_file(newer)}, the inventory says {'0' * 64}"
        assert refused in complaint(play)
        play = monitor(operator, prometheus=pin(prometheus), grafana=pin(newer, wrong["archive"]))
        assert play.code == 0, play.output[-6000:]
        assert ask_grafana(node)["home"] == f"/opt/dsv41/binaries/grafana-{hash_file(newer)[:12]}"

    play = monitor(operator)
    assert play.code == 0, play.output[-6000:]
    assert program_of(node) == "/usr/bin/prometheus"
    assert node.run("systemctl show -P LoadState grafana").stdout == "not-found\n"
    # A Grafana of the operator's own, under the same name, is not this role's to remove.
    theirs = "/etc/systemd/system/grafana.service"
    node.run(f"printf '[Service]\\nExecStart=/bin/true\\n' > {theirs}")
    assert monitor(operator).changed == 0
    node.run(f"rm {theirs}")  # fails where it is gone
    del operator.variables["dsv41_binaries"]
    operator.write_inventory()
