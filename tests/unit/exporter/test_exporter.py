"""The exporter: what each source makes of what it sees, and that none can take the others down."""

from __future__ import annotations

import json
import math
import os
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from prometheus_client import generate_latest

from dsv41_serving.canary.result import CanaryResults, CanaryRun, Step
from dsv41_serving.exporter import metrics
from dsv41_serving.exporter.engines import EnginesSource, Point, fit_line, forecast_s, read_sums
from dsv41_serving.exporter.handoff import HandoffSource
from dsv41_serving.exporter.kv_bytes import ENTRIES_PER_TOKEN, ENTRY_BYTES, INDEX_KEY_BYTES, bytes_per_token
from dsv41_serving.exporter.numa import NumaSource
from dsv41_serving.exporter.numa import Placement as NumaPlacement
from dsv41_serving.exporter.page import Background, Page
from dsv41_serving.exporter.results import CanarySource, ContractSource
from dsv41_serving.exporter.serve import build_page
from dsv41_serving.exporter.services import ServicesSource, cost_by_session, state_of
from dsv41_serving.run.history import StartHistory
from dsv41_serving.run.record import Records, ServiceRecord, current_boot, own_start_ticks
from dsv41_serving.transport.proof import store_proof
from tests.unit.run.fake_plan import fake_plan
from tests.unit.transport.test_parts import make_pair, make_proof

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsv41_serving.plan.model import Plan, Service


def values_of(families: Iterable[metrics.Family]) -> dict[str, float]:
    """Return the samples as 'name{label=value,...}' -> value."""
    return {
        f"{sample.name}{{{','.join(f'{k}={v}' for k, v in sample.labels.items())}}}": sample.value
        for family in families
        for sample in family.samples
    }


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return fake_plan(tmp_path)


def record_of(plan: Plan, name: str, **changes: Any) -> ServiceRecord:
    """Return the record of a service that is this very test process, ready, unless `changes` say otherwise."""
    service = plan.service(name)
    values: dict[str, Any] = {
        "name": name,
        "kind": service.kind,
        "state": "ready",
        "phase": "ready",
        "pid": os.getpid(),
        "start_ticks": own_start_ticks(),
        "boot": current_boot(),
        "supervisor_pid": os.getpid(),
        "port": service.port,
        "url": service.url,
        "metrics_url": service.metrics_url,
        "model": plan.served_model_name,
        "digest": service.digest,
        "started_at": 1000.0,
        "phase_at": 1000.0,
        "ready_at": 1010.0,
        **changes,
    }
    return ServiceRecord(**values)


def test_states_are_those_of_the_records_and_the_processes(plan: Plan) -> None:
    records = Records(plan.state_dir)
    records.write_service(record_of(plan, "prefill", restarts=2, checks={"identity": True, "model": False}))
    records.write_service(record_of(plan, "decode", start_ticks=1, digest="other"))
    values = values_of(ServicesSource(plan).read())
    assert values["dsv41_service_ready{service=prefill,role=prefill}"] == 1
    assert values["dsv41_service_state{service=prefill,role=prefill,state=ready}"] == 1
    assert values["dsv41_service_state{service=decode,role=decode,state=dead}"] == 1
    assert values["dsv41_service_state{service=router,role=router,state=absent}"] == 1
    assert values["dsv41_service_restarts_total{service=prefill}"] == 2
    assert values["dsv41_service_as_planned{service=prefill}"] == 1
    assert values["dsv41_gate_check_passed{service=prefill,check=model}"] == 0
    assert values["dsv41_service_ready_timestamp_seconds{service=prefill}"] == 1010
    assert "dsv41_service_as_planned{service=decode}" not in values
    assert values["dsv41_objective_ratio{}"] == 0.99


def test_a_service_of_another_plan_is_not_as_planned(plan: Plan) -> None:
    Records(plan.state_dir).write_service(record_of(plan, "decode", digest="another command"))
    assert values_of(ServicesSource(plan).read())["dsv41_service_as_planned{service=decode}"] == 0


