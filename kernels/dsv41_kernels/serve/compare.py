"""Serve the six-layer model with ops off and on, compare the answers, time both: `python -m dsv41_kernels.serve.compare`.

    python -m dsv41_kernels.serve.compare --gpus 0,1,2/3 --variant stock=all=off --variant ours=compress=on --variant pair=compress=on

Each variant is one SGLang server on GPUs of its own (`0+1`: two ranks; `0/1`: prefill and decode with NIXL between them), all on the
same synthetic weights (`weights.py`). First correctness: greedy tokens of every variant against the first one's, single and in
batches, and the log-probabilities that each gives to the first one's answers in one prefill. `--reference` keeps the first one's answers
in a file, and a later run compares with them: what does not fit the GPUs at once is run in turn. A second stock variant that prefills
in other chunks (`--variant control=all=off --with control=--chunked-prefill-size=256`) says how far rounding alone carries, and every
variant is judged by it (`verdict.py`): equal, as the control, or different. A variant on crippled weights (`--variant deaf=all=off --ablate
deaf=attention=0`) has to be different, else the tokens do not depend on what was taken away. Then time: decode steps and
prefills, variants alternated, medians over rounds with fresh prompts. One JSON line per measurement goes to `--out`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import pathlib
import statistics
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from dsv41_kernels.bench import describe_environment
from dsv41_kernels.console import complain, say
from dsv41_kernels.serve import verdict, workload
from dsv41_kernels.serve.model import LAYERS, Scale, write_model
from dsv41_kernels.serve.profile import profile_decode
from dsv41_kernels.serve.server import Launcher, Pair, Server, ServerError, Variant
from dsv41_kernels.serve.weights import Gains

if TYPE_CHECKING:
    from collections.abc import Callable

_PORT = 31700
_START_S = 400.0
_DECODED = 128


@dataclasses.dataclass(frozen=True)
class Reference:
    """What all are compared with: the answers of one variant, and the log-probabilities (nats) it gives to them in one prefill."""

    variant: str
    answers: list[workload.Answer]
    log_probabilities: list[float]

    def save(self, path: pathlib.Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self)), encoding="utf-8")

    @staticmethod
    def load(path: pathlib.Path) -> Reference:
        """Read what `save` wrote."""
        found = json.loads(path.read_text(encoding="utf-8"))
        answers = [workload.Answer(**each) for each in found["answers"]]
        return Reference(found["variant"], answers, found["log_probabilities"])


def compare_tokens(
    servers: list[Server], lengths: list[int], new_tokens: int, reference: Reference | None = None
) -> tuple[list[dict[str, Any]], Reference]:
    """Answers and prefill log-probabilities of every server against `reference`, else against the first server's.

    Returns one record per server, and the reference.
    """
    batches = [[workload.prompt(1000 * length, length)] for length in lengths]
    batches.append([workload.prompt(7 + i, 300 + 67 * i) for i in range(8)])
    prompts = [ids for batch in batches for ids in batch]

    def answer(server: Server) -> list[workload.Answer]:
        return [each for batch in batches for each in workload.ask(server, batch, new_tokens)]

    def weigh(server: Server) -> list[float]:
        if isinstance(server, Pair):
            return []
        server.flush()
        given = zip(prompts, reference.answers if reference else answers[0], strict=True)
        return [
            value
            for ids, answer in given
            for value in workload.log_probabilities(server, ids + answer.tokens, len(ids) - 1)
        ]

    with concurrent.futures.ThreadPoolExecutor(len(servers)) as pool:
        answers = list(pool.map(answer, servers))
        weighed = list(pool.map(weigh, servers))
    reference = reference or Reference(servers[0].variant.name, answers[0], weighed[0])
    records = []
    for server, given, values in zip(servers, answers, weighed, strict=True):
        record: dict[str, Any] = {"kind": "answers", "against": reference.variant, "variant": server.variant.name}
        record |= workload.compare_answers(given, reference.answers)
        if values and reference.log_probabilities:
            distance = sorted(abs(a - b) for a, b in zip(values, reference.log_probabilities, strict=True))
            record["prefill_logprob_difference_nats"] = {
                "median": round(statistics.median(distance), 5),
                "p90": round(distance[len(distance) * 9 // 10], 5),
                "largest": round(distance[-1], 5),
            }
        records.append(record)
    control = verdict.control_of(records)
    return [record | {"verdict": verdict.judge(record, control)} for record in records], reference


def read_shadow(server: Server) -> list[dict[str, Any]]:
    """What a variant in shadow has compared so far."""
    samples = server.metrics("dsv41_kernel_shadow")
    return [{"kind": "shadow", "variant": server.variant.name, "samples": samples}] if samples else []


def read_hand_off(server: Server) -> list[dict[str, Any]]:
    """The engine's own sums over a pair's hand-offs."""
    if not isinstance(server, Pair):
        return []
    samples = server.prefill.metrics("sglang:kv_transfer")
    kept = {name: value for name, value in samples.items() if "_sum" in name or "_count" in name}
    return [{"kind": "hand-off", "variant": server.variant.name, "samples": kept}]


def time_servers(
    servers: list[Server], cases: list[tuple[str, int, int]], rounds: int, write: Callable[[dict[str, Any]], None]
) -> None:
    """Decode step and prefill times, variants alternated within each round; the first round is warm-up."""
    for number, (kind, length, batch) in enumerate(cases):
        times: dict[str, list[float]] = {server.variant.name: [] for server in servers}
        for turn in range(rounds + 1):
            for server in servers if turn % 2 else servers[::-1]:
                seed = 10_000_000 * (number + 1) + 1000 * turn
                server.flush()
                if kind == "decode":
                    seconds = workload.time_decode(server, length, batch, _DECODED, seed)
                else:
                    seconds = workload.time_prefill(server, length, seed)
                if turn:
                    times[server.variant.name].append(1000 * seconds)
        for server in servers:
            found = times[server.variant.name]
            write(
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


def _named(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE, for example ours=compress=on")
    return name, value


def _gains(text: str) -> str:
    try:
        Gains.read(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _ablation(text: str) -> tuple[str, str]:
    name, value = _named(text)
    return name, _gains(value)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m dsv41_kernels.serve.compare", description=__doc__)
    add = parser.add_argument
    add("--variant", action="append", type=_named, required=True, metavar="NAME=KERNELS")
    add("--gpus", required=True, help="of each variant: 0, 0+1 for two ranks, 0/1 for prefill and decode")
    add("--with", action="append", type=_named, default=[], dest="more", metavar="NAME=ARGUMENT")
    add(
        "--gains",
        type=_gains,
        default="",
        help="of the synthetic weights: attention=0.5,family=4; see serve/weights.py",
    )
    add(
        "--ablate", action="append", type=_ablation, default=[], metavar="NAME=GAINS", help="gains of one variant alone"
    )
    add("--heads", type=int, default=64, help="query heads of the model; 16 gives the shapes of a TP4 rank on one GPU")
    add("--layers", type=int, default=6, choices=sorted(LAYERS))
    add("--expert-width", type=int, default=Scale.expert_width, help="columns of an expert; 576 on a TP4 rank")
    add("--candidate-blocks", type=int, default=2048)
    add("--context", type=int, default=131072)
    add("--lengths", type=_numbers, default=[37, 700, 4219, 20011], help="prompts whose answers are compared")
    add("--new-tokens", type=int, default=48)
    add("--reference", type=pathlib.Path, help="answers to compare with; written by the first run that names the file")
    add("--time", type=_numbers, default=[], action="append", metavar="CONTEXT,BATCH", help="decode step to time")
    add("--prefill", type=int, default=[], action="append", metavar="TOKENS", help="prefill to time")
    add("--profile", type=int, help="profile decode steps after this many tokens")
    add("--untimed", action="append", default=[], metavar="NAME", help="variants that are compared only")
    add("--rounds", type=int, default=3)
    add("--seed", type=int, default=1)
    add("--logs", type=pathlib.Path)
    add("--out", type=pathlib.Path, required=True)
    return parser.parse_args(arguments)


def variants(given: argparse.Namespace) -> list[Variant]:
    """The variants of a command line, with their arguments (`--with NAME=--flag=value`) and gains (`--ablate NAME=attention=0`)."""
    return [
        Variant(
            name,
            kernels,
            tuple(argument for owner, argument in given.more if owner == name),
            ",".join(gains for owner, gains in given.ablate if owner == name),
        )
        for name, kernels in given.variant
    ]


def main(arguments: list[str] | None = None) -> int:
    """Launch, compare, time, write; 1 when a server failed."""
    arguments = sys.argv[1:] if arguments is None else arguments
    given = parse(arguments)
    wanted, groups = variants(given), given.gpus.split(",")
    if len(groups) != len(wanted):
        complain(f"--gpus names {len(groups)} groups for {len(wanted)} variants; give one each")
        return 2
    logs = given.logs or pathlib.Path(tempfile.mkdtemp(prefix="serve-compare-"))
    logs.mkdir(parents=True, exist_ok=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    scale = Scale(
        heads=given.heads,
        candidate_blocks=given.candidate_blocks,
        context=given.context,
        layers=given.layers,
        expert_width=given.expert_width,
    )
    launcher = Launcher(write_model(logs / "model", scale), logs, given.seed, given.gains)
    environment = describe_environment(arguments, module="serve.compare")
    settings = {
        each.name: {"gpus": gpus, "kernels": each.kernels, "gains": ",".join(filter(None, (given.gains, each.gains)))}
        for each, gpus in zip(wanted, groups, strict=True)
    }

    def write(record: dict[str, Any]) -> None:
        say(json.dumps(record))
        with given.out.open("a", encoding="utf-8") as out:
            setting = {"heads": given.heads, "layers": given.layers, **settings[record["variant"]]}
            out.write(json.dumps({**environment, **setting, **record}) + "\n")

    servers: list[Server] = []
    try:
        servers = [
            launcher.launch(variant, gpus, _PORT + 100 * number)
            for number, (variant, gpus) in enumerate(zip(wanted, groups, strict=True))
        ]
        for server in servers:
            server.wait(_START_S)
            for line in server.table():
                say(f"{server.variant.name}: {line}")
        stored = Reference.load(given.reference) if given.reference and given.reference.exists() else None
        records, reference = compare_tokens(servers, given.lengths, given.new_tokens, stored)
        if given.reference and not stored:
            reference.save(given.reference)
        for record in records:
            write(record)
        for server in servers:
            for record in [*read_shadow(server), *read_hand_off(server)]:
                write(record)
        cases = [("decode", context, batch) for context, batch in given.time]
        cases += [("prefill", length, 1) for length in given.prefill]
        timed = [server for server in servers if server.variant.name not in given.untimed]
        time_servers(timed, cases, given.rounds, write)
        for server in timed if given.profile else ():
            profiled = profile_decode(server, given.profile, logs / f"trace-{server.variant.name}")
            if profiled:
                write({"kind": "profile", "variant": server.variant.name, "context": given.profile, **profiled})
        for server in servers:
            for record in read_hand_off(server):
                write(record)
    except ServerError as error:
        complain(str(error))
        return 1
    finally:
        for server in servers:
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
