"""Unpacking: the inverse of `pack`, with its pools and cases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_kernels.check import faults
from dsv41_kernels.op import EXACT, Op
from dsv41_kernels.ops.pack import kernel, reference, stock
from dsv41_kernels.ops.pack.problem import compile_cases, cost, make_inputs, problems, supports

if TYPE_CHECKING:
    from dsv41_kernels.op import Outputs

FORMULA = """
pool_p[indices[k]] = part k of pool p in the block;        every other item of every pool stays
"""


def compare(actual: Outputs, expected: Outputs) -> list[str]:
    """Every pool, byte for byte: what was to be written and what was not."""
    return faults(actual, expected, dict.fromkeys(expected, EXACT))


OP = Op(
    name="unpack",
    summary="One block scattered into the pages of many pools; beside it torch's way, as the engine packs nothing",
    formula=FORMULA,
    problems=problems(),
    make_inputs=make_inputs,
    reference=reference.unpack,
    kernel=kernel.unpack,
    tolerances={},
    compare=compare,
    cost=cost,
    supports=supports,
    replaces=("srt.disaggregation.nixl.conn.NixlKVManager.send_kvcache",),
    called_by=("dsv41_serving.sglang_plugin.handoff.pools.GpuCopier",),
    stocks=stock.UNPACK,
    compile_cases=compile_cases(scatter=True),
)