def test_a_plan_that_was_rendered_and_not_started_is_a_drift(plan: Plan, tmp_path: Path) -> None:
    Records(plan.state_dir).write_service(record_of(plan, "decode"))
    file = tmp_path / "plan.json"
    source = ServicesSource(plan, plan_file=file)
    assert values_of(source.read())["dsv41_service_as_planned{service=decode}"] == 1
    decode = plan.service("decode")
    changed = decode.model_copy(update={"argv": (*decode.argv, "--more")})
    file.write_text(plan.model_copy(update={"services": (changed,)}).model_dump_json(exclude={"files", "memory"}))
    assert values_of(source.read())["dsv41_service_as_planned{service=decode}"] == 0


def test_an_engine_that_warms_up_has_a_phase_for_it(plan: Plan) -> None:
    """And one that does not has none."""
    warm = plan.service("decode").model_copy(update={"warm_up": (64,)})
    services = tuple(warm if service.name == "decode" else service for service in plan.services)
    for name in ("prefill", "decode"):
        Records(plan.state_dir).write_service(
            record_of(plan, name, state="starting", phase="warming up", ready_at=None)
        )
    values = values_of(ServicesSource(plan.model_copy(update={"services": services})).read())
    assert values["dsv41_start_phase{service=decode,phase=warming up}"] == 1
    assert "dsv41_start_phase{service=prefill,phase=warming up}" not in values


def test_a_running_start_shows_phase_and_progress(plan: Plan) -> None:
    StartHistory(plan.state_dir, "decode").add({"importing": 30.0, "loading weights": 60.0, "gate": 10.0})
    Records(plan.state_dir).write_service(
        record_of(plan, "decode", state="starting", phase="loading weights", ready_at=None)
    )
    values = values_of(ServicesSource(plan).read())
    assert values["dsv41_start_expected_seconds{service=decode}"] == 100
    assert values["dsv41_start_phase{service=decode,phase=loading weights}"] == 1
    assert values["dsv41_start_phase{service=decode,phase=gate}"] == 0
    # The phase began long ago: it counts for no more than it usually takes.
    assert values["dsv41_start_progress_ratio{service=decode}"] == 0.9
    assert values["dsv41_start_seconds{service=decode}"] > 0


def test_states_without_a_process() -> None:
    assert state_of(None) == "absent"


def test_cost_adds_up_the_processes_of_a_session(tmp_path: Path) -> None:
    page, tick = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
    for pid, resident in ((7, 100), (8, 50)):
        fields = ["S", "1", "7", "7", *["0"] * 7, str(2 * tick), str(tick), *["0"] * 8, str(resident)]
        (tmp_path / "proc" / str(pid)).mkdir(parents=True)
        (tmp_path / "proc" / str(pid) / "stat").write_text(f"{pid} (a b) c) {' '.join(fields)}")
    cost = cost_by_session(tmp_path)[7]
    assert cost.resident_bytes == 150 * page
    assert cost.cpu_seconds == 6


def test_the_canary_is_silent_before_its_first_run(tmp_path: Path) -> None:
    assert values_of(CanarySource(str(tmp_path), 120.0).read()) == {"dsv41_canary_interval_seconds{}": 120}


def test_a_failed_canary_names_its_step(tmp_path: Path) -> None:
    steps = (Step(name="thinking", seen=""), Step(name="answer", seen="", problem="empty content"))
    run = CanaryRun(finished_at=5.0, seconds=2.0, first_token_s=None, generated_tokens=9, steps=steps)
    CanaryResults(tmp_path).add(run)
    values = values_of(CanarySource(str(tmp_path), 120.0).read())
    assert values["dsv41_canary_passed{}"] == 0
    assert values["dsv41_canary_step_passed{step=thinking}"] == 1
    assert values["dsv41_canary_step_passed{step=answer}"] == 0
    assert (values["dsv41_canary_runs_total{}"], values["dsv41_canary_failures_total{}"]) == (1, 1)
    assert "dsv41_canary_first_token_seconds{}" not in values


