"""The least time of a decode step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dsv41_serving.bench.protocol import find_floor
from dsv41_serving.bench.scenario import Scenario, Turn
from dsv41_serving.capacity.roofline import BANDWIDTH, find_bandwidth, least_step_s, measure_copy, step_bytes
from dsv41_serving.capacity.weights import weigh
from dsv41_serving.spec import load_spec
from tests.unit.capacity.test_estimate import FLASH, H200, SMOLLM2, settings

EMBEDDED = settings("embedded", "decode")


def test_a_dense_model_reads_weights_once_and_the_kv_of_every_request() -> None:
    weights = weigh(SMOLLM2, EMBEDDED)
    read = weights.dense + weights.embeddings // 2
    assert step_bytes(SMOLLM2, EMBEDDED, 3, 100) == read + 3 * 100 * 23040


def test_one_request_reads_six_of_384_experts() -> None:
    weights = weigh(FLASH, H200)
    read = weights.dense + weights.embeddings / 2
    nothing_held = step_bytes(FLASH, H200, 1, 0)
    assert nothing_held == pytest.approx(read + weights.experts * 6 / 384)


def test_many_requests_read_nearly_every_expert() -> None:
    weights = weigh(FLASH, H200)
    read = weights.dense + weights.embeddings / 2
    assert step_bytes(FLASH, H200, 512, 0) == pytest.approx(read + weights.experts, rel=0.001)


def test_a_verify_step_routes_more_rows() -> None:
    assert step_bytes(FLASH, replace(H200, draft_tokens=6), 1, 0) > step_bytes(FLASH, H200, 1, 0)


def test_what_a_long_context_adds_is_index_keys_alone() -> None:
    """Beyond the window, the selection and the candidates: 2.5 index keys of 68 bytes a token."""
    added = step_bytes(FLASH, H200, 1, 400_000) - step_bytes(FLASH, H200, 1, 300_000)
    assert added == pytest.approx(100_000 * 2.5 * 68)


def test_time_is_bytes_over_bandwidth() -> None:
    assert least_step_s(FLASH, H200, 1, 4096, BANDWIDTH["9.0"]) == step_bytes(FLASH, H200, 1, 4096) / 4.8e12


def test_bandwidth_is_the_boards_or_what_a_copy_gets() -> None:
    assert find_bandwidth(H200) == 4.8e12
    assert find_bandwidth(replace(H200, compute_capability="8.0")) is None
    assert measure_copy() > 1e8


def test_a_load_is_spread_over_the_engines_that_decode() -> None:
    """Four at once on two replicas are two each, with prompt and half an answer."""
    load = Scenario("s", "four at once", tuple(Turn(1000, 200) for _ in range(8)), 4)
    spec = load_spec(profile="h200x8", overrides=("shape=replicas",)).spec
    expected = least_step_s(FLASH, settings("h200x8", "replica0"), 2, 1100, 4.8e12) * 1e3
    assert find_floor(spec, FLASH)(load) == pytest.approx(expected)
    pair = load_spec(profile="h200x8").spec
    assert find_floor(pair, FLASH)(load) == pytest.approx(least_step_s(FLASH, H200, 4, 1100, 4.8e12) * 1e3)
