"""What is predicted at a start is kept, and the exporter says how far the engines are from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from dsv41_serving.capacity import measured
from dsv41_serving.capacity.prediction import STORED, keep_prediction, read_prediction
from dsv41_serving.errors import InputError
from dsv41_serving.exporter.capacity import CapacitySource
from dsv41_serving.facts import Facts, read_facts
from dsv41_serving.spec import load_spec
from tests.fixtures.machines.build import build_machine
from tests.unit.plan.machines import plan_for

if TYPE_CHECKING:
    from pathlib import Path

    from dsv41_serving.spec.model import NodeSpec


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return read_facts(build_machine("two-socket-8gpu", tmp_path_factory.mktemp("machines")))


def spec_in(directory: Path) -> NodeSpec:
    overrides = (f"node.state_dir={directory}", "handoff.packed=true")
    return load_spec(profile="h200x8", overrides=overrides).spec


def test_every_quantity_that_a_gpu_engine_reports_is_predicted(tmp_path: Path, facts: Facts) -> None:
    kept = keep_prediction(spec_in(tmp_path), str(tmp_path), facts)
    assert kept is not None
    assert {name: set(values) for name, values in kept.engines.items()} == {
        "prefill": set(measured.GAUGES)
        - {"graphs GiB"},  # its graphs come with the first long prompt, and are in no gauge
        "decode": set(measured.GAUGES),
    }
    assert read_prediction(str(tmp_path)) == kept
    (tmp_path / STORED).write_text("{}")
    assert read_prediction(str(tmp_path)) is None


def test_the_exporter_says_how_wrong_it_was(tmp_path: Path, facts: Facts) -> None:
    """Three per cent too much of one thing, exact of another; an engine that is gone and a gauge that is absent say nothing."""
    kept = keep_prediction(spec_in(tmp_path), str(tmp_path), facts)
    assert kept is not None
    decode = kept.engines["decode"]
    page = (
        f'{measured.KV_CAPACITY}{{tp_rank="0"}} {decode["pool tokens"]}\n'
        f'{measured.KV_GIB}{{tp_rank="0"}} {decode["pool GiB"] / 1.03}\n'
    )

    def serve(request: httpx.Request) -> httpx.Response:
        if request.url.port == 30200:
            return httpx.Response(200, text=page)
        raise httpx.ConnectError("gone", request=request)

    source = CapacitySource(plan_for(facts, "h200x8", f"node.state_dir={tmp_path}"))
    source._client = httpx.Client(transport=httpx.MockTransport(serve))
    (family,) = source.read()
    assert {tuple(sample.labels.values()): sample.value for sample in family.samples} == {
        ("decode", "pool_tokens"): 0.0,
        ("decode", "pool_GiB"): pytest.approx(0.03),
    }


def test_without_a_start_there_is_no_error(tmp_path: Path, facts: Facts) -> None:
    (family,) = CapacitySource(plan_for(facts, "h200x8", f"node.state_dir={tmp_path}")).read()
    assert list(family.samples) == []


def test_a_model_of_unknown_sizes_is_not_predicted(tmp_path: Path, facts: Facts) -> None:
    """The embedded model before it is made, on a node with another manifest: the start goes on without."""
    spec = spec_in(tmp_path)
    unknown = spec.model_copy(update={"model": spec.model.model_copy(update={"name": "nobody-knows"})})
    assert keep_prediction(unknown, str(tmp_path), facts) is None


def test_a_state_directory_that_cannot_be_written_is_bad_input(tmp_path: Path, facts: Facts) -> None:
    (tmp_path / "capacity").write_text("a file in the way")
    with pytest.raises(InputError, match=r"key node\.state_dir: cannot be written"):
        keep_prediction(spec_in(tmp_path), str(tmp_path), facts)
