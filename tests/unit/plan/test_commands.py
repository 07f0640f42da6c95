"""The command of every service, read by the parsers of the installed SGLang and routers.

They must understand it exactly as it is meant, and what is meant is written here by hand.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dsv41_serving.errors import InputError
from dsv41_serving.plan.flags import flag_args
from dsv41_serving.run.launch_router import PACKAGES as ROUTERS
from dsv41_serving.spec.model import Contract, Handoff
from tests.unit.plan.machines import make, split

if TYPE_CHECKING:
    import argparse

    from dsv41_serving.facts import Facts

CONTRACT = {
    "served_model_name": "deepseek-v4.1-flash",
    "reasoning_parser": "deepseek-v41",
    "tool_call_parser": "deepseekv41",
    "default_chat_template_kwargs": {"thinking": True},
    "enable_cache_report": True,
}
ALWAYS = {**CONTRACT, "enable_metrics": True}
ON_GPU = {
    **ALWAYS,
    "model_path": "/var/lib/dsv41/served/deepseek-v4.1-flash",
    "device": "cuda",
    "page_size": 256,
    "trust_remote_code": True,
    "language_model_only": True,
    "decode_log_interval": 10,
    "crash_dump_folder": "/var/lib/dsv41/crash",
}
PAIR_ON_GPU = {"enable_decoder_swa_bounded_replay": True}
H200 = {
    **ON_GPU,
    **PAIR_ON_GPU,
    "context_length": 524288,
    "moe_runner_backend": "marlin",
    "mem_fraction_static": 0.92,
    "max_running_requests": 64,
}
B200 = {
    **ON_GPU,
    **PAIR_ON_GPU,
    "context_length": 524288,
    "moe_runner_backend": "flashinfer_mxfp4",
    "mem_fraction_static": 0.8,
    "max_running_requests": 256,
}
RTX = {
    **ON_GPU,
    **PAIR_ON_GPU,
    "context_length": 262144,
    "moe_runner_backend": "marlin",
    "fp8_gemm_runner_backend": "flashinfer_cutlass",
    "disable_prefill_cuda_graph": True,
    "mem_fraction_static": 0.95,
    "max_running_requests": 8,
}
CPU = {
    **ALWAYS,
    "model_path": "/state/served/smollm2-v41",
    "crash_dump_folder": "/state/crash",
    "device": "cpu",
    "dtype": "bfloat16",
    "context_length": 8192,
    "page_size": 1,
    "attention_backend": "torch_native",
    "disable_overlap_schedule": True,
    "disable_cuda_graph": True,
    "sleep_on_idle": True,
    "load_snapshot_publish_interval": 1,
    "max_total_tokens": 32768,
    "max_running_requests": 16,
}
GB300 = {
    **ON_GPU,
    "served_model_name": "deepseek-ai/DeepSeek-V4.1-Flash",
    "context_length": 1048576,
    "moe_runner_backend": "flashinfer_mxfp4",
    "speculative_algorithm": "DSPARK",
    "speculative_dspark_block_size": 5,
    "skip_server_warmup": True,
    "random_seed": 42,
    "mem_fraction_static": 0.8,
    "max_total_tokens": 33554432,
    "max_running_requests": 128,
    "chunked_prefill_size": 4096,
    "cuda_graph_bs_decode": [1, 2, 4, 8, 16, 32, 64],
    "port": 30021,
    "nccl_port": 30022,
    "tp_size": 4,
}
FIRST = {"port": 30100, "nccl_port": 30101}
SECOND = {"port": 30200, "nccl_port": 30201}
# SGLang's own default of the bootstrap port is 8998, so the profiles that keep it differ from no default.
PREFILL = {**FIRST, "disaggregation_mode": "prefill", "disaggregation_transfer_backend": "nixl"}
DECODE = {**SECOND, "disaggregation_mode": "decode", "disaggregation_transfer_backend": "nixl"}


def _on_eight_gpus(
    base: dict[str, Any], chunk: int, graphs: list[int], whole: dict[str, Any], pools: tuple[int, int] | None = None
) -> dict[str, Any]:
    """`pools`: the limits of a KV pool beside which long prompts must fit too, of prefill and of a replica, which has graphs."""
    sized = {"chunked_prefill_size": chunk, "cuda_graph_bs_decode": graphs}
    pool, smaller = ({"max_total_tokens": limit} for limit in pools) if pools else ({}, {})
    return {
        "pd": {
            "prefill": {**base, **PREFILL, **pool, "tp_size": 4, "chunked_prefill_size": chunk},
            "decode": {**base, **DECODE, "tp_size": 4, "cuda_graph_bs_decode": graphs},
        },
        "replicas": {
            "replica0": {**base, **FIRST, **sized, **smaller, "tp_size": 4},
            "replica1": {**base, **SECOND, **sized, **smaller, "tp_size": 4},
        },
        "tp8": {"whole": {**base, **FIRST, **sized, "tp_size": 8, **whole}},
    }


# Profile -> shape -> engine -> every setting that is not SGLang's default.
MEANT: dict[str, dict[str, dict[str, dict[str, Any]]]] = {
    "h200x8": _on_eight_gpus(H200, 4096, [1, 2, 4, 8, 16, 32], {}),
    "b200x8": _on_eight_gpus(B200, 4096, [1, 2, 4, 8, 16, 32, 64], {}),
    "rtxpro6000x8": _on_eight_gpus(
        RTX,
        2048,
        [1, 2, 4, 8],
        {
            "ep_size": 8,
            "mem_fraction_static": 0.72,
            "max_running_requests": 16,
            "cuda_graph_bs_decode": [1, 2, 4, 8, 16],
        },
        (4_194_304, 3_670_016),
    ),
    "gb300x4": {"tp4": {"whole": GB300}},
    "embedded": {
        "pd": {
            "prefill": {**CPU, **PREFILL, "disaggregation_bootstrap_port": 30198, "chunked_prefill_size": 2048},
            "decode": {
                **CPU,
                **DECODE,
                "disaggregation_bootstrap_port": 30198,
                "disaggregation_decode_retraction_backup": "cpu_tensor",
            },
        },
        "single": {"single": {**CPU, **FIRST, "chunked_prefill_size": 2048}},
    },
}
CASES = [(profile, shape) for profile, shapes in MEANT.items() for shape in shapes]
SEED_000 = (
    "--served-model-name deepseek-ai/DeepSeek-V4.1-Flash --tp-size 4 --ep-size 1 --trust-remote-code "
    "--moe-a2a-backend none --moe-runner-backend flashinfer_mxfp4 --mem-fraction-static 0.80 "
    "--max-total-tokens 33554432 --chunked-prefill-size 4096 --cuda-graph-bs-decode 1 2 4 8 16 32 64 "
    "--max-running-requests 128 --speculative-algorithm DSPARK --speculative-dspark-block-size 5 "
    "--skip-server-warmup --reasoning-parser deepseek-v41 --random-seed 42 --decode-log-interval 10 "
    "--host 127.0.0.1 --port 30021"
)


def read(parser: argparse.ArgumentParser, flags: list[str], required: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return every setting in which `flags` differ from the parser's defaults."""
    defaults = vars(parser.parse_args([*required]))
    return {key: value for key, value in vars(parser.parse_args(flags)).items() if value != defaults[key]}


