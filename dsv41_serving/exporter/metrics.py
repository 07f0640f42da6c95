"""Every metric of the exporter: name, type, labels, meaning. Collectors make their families from here, so none can stray.

Label values come from closed sets (services, phases, clauses, GPUs of one node), never from a request. Prometheus adds
`node`, and `service` and `role` on the pages of engines and router; here `service` is a label of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

Kind = Literal["gauge", "counter"]
Family = GaugeMetricFamily | CounterMetricFamily


@dataclass(frozen=True)
class Metric:
    """One row of the table. `name` is the name on the page; a counter's ends in `_total`."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    def family(self) -> Family:
        """Return an empty family; `add_metric(label values, value)` fills it."""
        if self.kind == "counter":
            return CounterMetricFamily(self.name, self.help, labels=self.labels)
        return GaugeMetricFamily(self.name, self.help, labels=self.labels)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, "gauge", text, labels)


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, "counter", text, labels)


# The installation and its services (run records, plan, procfs).
RELEASE_INFO = _gauge(
    "dsv41_release_info",
    "Always 1; the labels name the installed version, the plan and the model.",
    "release",
    "version",
    "engine_version",
    "profile",
    "shape",
    "model",
)
SERVICE_STATE = _gauge(
    "dsv41_service_state",
    "1 for the state a service is in: waiting, starting, ready, draining, stopped, failed, dead, absent.",
    "service",
    "role",
    "state",
)
SERVICE_READY = _gauge(
    "dsv41_service_ready", "1 while a service is past its gate and its process lives.", "service", "role"
)
SERVICE_AS_PLANNED = _gauge(
    "dsv41_service_as_planned", "1 when a service was started with the command of the present plan, else 0.", "service"
)
SERVICE_RESTARTS = _counter("dsv41_service_restarts_total", "Restarts of a service since the stack came up.", "service")
SERVICE_STARTED = _gauge(
    "dsv41_service_started_timestamp_seconds", "When the process of a service was started, in Unix seconds.", "service"
)
SERVICE_READY_SINCE = _gauge(
    "dsv41_service_ready_timestamp_seconds", "When a service passed its gate, in Unix seconds.", "service"
)
SERVICE_RESIDENT = _gauge(
    "dsv41_service_resident_bytes",
    "Resident memory of all processes of a service; shared pages count for each.",
    "service",
)
SERVICE_CPU = _counter("dsv41_service_cpu_seconds_total", "CPU time of the living processes of a service.", "service")
START_PHASE = _gauge("dsv41_start_phase", "1 for the phase a starting service is in.", "service", "phase")
START_SECONDS = _gauge("dsv41_start_seconds", "How long the running start has taken; absent when none runs.", "service")
START_EXPECTED = _gauge(
    "dsv41_start_expected_seconds", "How long a start takes here: median of the last successful ones.", "service"
)
START_PROGRESS = _gauge(
    "dsv41_start_progress_ratio",
    "How far the running start is, judged from the phases of earlier ones; absent when none runs.",
    "service",
)
GATE_PASSED = _gauge(
    "dsv41_gate_check_passed", "1 when a check of the gate passed at the last start.", "service", "check"
)

OBJECTIVE = _gauge("dsv41_objective_ratio", "Share of requests and tokens that shall be good, as planned.")
OBJECTIVE_SECONDS = _gauge(
    "dsv41_objective_seconds", "Up to here a first token, or a token after another, counts as timely.", "objective"
)

# The canary and the contract watch (their result files).
CANARY_PASSED = _gauge("dsv41_canary_passed", "1 when every step of the last canary run passed.")
CANARY_STEP = _gauge(
    "dsv41_canary_step_passed",
    "1 when a step of the last canary run passed: answer, thinking, tool_call, cancel.",
    "step",
)
CANARY_RUN_AT = _gauge("dsv41_canary_timestamp_seconds", "When the last canary run ended, in Unix seconds.")
CANARY_SECONDS = _gauge("dsv41_canary_seconds", "How long the last canary run took.")
CANARY_FIRST_TOKEN = _gauge("dsv41_canary_first_token_seconds", "Time to the first token in the last canary run.")
CANARY_TOKENS = _gauge("dsv41_canary_generated_tokens", "Tokens the last canary run made the model generate.")
CANARY_RUNS = _counter("dsv41_canary_runs_total", "Canary runs on this node.")
CANARY_FAILURES = _counter("dsv41_canary_failures_total", "Canary runs in which a step failed.")
CANARY_INTERVAL = _gauge("dsv41_canary_interval_seconds", "Time between canary runs, as planned.")
CLAUSE_KEPT = _gauge("dsv41_contract_clause_kept", "1 when the clause is kept, 0 when it is missed.", "clause")
DRIFT = _gauge("dsv41_contract_drift", "1 for each served fact that is not the accepted one.", "item")
DRIFTED_ITEMS = _gauge("dsv41_contract_drifted_items", "Served facts that are not the accepted ones.")
FINGERPRINT_INFO = _gauge(
    "dsv41_contract_fingerprint_info", "Always 1; the label is a hash of what is served.", "sha256"
)
ROUND_AT = _gauge("dsv41_contract_round_timestamp_seconds", "When the last round ended, in Unix seconds.")
ROUND_SECONDS = _gauge("dsv41_contract_round_seconds", "How long the last round took.")
ROUND_TOKENS = _gauge("dsv41_contract_round_generated_tokens", "Tokens the last round made the model generate.")

