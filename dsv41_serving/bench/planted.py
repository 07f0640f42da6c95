"""A series of real comparisons whose truth is known: identical, and slower by a share that a proxy in the path plants.

    python -m dsv41_serving.bench.planted deploy/results/bench/planted.json --node deploy/results/bench/single.toml

Every request goes through the same proxy. On one of its addresses the stream from the first event to the last is stretched by the
share; on two others it is passed on as it comes. Rounds on the three addresses take turns, each in the opposite order of the one
before, so that one series gives as many comparisons of identical paths as of a slower one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import socket
import statistics
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from dsv41_serving.bench.compare import FLOOR, LEVEL, judge
from dsv41_serving.bench.generator import Generator
from dsv41_serving.bench.noise import SIZES, TRIALS, simulate
from dsv41_serving.bench.protocol import choose_target, clear_caches
from dsv41_serving.bench.provenance import describe_run
from dsv41_serving.bench.scenario import Scenario, Turn, write_prompts
from dsv41_serving.bench.tokenizer import load_words
from dsv41_serving.check.access import find_access
from dsv41_serving.cli.context import Context
from dsv41_serving.errors import Dsv41Error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from starlette.requests import Request

    from dsv41_serving.bench.compare import Difference
    from dsv41_serving.bench.protocol import Target

LOAD = Scenario("planted", "one request of 32 tokens in, 32 out", (Turn(32, 32),), 1)
METRIC = "decode_tok_s"
PATHS = ("same", "same again", "slower")
_TIMEOUT_S = 600.0


def main() -> None:
    """Measure the series on what runs now and write the result file."""
    parser = argparse.ArgumentParser(prog="python -m dsv41_serving.bench.planted", description=main.__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("--node", type=Path, required=True, help="Node file of what runs.")
    parser.add_argument("--series", type=int, default=20, help="Comparisons of each kind.")
    parser.add_argument("--rounds", type=int, default=5, help="Rounds on each side of a comparison.")
    parser.add_argument("--minutes", type=float, default=60.0, help="Begin no comparison after this time.")
    parser.add_argument("--slower", type=float, default=0.05, help="Share by which decode is stretched.")
    options = parser.parse_args()
    try:
        context = Context(options.node, None, (), Path("/"))
        plan, _ = context.plan()
        target = choose_target(plan, find_access(plan))
        shares = dict(zip(PATHS, (0.0, 0.0, options.slower), strict=True))
        with serve_paths(target.url, shares) as urls:
            values = measure_series(
                target, urls, options.series, options.rounds, patience_s=60 * options.minutes, say=_say
            )
    except Dsv41Error as error:
        sys.exit(f"dsv41: {error}")
    command = f"{parser.prog} {options.result} --node {options.node} --series {options.series} --rounds {options.rounds} --minutes {options.minutes:g}"
    result = {
        **describe_run(command),
        "sends": LOAD.says,
        "planted": options.slower,
        **summarise(values),
        "drawn": draw(values, options.slower),
    }
    options.result.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    _say(json.dumps(result["figures"], indent=1))


def measure_series(
    target: Target, urls: dict[str, str], series: int, rounds: int, *, patience_s: float, say: Callable[[str], None]
) -> list[dict[str, list[float]]]:
    """Return, for each of `series` comparisons, the metric of every round on every path; none begins after `patience_s`."""
    prompts = write_prompts(LOAD, load_words(target.tokenizer))
    found: list[dict[str, list[float]]] = []
    with Generator({**os.environ, **target.env}) as generator:
        began = time.monotonic()
        for number in range(series):
            if number and time.monotonic() - began > patience_s:
                break
            values: dict[str, list[float]] = {name: [] for name in urls}
            for turn in range(rounds + (number == 0)):
                for name in list(urls)[:: 1 if turn % 2 else -1]:
                    clear_caches(target)
                    one, _ = generator.run_round(
                        LOAD, prompts, url=urls[name], model=target.model, tokenizer=target.tokenizer
                    )
                    values[name].append(one.metrics()[METRIC])
            if number == 0:  # the first of each warms up
                values = {name: kept[1:] for name, kept in values.items()}
            found.append(values)
            say(f"{number + 1} of {series}: " + ", ".join(f"{n} {statistics.fmean(v):.2f}" for n, v in values.items()))
    return found


def find_needed(series: Sequence[dict[str, list[float]]], slower: float, trials: int = TRIALS) -> int | None:
    """Return the fewest rounds a side that find `slower` in 19 of 20, on the noise that identical paths had in a comparison.

    None when not even the most that are tried do.
    """
    noise = []
    for rounds in (values[name] for values in series for name in PATHS[:2]):
        middle, correction = statistics.fmean(rounds), math.sqrt(len(rounds) / (len(rounds) - 1))
        noise += [1 + (value / middle - 1) * correction for value in rounds]
    for size in SIZES:
        row = simulate(noise, METRIC, size, slower=slower, floor=FLOOR, level=LEVEL, trials=trials)
        if row.enough:
            return size
    return None


def draw(series: Sequence[dict[str, list[float]]], slower: float) -> dict[str, Any]:
    """Return how many rounds the noise of `series` would take, and how that was found."""
    return {"needed": find_needed(series, slower), "most": SIZES[-1], "trials": TRIALS}


def summarise(series: Sequence[dict[str, list[float]]]) -> dict[str, Any]:
    """Return every verdict, what was right of them, and the noise of a round."""
    first, again, slow = PATHS
    identical = [judge("identical", METRIC, values[first], values[again], within=True) for values in series]
    planted = [judge("planted", METRIC, values[first], values[slow], within=True) for values in series]
    spreads = [statistics.stdev(values[name]) / statistics.fmean(values[name]) for values in series for name in values]
    return {
        "metric": METRIC,
        "floor": FLOOR,
        "figures": [
            {
                "name": "identical called no difference",
                "value": sum(row.judgement == "no difference" for row in identical),
            },
            {"name": "planted slow-down found", "value": sum(row.judgement == "slower" for row in planted)},
            {"name": "comparisons of each kind", "value": len(series)},
            {"name": "median spread of rounds", "value": round(statistics.median(spreads), 4)},
            {
                "name": "median noise of a comparison",
                "value": round(statistics.median(row.noise for row in planted), 4),
            },
        ],
        "identical": [_shorten(row) for row in identical],
        "planted_rows": [_shorten(row) for row in planted],
        "rounds": list(series),
    }


@contextmanager
def serve_paths(url: str, shares: dict[str, float]) -> Iterator[dict[str, str]]:
    """Serve one address for each of `shares` that passes requests on to `url`; yield them by name."""
    listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in shares}
    apps = {
        name: Starlette(routes=[Route("/{path:path}", stretch(url, share), methods=["GET", "POST"])])
        for name, share in shares.items()
    }
    servers = {
        name: uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off")) for name, app in apps.items()
    }

    async def run() -> None:
        await asyncio.gather(*(server.serve(sockets=[listeners[name]]) for name, server in servers.items()))

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    try:
        yield {name: f"http://127.0.0.1:{listener.getsockname()[1]}" for name, listener in listeners.items()}
    finally:
        for server in servers.values():
            server.should_exit = True
        thread.join()


def stretch(url: str, share: float) -> Callable[[Request], Any]:
    """Return what answers a request with the answer of `url`, the time from its first piece to each later one longer by `share`."""

    async def answer(request: Request) -> Response:
        client = httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S)
        kept = {key: value for key, value in request.headers.items() if key not in {"host", "content-length"}}
        sent = client.build_request(request.method, request.url.path, content=await request.body(), headers=kept)
        reply = await client.send(sent, stream=True)
        headers = {key: reply.headers[key] for key in ("content-type",) if key in reply.headers}
        return StreamingResponse(_pass_on(client, reply, share), reply.status_code, headers)

    return answer


def find_due(first: float, came: float, share: float) -> float:
    """Return when a piece that came at `came` is passed on, so that the time since `first` is longer by `share`."""
    return first + (came - first) * (1 + share)


async def _pass_on(client: httpx.AsyncClient, reply: httpx.Response, share: float) -> AsyncIterator[bytes]:
    """Yield the pieces of `reply`. A reader of its own notes when each came, whatever the one who is written to does."""
    pieces: asyncio.Queue[tuple[float, bytes] | None] = asyncio.Queue()

    async def read() -> None:
        async for piece in reply.aiter_bytes():
            pieces.put_nowait((time.monotonic(), piece))
        pieces.put_nowait(None)

    reader = asyncio.create_task(read())
    first = None
    try:
        while (each := await pieces.get()) is not None:
            came, piece = each
            first = came if first is None else first
            await asyncio.sleep(find_due(first, came, share) - time.monotonic())
            yield piece
    finally:
        reader.cancel()
        await reply.aclose()
        await client.aclose()


def _shorten(row: Difference) -> dict[str, Any]:
    return {"change": round(row.change, 4), "noise": round(row.noise, 4), "judgement": row.judgement}


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    main()
