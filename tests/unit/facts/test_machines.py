"""Each fixture machine is read as what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dsv41_serving.facts import Facts, HugePages, Limits, NumaNode, NvmlReport, parse_cpu_list, read_facts
from tests.fixtures.machines.build import MACHINES, build_machine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GIB = 1 << 30
MIB = 1 << 20


def test_two_sockets_have_two_nodes_with_their_cpus_and_memory(two_sockets: Path) -> None:
    """Nodes carry CPUs, memory, huge pages and distances."""
    pools = {2048: HugePages(total=512, free=500), 1048576: HugePages(total=0, free=0)}
    assert read_facts(two_sockets).numa == (
        NumaNode(
            id=0,
            cpus=(*range(48), *range(96, 144)),
            memory_total_bytes=1024 * GIB,
            memory_free_bytes=512 * GIB,
            huge_pages=pools,
            distances={0: 10, 1: 21},
        ),
        NumaNode(
            id=1,
            cpus=(*range(48, 96), *range(144, 192)),
            memory_total_bytes=1024 * GIB,
            memory_free_bytes=512 * GIB,
            huge_pages=pools,
            distances={0: 21, 1: 10},
        ),
    )


def test_a_gpu_carries_what_nvml_and_sysfs_say_of_it(two_sockets: Path) -> None:
    """Identity and memory come from NVML, the place from sysfs by PCI address."""
    gpu = read_facts(two_sockets).gpus[5]
    assert (gpu.index, gpu.name, gpu.uuid) == (5, "NVIDIA H200", "GPU-00000000-0000-0000-0000-000000000005")
    assert gpu.pci_address == "0000:c3:00.0"
    assert (gpu.numa_node, gpu.cpus) == (1, parse_cpu_list("48-95,144-191"))
    assert (gpu.memory_total_bytes, gpu.memory_used_bytes) == (143771 * MIB, 4 * MIB)
    assert gpu.compute_capability == (9, 0)
    assert gpu.persistence is True
    assert gpu.processes == ()
    assert gpu.links == (0, 1, 2, 3, 4, 6, 7)


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("two-socket-8gpu", [0, 0, 0, 0, 1, 1, 1, 1]),
        ("one-socket-8gpu", [0] * 8),  # the firmware says -1, the machine has one node
        ("crosswise-8gpu", [0, 1, 0, 1, 0, 1, 0, 1]),
        ("laptop", []),
    ],
)
def test_gpus_sit_on_their_nodes(machine: Callable[[str], Path], name: str, nodes: list[int]) -> None:
    """The node of each GPU is the one of its PCI device."""
    facts = read_facts(machine(name))
    assert [gpu.numa_node for gpu in facts.gpus] == nodes
    cpus = {node.id: node.cpus for node in facts.numa}
    assert [gpu.cpus for gpu in facts.gpus] == [cpus[node] for node in nodes]


def test_a_gpu_without_a_node_stays_without_on_two_sockets(two_sockets: Path) -> None:
    """Firmware that names no node leaves the place open when there is a choice."""
    (two_sockets / "sys/bus/pci/devices/0000:1b:00.0/numa_node").write_text("-1\n")
    assert [gpu.numa_node for gpu in read_facts(two_sockets).gpus] == [None, 0, 0, 0, 1, 1, 1, 1]


def test_a_kernel_without_numa_is_one_node(machine: Callable[[str], Path]) -> None:
    """All CPUs and all memory are on node 0."""
    assert read_facts(machine("laptop")).numa == (
        NumaNode(
            id=0,
            cpus=tuple(range(8)),
            memory_total_bytes=32 * GIB,
            memory_free_bytes=16 * GIB,
            huge_pages={2048: HugePages(total=0, free=0), 1048576: HugePages(total=0, free=0)},
            distances={0: 10},
        ),
    )


def test_the_only_node_is_the_whole_machine(machine: Callable[[str], Path]) -> None:
    """A guest whose memory grows keeps the size of its start in the files of the node."""
    root = machine("one-socket-8gpu")
    (root / "sys/devices/system/node/node0/meminfo").write_text("Node 0 MemTotal: 1024 kB\nNode 0 MemFree: 512 kB\n")
    assert read_facts(root).numa == (
        NumaNode(
            id=0,
            cpus=tuple(range(128)),
            memory_total_bytes=1024 * GIB,
            memory_free_bytes=512 * GIB,
            huge_pages={2048: HugePages(total=512, free=500), 1048576: HugePages(total=0, free=0)},
            distances={0: 10},
        ),
    )


def test_a_laptop_says_why_it_has_no_gpus(machine: Callable[[str], Path]) -> None:
    """No driver is a fact, not a crash."""
    facts = read_facts(machine("laptop"))
    assert facts.gpus == ()
    assert facts.gpu_problem == "libnvidia-ml.so.1 was not found"
    assert facts.driver_version is None
    assert facts.cuda_driver_version is None


def test_the_system_names_itself(two_sockets: Path) -> None:
    """Host, kernel, distribution and driver are read."""
    facts = read_facts(two_sockets)
    assert (facts.hostname, facts.architecture, facts.kernel_release) == ("two-socket", "x86_64", "6.8.0-79-generic")
    assert facts.os_name == "Ubuntu 24.04.3 LTS"
    assert facts.cpus == tuple(range(192))
    assert (facts.gpu_problem, facts.driver_version, facts.cuda_driver_version) == (None, "580.95.05", "13.0")


def test_memory_is_in_bytes(machine: Callable[[str], Path]) -> None:
    """Sizes of /proc/meminfo are scaled; /dev/shm comes from the record."""
    memory = read_facts(machine("laptop")).memory
    assert (memory.total_bytes, memory.available_bytes) == (32 * GIB, 24 * GIB)
    assert (memory.swap_total_bytes, memory.swap_free_bytes) == (8 * GIB, 8 * GIB)
    assert (memory.shm_total_bytes, memory.shm_free_bytes) == (16 * GIB, 15 * GIB)


def test_limits_tell_unlimited_from_a_number(machine: Callable[[str], Path]) -> None:
    """None means unlimited."""
    assert read_facts(machine("two-socket-8gpu")).limits == Limits(
        memlock_soft=None, memlock_hard=None, nofile_soft=1048576, nofile_hard=1048576
    )
    assert read_facts(machine("crosswise-8gpu")).limits == Limits(
        memlock_soft=8388608, memlock_hard=8388608, nofile_soft=1024, nofile_hard=1048576
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("two-socket-8gpu", (0, "advise", "madvise", 0, 1048576, 0, "passthrough")),
        ("crosswise-8gpu", (1, "never", "madvise", 1, 65530, 0, "translated")),
        ("laptop", (None, "never", "always", None, 65530, 0, "translated")),
    ],
)
def test_kernel_settings(machine: Callable[[str], Path], name: str, expected: tuple[object, ...]) -> None:
    """The settings that decide about transport and huge pages are read; absent ones are None."""
    kernel = read_facts(machine(name)).kernel
    assert expected == (
        kernel.ptrace_scope,
        kernel.shmem_enabled,
        kernel.thp_enabled,
        kernel.numa_balancing,
        kernel.max_map_count,
        kernel.overcommit,
        kernel.iommu.mode,
    )


@pytest.mark.parametrize("name", MACHINES)
def test_facts_survive_json(machine: Callable[[str], Path], name: str) -> None:
    """What `dsv41 facts --json` prints is read back as the same facts."""
    facts = read_facts(machine(name))
    assert Facts.model_validate_json(facts.model_dump_json(indent=2)) == facts


@pytest.mark.parametrize("name", MACHINES)
def test_machines_are_built_the_same_every_time(tmp_path: Path, name: str) -> None:
    """Other tests may rely on every byte of a fixture."""
    first, second = build_machine(name, tmp_path / "first"), build_machine(name, tmp_path / "second")
    files = {path.relative_to(first): path.read_bytes() for path in first.rglob("*") if path.is_file()}
    assert files == {path.relative_to(second): path.read_bytes() for path in second.rglob("*") if path.is_file()}
    assert len(files) > 30


def test_an_nvml_source_of_the_caller_wins_over_the_record(two_sockets: Path) -> None:
    """The seam for programs that already hold NVML."""

    class NoDriver:
        def query(self) -> NvmlReport:
            return NvmlReport(problem="the driver is not loaded")

    facts = read_facts(two_sockets, nvml=NoDriver())
    assert (facts.gpus, facts.gpu_problem) == ((), "the driver is not loaded")


def test_an_empty_root_is_a_machine_of_which_nothing_is_known(tmp_path: Path) -> None:
    """Missing files are facts too."""
    facts = read_facts(tmp_path)
    assert facts.model_dump(exclude={"numa", "memory", "kernel"}) == {
        "hostname": None,
        "architecture": None,
        "kernel_release": None,
        "os_name": None,
        "cpus": (),
        "gpus": (),
        "gpu_problem": "no nvml.json was recorded with this machine",
        "driver_version": None,
        "cuda_driver_version": None,
        "limits": None,
        "listeners": (),
    }
    assert set(facts.memory.model_dump().values()) == {None}
    assert facts.kernel.model_dump(exclude={"iommu", "acs_bridges"}, exclude_none=True) == {}
    assert facts.kernel.iommu.mode == "unknown"
    assert [(node.id, node.cpus, node.memory_total_bytes) for node in facts.numa] == [(0, (), None)]