# KV memory, hand-off and decode steps (the engines' own pages, watched over a window).
KV_PLANNED = _gauge(
    "dsv41_kv_planned_bytes_per_token", "KV bytes of one token on one GPU, from layout and model.", "service"
)
KV_OBSERVED = _gauge(
    "dsv41_kv_observed_bytes_per_token",
    "KV bytes of one token on one GPU, from the pool the engine allocated.",
    "service",
)
CAPACITY_ERROR = _gauge(
    "dsv41_capacity_error_ratio",
    "What was predicted at the start against what the engine reports: +0.03 when 3 % more was predicted.",
    "service",
    "quantity",
)
KV_EXHAUSTION = _gauge(
    "dsv41_kv_exhaustion_seconds",
    "When a pool is full if it goes on filling as over the last minutes; +Inf while it does not fill.",
    "service",
    "pool",
)
HANDOFF_BASELINE = _gauge(
    "dsv41_handoff_baseline_gb_s", "Hand-off speed that preflight measured on this node, in GB/s."
)
HANDOFF_PROMPT = _gauge(
    "dsv41_handoff_prompt_gb_s",
    "Speed that preflight measured on this node for one prompt's hand-off, in the blocks its pools have, in GB/s.",
)
HANDOFF_LANE = _gauge(
    "dsv41_handoff_lane_info",
    "Always 1; the transport that carries the hand-off, before the first one the proven.",
    "lane",
)
STEP_SECONDS = _gauge("dsv41_step_seconds", "Mean time of a decode step over the last look.", "service")
STEP_INTERCEPT = _gauge(
    "dsv41_step_law_intercept_seconds", "a of the fit step = a + b * batch over the last hour.", "service"
)
STEP_SLOPE = _gauge(
    "dsv41_step_law_slope_seconds", "b of the fit step = a + b * batch over the last hour, per request.", "service"
)
STEP_POINTS = _gauge("dsv41_step_law_points", "Looks the fit of the step law rests on.", "service")

# Where memory really lies (numa_maps).
NUMA_RESIDENT = _gauge(
    "dsv41_numa_resident_bytes", "Memory of an engine's processes by the NUMA node it lies on.", "service", "numa_node"
)
NUMA_FOREIGN = _gauge(
    "dsv41_numa_foreign_bytes", "Memory of an engine outside the NUMA node of its plan; absent without one.", "service"
)
NUMA_BOUND = _gauge(
    "dsv41_numa_bound", "1 when the engine's memory policy binds it to its planned NUMA node, else 0.", "service"
)

# GPUs (NVML); absent where there is no driver.
GPU_INFO = _gauge(
    "dsv41_gpu_info",
    "Always 1; which GPU this is, and the engine that the plan puts on it.",
    *("gpu", "name", "uuid", "pci", "service"),
)
GPU_XID = _counter(
    "dsv41_gpu_xid_errors_total", "Xid errors the driver reported since the exporter started.", "gpu", "xid"
)
GPU_ECC = _counter("dsv41_gpu_ecc_errors_total", "ECC errors since the driver was loaded.", "gpu", "kind")
GPU_REMAPPED = _gauge("dsv41_gpu_remapped_rows", "Memory rows the GPU has remapped, by cause.", "gpu", "cause")
GPU_REMAP_PENDING = _gauge("dsv41_gpu_remap_pending", "1 when a row remap waits for a reset of the GPU.", "gpu")
GPU_REMAP_FAILED = _gauge(
    "dsv41_gpu_remap_failed", "1 when a row could not be remapped: the GPU must be replaced.", "gpu"
)
GPU_THROTTLED = _gauge(
    "dsv41_gpu_throttled",
    "1 while clocks are held down for this reason: power, thermal, hardware, sync.",
    "gpu",
    "reason",
)
GPU_TEMPERATURE = _gauge("dsv41_gpu_temperature_celsius", "Temperature of the GPU.", "gpu")
GPU_POWER = _gauge("dsv41_gpu_power_watts", "Power draw.", "gpu")
GPU_UTILISATION = _gauge("dsv41_gpu_utilization_ratio", "Share of the last sample in which a kernel ran.", "gpu")
GPU_SM_CLOCK = _gauge("dsv41_gpu_sm_clock_hertz", "Clock of the multiprocessors.", "gpu")
GPU_MEMORY_USED = _gauge("dsv41_gpu_memory_used_bytes", "GPU memory in use.", "gpu")
GPU_MEMORY_TOTAL = _gauge("dsv41_gpu_memory_total_bytes", "GPU memory in all.", "gpu")
GPU_PCIE_REPLAYS = _counter("dsv41_gpu_pcie_replays_total", "PCIe packets sent again.", "gpu")
GPU_PCIE_BYTES = _counter("dsv41_gpu_pcie_bytes_total", "Bytes over the PCIe link of the GPU.", "gpu", "direction")
GPU_BANDWIDTH = _gauge(
    "dsv41_gpu_memory_bandwidth_ratio", "Share of the GPU's memory bandwidth in use since the last look.", "gpu"
)
GPU_TENSOR = _gauge(
    "dsv41_gpu_tensor_active_ratio", "Share of the time since the last look in which tensor cores worked.", "gpu"
)
GPU_NVLINK_BYTES = _counter("dsv41_gpu_nvlink_bytes_total", "Payload over all NVLinks of the GPU.", "gpu", "direction")

# The exporter itself.
COLLECT_SECONDS = _gauge("dsv41_exporter_collect_seconds", "How long a collector took the last time.", "collector")
COLLECT_ERRORS = _counter("dsv41_exporter_errors_total", "Times a collector failed; the log says why.", "collector")

METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
BY_NAME = {metric.name: metric for metric in METRICS}
