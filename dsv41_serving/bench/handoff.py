"""The waterfall of hand-offs on a running pair: one request at a time, so that what the engines count meanwhile is its own."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from dsv41_serving.errors import GateError, InputError, first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from dsv41_serving.bench.scenario import Words
    from dsv41_serving.plan.model import Plan

STAGES = {
    "prefill": ("bootstrap", "queue", "launch", "pack", "prepare", "wire", "poll"),
    "decode": ("bootstrap", "allocate", "receive", "notify", "launch", "unpack", "poll", "admit"),
}
"""In the order they pass; `sglang_plugin.handoff.waterfall` says what each is, and a test that both name the same."""
_ADDED = (
    *(f"prefill.{stage}" for stage in ("queue", "launch", "pack", "prepare", "wire")),
    *(f"decode.{stage}" for stage in ("notify", "poll", "admit")),
)
_SENDING = ("prefill.launch", "prefill.pack", "prefill.prepare", "prefill.wire")
ANSWER_TOKENS = 2
_TIMEOUT_S = 300.0
_SETTLE_S = 10.0
_DIGITS = 6

Page = dict[str, float]
"""Sample of one engine, `name` or `name{stage}`, and its value."""


@dataclass(frozen=True)
class Sample:
    """One hand-off. Times in seconds."""

    first_token_s: float
    """As the client sees it, prefill included."""
    stages: dict[str, float]
    """`role.stage` -> time; `unpack` of all blocks together."""
    bytes: float
    descriptors: float
    path: str

    @property
    def moving_s(self) -> float:
        """What moving the bytes takes: packing, descriptors, the wire, unpacking. What overlaps is counted twice."""
        return self._sum(*_SENDING, "decode.launch", "decode.unpack")

    @property
    def added_s(self) -> float:
        """From the end of the prefill to decode's batch. At most that for a prompt of several chunks: all but the last one overlap."""
        return self._sum(*_ADDED)

    @property
    def gb_s(self) -> float:
        """Bytes over the time that packing, descriptors and the wire take, in GB/s."""
        return self.bytes / self._sum(*_SENDING) / 1e9

    def _sum(self, *stages: str) -> float:
        # In results without `launch` and `pack` they are part of `prepare` and `unpack`.
        return sum(self.stages.get(stage, 0.0) for stage in stages)


@dataclass(frozen=True)
class Length:
    """The hand-offs of prompts of one length."""

    prompt: int
    samples: tuple[Sample, ...] = field(default_factory=tuple)

    def median(self, read: Callable[[Sample], float]) -> float:
        """Return the median of `read` over the samples."""
        return statistics.median(read(sample) for sample in self.samples)


def measure_handoffs(
    plan: Plan, words: Words, prompts: Sequence[int], *, rounds: int, client: httpx.Client, say: Callable[[str], None]
) -> list[Length]:
    """Send `rounds` prompts of each length through the router of `plan`, and one before to warm up.

    Every prompt is another, so that nothing is found in a prefix cache. Raises InputError when the plan has no pair, GateError when a request
    fails or its hand-off was not counted: other requests run beside it, or the engines do not load the plug-in.
    """
    pages: dict[str, str] = {engine.kind: engine.metrics_url for engine in plan.engines}
    if set(pages) != set(STAGES):
        raise InputError(
            "there is no hand-off", where=f"shape {plan.shape}", remedy="use a shape of prefill and decode"
        )
    found = []
    for prompt in prompts:
        samples = []
        for number in range(rounds + 1):
            text = words.write(prompt, f"handoff/{prompt}/{number}/{time.time_ns()}")
            sample = _measure(plan, text, pages, client)
            say(f"{prompt} tokens, {f'round {number} of {rounds}' if number else 'warm-up'}: {sample.gb_s:.3g} GB/s")
            samples.append(sample)
        found.append(Length(prompt, tuple(samples[1:])))
    return found


def describe_lengths(lengths: Sequence[Length]) -> Iterator[str]:
    """Yield a table of medians in milliseconds, a column for each prompt length; stages that never passed are left out."""
    yield "median, ms          " + "".join(f"{length.prompt:>12}" for length in lengths)
    for role, stages in STAGES.items():
        for stage in stages:
            name = f"{role}.{stage}"
            values = [length.median(lambda sample, name=name: 1e3 * sample.stages[name]) for length in lengths]  # type: ignore[misc]
            if any(values):
                yield f"{role:<8} {stage:<11}" + "".join(f"{value:>12.3f}" for value in values)
    rows: tuple[tuple[str, Callable[[Sample], float]], ...] = (
        ("added, at most", lambda sample: 1e3 * sample.added_s),
        ("first token", lambda sample: 1e3 * sample.first_token_s),
        ("MiB", lambda sample: sample.bytes / 2**20),
        ("blocks for NIXL", lambda sample: sample.descriptors),
        ("GB/s", lambda sample: sample.gb_s),
    )
    for title, read in rows:
        yield f"{title:<20}" + "".join(f"{length.median(read):>12.4g}" for length in lengths)
    yield f"{'path':<20}" + "".join(f"{'/'.join(sorted({s.path for s in length.samples})):>12}" for length in lengths)


