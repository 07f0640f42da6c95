"""All ops of the library, found by directory: `dsv41_kernels/ops/<name>/problem.py` defines `OP`."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import TYPE_CHECKING

import dsv41_kernels.ops

if TYPE_CHECKING:
    from dsv41_kernels.op import Op


def names() -> list[str]:
    """Names of all ops, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(dsv41_kernels.ops.__path__) if module.ispkg)


@functools.cache
def load(name: str) -> Op:
    """Return the op called `name`. Raises KeyError with the known names."""
    if name not in names():
        raise KeyError(f"no op {name!r}; the ops are {', '.join(names())}")
    op: Op = importlib.import_module(f"dsv41_kernels.ops.{name}.problem").OP
    return op


def load_all() -> list[Op]:
    """Return all ops, sorted by name."""
    return [load(name) for name in names()]
