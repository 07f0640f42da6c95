"""The clauses, by subject. Each is one promise of the contract; `suite` runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41_serving.contract.clauses import apis, effort, errors, names, output, prompts, sampling, thinking, tools, wire

if TYPE_CHECKING:
    from dsv41_serving.contract.clause import Clause

CLAUSES: tuple[Clause, ...] = (
    *names.CLAUSES,
    *thinking.CLAUSES,
    *effort.CLAUSES,
    *prompts.CLAUSES,
    *sampling.CLAUSES,
    *tools.CLAUSES,
    *output.CLAUSES,
    *errors.CLAUSES,
    *apis.CLAUSES,
    *wire.CLAUSES,
)
