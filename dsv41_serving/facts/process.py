"""One process, from procfs: who it is, when it started, whose child it is."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from dsv41_serving.facts import files
from dsv41_serving.facts.model import Process

# Fields of proc_pid_stat(5), counted from the state, which follows the command name in parentheses.
_STATE, _PARENT, _START = 0, 1, 19


class _Stat(NamedTuple):
    state: str
    parent_pid: int
    start_ticks: int


def read_process(pid: int, root: Path = Path("/")) -> Process | None:
    """Return process `pid` as of one moment, or None when it does not exist, is hidden or ends while being read.

    Raises InputError when its `stat` is malformed.
    """
    directory = root / "proc" / str(pid)
    before = _read_stat(directory)
    command = files.read_bytes(directory / "cmdline")
    cgroup = files.read_text(directory / "cgroup")
    status = files.read_text(directory / "status")
    after = _read_stat(directory)
    # The kernel may give a pid to another process at any time; an equal start on both sides excludes a mixture.
    if before is None or after is None or before.start_ticks != after.start_ticks:
        return None
    return Process(
        pid=pid,
        parent_pid=after.parent_pid,
        start_ticks=after.start_ticks,
        start_time=_convert_to_unix_time(after.start_ticks, root),
        state=after.state,
        command=_split_command(command or b""),
        cgroup=_find_cgroup(cgroup or ""),
        uid=_find_effective_uid(status or ""),
    )


def descends_from(pid: int, ancestor_pid: int, root: Path = Path("/")) -> bool:
    """Return whether process `pid` is `ancestor_pid` or one of its descendants now.

    A process whose parent has ended belongs to init or a subreaper and no longer descends from its grandparent;
    its cgroup still tells where it came from.
    """
    seen: set[int] = set()
    while pid != ancestor_pid:
        seen.add(pid)
        stat = _read_stat(root / "proc" / str(pid))
        if stat is None or stat.parent_pid in seen or stat.parent_pid == 0:
            return False
        pid = stat.parent_pid
    return _read_stat(root / "proc" / str(ancestor_pid)) is not None


def _read_stat(directory: Path) -> _Stat | None:
    content = files.read_bytes(directory / "stat")
    if content is None:
        return None
    # The command name may itself hold spaces and parentheses: what follows the last one is fixed.
    fields = content.rpartition(b")")[2].split()
    try:
        return _Stat(fields[_STATE].decode(), int(fields[_PARENT]), int(fields[_START]))
    except (IndexError, ValueError):
        raise files.malformed(directory / "stat", f"expected proc_pid_stat(5), found {content[:40]!r}") from None


def _convert_to_unix_time(start_ticks: int, root: Path) -> float | None:
    boot = re.search(r"^btime (\d+)$", files.read_text(root / "proc/stat") or "", re.MULTILINE)
    return int(boot[1]) + start_ticks / os.sysconf("SC_CLK_TCK") if boot else None


def _split_command(content: bytes) -> tuple[str, ...]:
    """Return argv. A process that set its own title (as SGLang's workers do) has one string without a final NUL."""
    text = content.decode(errors="replace").removesuffix("\0")
    return tuple(text.split("\0")) if text else ()


def _find_cgroup(text: str) -> str | None:
    """Return the path in the unified hierarchy (cgroup v2), or in systemd's named one on a host without it."""
    found = re.search(r"^0::(/.*)$", text, re.MULTILINE) or re.search(r"^\d+:name=systemd:(/.*)$", text, re.MULTILINE)
    return found[1] if found else None


def _find_effective_uid(text: str) -> int | None:
    found = re.search(r"^Uid:\s+\d+\s+(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else None
