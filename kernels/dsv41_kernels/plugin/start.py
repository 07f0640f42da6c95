"""Start-up: decide each op's state, hook, verify, gate, print the table; or end the process with one line."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import os
import pkgutil
import sys
from typing import TYPE_CHECKING, Any

import torch
from prometheus_client import Gauge

from dsv41_kernels import check, registry
from dsv41_kernels.console import say
from dsv41_kernels.plugin import shadow
from dsv41_kernels.plugin.modes import VARIABLE, Mode, PluginError, parse

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsv41_kernels.plugin.integration import Hook, Integration, Original

ENGINE_VERSION = "0.5.23"
_SCHEDULER = "sglang.srt.managers.scheduler"
_SEED = 20261129

STATE = Gauge("dsv41_kernel_state", "1 for the state an op runs in", ["op", "state"], multiprocess_mode="max")


def integrations() -> list[Integration]:
    """Integrations of all ops that have a `hooks.py`, in the order of their names."""
    found = []
    for name in registry.names():
        package = importlib.import_module(f"dsv41_kernels.ops.{name}")
        if any(module.name == "hooks" for module in pkgutil.iter_modules(package.__path__)):
            found.append(importlib.import_module(f"dsv41_kernels.ops.{name}.hooks").INTEGRATION)
    return found


def decide(known: list[Integration], text: str, capability: tuple[int, int]) -> list[tuple[Integration, Mode, str]]:
    """State and reason of each op: what the environment asks, else the architecture's default.

    Raises PluginError when an op is asked for that cannot serve this GPU.
    """
    asked = parse(text, [integration.op for integration in known])
    decided = []
    for integration in known:
        default = integration.default(capability)
        mode, reason = default.mode, default.reason
        if integration.op in asked:
            mode, reason = asked[integration.op], f"{VARIABLE}"
        op = registry.load(integration.op)
        refusal = integration.refuses(capability) or op.supports(capability, op.problem(integration.check))
        if refusal and mode is not Mode.OFF:
            raise PluginError(
                f"{VARIABLE}: {integration.op} cannot be {mode.value} here: {refusal}; set {integration.op}=off"
            )
        decided.append((integration, mode, reason))
    return decided


def resolve(hook: Hook) -> Any:
    """The engine's function behind a hook. Raises PluginError when it is missing or has other parameters."""
    target = f"sglang.{hook.target}"
    try:
        function = pkgutil.resolve_name(target)
    except (ImportError, AttributeError) as error:
        raise PluginError(
            f"{target}: not found in the installed engine ({error}); this release is for sglang {ENGINE_VERSION}"
        ) from error
    parameters = tuple(inspect.signature(function).parameters)
    if parameters != hook.parameters:
        raise PluginError(
            f"{target}: parameters are ({', '.join(parameters)}), expected ({', '.join(hook.parameters)}); "
            f"this release is for sglang {ENGINE_VERSION}"
        )
    return function


def install(decided: list[tuple[Integration, Mode, str]]) -> None:
    """Hook every active op through the engine's registry and verify that each hook took. Raises PluginError."""
    hooks = importlib.import_module("sglang.srt.plugins.hook_registry")
    every = shadow.sample_every()
    targets = []
    for integration, mode, _ in decided:
        for hook in integration.hooks if mode is not Mode.OFF else ():
            if mode is Mode.SHADOW and hook.compare is None and not hook.gate:
                continue
            original = resolve(hook)
            compared = mode is Mode.SHADOW and not hook.gate
            around = shadow.wrap(integration, hook, original, every) if compared else _replace(hook, original)
            hooks.HookRegistry.register(f"sglang.{hook.target}", around, hooks.HookType.AROUND)
            targets.append(f"sglang.{hook.target}")
    hooks.HookRegistry.apply_hooks()
    for target in targets:
        if target not in hooks.HookRegistry._patched:  # noqa: SLF001  (the registry offers no other answer)
            raise PluginError(f"{target}: the engine's registry did not apply the hook; its log has the cause")


