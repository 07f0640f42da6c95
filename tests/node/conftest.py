"""One real machine, and the operator's commands against it. The tests of this directory run in the order they stand in."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dsv41_serving.bench.provenance import describe_run
from dsv41_serving.embedded.manifest import hash_file
from tests.node.machine import DEFAULT_BASE, Machine, Network, chosen_base, make_template, missing_tools

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("DSV41_NODE_CACHE", Path.home() / ".cache" / "dsv41-node-tests"))
BIN = Path(sys.executable).parent
# With these the tests of all machines together take longer than `make test` may.
LONG = pytest.mark.skipif(
    not os.environ.get("NODE_LONG"), reason="twenty minutes and 30 GB of disk more: NODE_LONG=1 make test-node"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip everything here where no machine can be booted."""
    reason = missing_tools()
    for item in items:
        if Path(item.path).parent == Path(__file__).parent and reason:
            item.add_marker(pytest.mark.skip(reason=f"no machine can be booted here: {reason}"))


@dataclass(frozen=True)
class Play:
    """What a playbook did."""

    code: int
    output: str
    seconds: float

    @property
    def changed(self) -> int:
        """Changed tasks over all hosts, from the recap."""
        return sum(int(count) for count in re.findall(r"changed=(\d+)", self.output))


@dataclass
class Operator:
    """Somebody at the controller: an inventory, and the commands of the README."""

    directory: Path
    machines: list[Machine]
    variables: dict[str, Any]

    @property
    def node(self) -> Machine:
        """The first machine."""
        return self.machines[0]

    def write_inventory(self, **node_file: Any) -> None:
        """Write the inventory; `node_file` holds tables that are merged over the smallest node file."""
        hosts = {
            machine.name: {
                "ansible_host": machine.name,
                "ansible_ssh_common_args": f"-F {machine.network.ssh_config}",
                "dsv41_node": {"profile": "embedded", "node": {"name": machine.name}, **node_file},
                **self.variables,
            }
            for machine in self.machines
        }
        inventory = self.directory / "hosts.json"
        inventory.write_text(json.dumps({"dsv41": {"hosts": hosts}}, indent=2))

    def play(self, name: str, *options: str) -> Play:
        """Run `ansible-playbook -i inventory playbooks/NAME.yml` in ansible/, as the README says."""
        command = [BIN / "ansible-playbook", "-i", self.directory / "hosts.json", *options, f"playbooks/{name}.yml"]
        environment = {
            **os.environ,
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_LOCAL_TEMP": str(self.directory / "ansible"),
            # By default Ansible shares a connection by the name of the host, which machines of another run have too.
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.directory / "cp"),
        }
        started = time.monotonic()
        done = subprocess.run(
            command, cwd=ROOT / "ansible", env=environment, check=False, capture_output=True, text=True,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        (self.directory / f"{name}.log").write_text(done.stdout + done.stderr)
        return Play(done.returncode, done.stdout + done.stderr, round(time.monotonic() - started, 1))

    def must_play(self, name: str, *options: str) -> Play:
        """Run a playbook that has to succeed."""
        play = self.play(name, *options)
        assert play.code == 0, play.output[-6000:]
        return play


def ask(machine: Machine, prompt: str = "What is the capital of France?", *, key: str = "") -> dict[str, Any]:
    """Hold one conversation through the router of `machine`; return its answer."""
    bearer = f"-H 'authorization: Bearer {key}'" if key else ""
    body = {"model": "deepseek-v4.1-flash", "messages": [{"role": "user", "content": prompt}], "max_tokens": 200}
    done = machine.run(
        f"curl -sS --max-time 60 http://127.0.0.1:30001/v1/chat/completions -H 'content-type: application/json' {bearer} -d '{json.dumps(body)}'"
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="session")
def figures(pytestconfig: pytest.Config) -> Iterator[dict[str, Any]]:
    """Return what the tests write measured times into; DSV41_NODE_FIGURES names a file to keep them in."""
    measured: dict[str, Any] = {}
    yield measured
    if path := os.environ.get("DSV41_NODE_FIGURES"):
        base = os.environ.get("NODE_BASE", DEFAULT_BASE)
        asked = "NODE_LONG=1 " if os.environ.get("NODE_LONG") else ""
        asked += "NODE_PYTHON=ARCHIVE " if os.environ.get("NODE_PYTHON") else ""
        command = " ".join(["pytest", *map(str, pytestconfig.invocation_params.args)])
        run = describe_run(f"NODE_BASE={base} {asked}DSV41_NODE_FIGURES={path} {command}")
        about = {"base": base, "load_average": round(os.getloadavg()[2], 1)}
        Path(path).write_text(json.dumps({**run, **about, "figures": measured}, indent=1) + "\n")


@pytest.fixture(scope="session")
def work() -> Iterator[Path]:
    """Return a directory on the file system of the package cache, so that machines can link to it."""
    CACHE.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=CACHE))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def network(work: Path) -> Network:
    """Return the bridge that machines hang on; addresses are of the range for tests of network devices (RFC 2544)."""
    return Network(
        f"dsv{os.getpid() % 10**5}n", f"198.18.{os.getpid() % 200}", work, make_template(CACHE, chosen_base())
    )


@pytest.fixture(scope="session")
def model() -> str:
    """Return the directory of the embedded model on this machine, made first if need be."""
    done = subprocess.run(
        [BIN / "dsv41", "--profile", "embedded", "model"], check=True, capture_output=True, text=True, cwd=ROOT
    )
    return done.stdout.strip()


@pytest.fixture(scope="session")
def operator(work: Path, network: Network, model: str) -> Iterator[Operator]:
    """Return the controller of one bare machine whose package cache is warm and which has no other network."""
    give_packages(network, work / "node-a")
    with network.machines(["node-a"]) as machines:
        operator = Operator(work, machines, {"dsv41_no_network": True, "dsv41_model_source": model})
        if archive := os.environ.get("NODE_PYTHON"):
            operator.variables["dsv41_python_archive"] = {"archive": archive, "sha256": hash_file(Path(archive))}
        operator.write_inventory()
        yield operator


def give_packages(network: Network, root: Path) -> None:
    """Make `root` from the template, with the controller's package cache in the place of the node's."""
    cache = subprocess.run([BIN / "uv", "cache", "dir"], check=True, capture_output=True, text=True).stdout.strip()
    subprocess.run(["cp", "-a", network.template, root], check=True)
    target = root / "opt/dsv41/cache"
    target.parent.mkdir(parents=True)
    linked = subprocess.run(["cp", "-al", cache, target], check=False, capture_output=True)
    if linked.returncode != 0:  # another file system
        shutil.rmtree(target, ignore_errors=True)
        subprocess.run(["cp", "-a", cache, target], check=True)
