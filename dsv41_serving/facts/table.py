"""Facts as tables a person can read, for `dsv41 facts`."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from dsv41_serving.facts.files import format_cpu_list

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from dsv41_serving.facts.model import Facts, HugePages, Listener

_GIB = 1 << 30
_MIB = 1 << 20
_UNKNOWN = "-"
_UNBROKEN = {"PCI address", "Listens on", "Since (UTC)"}
_SOCKETS_SHOWN = 3


def describe(facts: Facts) -> RenderableType:
    """Return the facts for a terminal of 80 columns or more. A dash stands for what the machine does not say."""
    parts: list[RenderableType] = [_describe_machine(facts), Text()]
    parts += [_tabulate_gpus(facts), Text()] if facts.gpus else []
    parts += [_tabulate_nodes(facts), Text(), _tabulate_settings(facts), Text(), _tabulate_listeners(facts.listeners)]
    return Group(*parts)


def _describe_machine(facts: Facts) -> Text:
    system = f"Linux {facts.kernel_release}" if facts.kernel_release else None
    said = filter(None, (facts.os_name, system, facts.architecture, f"{len(facts.cpus)} CPUs"))
    text = Text.assemble((facts.hostname or "this machine", "bold"), "  ", ", ".join(said))
    if facts.driver_version:
        text.append(f"\nNVIDIA driver {facts.driver_version}, CUDA up to {facts.cuda_driver_version}")
    if facts.gpu_problem:
        text.append("\nGPUs: ").append(facts.gpu_problem, "yellow")
    return text


def _tabulate_gpus(facts: Facts) -> Table:
    table = _create_table("GPU", "Name", "PCI address", "Node", "Used / total MiB", "CC", "NVLink to", "Processes")
    for gpu in facts.gpus:
        used, total = gpu.memory_used_bytes // _MIB, gpu.memory_total_bytes // _MIB
        _add_row(
            table,
            gpu.index,
            gpu.name,
            gpu.pci_address,
            gpu.numa_node,
            f"{used} / {total}",
            "{}.{}".format(*gpu.compute_capability),
            _join_numbers(gpu.links),
            _join_numbers(gpu.processes),
        )
    return table


def _tabulate_nodes(facts: Facts) -> Table:
    table = _create_table("Node", "CPUs", "Free / total GiB", "Huge pages free / total", "Distances", "GPUs")
    for node in facts.numa:
        _add_row(
            table,
            node.id,
            format_cpu_list(node.cpus) or "none",
            f"{_scale(node.memory_free_bytes)} / {_scale(node.memory_total_bytes)}",
            _join_pools(node.huge_pages),
            " ".join(f"{other}:{distance}" for other, distance in node.distances.items()),
            _join_numbers(tuple(gpu.index for gpu in facts.gpus if gpu.numa_node == node.id)),
        )
    return table


def _tabulate_settings(facts: Facts) -> Table:
    memory, kernel, limits = facts.memory, facts.kernel, facts.limits
    table = _create_table("Setting", "Value")
    rows = {
        "memory available / total": f"{_scale(memory.available_bytes)} / {_scale(memory.total_bytes)} GiB",
        "swap free / total": f"{_scale(memory.swap_free_bytes)} / {_scale(memory.swap_total_bytes)} GiB",
        "/dev/shm free / total": f"{_scale(memory.shm_free_bytes)} / {_scale(memory.shm_total_bytes)} GiB",  # noqa: S108
        "locked bytes, soft / hard": limits and f"{_bound(limits.memlock_soft)} / {_bound(limits.memlock_hard)}",
        "open files, soft / hard": limits and f"{_bound(limits.nofile_soft)} / {_bound(limits.nofile_hard)}",
        "kernel.yama.ptrace_scope": kernel.ptrace_scope,
        "kernel.numa_balancing": kernel.numa_balancing,
        "vm.max_map_count": kernel.max_map_count,
        "vm.overcommit_memory": kernel.overcommit,
        "huge pages, private memory": kernel.thp_enabled,
        "huge pages, shared memory": kernel.shmem_enabled,
        "IOMMU": f"{kernel.iommu.mode}: {kernel.iommu.reason}",
        "ACS redirects peers at": _join_bridges(kernel.acs_bridges),
    }
    for name, value in rows.items():
        _add_row(table, name, value)
    return table


def _tabulate_listeners(listeners: Iterable[Listener]) -> Table:
    """Return one row per owner: an engine's workers hold dozens of ports."""
    owners: dict[tuple[int | None, int], list[Listener]] = defaultdict(list)
    for listener in listeners:
        owners[listener.pid, listener.uid].append(listener)
    table = _create_table("Pid", "User", "Since (UTC)", "Listens on")
    table.add_column("Unit and command", no_wrap=True, ratio=1)  # a command line is cut where the terminal ends
    table.expand = True
    for (pid, uid), owned in owners.items():
        first = owned[0]
        started = first.start_time
        _add_row(
            table,
            pid,
            uid,
            None if started is None else datetime.fromtimestamp(started, UTC).strftime("%Y-%m-%d %H:%M"),
            _join_sockets(owned),
            "\n".join(filter(None, ((first.cgroup or "").rpartition("/")[2], " ".join(first.command or ())))) or None,
        )
    return table


def _join_sockets(listeners: list[Listener]) -> str:
    shown = [f"[{one.address}]:{one.port}" if ":" in one.address else f"{one.address}:{one.port}" for one in listeners]
    hidden = len(shown) - _SOCKETS_SHOWN
    return "\n".join(shown if hidden <= 1 else [*shown[:_SOCKETS_SHOWN], f"and {hidden} more"])


def _create_table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in _UNBROKEN)
    return table


def _add_row(table: Table, *values: object) -> None:
    """Add values as plain text: a command line may hold what rich would take for markup."""
    table.add_row(*(Text(_UNKNOWN if value is None else str(value)) for value in values))


def _scale(size: int | None) -> str:
    return _UNKNOWN if size is None else f"{size / _GIB:.1f}"


def _join_numbers(numbers: tuple[int, ...] | None) -> str | None:
    return None if numbers is None else format_cpu_list(numbers) or "none"


def _join_pools(pools: dict[int, HugePages]) -> str:
    return ", ".join(f"{size} KiB: {pool.free} / {pool.total}" for size, pool in pools.items() if pool.total) or "none"


def _bound(limit: int | None) -> str:
    return "unlimited" if limit is None else str(limit)


def _join_bridges(bridges: tuple[str, ...] | None) -> str:
    if bridges is None:
        return "unknown, read as root to see"
    return ", ".join(bridges) or "no bridge above a GPU"
