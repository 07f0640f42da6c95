"""Reading single values from procfs and sysfs. A file that is absent or may not be read is None, never an exception."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dsv41_serving.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


def read_bytes(path: Path) -> bytes | None:
    """Return the content of `path`, or None when it is absent, unreadable or vanishes while being read."""
    try:
        return path.read_bytes()
    except OSError:  # ENOENT, EACCES, ESRCH of a process that ended, EINVAL of an attribute its device lacks
        return None


def read_text(path: Path) -> str | None:
    """Return the content of `path` without surrounding white space, or None as `read_bytes` does."""
    content = read_bytes(path)
    return None if content is None else content.decode(errors="replace").strip()


def read_int(path: Path) -> int | None:
    """Return the decimal number that `path` holds, or None. Raises InputError when it holds anything else."""
    text = read_text(path)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise malformed(path, f"expected a whole number, found {text[:40]!r}") from None


def read_choice(path: Path) -> str | None:
    """Return the selected word of a file like `always [madvise] never`, or None. Raises InputError without one."""
    text = read_text(path)
    if text is None:
        return None
    selected = re.search(r"\[(\w+)\]", text)
    if selected is None:
        raise malformed(path, f"expected one word in [brackets], found {text[:40]!r}")
    return selected[1]


def read_cpu_list(path: Path) -> tuple[int, ...] | None:
    """Return the CPUs of a file in the kernel's list format, ascending, or None. Raises InputError when malformed."""
    text = read_text(path)
    if text is None:
        return None
    try:
        return parse_cpu_list(text)
    except ValueError:
        raise malformed(path, f"expected a list like '0-3,8', found {text[:40]!r}") from None


def read_kilobytes(path: Path) -> dict[str, int] | None:
    """Return the `Name: N kB` lines of a meminfo file in bytes by name, or None when it is absent.

    The lines of a NUMA node start with `Node N`, which is dropped. Lines that count pages are left out.
    """
    text = read_text(path)
    if text is None:
        return None
    found = re.findall(r"^(?:Node \d+ )?(\w+(?:\(\w+\))?):\s+(\d+) kB$", text, re.MULTILINE)
    if not found:
        raise malformed(path, f"expected lines like 'MemTotal: 1 kB', found {text[:40]!r}")
    return {name: int(kilobytes) * 1024 for name, kilobytes in found}


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Return the numbers of a list like '0-3,8,10-11', ascending. Raises ValueError when it is no such list."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        span = range(int(first), int(last if dash else first) + 1)
        if not span or span[0] < 0:
            raise ValueError(text)
        numbers.update(span)
    return tuple(sorted(numbers))


def format_cpu_list(numbers: tuple[int, ...]) -> str:
    """Return ascending numbers in the kernel's list format, the inverse of `parse_cpu_list`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def malformed(path: Path, problem: str) -> InputError:
    """Return the error for a file whose content is not what the kernel writes there."""
    return InputError(problem, where=str(path), remedy="check that the kernel's own file system is mounted there")
