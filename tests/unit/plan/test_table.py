"""The plan as a person reads it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from rich.console import Console

from dsv41_serving.plan.table import command_text, describe_plan
from tests.unit.plan.machines import plan_for

if TYPE_CHECKING:
    from dsv41_serving.facts import Facts
    from dsv41_serving.plan import Plan


def print_plan(plan: Plan) -> list[str]:
    """Return the lines a wide terminal shows, with columns one blank apart."""
    console = Console(width=120)
    with console.capture() as capture:
        console.print(describe_plan(plan))
    return [" ".join(line.replace("│", " ").replace("┃", " ").split()) for line in capture.get().splitlines()]


def test_who_sits_where_is_seen_at_a_glance(two_sockets: Facts) -> None:
    """GPUs, NUMA node, CPUs and ports of each service, start and stop order, memory, files."""
    lines = print_plan(plan_for(two_sockets, "h200x8"))
    assert lines[0] == "node node profile h200x8 shape pd model deepseek-v4.1-flash"
    assert "prefill prefill 0-3 0 0-47,96-143 http 30100, rendezvous 30101, bootstrap 8998, nixl 30102" in lines
    assert "decode decode 4-7 1 48-95,144-191 http 30200, rendezvous 30201, nixl 30202" in lines
    assert "router router - - any http 30001, metrics 29000" in lines
    assert "start prefill + decode, then router" in lines
    assert "stop router, then prefill, then decode" in lines
    assert "host memory 74.5 GiB 1536.0 GiB fits" in lines
    assert any(line.startswith("/etc/systemd/system/dsv41-router.service ") for line in lines)


def test_memory_that_is_short_or_unknown_is_marked(two_sockets: Facts) -> None:
    """The plan is shown all the same; only a start is refused."""
    memory = two_sockets.memory.model_copy(update={"available_bytes": 1 << 30, "shm_free_bytes": None})
    lines = print_plan(plan_for(two_sockets.model_copy(update={"memory": memory}), "h200x8"))
    assert "host memory 74.5 GiB 1.0 GiB too little" in lines
    assert "shared memory (/dev/shm) 31.7 GiB unknown fits" in lines


def test_a_command_can_be_pasted_into_a_shell(two_sockets: Facts) -> None:
    """Quoted, environment first."""
    service = plan_for(two_sockets, "h200x8").service("decode")
    text = command_text(service)
    assert text.startswith("# decode\nCUDA_DEVICE_ORDER=PCI_BUS_ID \\\nCUDA_VISIBLE_DEVICES=4,5,6,7 \\\n")
    words = shlex.split(text.replace("\\\n", " "), comments=True)  # a shell joins such lines
    settings = dict(word.split("=", 1) for word in words[: len(service.env)])
    assert settings == service.env
    assert tuple(words[len(service.env) :]) == service.argv
