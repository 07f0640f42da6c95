"""What is sent to a server: prompts of token ids, greedy answers with their margins, and timed requests."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import random
import statistics
import time
from typing import TYPE_CHECKING, Any

from dsv41_kernels.serve.server import Pair

if TYPE_CHECKING:
    from dsv41_kernels.serve.server import Server

_FIRST_ID, _LAST_ID = 1000, 120000
"""Ordinary tokens of V4.1's vocabulary: no special token lies between them."""


def prompt(seed: int, length: int) -> list[int]:
    """`length` token ids."""
    draw = random.Random(seed)  # noqa: S311  (not a secret)
    return [draw.randrange(_FIRST_ID, _LAST_ID) for _ in range(length)]


def _greedy(ids: Any, new_tokens: int) -> dict[str, Any]:
    return {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": new_tokens, "temperature": 0, "ignore_eos": True},
    }


@dataclasses.dataclass(frozen=True)
class Answer:
    """Greedy tokens, and by how much (nats) each was more likely than the next best; a pair does not say by how much."""

    tokens: list[int]
    margins: list[float]


def ask(server: Server, prompts: list[list[int]], new_tokens: int) -> list[Answer]:
    """Greedy answers to `prompts`, sent as one batch."""
    body = _greedy(prompts, new_tokens)
    pair = isinstance(server, Pair)
    if not pair:
        body |= {"return_logprob": True, "top_logprobs_num": 2}
    answers = []
    for item in server.post("/generate", body):
        top = [] if pair else item["meta_info"]["output_top_logprobs"]
        answers.append(Answer(item["output_ids"], [best[0] - second[0] for best, second in top]))
    return answers


def log_probabilities(server: Server, ids: list[int], start: int) -> list[float]:
    """Log-probability (nats) of every token of `ids` after `start`, all computed in one prefill."""
    body = _greedy(ids, 1) | {"return_logprob": True, "logprob_start_len": start}
    found = server.post("/generate", body)["meta_info"]["input_token_logprobs"]
    return [entry[0] for entry in found if entry[0] is not None]


@dataclasses.dataclass(frozen=True)
class Arrival:
    """When one stream was sent, and when how many of its tokens had arrived: seconds on the clock of this process."""

    sent: float
    tokens: list[tuple[float, int]]


def stream(server: Server, ids: list[int], new_tokens: int) -> Arrival:
    """Send one prompt and note its stream."""
    sent = time.perf_counter()
    with server.open("/generate", _greedy(ids, new_tokens) | {"stream": True}) as answer:
        return Arrival(
            sent,
            [
                (time.perf_counter(), json.loads(line[6:])["meta_info"]["completion_tokens"])
                for line in answer
                if line.startswith(b"data: {")
            ],
        )


def time_prefill(server: Server, length: int, seed: int) -> float:
    """Seconds to the first token of a fresh prompt of `length` tokens."""
    arrival = stream(server, prompt(seed, length), 1)
    return arrival.tokens[0][0] - arrival.sent


def step_time(arrivals: list[Arrival]) -> float:
    """Seconds per token while all the requests decode together: none prefills any more, none has ended."""
    start = max(arrival.tokens[0][0] for arrival in arrivals)
    end = min(arrival.tokens[-1][0] for arrival in arrivals)
    steps = []
    for arrival in arrivals:
        inside = [entry for entry in arrival.tokens if start <= entry[0] <= end]
        (first, first_count), (last, last_count) = inside[0], inside[-1]
        steps.append((last - first) / (last_count - first_count))
    return statistics.median(steps)


def time_decode(server: Server, length: int, batch: int, new_tokens: int, seed: int) -> float:
    """Seconds of one decode step while `batch` requests of `length` tokens decode together for about `new_tokens` steps.

    The prompts are sent once before, so that they are found in the prefix cache and all requests decode almost at once.
    """
    prompts = [prompt(seed + i, length) for i in range(batch)]
    server.post("/generate", _greedy(prompts, 1))
    with concurrent.futures.ThreadPoolExecutor(batch) as pool:
        return step_time(list(pool.map(lambda ids: stream(server, ids, new_tokens), prompts)))


def compare_answers(ours: list[Answer], theirs: list[Answer]) -> dict[str, Any]:
    """How far greedy answers agree: equal answers, and their margin at each first difference."""
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
