"""What is served, as a flat list of facts that can be kept and compared: names, prompts, sampling file, parsers, versions."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from dsv41_serving.contract.clauses.names import ROUTER_CACHE
from dsv41_serving.contract.goldens import read_goldens
from dsv41_serving.contract.reply import NoAnswerError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping
    from pathlib import Path

    from dsv41_serving.contract.deployment import Deployment, Server

Fingerprint = dict[str, str]
# Two conversations with most of the encoder in them: every round renders them on every engine.
PRINTED = ("tool-result-reasoning", "user-thinking-on")
UNKNOWN = "no answer"
_DIGITS = 16

# Start of an item -> what mends it. The first that fits counts.
REMEDIES: tuple[tuple[str, str], ...] = (
    ("model router", ROUTER_CACHE),
    ("worker ", ROUTER_CACHE),
    ("model ", "restart the pair, then the router: `systemctl restart dsv41.target`, or `dsv41 down` and `dsv41 up`"),
    (
        "prompts ",
        "`dsv41 contract goldens` shows whether the encoder changed; install requirements.lock and restart the pair",
    ),
    (
        "generation config",
        "`dsv41 config explain contract.temperature` says where it comes from; a start of the pair writes it again",
    ),
    (
        "in force ",
        "restart the pair, it runs with another table: `systemctl restart dsv41.target`, or `dsv41 down` and `dsv41 up`",
    ),
    (
        "versions ",
        "after an upgrade `dsv41 contract watch --once --accept`; otherwise install requirements.lock and restart the pair",
    ),
)


@dataclass(frozen=True)
class Drift:
    """One fact that is not what it was."""

    item: str
    before: str
    now: str

    @property
    def remedy(self) -> str:
        """The command that mends it."""
        return next((remedy for start, remedy in REMEDIES if self.item.startswith(start)), "`dsv41 contract check`")

    def __str__(self) -> str:
        """Return the one line."""
        return f"{self.item} was {self.before}, is {self.now}; {self.remedy}"


async def take_fingerprint(deployment: Deployment, served_directory: Path | None) -> Fingerprint:
    """Return the facts of `deployment`; a server that does not answer has the value UNKNOWN. Generates no token.

    `served_directory` is what the engines load, where this machine can read it.
    """
    found: Fingerprint = {}
    for server in (deployment.front, *(e for e in deployment.engines if e != deployment.front)):
        found[f"model {server.name}"] = await _tell(_names(deployment, server))
    if deployment.front.kind == "router":
        found |= await _registered(deployment)
    for engine in deployment.engines:
        found[f"prompts {engine.name}"] = await _tell(_prompts(deployment, engine))
        report = await _report(deployment, engine)
        for key in ("in_force", "versions"):
            found[f"{key.replace('_', ' ')} {engine.name}"] = _compact(report[key]) if key in report else UNKNOWN
    if served_directory is not None:
        found["generation config"] = _digest_file(served_directory / "generation_config.json")
    return found


def compare_fingerprints(before: Mapping[str, str], now: Mapping[str, str]) -> list[Drift]:
    """Return every fact that changed, appeared or went."""
    items = [item for item in {**before, **now} if before.get(item) != now.get(item)]
    return [Drift(item, before.get(item, "absent"), now.get(item, "absent")) for item in items]


def digest(fingerprint: Mapping[str, str]) -> str:
    """Return one short hash over all facts."""
    return _hash(json.dumps(dict(sorted(fingerprint.items()))))


async def _tell(asked: Awaitable[str]) -> str:
    try:
        return await asked
    except (httpx.HTTPError, NoAnswerError, ValueError, KeyError, TypeError):
        return UNKNOWN


async def _names(deployment: Deployment, server: Server) -> str:
    return ", ".join(await deployment.list_models(server))


async def _registered(deployment: Deployment) -> Fingerprint:
    """Return the model id the router keeps of each worker; a router without that page has none to tell."""
    try:
        workers = (await deployment.get_json("/workers"))["workers"]
        return {f"worker {worker['url']} in the router": str(worker["model_id"]) for worker in workers}
    except (httpx.HTTPError, NoAnswerError, KeyError, TypeError):
        return {}


async def _prompts(deployment: Deployment, engine: Server) -> str:
    parts = []
    for golden in read_goldens():
        if golden.name in PRINTED:
            ids, text = await deployment.tokenize(engine, golden.request)
            parts.append(f"{golden.name}\n{text}\n{ids}")
    return _hash("\n".join(parts))


async def _report(deployment: Deployment, engine: Server) -> dict[str, Any]:
    try:
        report = await deployment.get_json("/contract", engine)
    except (httpx.HTTPError, NoAnswerError):
        return {}
    return report if isinstance(report, dict) else {}


def _compact(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _digest_file(path: Path) -> str:
    try:
        return _hash(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return UNKNOWN


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