def test_the_last_round_of_the_contract_watch_is_passed_on(tmp_path: Path) -> None:
    assert values_of(ContractSource(str(tmp_path)).read()) == {}
    (tmp_path / "contract").mkdir()
    text = 'dsv41_contract_clause_kept{clause="encoding"} 0.0\ndsv41_contract_drift{item="model router"} 1.0\nother 1\n'
    (tmp_path / "contract" / "contract.prom").write_text(text)
    assert values_of(ContractSource(str(tmp_path)).read()) == {
        "dsv41_contract_clause_kept{clause=encoding}": 0,
        "dsv41_contract_drift{item=model router}": 1,
    }


def test_the_lane_of_a_living_engine_counts_before_the_proven_one(tmp_path: Path) -> None:
    """A fall-back while it serves is seen; what an engine of yesterday wrote over is not."""
    store_proof(make_proof(make_pair()), str(tmp_path))
    lane = "dsv41_handoff_lane_info{{lane={}}}"
    assert lane.format("shm") in values_of(HandoffSource(str(tmp_path)).read())
    for ticks, expected in ((own_start_ticks(), "tcp"), (1, "shm")):
        Records(tmp_path).write_service(
            ServiceRecord(
                name="prefill",
                kind="prefill",
                state="ready",
                phase="ready",
                pid=os.getpid(),
                start_ticks=ticks,
                supervisor_pid=os.getpid(),
                port=1,
                url="",
                metrics_url="",
                model="m",
                started_at=0.0,
                phase_at=0.0,
                lane="tcp",
            )
        )
        assert lane.format(expected) in values_of(HandoffSource(str(tmp_path)).read())


def test_nobody_has_measured_the_hand_off(tmp_path: Path) -> None:
    assert list(HandoffSource(str(tmp_path)).read()) == []


@pytest.mark.parametrize(
    ("points", "law"),
    [
        ([(1, 3), (2, 5), (3, 7)], (1.0, 2.0)),
        ([(0, 1), (1, 1), (2, 1)], (1.0, 0.0)),
        ([(4, 1), (4, 9)], None),
    ],
)
def test_a_line_through_points(points: list[tuple[float, float]], law: tuple[float, float] | None) -> None:
    assert fit_line([Point(*point) for point in points]) == law


def test_a_pool_that_fills_has_an_end_and_one_that_does_not_has_none() -> None:
    assert forecast_s([Point(t, 1000 - 10 * t) for t in range(0, 60, 10)]) == pytest.approx(50)
    assert forecast_s([Point(t, 1000 + t) for t in range(0, 60, 10)]) == math.inf
    assert forecast_s([Point(t, 500) for t in range(0, 60, 10)]) == math.inf


PAGE = """# TYPE sglang:max_total_num_tokens gauge
sglang:max_total_num_tokens{{tp_rank="0"}} 1000.0
sglang:kv_cache_memory_usage_gb{{tp_rank="0"}} 1.0
sglang:kv_available_tokens{{tp_rank="0"}} {free}
sglang:kv_evictable_tokens{{tp_rank="0"}} 0.0
sglang:kv_used_tokens{{tp_rank="0"}} 1.0
sglang:num_running_reqs{{tp_rank="0"}} {batch}
sglang:inter_token_latency_seconds_sum {itl_sum}
sglang:inter_token_latency_seconds_count {itl_count}
sglang:spec_accept_length 2.0
"""


def test_only_what_is_needed_is_read_of_a_page() -> None:
    sums = read_sums('a{x="1"} 5\nsglang:kv_used_tokens{tp_rank="0"} 2.0\nsglang:kv_used_tokens{tp_rank="1"} 3.0\n')
    assert sums == {"sglang:kv_used_tokens": 5.0}


