"""Serve the six-layer model with ops off and on, compare the answers, time both: `python -m dsv41_kernels.serve.compare`.

    python -m dsv41_kernels.serve.compare --gpus 0,1 --variant stock=all=off --variant ours=compress=on --out results/engine.jsonl

Each variant is one SGLang server on GPUs of its own, all on the same synthetic weights (`weights.py`), with CUDA graphs. First
correctness: greedy tokens of every variant against the first one's, single and in batches, and the log-probabilities that each
gives to the first one's answers in one prefill. Then time: decode steps and prefills, variants alternated, medians over rounds
with fresh prompts. One JSON line per measurement goes to `--out`.

Experts are FP8 in SGLang's Triton runner: the runners for MXFP4 on sm_90 compile for minutes at first start. They are the same in
every variant.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
from typing import Any

from dsv41_kernels.bench import describe_environment
from dsv41_kernels.console import complain, say
from dsv41_kernels.serve import workload
from dsv41_kernels.serve.model import Scale, write_model
from dsv41_kernels.serve.server import Server, ServerError, Variant, launch

_PORT = 31700
_START_S = 420.0
_LENGTHS = (37, 700, 4219, 20011)
_NEW_TOKENS = 48


def compare_tokens(servers: list[Server], lengths: list[int], new_tokens: int) -> list[dict[str, Any]]:
    """Answers and prefill log-probabilities of every server against those of the first; one record per server."""
    batches = [[workload.prompt(1000 * length, length)] for length in lengths]
    batches.append([workload.prompt(7 + i, 300 + 67 * i) for i in range(8)])
    answers = {}
    for server in servers:
        answers[server.variant.name] = [
            answer for batch in batches for answer in workload.ask(server, batch, new_tokens)
        ]
    prompts = [ids for batch in batches for ids in batch]
    base = answers[servers[0].variant.name]
    given = []
    for server in servers:
        server.flush()
        given.append(
            [
                value
                for ids, answer in zip(prompts, base, strict=True)
                for value in workload.log_probabilities(server, ids + answer.tokens, len(ids) - 1)
            ]
        )
    records = []
    for server, values in zip(servers, given, strict=True):
        distance = [abs(a - b) for a, b in zip(values, given[0], strict=True)]
        record = workload.compare_answers(answers[server.variant.name], base)
        record["prefill_logprob_difference_nats"] = {
            "median": round(statistics.median(distance), 5),
            "largest": round(max(distance), 5),
        }
        records.append(
            {"kind": "answers", "variant": server.variant.name, "against": servers[0].variant.name, **record}
        )
    return records


def time_servers(
    servers: list[Server], *, contexts: list[int], batches: list[int], prefills: list[int], rounds: int
) -> list[dict[str, Any]]:
    """Decode step and prefill times, variants alternated within each round; the first round is warm-up."""
    cases = [("decode", length, batch) for length in contexts for batch in batches]
    cases += [("prefill", length, 1) for length in prefills]
    records = []
    for number, (kind, length, batch) in enumerate(cases):
        times: dict[str, list[float]] = {server.variant.name: [] for server in servers}
        for turn in range(rounds + 1):
            for server in servers if turn % 2 else servers[::-1]:
                seed = 10_000_000 * (number + 1) + 1000 * turn
                server.flush()
                if kind == "decode":
                    seconds = workload.time_decode(server, length, batch, 128, seed)
                else:
                    seconds = workload.time_prefill(server, length, seed)
                if turn:
                    times[server.variant.name].append(1000 * seconds)
        for server in servers:
            found = times[server.variant.name]
            records.append(
                {
                    "kind": kind,
                    "variant": server.variant.name,
                    "context": length,
                    "batch": batch,
                    "median_ms": round(statistics.median(found), 4),
                    "lowest_ms": round(min(found), 4),
                    "highest_ms": round(max(found), 4),
                    "rounds": rounds,
                }
            )
    return records


def _variant(text: str) -> Variant:
    name, separator, kernels = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=KERNELS, for example ours=compress=on")
    return Variant(name, kernels)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m dsv41_kernels.serve.compare", description=__doc__)
    parser.add_argument("--variant", action="append", type=_variant, required=True, metavar="NAME=KERNELS")
    parser.add_argument("--gpus", required=True, help="GPUs of the variants, for example 0,1 or 0+1,2+3 for two each")
    parser.add_argument("--heads", type=int, default=16, help="query heads; 16 on one GPU is a rank of TP4")
    parser.add_argument("--candidate-blocks", type=int, default=2048)
    parser.add_argument("--context", type=int, default=131072)
    parser.add_argument("--lengths", type=_numbers, default=list(_LENGTHS))
    parser.add_argument("--new-tokens", type=int, default=_NEW_TOKENS)
    parser.add_argument("--contexts", type=_numbers, default=[512, 4096, 32768])
    parser.add_argument("--batches", type=_numbers, default=[1, 8])
    parser.add_argument("--prefills", type=_numbers, default=[4096, 32768])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--server-argument", action="append", default=[], help="one more argument for every server")
    parser.add_argument("--logs", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Launch, compare, time, write; 1 when a server failed."""
    arguments = sys.argv[1:] if arguments is None else arguments
    given = parse(arguments)
    logs = given.logs or pathlib.Path(tempfile.mkdtemp(prefix="serve-compare-"))
    logs.mkdir(parents=True, exist_ok=True)
    scale = Scale(heads=given.heads, candidate_blocks=given.candidate_blocks, context=given.context)
    model = write_model(logs / "model", scale)
    groups = [group.replace("+", ",") for group in given.gpus.split(",")]
    if len(groups) != len(given.variant):
        complain(f"--gpus names {len(groups)} groups for {len(given.variant)} variants; give one each")
        return 2
    common = describe_environment(arguments, module="serve.compare")
    servers: list[Server] = []
    try:
        for number, (variant, gpus) in enumerate(zip(given.variant, groups, strict=True)):
            port = _PORT + 100 * number
            servers.append(
                launch(variant, model, logs, gpus=gpus, port=port, arguments=given.server_argument, seed=given.seed)
            )
        for server in servers:
            server.wait(_START_S)
            for line in server.table():
                say(f"{server.variant.name}: {line}")
        records = compare_tokens(servers, given.lengths, given.new_tokens)
        for record in records:
            say(json.dumps(record))
        records += time_servers(
            servers,
            contexts=given.contexts,
            batches=given.batches,
            prefills=given.prefills,
            rounds=given.rounds,
        )
        given.out.parent.mkdir(parents=True, exist_ok=True)
        with given.out.open("a", encoding="utf-8") as out:
            for record in records:
                variant = next(each for each in given.variant if each.name == record["variant"])
                setting = {"heads": given.heads, "tp": len(groups[0].split(",")), "kernels": variant.kernels}
                out.write(json.dumps({**common, **setting, **record}) + "\n")
                if record["kind"] != "answers":
                    say(json.dumps(record))
    except ServerError as error:
        complain(str(error))
        for server in servers:
            complain(server.log.read_text(encoding="utf-8", errors="replace")[-6000:])
        return 1
    finally:
        for server in servers:
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
