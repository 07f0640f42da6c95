"""What is sent to a server: prompts of token ids, greedy answers with their margins, and timed requests."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import random
import statistics
import time
import urllib.request
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsv41_kernels.serve.server import Server

_FIRST_ID, _LAST_ID = 1000, 120000
"""Ordinary tokens of V4.1's vocabulary: no special token lies between them."""


def prompt(seed: int, length: int) -> list[int]:
    """`length` token ids."""
    draw = random.Random(seed)  # noqa: S311  (not a secret)
    return [draw.randrange(_FIRST_ID, _LAST_ID) for _ in range(length)]


@dataclasses.dataclass(frozen=True)
class Answer:
    """Greedy tokens, and by how much (nats) each was more likely than the next best."""

    tokens: list[int]
    margins: list[float]


def ask(server: Server, prompts: list[list[int]], new_tokens: int) -> list[Answer]:
    """Greedy answers to `prompts`, sent as one batch."""
    body = {
        "input_ids": prompts,
        "sampling_params": {"max_new_tokens": new_tokens, "temperature": 0, "ignore_eos": True},
        "return_logprob": True,
        "top_logprobs_num": 2,
    }
    answers = []
    for item in server.post("/generate", body):
        top = item["meta_info"]["output_top_logprobs"]
        answers.append(Answer(item["output_ids"], [best[0] - second[0] for best, second in top]))
    return answers


def log_probabilities(server: Server, ids: list[int], start: int) -> list[float]:
    """Log-probability (nats) of every token of `ids` after `start`, all computed in one prefill."""
    body = {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True},
        "return_logprob": True,
        "logprob_start_len": start,
    }
    found = server.post("/generate", body)["meta_info"]["input_token_logprobs"]
    return [entry[0] for entry in found if entry[0] is not None]


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds to the first token and seconds per following token of one streamed request."""

    first: float
    step: float


def stream(server: Server, ids: list[int], new_tokens: int) -> Timing:
    """Send one prompt and time its stream. `step` is 0 for a single token."""
    body = {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": new_tokens, "temperature": 0, "ignore_eos": True},
        "stream": True,
    }
    request = urllib.request.Request(  # noqa: S310  (the scheme is ours)
        f"{server.url}/generate", data=json.dumps(body).encode(), headers={"content-type": "application/json"}
    )
    sent = time.perf_counter()
    with urllib.request.urlopen(request, timeout=600) as answer:  # noqa: S310
        times = [
            (time.perf_counter(), json.loads(line[6:])["meta_info"]["completion_tokens"])
            for line in answer
            if line.startswith(b"data: {")
        ]
    (first, first_count), (last, last_count) = times[0], times[-1]
    return Timing(first - sent, (last - first) / (last_count - first_count) if last_count > first_count else 0.0)


def time_prefill(server: Server, length: int, seed: int) -> float:
    """Seconds to the first token of a fresh prompt of `length` tokens."""
    return stream(server, prompt(seed, length), 1).first


def time_decode(server: Server, length: int, batch: int, new_tokens: int, seed: int) -> float:
    """Seconds of one decode step while `batch` requests of `length` tokens decode: the median over the requests."""
    with concurrent.futures.ThreadPoolExecutor(batch) as pool:
        futures = [pool.submit(stream, server, prompt(seed + i, length), new_tokens) for i in range(batch)]
        return statistics.median(future.result().step for future in futures)


def compare_answers(ours: list[Answer], theirs: list[Answer]) -> dict[str, Any]:
    """How far greedy answers agree: equal answers, and the margin at each first difference."""
    differences = []
    for a, b in zip(ours, theirs, strict=True):
        at = next((i for i, (x, y) in enumerate(zip(a.tokens, b.tokens, strict=True)) if x != y), None)
        if at is not None:
            differences.append({"position": at, "margin_nats": round(b.margins[at], 4)})
    return {
        "answers": len(ours),
        "equal": len(ours) - len(differences),
        "tokens": sum(len(answer.tokens) for answer in ours),
        "distinct_tokens": len({token for answer in ours for token in answer.tokens}),
        "median_margin_nats": round(statistics.median(m for answer in theirs for m in answer.margins), 4),
        "differences": differences,
    }