def read_engine(parser: argparse.ArgumentParser, flags: list[str]) -> dict[str, Any]:
    """Return what SGLang understands, less its defaults."""
    return read(parser, flags, ("--model-path", ""))


@pytest.mark.parametrize(("profile", "shape"), CASES)
def test_sglang_reads_what_the_profile_means(
    two_sockets: Facts, engine_parser: argparse.ArgumentParser, profile: str, shape: str
) -> None:
    """Nothing more, nothing less, for every engine of every shape."""
    plan = make(two_sockets, profile, shape)
    found = {}
    for engine in plan.engines:
        launcher, flags = split(engine)
        assert launcher == ["/opt/dsv41/bin/python", "-m", "sglang.launch_server"]
        found[engine.name] = read_engine(engine_parser, flags)
    assert found == MEANT[profile][shape]


@pytest.mark.parametrize(("profile", "shape"), CASES)
def test_no_flag_is_given_twice_or_in_short(
    two_sockets: Facts,
    engine_parser: argparse.ArgumentParser,
    router_parsers: dict[str, argparse.ArgumentParser],
    profile: str,
    shape: str,
) -> None:
    """A second one would win in silence; a short form breaks with the next version."""
    plans = {kind: make(two_sockets, profile, shape, f"router.kind={kind}") for kind in ROUTERS}
    commands = [(engine_parser, engine) for engine in plans["smg"].engines]
    commands += [(router_parsers[kind], plan.router) for kind, plan in plans.items()]
    for parser, service in commands:
        known = parser._option_string_actions
        flags = [item for item in split(service)[1] if item.startswith("--")]
        assert [flag for flag in flags if flag not in known] == []
        meant = [known[flag].dest for flag in flags if flag not in {"--prefill", "--decode"}]
        assert len(meant) == len(set(meant))


