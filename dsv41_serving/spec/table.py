"""What every table of a node file is: strict, frozen, without unknown keys; and the types that several use."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Port = Annotated[int, Field(ge=1024, le=65535)]
Seconds = Annotated[float, Field(gt=0)]


class ContradictionError(ValueError):
    """A value that is fine by itself and wrong beside another. `key` names it within the table that is checked."""

    def __init__(self, key: str, problem: str) -> None:
        """Say what is wrong with `key` and how to mend it."""
        super().__init__(problem)
        self.key = key


class Table(BaseModel):
    """Base of every table: unknown keys are refused, values are never coerced silently, results are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
