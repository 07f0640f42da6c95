"""The hooks on SGLang's own classes, and the plug-in that applies them: loud when they do not fit."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from dsv41_serving.sglang_plugin import drift
from dsv41_serving.sglang_plugin.contract import plugin
from dsv41_serving.sglang_plugin.contract.hooks import limit_answer, unroll_samples
from dsv41_serving.spec.model import Contract

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

MANAGER = SimpleNamespace(context_len=8192, num_reserved_tokens=0)


def length_of(contract: Contract, params: Any, prompt: int) -> Any:
    """Return the answer length of a request whose prompt has `prompt` tokens."""
    request = SimpleNamespace(sampling_params=params)
    limit_answer(contract, MANAGER, request, [0] * prompt)
    return request.sampling_params


def test_a_request_that_names_no_length_gets_the_contracts() -> None:
    assert length_of(Contract(max_tokens=500), {"n": 1, "max_new_tokens": None}, 100) == {"n": 1, "max_new_tokens": 500}


def test_or_what_the_context_leaves() -> None:
    assert length_of(Contract(), {"max_new_tokens": None}, 8000) == {"max_new_tokens": 192}
    assert length_of(Contract(), {"max_new_tokens": None}, 8192) == {"max_new_tokens": 1}


@pytest.mark.parametrize("params", [{"max_new_tokens": 7}, {}, None])
def test_a_length_that_was_named_and_the_native_api_are_left_alone(params: Any) -> None:
    assert length_of(Contract(max_tokens=500), params, 100) == params


def request_for(**fields: Any) -> Any:
    """Return SGLang's own request object as its HTTP handlers make it, with the batch size determined."""
    from sglang.srt.managers.io_struct import GenerateReqInput

    request = GenerateReqInput(**fields)
    request._determine_batch_size()
    unroll_samples(request)
    request._handle_parallel_sampling()
    request._normalize_batch_inputs() if not request.is_single else request._normalize_single_inputs()
    return request


def rooms_of(request: Any) -> list[tuple[Any, Any, Any]]:
    """Return prompt, room and n of every request that goes to the scheduler."""
    prompts = request.input_ids or request.text
    parts = [request[index] for index in range(request.batch_size)]
    assert [part.input_ids or part.text for part in parts] == prompts
    assert {part.bootstrap_host for part in parts} == {"h"}
    assert {part.bootstrap_port for part in parts} == {9}
    return [(part.input_ids or part.text, part.bootstrap_room, part.sampling_params["n"]) for part in parts]


def test_a_chat_with_n_samples_keeps_the_rooms_the_router_gave() -> None:
    """sglang-router 0.3.2 sends lists as long as n."""
    request = request_for(
        input_ids=[1, 2],
        sampling_params={"n": 3},
        bootstrap_host=["h"] * 3,
        bootstrap_port=[9] * 3,
        bootstrap_room=[50, 60, 70],
    )
    assert request.parallel_sample_num == 1
    assert rooms_of(request) == [([1, 2], 50, 1), ([1, 2], 60, 1), ([1, 2], 70, 1)]


def test_a_completion_with_n_samples_gets_rooms_of_its_own() -> None:
    """There the router sends one for each prompt; both engines derive the same ones."""
    single = request_for(
        text="a", sampling_params={"n": 2}, bootstrap_host="h", bootstrap_port=9, bootstrap_room=2**63 - 1
    )
    assert rooms_of(single) == [("a", 2**63 - 1, 1), ("a", 0, 1)]
    batch = request_for(
        text=["a", "b"],
        sampling_params={"n": 2},
        bootstrap_host=["h", "h"],
        bootstrap_port=[9, 9],
        bootstrap_room=[50, 70],
    )
    assert rooms_of(batch) == [("a", 50, 1), ("a", 51, 1), ("b", 70, 1), ("b", 71, 1)]


def test_one_sample_and_an_aggregated_engine_are_left_alone() -> None:
    assert request_for(
        text="a", sampling_params={"n": 1}, bootstrap_host="h", bootstrap_port=9, bootstrap_room=5
    ).is_single
    aggregated = request_for(text="a", sampling_params={"n": 2})
    assert (aggregated.parallel_sample_num, aggregated.batch_size) == (2, 1)


@pytest.mark.parametrize(
    ("seed", "seeds"), [(7, [7, 8, 9]), (2**63 - 1, [2**63 - 1, -(2**63), -(2**63) + 1])], ids=["plain", "wraps"]
)
def test_samples_of_one_seed_have_seeds_of_their_own(seed: int, seeds: list[int]) -> None:
    """The first is what a request for one sample gets; on an aggregated engine too, where SGLang would repeat it n times."""
    request = request_for(text=["a", "b"], sampling_params={"n": 3, "sampling_seed": seed, "top_p": 0.5})
    parts = [request[index] for index in range(request.batch_size)]
    assert request.parallel_sample_num == 1
    assert [part.text for part in parts] == ["a", "a", "a", "b", "b", "b"]
    assert [part.sampling_params["sampling_seed"] for part in parts] == seeds * 2
    assert {(part.sampling_params["n"], part.sampling_params["top_p"]) for part in parts} == {(1, 0.5)}


def test_n_in_a_list_of_parameters_is_refused_instead_of_hanging() -> None:
    with pytest.raises(ValueError, match="n above 1 with a list of sampling_params"):
        request_for(text=["a"], sampling_params=[{"n": 2}], bootstrap_room=[5])


REGISTER = """
import sys
{before}
from dsv41_serving.sglang_plugin.contract.plugin import register
register()
from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.managers.tokenizer_manager import TokenizerManager
from sglang.srt.entrypoints import http_server
print("hooked", hasattr(GenerateReqInput._handle_parallel_sampling, "__wrapped__"),
      hasattr(TokenizerManager._validate_one_request, "__wrapped__"))
http_server.set_global_state(None)
print("middleware", [m.cls.__name__ for m in http_server.app.user_middleware][0])
"""


def run_register(contract: str | None, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run the entry point in a process of its own."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("DSV41", "SGLANG"))}
    environment |= {"PYTHONWARNINGS": "ignore", "SGLANG_PLATFORM": "dsv41_embedded", "OMP_NUM_THREADS": "1"}
    if contract is not None:
        environment["DSV41_CONTRACT"] = contract
    code = REGISTER.format(before=before)
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def test_the_plug_in_hooks_the_installed_sglang() -> None:
    """All targets with the parameters the table names; the middleware is the first to see a request."""
    done = run_register(Contract().model_dump_json())
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == ["hooked True True", "middleware ContractMiddleware"]


def test_an_sglang_without_a_contract_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody started it by hand; the gate would not let it pass for an engine of a plan."""
    monkeypatch.delenv("DSV41_CONTRACT", raising=False)
    monkeypatch.setattr(drift, "apply", lambda _: pytest.fail("hooks without a contract"))
    plugin.register()


def test_a_table_that_cannot_be_read_stops_the_start() -> None:
    done = run_register('{"thinking": "yes"}')
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "dsv41_contract: environment DSV41_CONTRACT: is no table [contract] (1 validation error for Contract); "
        "start the engine with `dsv41 run` or `dsv41 up`"
    )


def test_another_sglang_stops_the_start() -> None:
    """A target with other parameters: one line, and nothing serves."""
    changed = "from sglang.srt.managers import io_struct as m\nm.GenerateReqInput._handle_parallel_sampling = print"
    done = run_register(Contract().model_dump_json(), changed)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(
        "dsv41_contract: sglang.srt.managers.io_struct.GenerateReqInput._handle_parallel_sampling: its parameters are"
    )