@pytest.mark.parametrize(("profile", "shape"), CASES)
def test_all_engines_keep_the_same_contract(
    two_sockets: Facts, engine_parser: argparse.ArgumentParser, profile: str, shape: str
) -> None:
    """In flags, in environment, and in the directory they load."""
    overrides = ["contract.thinking=false", "contract.reasoning_effort=max", "contract.served_model_name=other"]
    plan = make(two_sockets, profile, shape, *overrides)
    read_back = [read_engine(engine_parser, split(engine)[1]) for engine in plan.engines]
    for settings in read_back:
        assert {key: settings.get(key) for key in CONTRACT} == {
            **CONTRACT,
            "served_model_name": "other",
            "default_chat_template_kwargs": {"thinking": False},
        }
        assert settings["model_path"] == plan.model.path
        assert settings.get("sampling_defaults", "model") == "model"
    for engine in plan.engines:
        assert engine.env["SGLANG_DEFAULT_THINKING"] == "false"
        assert engine.env["SGLANG_DSV41_REASONING_EFFORT"] == "max"
        assert "dsv41_contract" in engine.env["SGLANG_PLUGINS"].split(",")
        assert Contract.model_validate_json(engine.env["DSV41_CONTRACT"]) == plan.contract
    assert plan.contract.reasoning_effort == "max"
    assert plan.served_model_name == "other"


def test_sampling_defaults_come_from_the_served_directory(two_sockets: Facts) -> None:
    """SGLang has no flags for them; it reads generation_config.json of the model it loads."""
    overrides = ["contract.temperature=0.3", "contract.top_p=0.5"]
    plan = make(two_sockets, "h200x8", "pd", *overrides)
    assert plan.model.generation_config == {"do_sample": True, "temperature": 0.3, "top_p": 0.5}
    assert plan.model.checkpoint == "/srv/models/deepseek-v4.1-flash"


@pytest.mark.parametrize(
    ("overrides", "config"),
    [
        (["contract.temperature='checkpoint'"], {"do_sample": True, "top_p": 0.95}),
        (["contract.temperature='checkpoint'", "contract.top_p='checkpoint'"], {}),
    ],
)
def test_a_default_may_be_left_to_the_checkpoint(
    two_sockets: Facts, overrides: list[str], config: dict[str, float | bool]
) -> None:
    """Then the file of the checkpoint says it."""
    assert make(two_sockets, "h200x8", "pd", *overrides).model.generation_config == config


def test_gb300_runs_the_command_of_its_source(two_sockets: Facts, engine_parser: argparse.ArgumentParser) -> None:
    """Every setting of the published command is there unchanged; what the plan adds is listed."""
    published = read_engine(engine_parser, ["--model-path", "", *SEED_000.split()])
    ours = read_engine(engine_parser, split(make(two_sockets, "gb300x4", "tp4").engines[0])[1])
    assert {key: ours[key] for key in published} == published
    assert sorted(ours.keys() - published.keys()) == [
        "context_length",
        "crash_dump_folder",
        "default_chat_template_kwargs",
        "device",
        "enable_cache_report",
        "enable_metrics",
        "language_model_only",
        "model_path",
        "nccl_port",
        "page_size",
        "tool_call_parser",
    ]


