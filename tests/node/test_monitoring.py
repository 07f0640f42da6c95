"""Prometheus from a pinned archive in the place of Debian's package, and back."""

from __future__ import annotations

import functools
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from dsv41_serving.embedded.manifest import hash_file
from tests.node.conftest import Operator
from tests.node.machine import Machine
from tests.node.test_deploy import failing_targets


def program_of(machine: Machine) -> str:
    return machine.run("readlink /proc/$(systemctl show -P MainPID prometheus)/exe").stdout.strip()


@contextmanager
def served(file: Path, machine: Machine) -> Iterator[str]:
    """Serve the directory of `file` over HTTP to the network of `machine`; yield the URL of `file`."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(file.parent))
    with ThreadingHTTPServer((f"{machine.network.prefix}.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{server.server_address[0]}:{server.server_port}/{file.name}"
        finally:
            server.shutdown()
            thread.join()


def test_a_pinned_archive_takes_the_place_of_the_package(operator: Operator) -> None:
    node = operator.node
    archive = operator.directory / "prometheus-2.42.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(node.root / "usr/bin/prometheus", "prometheus-2.42/prometheus")
    entry = {"archive": str(archive), "sha256": "0" * 64}
    operator.variables["dsv41_binaries"] = {"prometheus": entry}
    operator.write_inventory()
    play = operator.play("deploy", "--tags", "monitoring")
    assert play.code != 0
    assert f"has sha256 {hash_file(archive)}" in " ".join(play.output.split())
    assert program_of(node) == "/usr/bin/prometheus"

    entry["sha256"] = hash_file(archive)
    with served(archive, node) as entry["archive"]:
        operator.write_inventory()
        operator.must_play("deploy", "--tags", "monitoring")
    assert program_of(node) == f"/opt/dsv41/binaries/prometheus-{entry['sha256'][:12]}/prometheus"
    assert failing_targets(node) == set()
    assert operator.must_play("deploy", "--tags", "monitoring").changed == 0

    del operator.variables["dsv41_binaries"]
    operator.write_inventory()
    operator.must_play("deploy", "--tags", "monitoring")
    assert program_of(node) == "/usr/bin/prometheus"
