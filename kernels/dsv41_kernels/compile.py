"""Offline compilation of every op for every architecture: does it compile, and does it fit?

`python -m dsv41_kernels.compile [OP ...]` compiles the production specialisations with Triton's own compiler for sm_90, sm_100,
sm_103 and sm_120 (no GPU needed) and holds each against the architecture's shared memory, the programs that its launch counts on having on a
multiprocessor at once, and the stack it may use. It proves that a kernel compiles and fits, not that it runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from dsv41_kernels import registry
from dsv41_kernels.console import complain, say

if TYPE_CHECKING:
    from dsv41_kernels.op import CompileCase

SHARED_LIMIT = {90: 227 * 1024, 100: 227 * 1024, 103: 227 * 1024, 120: 99 * 1024}
"""Shared memory that one block may use, bytes, by architecture (CUDA programming guide, technical specifications)."""
SHARED_OF_MULTIPROCESSOR = {90: 228 * 1024, 100: 228 * 1024, 103: 228 * 1024, 120: 100 * 1024}
"""Shared memory of a multiprocessor, bytes; each resident block takes `SHARED_RESERVED` of it besides its own (ibid.)."""
SHARED_RESERVED = 1024
WARPS_OF_MULTIPROCESSOR = {90: 64, 100: 64, 103: 64, 120: 48}
REGISTERS_OF_MULTIPROCESSOR = 65_536
REGISTER_UNIT = 256
"""A warp gets registers in units of this many (ibid.)."""
_WARP = 32


@dataclasses.dataclass(frozen=True)
class Compiled:
    """Resources of one compiled specialisation. Sizes in bytes; `stack_bytes` holds register spills."""

    case: str
    target: int
    shared_bytes: int
    registers: int
    stack_bytes: int
    warps: int

    @property
    def programs(self) -> int:
        """Programs that a multiprocessor holds at once, by registers, shared memory and warps."""
        registers = self.warps * -(-self.registers * _WARP // REGISTER_UNIT) * REGISTER_UNIT
        return min(
            REGISTERS_OF_MULTIPROCESSOR // registers,
            SHARED_OF_MULTIPROCESSOR[self.target] // (self.shared_bytes + SHARED_RESERVED),
            WARPS_OF_MULTIPROCESSOR[self.target] // self.warps,
        )

    def excesses(self, case: CompileCase) -> list[str]:
        """What exceeds the limits of the architecture or the case, one line each."""
        limits = (
            ("shared memory", self.shared_bytes, SHARED_LIMIT[self.target]),
            ("stack", self.stack_bytes, case.stack.get(self.target, 0)),
        )
        where = f"{self.case} on sm_{self.target}"
        found = [f"{where}: {what} {value} exceeds {limit}" for what, value, limit in limits if value > limit]
        if self.programs < (wanted := case.fewer.get(self.target, case.programs)):
            found.append(
                f"{where}: {self.registers} registers and {self.shared_bytes} B of shared memory leave a multiprocessor "
                f"{self.programs} programs, the launch counts on {wanted}"
            )
        return found


def compile_case(case: CompileCase, target: int) -> Compiled:
    """Compile one specialisation for one architecture and read its resources from the machine code."""
    names = case.function.arg_names
    signature = {name: case.signature.get(name, "constexpr") for name in names}
    aligned = {name for name, kind in signature.items() if kind.startswith("*")} | set(case.divisible)
    source = ASTSource(
        fn=case.function,
        signature=signature,
        constexprs=dict(case.constants),
        attrs={(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name in aligned},
    )
    binary = triton.compile(source, target=GPUTarget("cuda", target, 32), options=dict(case.options))
    registers, stack = _resources(binary.asm["cubin"])
    return Compiled(case.name, target, binary.metadata.shared, registers, stack, binary.metadata.num_warps)


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers per thread and stack bytes per thread of a cubin, by the cuobjdump that Triton ships."""
    tool = pathlib.Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], check=True, capture_output=True, text=True).stdout
    registers, stack = re.search(r"REG:(\d+)", text), re.search(r"STACK:(\d+)", text)
    if registers is None or stack is None:
        raise RuntimeError(f"{tool} printed no resource usage: {text.strip()[:200]}")
    return int(registers[1]), int(stack[1])


def main(arguments: list[str] | None = None) -> int:
    """Compile the named ops (default: all), print a table, return 1 when a limit is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m dsv41_kernels.compile", description=__doc__)
    parser.add_argument("ops", nargs="*", metavar="OP", help=f"any of {', '.join(registry.names())}")
    parser.add_argument("--target", type=int, action="append", choices=sorted(SHARED_LIMIT), help="default: all")
    options = parser.parse_args(arguments)
    excesses: list[str] = []
    say(f"{'case':48} {'target':>7} {'shared B':>9} {'limit B':>8} {'registers':>9} {'stack B':>8} {'programs':>8}")
    for op in [registry.load(name) for name in options.ops or registry.names()]:
        for case in op.compile_cases:
            for target in case.targets:
                if options.target and target not in options.target:
                    continue
                compiled = compile_case(case, target)
                excesses += compiled.excesses(case)
                say(
                    f"{op.name + '/' + case.name:48} {'sm_' + str(target):>7} {compiled.shared_bytes:>9}"
                    f" {SHARED_LIMIT[target]:>8} {compiled.registers:>9} {compiled.stack_bytes:>8} {compiled.programs:>8}"
                )
    complain("\n".join(excesses) or "all within limits")
    return 1 if excesses else 0


if __name__ == "__main__":
    sys.exit(main())
