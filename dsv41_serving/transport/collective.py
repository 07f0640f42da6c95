"""Let the GPUs of each engine sum a buffer before anything is served: NCCL's first all-reduce is where broken P2P hangs.

One process for each rank, with the environment of the engine; each compares every element with the sum that is due. On a CPU the
same runs over gloo. An all-reduce that does not end within PATIENCE_S counts as hung.
"""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41_serving.transport.proof import Collective, keep_deciding

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dsv41_serving.plan.model import Plan

PATIENCE_S = 180.0
ELEMENTS = 16 << 20
"""Of fp32: 64 MiB."""
_ROUNDS = 5
_HUNG = (
    "did not end within {0:.0f} s: IOMMU translation or ACS between the GPUs (preflight links.iommu, links.acs), "
    "or NCCL_P2P_DISABLE=1 to get on without P2P"
)


def try_collectives(plan: Plan, say: Callable[[str], None], *, user: str | None = None) -> list[Collective]:
    """Return the all-reduce of every engine of `plan` that spans several GPUs."""
    found = []
    for engine in plan.engines:
        gpus = engine.placement.gpus
        if len(gpus) > 1:
            say(f"{engine.name}: all-reduce over {len(gpus)} GPUs")
            found.append(
                try_collective(engine.name, gpus, keep_deciding(engine.env), ranks=len(gpus), backend="nccl", user=user)
            )
    return found


def try_collective(
    engine: str,
    gpus: Sequence[int],
    env: Mapping[str, str],
    *,
    ranks: int,
    backend: str,
    user: str | None = None,
    elements: int = ELEMENTS,
    patience_s: float = PATIENCE_S,
) -> Collective:
    """Run one all-reduce of `elements` fp32 numbers over `ranks` processes and return what came of it."""
    with tempfile.TemporaryDirectory(prefix="dsv41-all-reduce-") as name:
        directory = Path(name)
        if user:
            os.chown(directory, pwd.getpwnam(user).pw_uid, -1)
        processes = [
            _launch(directory, rank, (ranks, backend, elements), {**os.environ, **env}, user) for rank in range(ranks)
        ]
        try:
            problem = _wait(processes, directory, patience_s)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        seconds = [] if problem else [json.loads((directory / f"{rank}.json").read_text()) for rank in range(ranks)]
    moved = 2 * (ranks - 1) / ranks * elements * 4
    speed = round(moved / max(seconds) / 1e9, 2) if seconds else 0.0
    return Collective(engine=engine, gpus=tuple(gpus), bus_gb_s=speed, problem=problem)


def sum_over_ranks(directory: Path, rank: int, ranks: int, backend: str, elements: int) -> float:
    """Be one rank: return the best time of a round in seconds. Raises ValueError when a sum is wrong."""
    import torch  # noqa: PLC0415 - seconds, and only in these processes
    import torch.distributed as dist  # noqa: PLC0415

    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, init_method=f"file://{directory}/rendezvous", rank=rank, world_size=ranks)
    # Whole numbers whose sum fp32 holds exactly, another one on each rank and place.
    places = torch.arange(elements, device=device, dtype=torch.float32) % 1024
    due = ranks * places + ranks * (ranks - 1) / 2
    best = float("inf")
    for _ in range(_ROUNDS):
        numbers = places + rank
        _settle(backend)
        began = time.perf_counter()
        dist.all_reduce(numbers)
        _settle(backend)
        best = min(best, time.perf_counter() - began)
        if not torch.equal(numbers, due):
            raise ValueError(f"{int((numbers != due).sum())} of {elements} sums are wrong")
    dist.destroy_process_group()
    return best


def _settle(backend: str) -> None:
    if backend == "nccl":
        import torch  # noqa: PLC0415

        torch.cuda.synchronize()


def _launch(
    directory: Path, rank: int, how: tuple[int, str, int], env: Mapping[str, str], user: str | None
) -> subprocess.Popen[bytes]:
    with (directory / f"{rank}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", __name__, str(directory), str(rank), *map(str, how)],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            user=user,
            group=pwd.getpwnam(user).pw_gid if user else None,
        )


def _wait(processes: Sequence[subprocess.Popen[bytes]], directory: Path, patience_s: float) -> str:
    """Return what went wrong; empty when every rank ended well."""
    deadline = time.monotonic() + patience_s
    for rank, process in enumerate(processes):
        try:
            status = process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return _HUNG.format(patience_s)
        if status:
            lines = (directory / f"{rank}.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
            return f"rank {rank} ended with {status}: {lines[-1][-200:] if lines else 'it printed nothing'}"
    return ""


def main() -> None:
    """Be the rank that the command line names, and write its time."""
    directory, rank, ranks, backend, elements = sys.argv[1:]
    seconds = sum_over_ranks(Path(directory), int(rank), int(ranks), backend, int(elements))
    (Path(directory) / f"{rank}.json").write_text(json.dumps(seconds), encoding="utf-8")


if __name__ == "__main__":
    main()
