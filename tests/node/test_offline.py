"""One file, made by `dsv41 bundle`, is all a bare machine without a network and without a package cache is installed from."""

from __future__ import annotations

import subprocess
import tarfile
import time
from pathlib import Path

from dsv41_serving.embedded.manifest import hash_file
from tests.node.conftest import BIN, LONG, ROOT, Operator, ask
from tests.node.machine import Network
from tests.node.test_deploy import failing_targets
from tests.node.test_monitoring import program_of


def pack_prometheus(template: Path, directory: Path) -> Path:
    """Return a release archive of Prometheus, made of the program in the package that `template` has fetched."""
    (package,) = (template / "var/cache/apt/archives").glob("prometheus_*.deb")
    subprocess.run(["dpkg-deb", "--extract", package, directory / "package"], check=True)
    archive = directory / "prometheus-2.42.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(directory / "package/usr/bin/prometheus", "prometheus-2.42/prometheus")
    return archive


@LONG
def test_a_bare_machine_serves_from_one_file(network: Network, model: str, figures: dict[str, object]) -> None:
    directory = network.directory / "offline"
    directory.mkdir()
    archive = pack_prometheus(network.template, directory)
    began = time.monotonic()
    made = subprocess.run(
        [BIN / "dsv41", "bundle", "--wheels", "--binary", archive, "--output", directory, "--source", ROOT],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    bundle = Path(made.stdout.strip())
    figures["bundle with every wheel: to make it, s"] = round(time.monotonic() - began, 1)
    figures["bundle with every wheel: size, GB"] = round(bundle.stat().st_size / 1e9, 1)
    own = Network(f"{network.bridge}o", network.prefix.replace("198.18", "198.19"), directory, network.template)
    with own.machines(["node-z"]) as machines:
        variables = {
            "dsv41_bundle": str(bundle),
            "dsv41_model_source": model,
            "dsv41_binaries": {"prometheus": {"archive": f"bundle:{archive.name}", "sha256": hash_file(archive)}},
        }
        operator = Operator(directory, machines, variables)
        operator.write_inventory()
        node = operator.node
        assert node.run("ip route show default").stdout == ""
        figures["bundle with every wheel: bare machine to passed gate, s"] = operator.must_play("deploy").seconds
        assert node.run("ls /opt/dsv41").stdout.split() == [
            "binaries",
            "current",
            "environments",
            "history",
            "releases",
        ]
        assert node.run("dsv41 gate", check=False).returncode == 0
        assert ask(node)["choices"][0]["finish_reason"] == "stop"
        assert program_of(node).startswith("/opt/dsv41/binaries/prometheus-")
        assert failing_targets(node) == set()
        assert operator.must_play("deploy").changed == 0