@pytest.mark.parametrize("kind", ROUTERS)
@pytest.mark.parametrize(("profile", "shape"), CASES)
def test_the_router_knows_its_workers(
    two_sockets: Facts, router_parsers: dict[str, argparse.ArgumentParser], profile: str, shape: str, kind: str
) -> None:
    """A pair by role and with the bootstrap port, replicas as equals."""
    launcher, flags = split(make(two_sockets, profile, shape, f"router.kind={kind}").router)
    assert launcher == ["/opt/dsv41/bin/python", "-m", "dsv41_serving.run.launch_router", kind]
    settings = read(router_parsers[kind], flags)
    workers = {key: settings.get(key) for key in ("pd_disaggregation", "prefill", "decode", "worker_urls")}
    first, second = "http://127.0.0.1:30100", "http://127.0.0.1:30200"
    bootstrap = "30198" if profile == "embedded" else "8998"
    alone = {"pd_disaggregation": None, "prefill": None, "decode": None}
    assert (
        workers
        == {
            "pd": {
                "pd_disaggregation": True,
                "prefill": [[first, bootstrap]],
                "decode": [[second]],
                "worker_urls": None,
            },
            "replicas": {**alone, "worker_urls": [first, second]},
            "tp8": {**alone, "worker_urls": [first]},
            "single": {**alone, "worker_urls": [first]},
            "tp4": {**alone, "worker_urls": ["http://127.0.0.1:30021"]},
        }[shape]
    )


def test_values_become_flags() -> None:
    """True is a bare flag, false none, a list several items."""
    args = {"a": True, "b": False, "c": [1, 2], "d": "x y", "e": 0.5, "f": 0}
    assert list(flag_args(args)) == ["--a", "--c", "1", "2", "--d", "x y", "--e", "0.5", "--f", "0"]


def test_a_node_file_may_take_a_flag_of_the_profile_away(
    two_sockets: Facts, engine_parser: argparse.ArgumentParser
) -> None:
    """False leaves it out."""
    plan = make(
        two_sockets, "h200x8", "pd", "engine.args.trust-remote-code=false", "engines.decode.args.log-level=warn"
    )
    for engine in plan.engines:
        settings = read_engine(engine_parser, split(engine)[1])
        assert "trust_remote_code" not in settings
        assert settings.get("log_level") == ("warn" if engine.name == "decode" else None)


def test_a_flag_of_one_engine_wins_over_that_of_all(two_sockets: Facts, engine_parser: argparse.ArgumentParser) -> None:
    """The nearer table holds."""
    plan = make(two_sockets, "h200x8", "pd", "engine.args.log-level=info", "engines.decode.args.log-level=warn")
    levels = [vars(engine_parser.parse_args(split(engine)[1]))["log_level"] for engine in plan.engines]
    assert levels == ["info", "warn"]


def test_the_environment_of_an_engine(two_sockets: Facts) -> None:
    """No hub, unbuffered output, contract and profile; the engine's own settings come last."""
    overrides = ["engines.decode.env={UCX_TLS='tcp'}"]
    env = {engine.name: engine.env for engine in make(two_sockets, "h200x8", "pd", *overrides).engines}
    contract = env["prefill"]["DSV41_CONTRACT"]
    assert Contract.model_validate_json(contract) == Contract()
    assert env["prefill"] == {
        "DSV41_CONTRACT": contract,
        "DSV41_HANDOFF": Handoff().model_dump_json(),
        "SGLANG_PLUGINS": "dsv41_contract,dsv41_handoff",
        "SGLANG_DSV41_REASONING_EFFORT": "high",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
        "SGLANG_DEFAULT_THINKING": "true",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "0,1,2,3",
        "SGLANG_JIT_DEEPGEMM_PRECOMPILE": "0",
        "SGLANG_NUMA_BIND_V2": "0",
        "UCX_TLS": "cuda_ipc,cuda_copy,sm,tcp,self",
        "UCX_MEMTYPE_CACHE": "n",
        "UCX_CUDA_IPC_CACHE": "n",
        "UCX_NET_DEVICES": "lo",
        "UCX_PROTO_INFO": "*write by ucp_put*",
        "NIXL_TELEMETRY_ENABLE": "y",
        "NIXL_TELEMETRY_EXPORTER": "prometheus_mp",
        "NIXL_TELEMETRY_MULTIPROC_DIR": "{TMPDIR}/nixl",
        "NIXL_TELEMETRY_PROMETHEUS_LOCAL": "y",
        "NIXL_TELEMETRY_PROMETHEUS_PORT": "30102",
        "NIXL_TELEMETRY_RANK_ENV": "DSV41_RANK",
    }
    assert env["decode"] == {
        **env["prefill"],
        "CUDA_VISIBLE_DEVICES": "4,5,6,7",
        "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "120",
        "UCX_TLS": "tcp",
        "NIXL_TELEMETRY_PROMETHEUS_PORT": "30202",
    }


