"""The router's command as the node file asks for it, read by the parsers of the installed routers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dsv41_serving.errors import InputError
from dsv41_serving.run.launch_router import PACKAGES as ROUTERS
from tests.unit.plan.machines import make, split

if TYPE_CHECKING:
    import argparse

    from dsv41_serving.facts import Facts


@pytest.mark.parametrize("kind", ROUTERS)
def test_the_router_is_set_up_as_the_node_says(
    two_sockets: Facts, router_parsers: dict[str, argparse.ArgumentParser], kind: str
) -> None:
    """Every key of [router] arrives at the flag it stands for."""
    overrides = [
        "router.port=31001",
        "router.metrics_port=31002",
        "router.policy=cache_aware",
        "router.request_timeout_s=101",
        "router.drain_timeout_s=102.0",
        "router.max_concurrent_requests=103",
        "router.queue_timeout_s=104",
        "router.retries=2",
        "router.breaker_failures=105",
        "router.breaker_open_s=106",
        "router.health_interval_s=107",
        "router.health_timeout_s=108",
        "router.health_failures=109",
        "router.host='0.0.0.0'",
        "router.api_key_file='/etc/dsv41/api-key'",
        "router.tls_cert_file='/etc/dsv41/tls.pem'",
        "router.tls_key_file='/etc/dsv41/tls.key'",
        "router.args={log-level='warn'}",
    ]
    plan = make(two_sockets, "h200x8", "pd", f"router.kind={kind}", *overrides)
    settings = vars(router_parsers[kind].parse_args(split(plan.router)[1]))
    assert {
        "host": "0.0.0.0",  # noqa: S104 nothing is bound
        "api_key_file": "/etc/dsv41/api-key",
        "api_key": None,
        "tls_cert_path": "/etc/dsv41/tls.pem",
        "tls_key_path": "/etc/dsv41/tls.key",
        "port": 31001,
        "prometheus_host": "127.0.0.1",
        "prometheus_port": 31002,
        "policy": "cache_aware",
        "request_timeout_secs": 101,
        "shutdown_grace_period_secs": 102,
        "max_concurrent_requests": 103,
        "queue_timeout_secs": 104,
        "retry_max_retries": 2,
        "disable_retries": False,
        "cb_failure_threshold": 105,
        "cb_timeout_duration_secs": 106,
        "health_check_interval_secs": 107,
        "health_check_timeout_secs": 108,
        "health_failure_threshold": 109,
        "log_level": "warn",
    }.items() <= settings.items()
    assert plan.router.metrics_url == "http://127.0.0.1:31002/metrics"
    assert plan.router.url == "https://127.0.0.1:31001"


@pytest.mark.parametrize("kind", ROUTERS)
def test_an_ipv6_address_is_written_in_brackets(
    two_sockets: Facts, router_parsers: dict[str, argparse.ArgumentParser], kind: str
) -> None:
    """The router takes what stands before its port as it is."""
    router = make(two_sockets, "h200x8", "pd", f"router.kind={kind}", "router.host='::1'").router
    assert router_parsers[kind].parse_args(split(router)[1]).host == "[::1]"
    assert router.url == "http://[::1]:30001"


@pytest.mark.parametrize("kind", ROUTERS)
def test_no_retries_also_switches_them_off(
    two_sockets: Facts, router_parsers: dict[str, argparse.ArgumentParser], kind: str
) -> None:
    """sglang-router 0.3.2 takes a maximum of 0 for its default."""
    plan = make(two_sockets, "h200x8", "pd", f"router.kind={kind}")
    settings = vars(router_parsers[kind].parse_args(split(plan.router)[1]))
    assert (settings["retry_max_retries"], settings["disable_retries"]) == (0, True)


def test_smg_never_leaves_out_the_only_worker_because_it_is_busy(
    two_sockets: Facts, router_parsers: dict[str, argparse.ArgumentParser]
) -> None:
    """And knows the aliases."""
    overrides = ["router.kind=smg", "contract.aliases=['a', 'b']", "router.request_timeout_s=101"]
    plan = make(two_sockets, "h200x8", "pd", *overrides)
    settings = vars(router_parsers["smg"].parse_args(split(plan.router)[1]))
    assert {
        "disable_worker_overload_protection": True,
        "worker_wedge_secs": 101,
        "pd_admission_wait_secs": 60,
        "disable_tokenizer_autoload": True,
        "model_alias": ["a=deepseek-v4.1-flash", "b=deepseek-v4.1-flash"],
    }.items() <= settings.items()


@pytest.mark.parametrize(("shape", "several"), [("pd", True), ("replicas", False), ("tp8", False)])
def test_smg_may_hold_several_models_in_front_of_a_pair_alone(
    two_sockets: Facts, router_parsers: dict[str, argparse.ArgumentParser], shape: str, *, several: bool
) -> None:
    """A pair then answers an unknown name with 404; equals do so anyway, and would not be registered in that mode."""
    plan = make(two_sockets, "h200x8", shape, "router.kind=smg")
    assert router_parsers["smg"].parse_args(split(plan.router)[1]).enable_igw is several


@pytest.mark.parametrize(
    ("name", "aliases"), [("deepseek-v4.1-flash", []), ("DeepSeek-V4.1", []), ("house", ["deepseek-chat"])]
)
def test_smg_cannot_serve_a_deepseek_name_that_does_not_think(
    two_sockets: Facts, name: str, aliases: list[str]
) -> None:
    """It adds the publisher's default, thinking on, to every request, and no engine could tell."""
    contract = [f"contract.served_model_name={name}", f"contract.aliases={aliases}", "contract.thinking=false"]
    with pytest.raises(InputError) as error:
        make(two_sockets, "h200x8", "pd", "router.kind=smg", *contract)
    assert str(error.value) == (
        f"--set, key contract.thinking: smg turns thinking on for '{aliases[0] if aliases else name}' whatever the table says; "
        'set router.kind = "sglang-router", or serve a name without "deepseek" in it'
    )
    assert make(two_sockets, "h200x8", "pd", "router.kind=sglang-router", *contract).contract.thinking is False
    make(two_sockets, "h200x8", "pd", "router.kind=smg", "contract.thinking=false", "contract.served_model_name=house")
