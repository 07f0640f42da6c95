"""What an op is: one kernel with its formula, reference, problems, tolerances, cost model and the stock path it replaces.

Everything else (tests, benchmark, report, plugin) works on `Op` and knows no op by name. The contract is described in
kernels/README.md.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Inputs = dict[str, Any]
"""Keyword arguments of an op's kernel and reference."""
Outputs = dict[str, torch.Tensor]
"""What they return, by name. A cache that is written in place is among the outputs."""

Kind = Literal["correctness", "corner", "production"]
Capability = tuple[int, int]
"""Compute capability, e.g. (9, 0)."""


class UnsupportedProblemError(ValueError):
    """A launcher got shapes, types or a GPU that its kernel does not serve. The message says which and what would be."""


class StockUnavailableError(RuntimeError):
    """The engine's path cannot run here: a package or GPU is missing. The message says which."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """One case of an op.

    `sizes` are the op's own parameters (rows, heads, layout, ...). `kind` says what for: `correctness` cases are small and run
    under the interpreter too, `corner` cases are empty, odd or all-invalid ones, `production` cases have V4.1's shapes and are
    benchmarked.
    """

    name: str
    kind: Kind
    sizes: Mapping[str, Any]

    def __getitem__(self, size: str) -> Any:
        """Return one size by name."""
        return self.sizes[size]


@dataclasses.dataclass(frozen=True)
class Cost:
    """The least work of a problem: bytes moved through device memory (inputs once, outputs once) and operations."""

    bytes: float
    flops: float


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """How far an output may lie from the reference: not at all (`exact`), or ||out - ref|| / ||ref|| <= `relative`."""

    relative: float = 0.0
    exact: bool = False


EXACT = Tolerance(exact=True)


@dataclasses.dataclass(frozen=True)
class Stock:
    """One path the engine takes today for the same tensors.

    `prepare(problem, inputs)` imports the engine, converts inputs to that path's form outside the timed region and returns a
    callable that runs it once. The callable returns outputs to compare (or an empty dict). Raises StockUnavailableError.
    `capturable` is False for paths with host synchronisation: they cannot run in a CUDA graph and are timed eagerly.
    """

    name: str
    prepare: Callable[[Problem, Inputs], Callable[[], Outputs]]
    capturable: bool = True


ALL = (90, 100, 103, 120)
"""Architectures that are compiled for."""
SOME = (90, 100, 120)
"""The same where a case differs little from another: sm_103 compiles as sm_100 does."""


@dataclasses.dataclass(frozen=True)
class CompileCase:
    """One specialisation to compile offline: a jitted function with the types and constants of a production launch.

    `signature` maps argument names to Triton types ("*u8", "i32", "constexpr"); `constants` the constexprs. `targets` are
    compute capabilities as integers; `options` are num_warps and num_stages. `divisible` names the arguments whose value is a
    multiple of 16, which Triton finds out by itself at run time.

    `programs` is how many programs the launch counts on having on a multiprocessor at once, which limits registers and shared memory;
    `fewer` names the architectures where less has to do, as this kernel was tuned on sm_90. `stack` allows bytes of spills on an
    architecture, none where it is silent.
    """

    name: str
    function: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    targets: tuple[int, ...] = ALL
    divisible: tuple[str, ...] = ()
    programs: int = 1
    fewer: Mapping[int, int] = dataclasses.field(default_factory=dict)
    stack: Mapping[int, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Op:
    """One op. See the module and kernels/README.md for the contract of each part."""

    name: str
    summary: str
    formula: str
    problems: tuple[Problem, ...]
    make_inputs: Callable[[Problem, torch.device, int], Inputs]
    """Fresh random inputs for (problem, device, seed)."""
    reference: Callable[..., Outputs]
    """Plain torch in float64 (or exact integers), independent of the kernel."""
    kernel: Callable[..., Outputs]
    """The launcher. Same keyword arguments as the reference."""
    tolerances: Mapping[str, Tolerance]
    cost: Callable[[Problem], Cost]
    supports: Callable[[Capability, Problem], str | None]
    """Why the kernel cannot serve a problem on a GPU of this capability, or None when it can."""
    replaces: tuple[str, ...]
    """Dotted names in the engine (without the leading `sglang.`) that this op stands in for."""
    stocks: tuple[Stock, ...] = ()
    compile_cases: tuple[CompileCase, ...] = ()
    called_by: tuple[str, ...] = ()
    """Dotted names outside of this package that launch the kernel, where no hook of this package does."""
    compare: Callable[[Outputs, Outputs], list[str]] | None = None
    """Own comparison when `tolerances` cannot express it: returns one line per fault. None uses `check.faults`."""

    def select(self, *kinds: Kind) -> tuple[Problem, ...]:
        """Problems of the given kinds."""
        return tuple(problem for problem in self.problems if problem.kind in kinds)

    def problem(self, name: str) -> Problem:
        """Problem by name. Raises KeyError."""
        for problem in self.problems:
            if problem.name == name:
                return problem
        raise KeyError(f"{self.name} has no problem {name!r}; it has {', '.join(p.name for p in self.problems)}")


def copy_inputs(held: Inputs, other: Inputs) -> None:
    """Copy what lies in the memory of `other` into that of `held`, which keeps its addresses, as a captured graph needs it.

    Tensors and whatever else has `copy_` are copied. Raises ValueError for an input that has none and is another in `other`:
    a graph has it baked in.
    """
    for name, value in other.items():
        if hasattr(held[name], "copy_"):
            held[name].copy_(value)
        elif held[name] != value:
            raise ValueError(f"input {name} is {held[name]!r} and cannot be made {value!r} in place")
