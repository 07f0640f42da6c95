"""Is what is installed the set this release was written for, and does the driver carry it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.check.start import PINNED
from dsv41_serving.preflight.check import Check, failed, passed, warned

if TYPE_CHECKING:
    from dsv41_serving.preflight.check import Outcome, Scene

_PYTHONS = ((3, 11), (3, 12))
_OURS = "dsv41-serving"
_REINSTALL = "make env (or install the release again): the environment of requirements.lock"


def judge_engine(scene: Scene) -> Outcome | None:
    """Return whether engine, router and transport are the versions the hooks are written for."""
    found = {name: scene.packages.versions.get(name) for name in PINNED}
    wrong = {name: version for name, version in found.items() if version != PINNED[name]}
    if wrong:
        named = ", ".join(f"{name} {version or 'missing'} instead of {PINNED[name]}" for name, version in wrong.items())
        return failed(named, _REINSTALL)
    return passed(", ".join(f"{name} {version}" for name, version in found.items()))


def judge_lock(scene: Scene) -> Outcome | None:
    """Return whether every installed package is the locked one."""
    packages = scene.packages
    if packages.locked is None:
        return warned("this installation has no lock file to compare with", _REINSTALL)
    others = [each for each in packages.differences if each.found is not None]
    absent = len(packages.differences) - len(others)
    if others:
        first = others[0]
        return failed(
            f"{len(others)} of {packages.locked} differ, first {first.name}: {first.found} instead of {first.wanted}",
            _REINSTALL,
        )
    # A node gets what its extras need; development tools are absent there.
    left_out = f", {absent} not installed here" if absent else ""
    return passed(f"{packages.locked - absent} packages as locked{left_out}")


def judge_python(scene: Scene) -> Outcome | None:
    """Return whether the interpreter is one that was tested."""
    found = scene.packages.python
    if found not in _PYTHONS:
        return failed("Python {}.{}".format(*found), "use 3.11 or 3.12: make env PYTHON=python3.11")
    return passed("Python {}.{}".format(*found))


def judge_cuda(scene: Scene) -> Outcome | None:
    """Return whether the driver carries the CUDA version torch was built for."""
    built, offered = scene.packages.torch_cuda, scene.facts.cuda_driver_version
    if built is None:
        return failed("torch is not installed with CUDA", _REINSTALL)
    if offered is None:
        return None
    if _parse(offered) < _parse(built):
        # Minor versions of one major are compatible (CUDA Compatibility, NVIDIA); another major needs a newer driver.
        if _parse(offered)[0] == _parse(built)[0]:
            return warned(f"torch is built for CUDA {built}, the driver offers {offered}", "update the NVIDIA driver")
        return failed(
            f"torch is built for CUDA {built}, driver {scene.facts.driver_version} offers {offered}",
            "install a driver of that CUDA generation (13.x: 580 or newer, 12.x: 525 or newer)",
        )
    return passed(f"torch for CUDA {built}, driver {scene.facts.driver_version} up to {offered}")


def judge_plugins(scene: Scene) -> Outcome | None:
    """Return whether the engine's plug-ins are ours, and ours are there."""
    found = scene.packages.engine_plugins
    wanted = {name for engine in scene.plan.engines for name in engine.env.get("SGLANG_PLUGINS", "").split(",") if name}
    missing = sorted(name for name in wanted if name not in found and not name.endswith("embedded"))
    if missing:
        return failed(f"plug-in {', '.join(missing)} is not installed", _REINSTALL)
    foreign = sorted(name for name, owner in found.items() if owner != _OURS)
    kept_out = f"; kept out: {', '.join(foreign)}" if foreign else ""
    open_doors = [engine.name for engine in scene.plan.engines if "SGLANG_PLUGINS" not in engine.env]
    if foreign and open_doors:
        return failed(f"{', '.join(open_doors)} would load {', '.join(foreign)}", "set SGLANG_PLUGINS for every engine")
    return passed((", ".join(sorted(wanted)) or "none wanted") + kept_out)


def judge_parsers(scene: Scene) -> Outcome | None:
    """Return whether the engine knows the parsers of the contract."""
    contract, packages = scene.spec.contract, scene.packages
    if not packages.reasoning_parsers:
        return None
    unknown = [
        f"{key} {name}"
        for key, name, names in (
            ("contract.reasoning_parser", contract.reasoning_parser, packages.reasoning_parsers),
            ("contract.tool_call_parser", contract.tool_call_parser, packages.tool_parsers),
        )
        if name not in names
    ]
    if unknown:
        return failed(
            f"the engine does not know {', '.join(unknown)}", "dsv41 config explain contract.reasoning_parser"
        )
    return passed(f"{contract.reasoning_parser}, {contract.tool_call_parser}")


def _parse(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


CHECKS = (
    Check(
        "engine",
        "Are engine, router and transport the pinned versions?",
        "vllm#49238: NIXL below 1.4 crashes; sglang#25698",
        judge_engine,
    ),
    Check(
        "lock",
        "Is every package the locked one?",
        "sglang#25698: a release in which every dense model hung",
        judge_lock,
    ),
    Check("python", "Is the interpreter a tested one?", "pyproject.toml, requires-python", judge_python),
    Check("cuda", "Does the driver carry torch's CUDA?", "NVIDIA, CUDA Compatibility", judge_cuda, needs_gpus=True),
    Check(
        "plugins",
        "Are the engine's plug-ins ours?",
        "sglang#21388: every installed plug-in would load",
        judge_plugins,
        needs_plan=True,
    ),
    Check("parsers", "Does the engine know the contract's parsers?", "dynamo#10163, litellm#27453", judge_parsers),
)
