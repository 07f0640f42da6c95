"""Single values: what the kernel's formats mean, and what a broken file says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv41_serving.errors import InputError
from dsv41_serving.facts import format_cpu_list, parse_cpu_list, read_facts, read_limits

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0-3,8,10-11\n", (0, 1, 2, 3, 8, 10, 11)),
        ("", ()),
        ("\n", ()),
        ("5", (5,)),
        ("8,0-1", (0, 1, 8)),
        ("0-2,1-3", (0, 1, 2, 3)),
    ],
)
def test_cpu_list(text: str, numbers: tuple[int, ...]) -> None:
    """Ranges include both ends; the result ascends without repeats."""
    assert parse_cpu_list(text) == numbers


@pytest.mark.parametrize("text", ["3-1", "a", "1-", "-1", "0-3-5", "1;2"])
def test_no_cpu_list(text: str) -> None:
    """What is no list is refused rather than half read."""
    with pytest.raises(ValueError, match=r"."):
        parse_cpu_list(text)


@given(st.sets(st.integers(0, 300)).map(lambda numbers: tuple(sorted(numbers))))
def test_cpu_lists_are_written_as_they_are_read(numbers: tuple[int, ...]) -> None:
    """Format and parse are inverse."""
    assert parse_cpu_list(format_cpu_list(numbers)) == numbers


def test_runs_are_written_as_ranges() -> None:
    """The shortest form, as the kernel writes it."""
    assert format_cpu_list((0, 1, 2, 3, 8, 10, 11)) == "0-3,8,10-11"


@pytest.mark.parametrize(
    ("path", "content", "problem"),
    [
        ("sys/bus/pci/devices/0000:1b:00.0/numa_node", "zero", "expected a whole number, found 'zero'"),
        ("sys/devices/system/cpu/online", "all", "expected a list like '0-3,8', found 'all'"),
        ("sys/devices/system/node/node1/distance", "10", "expected 2 distances, found '10'"),
        ("sys/devices/system/node/node1/meminfo", "much", "expected lines like 'MemTotal: 1 kB', found 'much'"),
        ("sys/kernel/mm/transparent_hugepage/enabled", "always", "expected one word in [brackets], found 'always'"),
        ("proc/self/limits", "Max open files  1024  1024  files", "no line 'Max locked memory'"),
        ("proc/net/tcp", "titles\n 0: nonsense", "expected a line of the socket table, found ' 0: nonsense'"),
        ("proc/4000/stat", "4000 (python3) S", "expected proc_pid_stat(5), found b'4000 (python3) S'"),
        ("shm.json", '{"total_bytes": 1}', "Field required"),
        ("nvml.json", '{"gpu": []}', "gpu: Extra inputs are not permitted"),
        ("nvml.json", "{", "Invalid JSON: EOF while parsing an object at line 1 column 1"),
    ],
)
def test_a_malformed_file_is_named(two_sockets: Path, path: str, content: str, problem: str) -> None:
    """One line: which file, what is wrong in it, what to do."""
    (two_sockets / path).write_text(content)
    with pytest.raises(InputError) as caught:
        read_facts(two_sockets)
    assert caught.value.where == str(two_sockets / path)
    assert caught.value.problem == problem
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


def test_a_malformed_pci_address_is_named(two_sockets: Path) -> None:
    """NVML's answer is checked before it becomes a path."""
    record = two_sockets / "nvml.json"
    record.write_text(record.read_text().replace("00000000:1B:00.0", "../1B"))
    with pytest.raises(InputError, match=r"NVML: GPU 0: '../1B' is not a PCI address"):
        read_facts(two_sockets)


def test_limits_of_another_process(two_sockets: Path) -> None:
    """A service's own limits count; a process that is gone has none."""
    limits = (two_sockets / "proc/self/limits").read_text()
    (two_sockets / "proc/4000/limits").write_text(limits.replace("unlimited", "65536    "))
    own = read_limits(two_sockets, pid=4000)
    assert own is not None
    assert (own.memlock_soft, own.nofile_soft) == (65536, 1048576)
    assert read_limits(two_sockets, pid=4999) is None
