"""What the embedded platform changes in SGLang 0.5.23 and NIXL 1.5.1: one row per change."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nixl._bindings
import xgrammar

from dsv41_serving.errors import EngineDriftError
from dsv41_serving.sglang_plugin import PLATFORM
from dsv41_serving.sglang_plugin.drift import Patch, stop_on_drift
from dsv41_serving.sglang_plugin.handoff.pools import view_items

if TYPE_CHECKING:
    import torch

PROGRESS_DELAY_US = 100_000


def fork_workers(_result: None, server_args: Any) -> None:  # noqa: ARG001 - the target's signature
    """Make the scheduler and the detokenizer children of this process's memory instead of new interpreters.

    A fork copies the calling thread alone, so it is safe only while there is no other.
    """
    threads = sum(1 for _ in Path("/proc/self/task").iterdir())
    with stop_on_drift(PLATFORM):
        if threads != 1:
            raise EngineDriftError(
                f"the server has {threads} threads before it starts its workers, a fork needs 1",
                where="OMP_NUM_THREADS",
                remedy="set it to 1, as the embedded profile does: two engines that spin on two cores are slower as well",
            )
    # Objects that the collector never visits stay in pages that parent and children share.
    gc.collect()
    gc.freeze()
    multiprocessing.set_start_method("fork", force=True)


def place_snapshot(ipc_name: str) -> str:
    """Return the file through which the scheduler publishes its load, inside `TMPDIR`; `ipc_name` is a random word."""
    return str(Path(tempfile.gettempdir(), f"loads-{Path(ipc_name).name}"))


def serve_host_memory(_result: None, agent: Any, *_args: object, **_kwargs: object) -> None:
    """Let the memory kind that SGLang names for KV (`VRAM`) mean host memory in this NIXL agent."""
    agent.nixl_mems["VRAM"] = agent.nixl_mems["DRAM"]


def end_scheduler(_result: None) -> None:
    """End the scheduler process; it has left its loop and released what it held."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class PatientAgent(nixl._bindings.nixlAgent):  # type: ignore[misc]  # noqa: SLF001 - NIXL publishes no other name for it
    """A NIXL agent whose progress thread wakes on UCX events and every 100 ms, not every millisecond."""

    def __init__(self, name: str, config: Any) -> None:
        config.pthrDelay = PROGRESS_DELAY_US
        super().__init__(name, config)


def mask_on_cpu(logits: torch.Tensor, vocab_mask: torch.Tensor) -> None:
    """Set the logits [batch, vocabulary] of forbidden tokens to -inf in place; `vocab_mask` has one bit per token."""
    xgrammar.apply_token_bitmask_inplace(logits, vocab_mask, backend="cpu")


def sum_on_cpu(computer: Any, pages: torch.Tensor, states: torch.Tensor | None = None) -> int:
    """Return the Adler-32 of the items `pages` of every KV pool and `states` of every state buffer, pool after pool."""
    kv = [(address, size, pages) for address, size in zip(computer._kv_data_ptrs, computer._kv_item_lens, strict=True)]  # noqa: SLF001
    rest = zip(computer._state_data_ptrs, computer._state_item_lens, strict=True)  # noqa: SLF001
    total = zlib.adler32(b"")
    for address, size, items in (*kv, *((address, size, states) for address, size in rest)):
        if items is not None and len(items):
            pool = view_items(address, size, int(items.max()) + 1)
            total = zlib.adler32(pool[items].numpy().data, total)
    return total


PATCHES = (
    Patch(
        target="sglang.srt.entrypoints.engine._set_envs_and_config",
        signature="(server_args)",
        kind="after",
        hook=fork_workers,
        why="spawned workers import torch and SGLang again: 2 x 8 s of CPU time and 2 x 0.9 GB for each engine",
        effect="scheduler and detokenizer are forked from the server process while it has one thread",
    ),
    Patch(
        target="sglang.srt.managers.load_snapshot.shm_path_for",
        signature="(ipc_name)",
        kind="replace",
        hook=place_snapshot,
        why="each start leaves a file of random name in /dev/shm, after a clean stop too; nothing says whose it is",
        effect="the file lies in the temporary directory of the role, which goes with the role",
    ),
    Patch(
        target="nixl._api.nixl_agent.__init__",
        signature="(self, agent_name, nixl_conf=None, instantiate_all=False)",
        kind="after",
        hook=serve_host_memory,
        why="SGLang registers KV as VRAM whatever the device is, and UCX finds no GPU behind the address",
        effect="KV is registered and sent as DRAM",
    ),
    Patch(
        target="nixl._bindings.nixlAgent",
        signature="(self, arg0, arg1)",
        kind="replace",
        hook=PatientAgent,
        why="NIXL's Python layer sets the progress delay to 0, which polls every millisecond: half a core when idle",
        effect="the progress thread sleeps until UCX has an event, 100 ms at most",
    ),
    Patch(
        target="sglang.srt.distributed.parallel_state.abort_distributed_environment",
        signature="()",
        kind="after",
        hook=end_scheduler,
        why="NIXL's listener is no daemon thread: the interpreter waits for it until the server kills it after 15 s",
        effect="the scheduler exits with its last step of a graceful stop, which is this function",
    ),
    Patch(
        target="sglang.srt.constrained.xgrammar_backend.XGrammarGrammarBackend.apply_vocab_mask",
        signature="(logits, vocab_mask)",
        kind="replace",
        hook=mask_on_cpu,
        why="the thinking-budget mask raises `Unsupported device: cpu`: it has no CPU branch, unlike the grammar's own",
        effect="the mask is applied by xgrammar's CPU function",
    ),
    Patch(
        target="sglang.srt.disaggregation.checksum.KvChecksumComputer.compute",
        signature="(self, kv_page_indices_gpu, state_indices_gpu=None)",
        kind="replace",
        hook=sum_on_cpu,
        why="--disaggregation-enable-kv-checksum ends the scheduler: its sum is a CUDA kernel",
        effect="the same check of every hand-off, with zlib's sum",
    ),
)
