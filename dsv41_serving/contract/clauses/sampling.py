"""Sampling: what a request that names nothing is sampled with, and that what it names is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsv41_serving.contract.clause import Outcome, cannot, clause, judge, unless
from dsv41_serving.contract.deployment import PLAIN
from dsv41_serving.contract.reply import NoAnswerError

if TYPE_CHECKING:
    from dsv41_serving.contract.deployment import Deployment

OPEN_QUESTION = ({"role": "user", "content": "Tell me something."},)
TOLERANCE = 0.02
ATTEMPTS = 3
"""Log probabilities of one prompt differ by rounding when another request shares the batch; another temperature shows every time."""
SEEDED_TOKENS = 12
SEEDS = (7, 8, 9)


@clause("temperature-default", alone=True)
async def temperature_default(deployment: Deployment) -> Outcome:
    """A request that names no temperature is sampled with the table's: log probabilities show the scale."""
    stated = await _temperature(deployment)
    other = 0.5 * stated or 0.3
    expected = f"omitted equals {stated}, not {other:g}"
    await _first_logprobs(deployment)  # a prompt that is in the cache rounds the same way every time
    different = await _first_logprobs(deployment, temperature=other)
    for _ in range(ATTEMPTS):
        omitted = await _first_logprobs(deployment)
        same = await _first_logprobs(deployment, temperature=stated)
        if _distance(omitted, same) <= TOLERANCE:
            break
    if _distance(same, different) <= TOLERANCE:
        return Outcome("skip", expected, "log probabilities here do not depend on the temperature")
    return judge(
        expected,
        f"omitted {_show(omitted)}, {stated} {_show(same)}, {other:g} {_show(different)}",
        unless(_distance(omitted, same) <= TOLERANCE, "another temperature is in effect"),
    )


@clause("sampling-seeded", alone=True)
async def sampling_seeded(deployment: Deployment) -> Outcome:
    """Under a fixed seed omitting temperature and top_p is stating the table's, and is not greedy."""
    temperature, top_p = await _temperature(deployment), await _top_p(deployment)
    stated: dict[str, Any] = {"temperature": temperature, "top_p": top_p}
    omitted = [await _say(deployment, seed=seed) for seed in SEEDS]
    expected = f"omitted equals temperature {temperature}, top_p {top_p} for seeds {', '.join(map(str, SEEDS))}; temperature 0 differs"
    if await _samples_elsewhere(deployment):
        return Outcome("skip", expected, "speculative decoding draws without seeds")
    if omitted[0] != await _say(deployment, seed=SEEDS[0]):
        return cannot(deployment, expected, "seeds are not honoured: the same seed gave two texts")
    said = [await _say(deployment, seed=seed, **stated) for seed in SEEDS]
    greedy = await _say(deployment, temperature=0)
    return judge(
        expected,
        f"omitted {omitted[0]!r}, stated {said[0]!r}, greedy {greedy!r}",
        *(
            unless(a == b, f"seed {seed}: omitted and stated differ")
            for seed, a, b in zip(SEEDS, omitted, said, strict=True)
        ),
        unless(temperature == 0 or any(text != greedy for text in omitted), "every seed gives the greedy text"),
    )


@clause("max-tokens")
async def max_tokens(deployment: Deployment) -> Outcome:
    """max_tokens and max_completion_tokens end an answer exactly there, with finish_reason length."""
    lengths = {}
    for field in ("max_tokens", "max_completion_tokens"):
        reply = await deployment.chat(messages=list(OPEN_QUESTION), ignore_eos=True, **{field: 5, **PLAIN})
        lengths[field] = (reply.completion_tokens, reply.first.finish_reason)
    return judge(
        "5 tokens, finish_reason length",
        ", ".join(f"{field} {count} ({reason})" for field, (count, reason) in lengths.items()),
        *(unless(length == (5, "length"), f"{field} is not obeyed") for field, length in lengths.items()),
    )


async def _temperature(deployment: Deployment) -> float:
    return await _in_force(deployment, "temperature", deployment.contract.temperature)


async def _top_p(deployment: Deployment) -> float:
    return await _in_force(deployment, "top_p", deployment.contract.top_p)


async def _in_force(deployment: Deployment, key: str, value: float | str) -> float:
    """Return the number behind a table's value; what 'checkpoint' means only an engine can say."""
    if not isinstance(value, str):
        return value
    if not deployment.engines:
        raise NoAnswerError(f"contract.{key} is '{value}' and no engine is known that could say what that is")
    report = await deployment.get_json("/contract", deployment.engines[0])
    return float(report["in_force"]["sampling"][key])


async def _samples_elsewhere(deployment: Deployment) -> bool:
    """Return whether an engine of ours says that it does not draw by seeds."""
    if not (deployment.own and deployment.engines):
        return False
    reports = [await deployment.get_json("/contract", engine) for engine in deployment.engines]
    return any(report["in_force"].get("seeds") is False for report in reports)


async def _first_logprobs(deployment: Deployment, **fields: Any) -> dict[str, float]:
    reply = await deployment.chat(
        messages=list(OPEN_QUESTION), max_tokens=1, logprobs=True, top_logprobs=3, **fields, **PLAIN
    )
    if not reply.first.logprobs:
        raise NoAnswerError("the answer has no logprobs")
    return {entry["token"]: entry["logprob"] for entry in reply.first.logprobs[0]["top_logprobs"]}


async def _say(deployment: Deployment, **fields: Any) -> str:
    reply = await deployment.chat(messages=list(OPEN_QUESTION), max_tokens=SEEDED_TOKENS, **fields, **PLAIN)
    return reply.first.content


def _distance(one: dict[str, float], other: dict[str, float]) -> float:
    if one.keys() != other.keys():
        return float("inf")
    return max(abs(one[token] - other[token]) for token in one)


def _show(logprobs: dict[str, float]) -> str:
    return "/".join(f"{value:.3f}" for value in logprobs.values())


CLAUSES = (temperature_default, sampling_seeded, max_tokens)
