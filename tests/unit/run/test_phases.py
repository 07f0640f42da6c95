"""A start is followed in the service's own log. The lines are SGLang 0.5.23's and sglang-router 0.3.2's."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from dsv41_serving.run.phases import PhaseTracker, phases_of

ENGINE_LOG = [
    ("'--disable-cuda-graph' is deprecated and will be removed in a future release.", "importing", ""),
    ("server_args={'model_path': '/served/smollm2-v41', 'tokenizer_path': '/served/smollm2-v41'}", "importing", ""),
    ("Init parallel begin.", "importing", ""),
    ("Load weight begin. avail mem=17.18 GB", "loading weights", ""),
    ("Multi-thread loading shards:   0% Completed | 0/2 [00:00<?, ?it/s]", "loading weights", "shard 0 of 2"),
    ("Multi-thread loading shards:  50% Completed | 1/2 [00:00<00:00, 56.19it/s]", "loading weights", "shard 1 of 2"),
    ("Load weight end. elapsed=0.04 s, type=LlamaForCausalLM, avail mem=17.18 GB", "allocating KV", ""),
    ("KV Cache is allocated. dtype: torch.bfloat16, #tokens: 32768, K size: 0.01 GB", "allocating KV", ""),
    ("Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1", "capturing graphs", ""),
    ("max_total_num_tokens=32768, chunked_prefill_size=1024, max_prefill_tokens=16384", "opening port", ""),
    ("NIXL KVManager initialized with backend: UCX", "opening port", ""),
    ("INFO:     Application startup complete.", "serving HTTP", ""),
    ("INFO:     Uvicorn running on http://127.0.0.1:30100 (Press CTRL+C to quit)", "serving HTTP", ""),
]
ROUTER_LOG = [
    (
        "\x1b[32m INFO\x1b[0m \x1b[2msmg::server\x1b[0m\x1b[2m:\x1b[0m Starting router on 127.0.0.1:30001 | mode: PrefillDecode",
        "registering workers",
        "",
    ),
    ("\x1b[32m INFO\x1b[0m Router ready | workers: []", "registering workers", ""),
    ("\x1b[32m INFO\x1b[0m Activated 1 worker(s) (marked as healthy)", "serving HTTP", ""),
]


@pytest.mark.parametrize(("kind", "log"), [("prefill", ENGINE_LOG), ("decode", ENGINE_LOG), ("router", ROUTER_LOG)])
def test_a_real_log_is_followed(kind: str, log: list[tuple[str, str, str]]) -> None:
    """Phase and detail after each line; a change is said once."""
    tracker = PhaseTracker(kind)
    before = ("importing", "")
    for line, phase, detail in log:
        changed = tracker.feed(line)
        assert (tracker.phase, tracker.detail) == (phase, detail), line
        assert changed is ((phase, detail) != before)
        before = (phase, detail)
    assert tracker.phase == phases_of(kind)[-1].name


def test_phases_only_go_forward() -> None:
    """A draft model loads its weights after the main model has allocated its cache."""
    tracker = PhaseTracker("decode")
    tracker.feed("Load weight begin. avail mem=100 GB")
    tracker.feed("Load weight end. elapsed=9 s")
    assert tracker.feed("Load weight begin. avail mem=60 GB") is False
    assert tracker.phase == "allocating KV"


def test_a_phase_may_be_left_out() -> None:
    """Without CUDA graphs, or when a text has changed, the next one counts."""
    tracker = PhaseTracker("aggregated")
    assert tracker.feed("INFO:     Application startup complete.")
    assert tracker.phase == "serving HTTP"


def test_shards_count_only_while_loading() -> None:
    """Any other progress bar is none of ours."""
    tracker = PhaseTracker("prefill")
    assert tracker.feed("Loading safetensors checkpoint shards:  50% Completed | 24/48") is False
    tracker.feed("Load weight begin. avail mem=100 GB")
    assert tracker.feed("Loading safetensors checkpoint shards:  50% Completed | 24/48")
    assert tracker.detail == "shard 24 of 48"
    assert tracker.feed("Loading safetensors checkpoint shards:  50% Completed | 24/48") is False


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("model_executor/model_runner.py", "Load weight begin."),
        ("model_executor/model_runner_components/cuda_graph_setup.py", " CUDA graph begin. "),
        ("model_loader/weight_utils.py", "loading shards"),
    ],
)
def test_the_installed_engine_writes_these_texts(file: str, text: str) -> None:
    """Also those that no machine without a GPU can show."""
    found = importlib.util.find_spec("sglang")
    if found is None or found.submodule_search_locations is None:
        pytest.skip("SGLang is not installed: pip install -r requirements.lock")
    roots = [Path(place) / "srt" for place in found.submodule_search_locations]
    assert any(text in path.read_text(encoding="utf-8") for root in roots for path in [root / file] if path.exists())
