"""The prompt: what the engine reports is what the V4.1 encoder makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.contract.clause import clause, judge
from dsv41_serving.contract.goldens import read_goldens

if TYPE_CHECKING:
    from dsv41_serving.contract.clause import Outcome
    from dsv41_serving.contract.deployment import Deployment

# A handful that covers what went wrong for others; `tests/engine` compares all of them.
CHOSEN = (
    "content-special-spellings",
    "continue-answer",
    "developer-after-system",
    "format-json-schema",
    "tool-result-reasoning",
    "tools-none",
    "tools-two",
    "turns-earlier-reasoning",
    "user-thinking-off",
    "user-thinking-on",
)


@clause("encoding", needs=("engines",))
async def encoding(deployment: Deployment) -> Outcome:
    """Prompts of every engine are those of the golden encodings, character by character."""
    differing = []
    goldens = [golden for golden in read_goldens() if golden.name in CHOSEN]
    for engine in deployment.engines:
        for golden in goldens:
            _, text = await deployment.tokenize(engine, golden.request)
            if text != golden.text:
                differing.append(f"{engine.name}: {golden.name} {_first_difference(golden.text, text)}")
    return judge(
        f"{len(goldens)} conversations as in deploy/contract/encodings",
        f"{len(goldens) * len(deployment.engines) - len(differing)} of {len(goldens) * len(deployment.engines)} prompts equal",
        *differing,
    )


def _first_difference(expected: str, seen: str) -> str:
    at = next(
        (i for i, (a, b) in enumerate(zip(expected, seen, strict=False)) if a != b), min(len(expected), len(seen))
    )
    return f"differs at character {at}: {expected[at : at + 24]!r} expected, {seen[at : at + 24]!r} seen"


CLAUSES = (encoding,)
