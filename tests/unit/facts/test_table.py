"""The tables of `dsv41 facts`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from dsv41_serving.facts import describe, read_facts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def print_facts(root: Path, width: int = 100) -> list[str]:
    """Return the lines that a terminal of `width` columns shows."""
    console = Console(width=width)
    with console.capture() as capture:
        console.print(describe(read_facts(root)))
    return capture.get().splitlines()


def read_row(lines: list[str], start: str) -> str:
    """Return the line that starts so, with its columns one blank apart."""
    return next(" ".join(line.split()) for line in lines if line.startswith(start))


def test_a_gpu_is_one_row(two_sockets: Path) -> None:
    """Everything one compares across GPUs stands in a column."""
    rows = print_facts(two_sockets)
    assert read_row(rows, "5 ") == "5 NVIDIA H200 0000:c3:00.0 1 4 / 143771 9.0 0-4,6-7 none"


def test_a_node_shows_its_gpus(machine: Callable[[str], Path]) -> None:
    """Crosswise boxes are seen at a glance."""
    rows = print_facts(machine("crosswise-8gpu"))
    assert "1 48-95,144-191 512.0 / 1024.0 2048 KiB: 500 / 512 0:21 1:10 1,3,5,7" in [" ".join(r.split()) for r in rows]


def test_settings_are_in_words(machine: Callable[[str], Path]) -> None:
    """Unknown is a dash, unlimited is a word, the IOMMU gives its reason."""
    tuned, laptop = print_facts(machine("two-socket-8gpu")), print_facts(machine("laptop"))
    assert read_row(tuned, "locked bytes") == "locked bytes, soft / hard unlimited / unlimited"
    assert read_row(laptop, "kernel.yama.ptrace_scope") == "kernel.yama.ptrace_scope -"
    assert read_row(laptop, "IOMMU") == "IOMMU translated: IOMMU groups of the devices have type DMA"


def test_a_machine_without_gpus_says_why(machine: Callable[[str], Path]) -> None:
    """Instead of an empty table."""
    rows = print_facts(machine("laptop"))
    assert "GPUs: libnvidia-ml.so.1 was not found" in rows
    assert not any(row.startswith("GPU ") for row in rows)


def test_ports_stand_with_their_owner(two_sockets: Path) -> None:
    """One entry per process, IPv6 in brackets."""
    rows = print_facts(two_sockets)
    assert read_row(rows, "800 ") == "800 0 2026-09-21 14:13 0.0.0.0:22 ssh.service"
    assert " ".join(rows[rows.index(next(r for r in rows if r.startswith("800 "))) + 1].split()) == (
        "[::]:22 sshd: /usr/sbin/sshd -D"
    )


def test_a_worker_with_dozens_of_ports_takes_four_lines(two_sockets: Path) -> None:
    """The first three, and how many more."""
    table = two_sockets / "proc/net/tcp"
    lines = [
        f"{n}: 0100007F:{20000 + n:04X} 00000000:0000 0A 0:0 00:0 0 985 0 {18001} 1 0 100 0 0 10 0" for n in range(20)
    ]
    table.write_text(table.read_text() + "\n".join(lines) + "\n")
    rows = print_facts(two_sockets)
    first = rows.index(next(row for row in rows if row.startswith("4001 ")))
    assert rows[first + 3].split() == ["and", "18", "more"]


@pytest.mark.parametrize("width", [80, 100])
def test_addresses_and_ports_are_never_broken(two_sockets: Path, width: int) -> None:
    """They are what one copies; a long command gives way."""
    rows = print_facts(two_sockets, width)
    assert any("0000:1b:00.0" in row for row in rows)
    assert any("[2001:db8::1]:18001" in row for row in rows)
    assert max(map(len, rows)) <= width


def test_brackets_in_a_command_are_text(two_sockets: Path) -> None:
    """A command line is no markup."""
    (two_sockets / "proc/4000/cmdline").write_bytes(b"serve\0[red]\0[/]\0")
    assert any("serve [red] [/]" in row for row in print_facts(two_sockets))