def test_services_start_and_stop_in_the_order_that_is_safe_for_kv_memory(two_sockets: Facts) -> None:
    """The router opens last and closes first; prefill writes into decode's memory, so decode outlives it."""
    plan = make(two_sockets, "h200x8", "pd")
    assert [service.name for service in plan.services] == ["prefill", "decode", "router"]
    assert plan.router.after == ("prefill", "decode")
    assert plan.stop_order == ("router", "prefill", "decode")
    turned = make(two_sockets, "h200x8", "pd", "shapes.pd=['decode','prefill']")
    assert turned.stop_order == ("router", "prefill", "decode")
    assert make(two_sockets, "h200x8", "replicas").stop_order == ("router", "replica0", "replica1")


def test_a_service_carries_its_ports_and_limits(two_sockets: Facts) -> None:
    """Everything that binds, everything that waits."""
    plan = make(two_sockets, "h200x8", "pd")
    prefill, decode, router = plan.services
    assert prefill.ports == {"http": 30100, "rendezvous": 30101, "bootstrap": 8998, "nixl": 30102}
    assert decode.ports == {"http": 30200, "rendezvous": 30201, "nixl": 30202}
    assert router.ports == {"http": 30001, "metrics": 29000}
    assert (prefill.url, prefill.metrics_url) == ("http://127.0.0.1:30100", "http://127.0.0.1:30100/metrics")
    assert (prefill.start_timeout_s, prefill.drain_timeout_s) == (900.0, 120.0)
    assert router.drain_timeout_s == 30.0


def test_nixl_serves_the_counters_of_all_ranks_of_an_engine(two_sockets: Facts) -> None:
    """One page for each engine, at a port of the plan's."""
    plan = make(two_sockets, "h200x8", "pd")
    for engine, port in zip(plan.engines, (30102, 30202), strict=True):
        assert engine.nixl_url == f"http://127.0.0.1:{port}/metrics"
        assert engine.env["NIXL_TELEMETRY_PROMETHEUS_PORT"] == str(port)


@pytest.mark.parametrize(
    ("shape", "override"),
    [("replicas", "node.name=left"), ("pd", "monitoring.nixl=false"), ("pd", "engine.transfer_backend=mooncake")],
)
def test_without_a_hand_off_by_nixl_there_is_nothing_to_count(two_sockets: Facts, shape: str, override: str) -> None:
    plan = make(two_sockets, "h200x8", shape, override)
    for engine in plan.engines:
        assert engine.nixl_url is None
        assert not any(key.startswith("NIXL_TELEMETRY") for key in engine.env)


def test_plans_are_equal_and_survive_json(two_sockets: Facts) -> None:
    """Programs read `dsv41 plan --json`; nothing is lost on the way."""
    plan = make(two_sockets, "h200x8", "pd")
    assert plan == make(two_sockets, "h200x8", "pd")
    assert type(plan).model_validate_json(plan.model_dump_json()) == plan
    assert json.loads(plan.model_dump_json())["services"][0]["name"] == "prefill"


def test_two_prefill_engines_leave_decode_without_a_single_partner(two_sockets: Facts) -> None:
    """SGLang takes one bootstrap port, so a node runs one prefill engine."""
    second = "engines.second={role='prefill',tp=2,port=30300,bootstrap_port=8999,max_running_requests=4}"
    with pytest.raises(InputError) as error:
        make(two_sockets, "h200x8", "pd", second, "shapes.pd=['prefill','second','decode']", "engines.decode.tp=2")
    assert str(error.value) == (
        "--set, key shapes.pd: decode needs one bootstrap port, "
        "the prefill engines have [8998, 8999]; keep one prefill engine in the shape"
    )
