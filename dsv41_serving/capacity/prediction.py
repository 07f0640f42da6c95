"""What was predicted of the engines at their start, kept beside the records, so that the exporter can say how wrong it was."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from dsv41_serving.capacity import request
from dsv41_serving.capacity.estimate import estimate_node
from dsv41_serving.capacity.measured import predict
from dsv41_serving.capacity.shape import read_shape
from dsv41_serving.errors import InputError

if TYPE_CHECKING:
    from dsv41_serving.facts.model import Facts
    from dsv41_serving.spec.model import NodeSpec

STORED = Path("capacity") / "prediction.json"


class Prediction(BaseModel):
    """Engine -> quantity -> value, in the units of SGLang's gauges."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    sizes_from: str
    """The model description it rests on."""
    engines: dict[str, dict[str, float]]


def keep_prediction(spec: NodeSpec, state_dir: str, facts: Facts) -> Prediction | None:
    """Store below `state_dir` what the shape of `spec` is predicted to allocate here, and return it.

    None when nothing is known of model or GPU. Engines that start together write the same.
    Raises InputError when the state directory cannot be written.
    """
    try:
        shape = read_shape(request.find_checkpoint(spec), spec.model.name)
        node = estimate_node(spec, shape, request.find_gpu_bytes(spec, facts, None))
    except InputError:
        return None
    found = Prediction(
        sizes_from=shape.origin,
        engines={each.settings.name: predict(each) for each in node.engines},
    )
    path = Path(state_dir) / STORED
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(found.model_dump_json(indent=1) + "\n", encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise InputError(
            f"cannot be written ({error.strerror})", where=f"{path}, key node.state_dir", remedy="make it writable"
        ) from None
    return found


def read_prediction(state_dir: str) -> Prediction | None:
    """Return what was predicted at the last start; None when nothing was, or by another version."""
    with suppress(OSError, ValidationError):
        return Prediction.model_validate_json((Path(state_dir) / STORED).read_text(encoding="utf-8"))
    return None
