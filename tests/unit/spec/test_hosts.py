"""A layout over several hosts: what may be said, and one line for what may not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dsv41_serving.errors import InputError
from dsv41_serving.spec import load_spec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Write = Callable[[str], Path]

LAYOUT = """
profile = "embedded"
[node]
name = "b"
[engine]
cross_host = true
[router]
api_key_file = "/etc/key"
[hosts.a]
address = "192.0.2.1"
services = ["prefill"]
[hosts.b]
address = "192.0.2.2"
device = "eth1"
services = ["decode"]
[hosts.c]
address = "192.0.2.3"
services = ["router"]
"""


def test_a_layout_says_of_every_service_where_it_runs(write_node: Write) -> None:
    spec = load_spec(write_node(LAYOUT)).spec
    assert [spec.host_of(name) for name in ("prefill", "decode", "router")] == ["a", "b", "c"]
    assert [name for name in ("prefill", "decode", "router") if spec.runs_here(name)] == ["decode"]


def test_without_hosts_everything_runs_here() -> None:
    spec = load_spec(profile="embedded", overrides=['node.name="here"']).spec
    assert {spec.host_of(name) for name in ("prefill", "decode", "router")} == {"here"}


def test_two_services_may_share_a_host(write_node: Write) -> None:
    text = LAYOUT.replace('["prefill"]', '["prefill", "router"]').partition("[hosts.c]")[0]
    assert load_spec(write_node(text)).spec.host_of("router") == "a"


@pytest.mark.parametrize(
    ("override", "line"),
    [
        pytest.param(
            "engine.cross_host=false",
            "key engine.cross_host: engines would listen on 192.0.2.1 and 192.0.2.2, off loopback; "
            "set it to true to allow that on a network of your own",
            id="no permission",
        ),
        pytest.param(
            'router.api_key_file=""',
            "key router.api_key_file: engines off loopback answer to a key alone; set it, and put the file on every host",
            id="no key",
        ),
        pytest.param(
            'hosts.b.address="127.0.0.1"',
            "key hosts.b.address: other hosts do not reach '127.0.0.1'; write the address b has on their network",
            id="loopback address",
        ),
        pytest.param(
            'hosts.b.address="0.0.0.0"',
            "key hosts.b.address: other hosts do not reach '0.0.0.0'; write the address b has on their network",
            id="every address",
        ),
        pytest.param(
            'hosts.b.address="gpu-b"',
            "key hosts.b.address: 'gpu-b' is not an IP address; write 192.0.2.10, for example",
            id="name for an address",
        ),
        pytest.param(
            'hosts.b.address="192.0.2.1"',
            "key hosts.b.address: 192.0.2.1 is the address of a too; give each host its own",
            id="one address twice",
        ),
        pytest.param(
            'engine.env.UCX_TLS="cuda_ipc,cuda_copy,sm,self"',
            "key engine.env.UCX_TLS: 'cuda_ipc,cuda_copy,sm,self' carries no KV between hosts; "
            "add tcp, or rc where there is RDMA",
            id="transports of one machine",
        ),
        pytest.param(
            'engines.decode.env.UCX_TLS="self"',
            "key engines.decode.env.UCX_TLS: 'self' carries no KV between hosts; add tcp, or rc where there is RDMA",
            id="transports of one machine for one engine",
        ),
        pytest.param(
            'hosts.b.services=["decode","prefill"]',
            "key hosts.b.services: 'prefill' is also on a; a service runs on one host, remove it from the other",
            id="one service twice",
        ),
        pytest.param(
            'hosts.b.services=["decoder"]',
            "key hosts.b.services: shape pd has no service 'decoder'; use some of: prefill, decode, router",
            id="unknown service",
        ),
        pytest.param(
            'node.name="d"',
            "key node.name: 'd' is none of the hosts a, b, c; name the one this file is on",
            id="a host that is not listed",
        ),
    ],
)
def test_a_layout_that_cannot_be_is_one_line(write_node: Write, override: str, line: str) -> None:
    with pytest.raises(InputError) as error:
        load_spec(write_node(LAYOUT), overrides=[override])
    assert str(error.value).endswith(line)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("transports", ["tcp,sm,self", "rc_x,cuda_copy", "^cuda_ipc", "all"])
def test_transports_that_reach_another_host_are_taken(write_node: Write, transports: str) -> None:
    spec = load_spec(write_node(LAYOUT), overrides=[f'engine.env.UCX_TLS="{transports}"']).spec
    assert spec.engine.env["UCX_TLS"] == transports


def test_engines_that_share_a_host_may_keep_to_it(write_node: Write) -> None:
    text = LAYOUT.replace('["prefill"]', '["prefill", "decode"]').replace(
        'services = ["decode"]', 'services = ["router"]'
    )
    spec = load_spec(write_node(text.partition("[hosts.c]")[0]), overrides=['engine.env.UCX_TLS="sm,self"']).spec
    assert spec.host_of("prefill") == spec.host_of("decode")


def test_a_service_that_no_host_runs(write_node: Write) -> None:
    with pytest.raises(InputError, match=r"key hosts: no host runs 'router'; add it to the services of one$"):
        load_spec(write_node(LAYOUT.partition("[hosts.c]")[0]))


def test_one_host_needs_no_table(write_node: Write) -> None:
    with pytest.raises(InputError, match=r"key hosts: names one host, a; remove the table, everything runs here$"):
        load_spec(write_node(LAYOUT.partition("[hosts.b]")[0]))


def test_a_permission_without_hosts() -> None:
    with pytest.raises(InputError, match=r"there is no table \[hosts\] to allow it for; remove it$"):
        load_spec(profile="embedded", overrides=["engine.cross_host=true"])