def tabulate(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return results by name, as `dsv41 bench handoff` keeps them, as a Markdown table: medians of each length of prompt."""
    names = ("run", "prompt", "blocks", "MiB", "moving, ms", "GB/s", "added, ms", "first token, ms")
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for name, result in results.items():
        for row in result["lengths"]:
            length = Length(row["prompt"], tuple(Sample(**sample) for sample in row["samples"]))
            blocks, mib = (
                length.median(lambda sample: sample.descriptors),
                length.median(lambda sample: sample.bytes) / 2**20,
            )
            times = ("moving_s", "added_s", "first_token_s")
            moving, added, first = (length.median(attrgetter(name)) * 1e3 for name in times)
            speed = length.median(attrgetter("gb_s"))
            lines.append(
                f"| {name} | {length.prompt:,} | {blocks:,.0f} | {mib:.1f} | {moving:.1f} | {speed:.2f} | {added:.1f} | {first:,.0f} |"
            )
    return lines


def as_json(lengths: Sequence[Length]) -> list[dict[str, Any]]:
    """Return what a result keeps: every sample, rounded."""
    return [
        json.loads(json.dumps(asdict(length)), parse_float=lambda text: round(float(text), _DIGITS))
        for length in lengths
    ]


def read_page(text: str) -> Page:
    """Return the samples of the hand-off on an engine's page."""
    found: Page = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith("dsv41_handoff"):
            for sample in family.samples:
                label = next((sample.labels[key] for key in ("stage", "path", "reason") if key in sample.labels), "")
                if "le" not in sample.labels:
                    found[f"{sample.name}{{{label}}}" if label else sample.name] = sample.value
    return found


def compare_pages(before: Mapping[str, Page], after: Mapping[str, Page], first_token_s: float) -> Sample | None:
    """Return the one hand-off between two looks at both engines, or None when it is not complete yet.

    Raises GateError when there was more than one.
    """

    def grown(role: str, name: str) -> float:
        return after[role].get(name, 0.0) - before[role].get(name, 0.0)

    last = {"prefill": "poll", "decode": "admit"}
    counts = {role: grown(role, f"dsv41_handoff_stage_seconds_count{{{stage}}}") for role, stage in last.items()}
    if max(counts.values()) > 1:
        raise GateError("another request was handed over meanwhile", remedy="measure while nothing else runs")
    if min(counts.values()) < 1:
        return None
    paths = [
        path for path in ("packed", "stock", "mixed") if grown("prefill", f"dsv41_handoff_transfers_total{{{path}}}")
    ]
    return Sample(
        first_token_s=first_token_s,
        stages={
            f"{role}.{stage}": grown(role, f"dsv41_handoff_stage_seconds_sum{{{stage}}}")
            for role, stages in STAGES.items()
            for stage in stages
        },
        bytes=grown("prefill", "dsv41_handoff_bytes_sum"),
        descriptors=grown("prefill", "dsv41_handoff_descriptors_sum"),
        path=paths[0],
    )


def _measure(plan: Plan, prompt: str, pages: Mapping[str, str], client: httpx.Client) -> Sample:
    before = {role: read_page(_fetch(client, url)) for role, url in pages.items()}
    first_token_s = _ask(client, plan, prompt)
    deadline = time.monotonic() + _SETTLE_S
    while time.monotonic() < deadline:
        after = {role: read_page(_fetch(client, url)) for role, url in pages.items()}
        if sample := compare_pages(before, after, first_token_s):
            return sample
        time.sleep(0.1)
    raise GateError(
        f"the engines counted no hand-off within {_SETTLE_S:.0f} s",
        where="dsv41_handoff_stage_seconds",
        remedy="look whether both engines say `dsv41_handoff: ... hooks in force` in their logs",
    )


def _fetch(client: httpx.Client, url: str) -> str:
    try:
        return client.get(url).raise_for_status().text
    except httpx.HTTPError as error:
        raise GateError(f"does not answer ({type(error).__name__})", where=url, remedy="start the deployment") from None


def _ask(client: httpx.Client, plan: Plan, prompt: str) -> float:
    """Send `prompt` and return the seconds until its first token."""
    body = {
        "model": plan.served_model_name,
        "prompt": prompt,
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    began, first = time.monotonic(), 0.0
    try:
        with client.stream("POST", f"{plan.router.url}/v1/completions", json=body, timeout=_TIMEOUT_S) as response:
            response.raise_for_status()
            for line in response.iter_lines():
                if not first and line.startswith("data: {") and "error" not in json.loads(line[6:]):
                    first = time.monotonic() - began
    except httpx.HTTPError as error:
        raise GateError(
            f"the request failed ({first_line(error)})",
            where=plan.router.url,
            remedy="look at `dsv41 status`",
        ) from None
    if not first:
        raise GateError("the stream ended without an answer", where=plan.router.url, remedy="read the engines' logs")
    return first
