"""The planned environment makes NIXL serve the counters of all ranks of an engine. With the real NIXL, on host memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import httpx
from prometheus_client.parser import text_string_to_metric_families

from dsv41_serving.facts import find_listener
from dsv41_serving.plan.engine import RANK_VARIABLE
from dsv41_serving.run.supervise import fill_in
from tests.unit.plan.machines import plan_for

if TYPE_CHECKING:
    from pathlib import Path

    from dsv41_serving.facts import Facts

PATIENCE_S = 90.0
# A scheduler process as far as NIXL sees it: it registers memory, and stays until its input ends.
RANK = """
import ctypes, sys, uuid
from nixl._api import nixl_agent, nixl_agent_config
agent = nixl_agent(str(uuid.uuid4()), nixl_agent_config(backends=["UCX"]))
memory = ctypes.create_string_buffer(int(sys.argv[1]))
agent.register_memory([(ctypes.addressof(memory), len(memory), 0, "")], "DRAM")
sys.stdin.read()
"""


def test_one_page_has_the_counters_of_all_ranks(two_sockets: Facts, tmp_path: Path) -> None:
    """The environment is that of an engine of a plan; only the directory of the start and a free port are put in."""
    port = next(port for port in range(31000, 32000) if not find_listener(port))
    engine = plan_for(two_sockets, "h200x8", f"engines.decode.port={port - 2}").service("decode")
    planned = {key: value for key, value in engine.env.items() if key.startswith("NIXL_")}
    env = {**os.environ, **fill_in(planned, str(tmp_path))}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(1000 * (rank + 1))],
            env={**env, RANK_VARIABLE: str(rank)},
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for rank in range(2)
    ]
    try:
        registered: dict[str, float] = {}
        until = time.monotonic() + PATIENCE_S
        while registered != {"0": 1000.0, "1": 2000.0} and time.monotonic() < until:
            time.sleep(0.2)
            registered = read_registered(f"http://127.0.0.1:{port}/metrics")
        assert registered == {"0": 1000.0, "1": 2000.0}
    finally:
        for each in ranks:
            each.communicate(timeout=PATIENCE_S)
    assert (tmp_path / "nixl").stat().st_mode & 0o077 == 0


def read_registered(url: str) -> dict[str, float]:
    """Return registered bytes by rank; nothing before the page is there."""
    try:
        page = httpx.get(url, timeout=5).text
    except httpx.TransportError:
        return {}
    return {
        sample.labels["local_rank"]: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "agent_memory_registered_total"
    }
