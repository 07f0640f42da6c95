"""What the operator wrote: the node file, on top of a hardware profile."""

from dsv41_serving.spec.explain import KeyExplanation, explain_key, json_schema
from dsv41_serving.spec.load import LoadedSpec, SpecError, leaves, load_spec, profile_names
from dsv41_serving.spec.model import EngineRole, NodeSpec

__all__ = [
    "EngineRole",
    "KeyExplanation",
    "LoadedSpec",
    "NodeSpec",
    "SpecError",
    "explain_key",
    "json_schema",
    "leaves",
    "load_spec",
    "profile_names",
]
