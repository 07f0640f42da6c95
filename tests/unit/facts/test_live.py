"""The real machine: whatever it is, it must be read, and a socket opened here must be ours."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsv41_serving.facts import Facts, NvmlLibrary, descends_from, find_listener, read_facts, read_process

OPEN_SOCKET = """
import socket, sys
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_a_socket_of_this_process_is_ours() -> None:
    """Pid, start and command are those of the process that runs this test."""
    stat = Path("/proc/self/stat").read_text()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listener = find_listener(listening.getsockname()[1], address="127.0.0.1")
    assert listener is not None
    assert listener.pid == os.getpid()
    assert listener.holders == (os.getpid(),)
    assert listener.uid == os.geteuid()
    assert listener.start_ticks == int(stat.rpartition(")")[2].split()[19])
    assert listener.command == tuple(Path("/proc/self/cmdline").read_text().rstrip("\0").split("\0"))


def test_an_ipv6_socket_is_found_at_its_address() -> None:
    """The words of the tcp6 table are in the byte order of this machine."""
    try:
        listening = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError as error:
        pytest.skip(
            f"this machine has no IPv6 loopback ({error}); enable it with: sysctl net.ipv6.conf.lo.disable_ipv6=0"
        )
    with listening:
        listener = find_listener(listening.getsockname()[1])
    assert listener is not None
    assert (listener.address, listener.pid) == ("::1", os.getpid())


def test_a_child_is_known_by_its_start_and_its_parent() -> None:
    """The start in Unix seconds is the moment at which the child was started, to the second."""
    before = time.time()
    with subprocess.Popen([sys.executable, "-c", OPEN_SOCKET], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        listener = find_listener(int(child.stdout.readline()))
        after = time.time()
        assert listener is not None
        assert listener.pid == child.pid
        assert listener.start_time is not None
        assert before - 2 <= listener.start_time <= after + 2
        assert descends_from(child.pid, os.getpid())
        assert not descends_from(os.getpid(), child.pid)
        assert child.stdin is not None
        child.stdin.close()
    assert read_process(child.pid) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to become another user: sudo pytest tests/unit/facts")
def test_the_socket_of_another_user_has_an_unknown_owner() -> None:
    """Descriptors of root's processes may not be read by others."""
    with subprocess.Popen([sys.executable, "-c", OPEN_SOCKET], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        os.seteuid(65534)
        try:
            listener = find_listener(port)
        finally:
            os.seteuid(0)
        assert child.stdin is not None
        child.stdin.close()
    assert listener is not None
    assert (listener.pid, listener.holders, listener.uid) == (None, (), 0)


def test_this_machine_is_read() -> None:
    """What the interpreter knows of the machine by other ways agrees."""
    facts = read_facts()
    assert facts.hostname == socket.gethostname()
    assert (facts.architecture, facts.kernel_release) == (os.uname().machine, os.uname().release)
    assert len(facts.cpus) == os.sysconf("SC_NPROCESSORS_ONLN")
    assert {cpu for node in facts.numa for cpu in node.cpus} == set(facts.cpus)
    assert facts.memory.total_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert facts.gpus or facts.gpu_problem
    assert Facts.model_validate_json(facts.model_dump_json()) == facts


@pytest.mark.gpu
def test_the_driver_agrees_with_nvidia_smi() -> None:
    """Index, UUID, memory and capability of each GPU are those of the driver's own tool."""
    if NvmlLibrary().query().problem:
        pytest.skip("no NVIDIA driver answers here; on a GPU machine: pytest -m gpu tests/unit/facts")
    query = "index,uuid,name,pci.bus_id,memory.total,memory.used,compute_cap,driver_version"
    reply = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"],
        check=True,
        capture_output=True,
        text=True,
    )
    expected = [tuple(field.strip() for field in line.split(",")) for line in reply.stdout.splitlines()]
    facts = read_facts()
    assert expected == [
        (
            str(gpu.index),
            gpu.uuid,
            gpu.name,
            f"{gpu.pci_address.upper():0>16}",
            str(gpu.memory_total_bytes >> 20),
            str(gpu.memory_used_bytes >> 20),
            "{}.{}".format(*gpu.compute_capability),
            facts.driver_version,
        )
        for gpu in facts.gpus
    ]
