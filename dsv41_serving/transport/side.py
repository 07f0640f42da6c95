"""One side of the proof, as a process of its own (`LAUNCH`, with the number of an inherited socket).

It gets its task over that socket as pickled objects (both ends are this program). NIXL and UCX write what they
chose to standard output and error, which the parent reads.
"""

from __future__ import annotations

import ctypes
import hashlib
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsv41_serving.transport.jobs import Job

# Imported rather than run as a module: what it pickles must be found under the same name on the other side.
LAUNCH = "import sys; from dsv41_serving.transport.side import main; main(int(sys.argv[1]))"

_GAP_BYTES = 256
ROUNDS, SHORT_ROUNDS = 7, 3  # the first warms up
_DEADLINE_S = 60.0
_SEED = 7


@dataclass(frozen=True)
class Task:
    """What one side does. `gpu` is the index within CUDA_VISIBLE_DEVICES, None for host memory."""

    role: Literal["target", "initiator"]
    gpu: int | None
    jobs: tuple[Job, ...]
    rounds: int = ROUNDS


@dataclass(frozen=True)
class Timing:
    """One job: seconds of each round after the first, from the post of the first transfer to the end of the last."""

    name: str
    bytes: int
    blocks: int
    first_s: float
    rounds_s: tuple[float, ...]


def main(descriptor: int) -> None:
    """Take the socket `descriptor` and do what comes over it."""
    run_side(Connection(descriptor))


def run_side(channel: Connection) -> None:
    """Do the task that comes over `channel`."""
    task: Task = channel.recv()
    side = Side(task)
    channel.send((side.agent.get_agent_metadata(), side.address))
    metadata, address = channel.recv()
    peer = side.agent.add_remote_agent(metadata)
    if task.role == "target":
        # NIXL moves its control messages while it is asked for news.
        while not channel.poll(0.001):
            side.agent.get_new_notifs()
        channel.recv()
        channel.send(side.digest())
        return
    name = peer.decode() if isinstance(peer, bytes) else peer
    channel.send([side.time_job(job, name, address) for job in task.jobs])
    channel.send(side.digest())


class Side:
    """A NIXL agent with one registered buffer, large enough for every job."""

    def __init__(self, task: Task) -> None:
        """Start the agent and allocate. Raises what NIXL raises when no transport works."""
        from nixl._api import nixl_agent, nixl_agent_config  # noqa: PLC0415 - only these processes need it

        self.agent = nixl_agent(task.role, nixl_agent_config(backends=["UCX"]))
        self._written = list_written(task.jobs)
        self._rounds = task.rounds
        self.size = max(span(job) for job in task.jobs)
        self.kind, self.device = ("VRAM", task.gpu) if task.gpu is not None else ("DRAM", 0)
        self._memory, self.address = _allocate(self.size, task.gpu, filled=task.role == "initiator")
        self._registration = self.agent.register_memory([(self.address, self.size, self.device, "")], self.kind)

    def time_job(self, job: Job, peer: str, address: int) -> Timing:
        """Run one job and time its rounds. Raises RuntimeError when a transfer fails or never ends."""
        handles = [
            self.agent.initialize_xfer(
                "WRITE", self._describe(self.address, blocks), self._describe(address, blocks), peer, b""
            )
            for blocks in place_blocks(job)
        ]
        seconds = [self._run_round(handles) for _ in range(self._rounds)]
        for handle in handles:
            self.agent.release_xfer_handle(handle)
        return Timing(job.name, job.bytes, len(job.blocks) * job.at_once, seconds[0], tuple(seconds[1:]))

    def digest(self) -> str:
        """Return the SHA-256 of everything that the jobs write."""
        content = memoryview(self._memory.cpu().numpy()) if self.kind == "VRAM" else memoryview(self._memory).cast("B")
        digest = hashlib.sha256()
        for start, end in self._written:
            digest.update(content[start:end])
        return digest.hexdigest()

    def _describe(self, base: int, blocks: Sequence[tuple[int, int]]) -> Any:
        rows = [(base + offset, size, self.device) for offset, size in blocks]
        return self.agent.get_xfer_descs(rows, self.kind)

    def _run_round(self, handles: Sequence[Any]) -> float:
        deadline = time.monotonic() + _DEADLINE_S
        began = time.perf_counter()
        pending = [handle for handle in handles if self.agent.transfer(handle) != "DONE"]
        while pending:
            states = {id(handle): self.agent.check_xfer_state(handle) for handle in pending}
            if "ERR" in states.values():
                raise RuntimeError("a transfer failed")
            if time.monotonic() > deadline:
                raise RuntimeError(f"a transfer did not end within {_DEADLINE_S:.0f} s")
            pending = [handle for handle in pending if states[id(handle)] != "DONE"]
        return time.perf_counter() - began


def place_blocks(job: Job) -> list[list[tuple[int, int]]]:
    """Return (offset, bytes) of every block, one list for each transfer in flight; a gap keeps neighbours apart."""
    placed, offset = [], 0
    for _ in range(job.at_once):
        blocks = []
        for size in job.blocks:
            blocks.append((offset, size))
            offset += size + _GAP_BYTES
        placed.append(blocks)
    return placed


def list_written(jobs: Sequence[Job]) -> list[tuple[int, int]]:
    """Return the (start, end) of all bytes that some job writes, ascending and joined."""
    joined: list[tuple[int, int]] = []
    for offset, size in sorted(block for job in jobs for blocks in place_blocks(job) for block in blocks):
        if joined and offset <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], offset + size))
        else:
            joined.append((offset, offset + size))
    return joined


def span(job: Job) -> int:
    """Return the bytes of memory the blocks of `job` are spread over."""
    return job.bytes + _GAP_BYTES * len(job.blocks) * job.at_once


def _allocate(size: int, gpu: int | None, *, filled: bool) -> tuple[Any, int]:
    """Return memory and its address, filled with a fixed pattern or with zeros."""
    if gpu is None:
        memory = ctypes.create_string_buffer(size)
        if filled:
            block = hashlib.shake_128(bytes([_SEED])).digest(1 << 20)
            for start in range(0, size, len(block)):
                ctypes.memmove(ctypes.addressof(memory) + start, block, min(len(block), size - start))
        return memory, ctypes.addressof(memory)
    import torch  # noqa: PLC0415 - a second, and only where there is a GPU

    torch.cuda.set_device(gpu)
    generator = torch.Generator(device="cuda").manual_seed(_SEED)
    tensor = (
        torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda", generator=generator)
        if filled
        else torch.zeros(size, dtype=torch.uint8, device="cuda")
    )
    torch.cuda.synchronize()
    return tensor, tensor.data_ptr()