class _Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_engines_are_watched_over_time(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step = 0.010 + 0.002 x batch, two tokens a step; the pool loses 10 tokens a second."""
    clock = _Clock()
    monkeypatch.setattr("dsv41_serving.exporter.engines.time", clock)
    decode = plan.service("decode")
    source = EnginesSource([decode], lambda: {"decode": 890.0})
    batches = [1, 2, 4, 8, 3, 5, 7, 2, 6, 1, 4, 8]
    itl_sum, itl_count = 0.0, 0

    def serve(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text=page)

    source._client = httpx.Client(transport=httpx.MockTransport(serve))
    for look, batch in enumerate([1, *batches]):
        clock.now = look * 10.0
        page = PAGE.format(free=900 - 100 * look / 2, batch=batch, itl_sum=itl_sum, itl_count=itl_count)
        if look:
            itl_sum += 100 * (0.010 + 0.002 * batch) / 2
            itl_count += 100
            page = PAGE.format(free=900 - 5 * clock.now, batch=batch, itl_sum=itl_sum, itl_count=itl_count)
        values = values_of(source.read())
    assert values["dsv41_kv_planned_bytes_per_token{service=decode}"] == 890
    assert values["dsv41_kv_observed_bytes_per_token{service=decode}"] == 2**30 / 1000
    assert values["dsv41_kv_exhaustion_seconds{service=decode,pool=full}"] == pytest.approx(300 / 5)
    assert values["dsv41_step_seconds{service=decode}"] == pytest.approx(0.010 + 0.002 * 8)
    assert values["dsv41_step_law_intercept_seconds{service=decode}"] == pytest.approx(0.010)
    assert values["dsv41_step_law_slope_seconds{service=decode}"] == pytest.approx(0.002)
    assert values["dsv41_step_law_points{service=decode}"] == 12
    assert "dsv41_kv_exhaustion_seconds{service=decode,pool=swa}" not in values


def test_an_engine_that_is_gone_is_forgotten(plan: Plan) -> None:
    source = EnginesSource([plan.service("decode")], dict)
    source._memory["decode"].free["full"] = deque([Point(0, 1)])
    assert values_of(source.read()) == {}
    assert not source._memory["decode"].free["full"]


def test_planned_bytes_follow_layout_and_model(plan: Plan) -> None:
    decode = plan.service("decode")
    v41 = {"architectures": ["DeepseekV41ForCausalLM"]}
    assert bytes_per_token(v41, decode) == 1630
    assert bytes_per_token(v41, _with_env(decode, SGLANG_DSV4_KV_LAYOUT="v41")) == 890
    assert bytes_per_token(v41, _with_env(decode, SGLANG_DSV4_KV_LAYOUT="new")) is None
    llama = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 30, "num_key_value_heads": 3, "head_dim": 64}
    assert bytes_per_token({**llama, "torch_dtype": "bfloat16"}, decode) == 30 * 3 * 64 * 2 * 2
    assert bytes_per_token({"architectures": ["Other"]}, decode) is None


def test_entry_sizes_are_those_of_the_kernels_layout() -> None:
    layout = pytest.importorskip("dsv41_kernels.layout")
    assert {"v4": layout.V4.entry_bytes, "v41": layout.V41_FP4.entry_bytes} == ENTRY_BYTES
    assert layout.INDEX_KEY.entry_bytes == INDEX_KEY_BYTES
    assert sum(1 / ratio for ratio in layout.SOURCE_RATIOS) == ENTRIES_PER_TOKEN


def _with_env(service: Service, **env: str) -> Service:
    return service.model_copy(update={"env": {**service.env, **env}})


def test_numa_maps_are_added_up() -> None:
    placement = NumaPlacement()
    placement.add(
        "7f00 bind:1 anon=3 dirty=3 N0=1 N1=2 kernelpagesize_kB=4\n"
        "7f01 bind:1 huge anon=2 N1=2 kernelpagesize_kB=2048\n"
        "7f02 default file=/lib/x mapped=1\n"
    )
    assert placement.by_node == {0: 4096, 1: 2 * 4096 + 2 * 2048 * 1024}
    assert placement.policies == {"bind:1"}


def test_memory_outside_the_planned_node_is_foreign(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = plan.service("decode")
    placed = decode.model_copy(update={"placement": decode.placement.model_copy(update={"numa_node": 1})})
    plan = plan.model_copy(update={"services": (placed,)})
    Records(plan.state_dir).write_service(record_of(plan, "decode"))
    monkeypatch.setattr("dsv41_serving.exporter.numa.session_members", lambda _: [os.getpid()])
    directory = tmp_path / "machine" / "proc" / str(os.getpid())
    directory.mkdir(parents=True)
    (directory / "numa_maps").write_text("7f00 default anon=3 N0=1 N1=3 kernelpagesize_kB=4\n")
    values = values_of(NumaSource(plan, tmp_path / "machine").read())
    assert values["dsv41_numa_foreign_bytes{service=decode}"] == 4096
    assert values["dsv41_numa_resident_bytes{service=decode,numa_node=1}"] == 3 * 4096
    assert values["dsv41_numa_bound{service=decode}"] == 0


class _Broken:
    name = "broken"

    def read(self) -> Iterable[metrics.Family]:
        raise ValueError("damaged")


class _Sound:
    name = "sound"

    def __init__(self) -> None:
        self.read_once = threading.Event()

    def read(self) -> Iterable[metrics.Family]:
        family = metrics.CANARY_PASSED.family()
        family.add_metric([], 1)
        self.read_once.set()
        return [family]


def test_a_source_that_fails_takes_no_other_with_it() -> None:
    page = Page((_Broken(), _Sound()))
    text = generate_latest(page.registry()).decode()
    assert "dsv41_canary_passed 1.0" in text
    assert 'dsv41_exporter_errors_total{collector="sound"} 0.0' in text
    # Registering reads once as well.
    assert values_of(page.collect())["dsv41_exporter_errors_total{collector=broken}"] >= 2


def test_a_background_source_serves_its_last_reading_and_raises_its_last_failure() -> None:
    sound = _Sound()
    background = Background(sound, 60.0)
    assert sound.read_once.wait(5)
    while not (families := list(background.read())):
        pass
    background.stop()
    assert values_of(families) == {"dsv41_canary_passed{}": 1}
    broken = Background(_Broken(), 60.0)
    while broken._problem is None:
        pass
    with pytest.raises(ValueError, match="damaged"):
        broken.read()
    broken.stop()


def test_names_and_labels_follow_prometheus_habits() -> None:
    names = [metric.name for metric in metrics.METRICS]
    assert len(set(names)) == len(names)
    for metric in metrics.METRICS:
        assert metric.name.startswith("dsv41_")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.help.endswith(".")
        assert not {"request", "prompt", "user", "key"} & set(metric.labels)


def test_the_page_of_a_plan_is_the_recorded_one() -> None:
    """What was recorded of the running exporter has no name that is not in the table."""
    recorded = Path(__file__).parents[3] / "monitoring" / "metrics" / "exporter-load.prom"
    served = {line.split(" ")[2] for line in recorded.read_text().splitlines() if line.startswith("# TYPE dsv41_")}
    assert served <= set(metrics.BY_NAME)
    assert json.dumps(sorted(served)).count("dsv41_") >= 30


def test_the_page_asks_every_source(tmp_path: Path) -> None:
    """A source that nobody asks is a row of metrics that never comes; each says what it costs."""
    families = {family.name: family for family in build_page(fake_plan(tmp_path)).collect()}
    asked = {sample.labels["collector"] for sample in families["dsv41_exporter_collect_seconds"].samples}
    assert asked == {"services", "canary", "contract", "handoff", "engines", "capacity", "numa", "gpu"}