def _replace(hook: Hook, original: Original) -> Callable[..., Any]:
    bind, run = hook.bind(original), hook.run

    def replaced(original: Original, *args: Any, **kwargs: Any) -> Any:
        return run(original, bind(*args, **kwargs))

    return replaced


def gate(decided: list[tuple[Integration, Mode, str]], device: str) -> None:
    """Run the check of each active op, and of those it runs, on `device`. Raises PluginError with the first fault."""
    for integration, mode, _ in decided:
        for name, problem in (
            {integration.op: integration.check, **integration.runs}.items() if mode is not Mode.OFF else ()
        ):
            if fault := _fault(name, problem, device):
                raise PluginError(
                    f"{name}: self-check failed on this GPU: {fault}; set {VARIABLE}={integration.op}=off"
                )


def _fault(name: str, problem: str, device: str) -> str | None:
    """The first fault of an op's check in one line, None when it is green."""
    op = registry.load(name)
    try:
        verdict = check.check(op, op.problem(problem), device, _SEED)
    except Exception as error:  # noqa: BLE001  (a compiler's, a driver's, torch's: the engine would swallow any of them)
        lines = str(error).strip().splitlines()
        return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return None if verdict.green else verdict.faults[0]


def describe(decided: list[tuple[Integration, Mode, str]]) -> list[str]:
    """The start-up table, one line per op: op, state, what it replaces, reason."""
    rows = [("op", "state", "replaces", "reason")]
    own = {integration.op for integration, _, _ in decided}
    for integration, mode, reason in decided:
        used = [
            other.op for other, other_mode, _ in decided if integration.op in other.runs and other_mode is not Mode.OFF
        ]
        rows.append(
            (integration.op, mode.value, integration.stock, "; ".join([reason, *(f"{op} runs it too" for op in used)]))
        )
    for name in registry.names():
        if name not in own:
            runners = [(integration.op, mode) for integration, mode, _ in decided if name in integration.runs]
            callers = registry.load(name).called_by
            rows += [(name, mode.value, "", f"runs within {op}") for op, mode in runners]
            rows += [(name, "library", "", f"called by {', '.join(callers)}")] if callers else []
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return ["dsv41_kernels " + "  ".join(f"{row[i]:{widths[i]}}" for i in range(3)) + f"  {row[3]}" for row in rows]


def start() -> None:
    """Decide, hook, verify, gate and print. Raises PluginError."""
    version = importlib.metadata.version("sglang")
    if version != ENGINE_VERSION:
        raise PluginError(
            f"sglang {version} is installed, this release is for {ENGINE_VERSION}; install that one, or remove the plugin"
        )
    text = os.environ.get(VARIABLE, "")
    if not torch.cuda.is_available():
        if text:
            parse(text, [integration.op for integration in integrations()])
            raise PluginError(f"{VARIABLE} is set but there is no NVIDIA GPU; unset it")
        return
    decided = decide(integrations(), text, torch.cuda.get_device_capability())
    install(decided)
    gate(decided, "cuda")
    for line in describe(decided):
        say(line)
    for integration, mode, _ in decided:
        STATE.labels(integration.op, mode.value).set(1)


def _before_scheduler(*_args: Any, **_kwargs: Any) -> None:
    try:
        start()
    except PluginError as error:
        raise SystemExit(f"dsv41_kernels: {error}") from error


def register() -> None:
    """Entry point. Arrange that `start` runs when this process constructs a scheduler; do nothing in other processes.

    A scheduler process has imported the scheduler's module before it loads plugins; the detokenizer and the HTTP server have
    not, and importing it there would only cost time.
    """
    if _SCHEDULER not in sys.modules:
        return
    hooks = importlib.import_module("sglang.srt.plugins.hook_registry")
    target = f"{_SCHEDULER}.Scheduler.__init__"
    try:
        pkgutil.resolve_name(target)
    except (ImportError, AttributeError) as error:
        raise SystemExit(f"dsv41_kernels: {target} not found; this release is for sglang {ENGINE_VERSION}") from error
    hooks.HookRegistry.register(target, _before_scheduler, hooks.HookType.BEFORE)
