"""Applies a table of patches to the installed engine, and refuses an engine the table was not written for.

SGLang's hook registry logs a hook that fails and goes on. Here a failure ends the process with one line, because an
engine with half its patches would serve wrongly or not at all.
"""

from __future__ import annotations

import inspect
import os
import pkgutil
import re
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from dsv41_serving.errors import EngineDriftError, first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

Model = TypeVar("Model", bound=BaseModel)

VERSIONS = {"sglang": "0.5.23", "nixl": "1.5.1"}
REMEDY = "install the versions of requirements.lock"

_installed: dict[str, object] = {}


def read_table(variable: str, table: type[Model]) -> Model:
    """Return the table that the plan wrote into `variable`. Raises EngineDriftError when the variable holds no such table."""
    try:
        return table.model_validate_json(os.environ[variable])
    except ValueError as error:
        raise EngineDriftError(
            f"is no table [{table.__name__.lower()}] ({first_line(error)})",
            where=f"environment {variable}",
            remedy="start the engine with `dsv41 run` or `dsv41 up`",
        ) from None


@dataclass(frozen=True)
class Patch:
    """One change to one function or class of the engine."""

    target: str
    """Dotted path of the function, method or class."""
    signature: str
    """Its parameters, `(a, b=1)`, annotations left out, as they are in `VERSIONS`."""
    kind: str
    """`after`: `hook(result, *args)`; `replace`: `hook` stands in the target's place."""
    hook: Callable[..., Any]
    why: str
    """What fails or is wasted without it."""
    effect: str
    """What is different with it."""


def check_versions(versions: Mapping[str, str] = VERSIONS) -> None:
    """Compare the installed distributions with `versions`.

    Raises:
        EngineDriftError: one is missing or another version.
    """
    for package, expected in versions.items():
        try:
            found = metadata.version(package)
        except metadata.PackageNotFoundError:
            found = "none"
        if found != expected:
            raise EngineDriftError(f"{package} {found} is installed, the patches are for {expected}", remedy=REMEDY)


def apply(patches: Sequence[Patch]) -> None:
    """Register `patches` with SGLang's hook registry and apply them; does nothing when they are in already.

    Every target is checked before the first is touched.

    Raises:
        EngineDriftError: a target is missing, has other parameters, or was left unpatched by the registry.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415 - seconds of imports

    pending = [patch for patch in patches if patch.target not in _installed]
    originals = {patch.target: _check(patch) for patch in pending}
    for patch in pending:
        HookRegistry.register(patch.target, patch.hook, HookType(patch.kind))
    HookRegistry.apply_hooks()
    for patch in pending:
        current = _resolve(patch.target)
        if current is originals[patch.target]:
            raise _drifted(patch, "the hook registry did not apply the patch (its reason is in the log above)")
        _installed[patch.target] = current


def verify(patches: Sequence[Patch]) -> None:
    """Prove that in this process every target of `patches` is the object that `apply` put there.

    Raises:
        EngineDriftError: one was never applied here, or somebody replaced it since.
    """
    for patch in patches:
        if patch.target not in _installed:
            raise _drifted(patch, "the patch is not in this process")
        if _resolve(patch.target) is not _installed[patch.target]:
            raise _drifted(patch, "something else replaced the patched object")


def describe_signature(target: object) -> str:
    """Return the parameters of a function, or of a class's constructor, without annotations: `(self, a, b=1)`.

    A compiled class has no Python signature; its parameters come from its docstring.
    """
    function: Any = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return describe_docstring(function.__doc__ or "")
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    return str(inspect.Signature(bare))


def describe_docstring(docstring: str) -> str:
    """Return the parameters that pybind11 wrote into `docstring`: `f(self: T, arg0: str) -> None` gives `(self, arg0)`."""
    parameters = re.match(r"\w+\((.*?)\)", docstring)
    if parameters is None:
        return "(...)"
    return f"({', '.join(part.partition(':')[0].strip() for part in parameters.group(1).split(','))})"


@contextmanager
def stop_on_drift(plugin: str) -> Iterator[None]:
    """Turn an `EngineDriftError` into one line of `plugin` on standard error and the exit of this process.

    SGLang catches `Exception` around plugins in several places, `SystemExit` in none.
    """
    try:
        yield
    except EngineDriftError as drift:
        sys.stderr.write(f"{plugin}: {drift}\n")
        sys.stderr.flush()
        raise SystemExit(drift.exit_code) from None


def _check(patch: Patch) -> object:
    """Return the unpatched target after comparing its parameters with the table's."""
    try:
        original = _resolve(patch.target)
    except (ImportError, AttributeError) as missing:
        raise _drifted(patch, f"not found ({missing})") from missing
    found = describe_signature(original)
    if found != patch.signature:
        raise _drifted(patch, f"its parameters are {found}, the patch is for {patch.signature}")
    return original


def _drifted(patch: Patch, problem: str) -> EngineDriftError:
    package = patch.target.partition(".")[0]
    return EngineDriftError(
        f"{problem}; installed is {package} {_version(package)}, the patch is for {VERSIONS.get(package, 'none')}",
        where=patch.target,
        remedy=REMEDY,
    )


def _resolve(target: str) -> object:
    owner, _, name = target.rpartition(".")
    return getattr(pkgutil.resolve_name(owner), name)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"
