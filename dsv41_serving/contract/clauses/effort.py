"""Reasoning effort: levels are taken, and reach the prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.contract.clause import clause, judge, unless
from dsv41_serving.contract.deployment import QUESTION
from dsv41_serving.contract.reply import is_openai_error
from dsv41_serving.spec.model import EFFORT_BUDGETS

if TYPE_CHECKING:
    from dsv41_serving.contract.clause import Outcome
    from dsv41_serving.contract.deployment import Deployment

LINE = "Reasoning Effort: {budget} "
# The encoder's other word for max is not in DeepSeek's API, to which smg 1.13.0 holds every request.
NAMED = tuple(level for level in EFFORT_BUDGETS if level != "ultra")


@clause("effort-levels")
async def effort_levels(deployment: Deployment) -> Outcome:
    """Every named effort is accepted and thinks; none does not think; another word is refused."""
    answered = {}
    for level in (*NAMED, "none"):
        # One token is enough to see where it goes.
        choice = (await deployment.chat(reasoning_effort=level, max_tokens=2, temperature=0)).first
        answered[level] = bool(choice.reasoning)
    nonsense = await deployment.post("/v1/chat/completions", deployment.body(reasoning_effort="banana", max_tokens=1))
    refused = nonsense.is_client_error and is_openai_error(nonsense.json())
    thinking = [level for level, thinks in answered.items() if thinks]
    return judge(
        f"{', '.join(NAMED)} think, none does not, 'banana' is a 4xx",
        f"thinking with {', '.join(thinking) or 'none of them'}; 'banana' {nonsense.status_code}",
        *(unless(answered[level], f"{level} does not think") for level in NAMED),
        unless(not answered["none"], "none thinks"),
        unless(refused, "'banana' is not refused with a reason"),
    )


@clause("effort-rendered", needs=("engines",))
async def effort_rendered(deployment: Deployment) -> Outcome:
    """The effort stands in the prompt of every engine: the default, each level, and a number."""
    default = deployment.contract.reasoning_effort
    wanted: list[tuple[str | int, int]] = [*EFFORT_BUDGETS.items(), (30, 30)]
    problems = []
    for engine in deployment.engines:
        for level, budget in [(None, EFFORT_BUDGETS.get(str(default), default)), *wanted]:
            options = {"thinking": True} if level is None else {"thinking": True, "reasoning_effort": level}
            _, text = await deployment.tokenize(engine, {"messages": list(QUESTION), "chat_template_kwargs": options})
            problems.append(
                unless(LINE.format(budget=budget) in text, f"{engine.name}: effort {level or 'absent'} is not {budget}")
            )
    return judge(
        f"absent is {default}; " + ", ".join(f"{level} {budget}" for level, budget in wanted),
        f"as expected in {len([p for p in problems if not p])} of {len(problems)} prompts",
        *problems,
    )


CLAUSES = (effort_levels, effort_rendered)
