"""The correctness gate: kernel against reference on fresh random inputs, with every allocation poisoned."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from dsv41_kernels.op import Inputs, Op, Outputs, Problem, Tolerance

_POISON_INTEGER = 0x5A


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Outcome of one gate run: faults (empty when green) and the relative error of each output."""

    faults: tuple[str, ...]
    errors: Mapping[str, float]

    @property
    def green(self) -> bool:
        """Whether the kernel may be measured."""
        return not self.faults


@contextlib.contextmanager
def poisoned_allocations() -> Iterator[None]:
    """Fill every `torch.empty`, `empty_like` and `new_empty` with NaN or 0x5A, so that an unwritten output shows."""

    def poison(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def allocate_poisoned(*args: Any, **kwargs: Any) -> torch.Tensor:
            tensor = allocate(*args, **kwargs)
            return tensor.fill_(float("nan") if tensor.is_floating_point() else _POISON_INTEGER % 2**7)

        return allocate_poisoned

    with (
        mock.patch.object(torch, "empty", poison(torch.empty)),
        mock.patch.object(torch, "empty_like", poison(torch.empty_like)),
        mock.patch.object(torch.Tensor, "new_empty", poison(torch.Tensor.new_empty)),
    ):
        yield


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """||actual - expected|| / ||expected|| in float64 over what the reference specifies (where it is not NaN).

    NaN in `actual` or a wrong infinity gives NaN; 0 when nothing is specified or both are zero.
    """
    actual, expected = actual.double().cpu(), expected.double().cpu()
    specified = ~torch.isnan(expected)
    actual, expected = actual[specified], expected[specified]
    finite = torch.isfinite(expected)
    if not torch.equal(actual[~finite], expected[~finite]):  # infinities must match one by one
        return math.nan
    difference = float((actual[finite] - expected[finite]).norm())
    size = float(expected[finite].norm())
    if math.isnan(difference) or difference == 0:
        return difference
    return difference / size if size else math.inf


def faults(actual: Outputs, expected: Outputs, tolerances: Mapping[str, Tolerance]) -> list[str]:
    """One line for each output that is missing, misshapen or outside its tolerance."""
    found = []
    for name, tolerance in tolerances.items():
        if name not in actual or name not in expected:
            found.append(f"{name}: missing from the {'kernel' if name not in actual else 'reference'}")
        elif actual[name].shape != expected[name].shape:
            found.append(f"{name}: shape {tuple(actual[name].shape)}, reference {tuple(expected[name].shape)}")
        elif tolerance.exact:
            specified = ~torch.isnan(expected[name].cpu()) if expected[name].is_floating_point() else True
            wrong = (actual[name].cpu() != expected[name].cpu()) & specified
            if wrong.any():
                at = tuple(int(i) for i in wrong.nonzero()[0])
                found.append(
                    f"{name}: {int(wrong.sum())} of {wrong.numel()} differ, first at {at}: "
                    f"{actual[name][at].item()} instead of {expected[name][at].item()}"
                )
        elif not (error := relative_error(actual[name], expected[name])) <= tolerance.relative:
            found.append(f"{name}: relative error {error:.2e} above {tolerance.relative:.0e}")
    return found


def check(op: Op, problem: Problem, device: torch.device | str, seed: int) -> Verdict:
    """Run kernel and reference of `op` on the same fresh inputs and compare.

    The kernel's outputs are taken before the reference allocates anything, so stale memory cannot stand in for a result.
    """
    inputs = op.make_inputs(problem, torch.device(device), seed)
    reference_inputs: Inputs = copy.deepcopy(inputs)
    with poisoned_allocations():
        actual = {name: tensor.clone() for name, tensor in op.kernel(**inputs).items()}
    expected = op.reference(**reference_inputs)
    found = op.compare(actual, expected) if op.compare else faults(actual, expected, op.tolerances)
    errors = {
        name: relative_error(actual[name], expected[name])
        for name in op.tolerances
        if name in actual and name in expected and actual[name].shape == expected[name].shape
    }
    return Verdict(tuple(found), errors)
