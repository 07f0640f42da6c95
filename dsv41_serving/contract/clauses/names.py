"""The model's name: one, everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.contract.clause import clause, judge, unless

if TYPE_CHECKING:
    from dsv41_serving.contract.clause import Outcome
    from dsv41_serving.contract.deployment import Deployment

ROUTER_CACHE = "restart the router, it keeps the name a worker had when it registered: `systemctl restart dsv41-router`, or `dsv41 down` and `dsv41 up`"


@clause("model-listed", needs=())
async def model_listed(deployment: Deployment) -> Outcome:
    """/v1/models lists the served name and no other, here and on every engine."""
    name = deployment.contract.served_model_name
    servers = [deployment.front, *(engine for engine in deployment.engines if engine != deployment.front)]
    listed = {server: await deployment.list_models(server) for server in servers}
    stale = deployment.front.kind == "router" and listed[deployment.front] != [name]
    fresh = bool(deployment.engines) and all(listed[engine] == [name] for engine in deployment.engines)
    return judge(
        f"['{name}'] everywhere",
        ", ".join(f"{server.name} {ids}" for server, ids in listed.items()),
        *(unless(ids == [name], f"{server.name} lists another name") for server, ids in listed.items()),
        ROUTER_CACHE if stale and fresh else "",
    )


@clause("model-answers")
async def model_answers(deployment: Deployment) -> Outcome:
    """Every body and every chunk carries the served name, also for a request by alias."""
    contract = deployment.contract
    replies = {
        "body": await deployment.chat(max_tokens=1),
        "chunks": await deployment.stream(max_tokens=1),
        **{f"alias {alias}": await deployment.chat(model=alias, max_tokens=1) for alias in contract.aliases},
    }
    return judge(
        f"'{contract.served_model_name}' in all of them",
        ", ".join(f"{where} {sorted(reply.models)}" for where, reply in replies.items()),
        *(
            unless(reply.models == {contract.served_model_name}, f"another name in {where}")
            for where, reply in replies.items()
        ),
    )


CLAUSES = (model_listed, model_answers)
