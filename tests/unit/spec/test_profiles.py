"""The profiles that ship: complete for the shapes they promise, and every unmeasured value carries its source."""

from __future__ import annotations

import pytest

from dsv41_serving.plan.flags import REFUSED, REFUSED_ENV
from dsv41_serving.resources import data_dir
from dsv41_serving.spec import LoadedSpec, leaves, load_spec, profile_names
from dsv41_serving.spec.explain import find_source

EIGHT_GPUS = {
    "pd": [("prefill", 4), ("decode", 4)],
    "replicas": [("aggregated", 4), ("aggregated", 4)],
    "tp8": [("aggregated", 8)],
}
SHAPES = {
    "embedded": {"pd": [("prefill", 1), ("decode", 1)], "single": [("aggregated", 1)]},
    "h200x2-rank": {"pd": [("prefill", 1), ("decode", 1)], "replicas": [("aggregated", 1), ("aggregated", 1)]},
    "h200x8": EIGHT_GPUS,
    "rtxpro6000x8": EIGHT_GPUS,
    "b200x8": EIGHT_GPUS,
    "gb300x4": {"tp4": [("aggregated", 4)]},
}
ARCHITECTURES = {
    "embedded": "",
    "h200x2-rank": "9.0",
    "h200x8": "9.0",
    "rtxpro6000x8": "12.0",
    "b200x8": "10.0",
    "gb300x4": "10.3",
}


@pytest.fixture(params=sorted(SHAPES))
def loaded(request: pytest.FixtureRequest) -> LoadedSpec:
    """Return each profile by itself."""
    return load_spec(profile=request.param)


def test_these_profiles_ship() -> None:
    """No other, and none is missing."""
    assert profile_names() == sorted(SHAPES)


def test_a_profile_runs_every_shape_it_promises(loaded: LoadedSpec) -> None:
    """The pair and its fallbacks: two times TP4, and TP8. A profile for measuring has the pair and the replicas."""
    spec = loaded.spec
    shapes = {
        shape: [(spec.engines[name].role, spec.engines[name].tp) for name in names]
        for shape, names in spec.shapes.items()
    }
    assert shapes == SHAPES[spec.profile]
    assert spec.shape == ("tp4" if spec.profile == "gb300x4" else "pd")
    for shape in spec.shapes:
        assert load_spec(profile=spec.profile, overrides=[f"shape={shape}"]).spec.active_engines()


def test_a_profile_is_for_one_architecture(loaded: LoadedSpec) -> None:
    """The plan refuses its values on another."""
    assert loaded.spec.engine.compute_capability == ARCHITECTURES[loaded.spec.profile]
    assert loaded.spec.engine.device == ("cpu" if loaded.spec.profile == "embedded" else "cuda")


def test_only_profiles_that_ran_claim_to_be_measured(loaded: LoadedSpec) -> None:
    """Nobody had eight GPUs."""
    measured = loaded.spec.profile in {"embedded", "h200x2-rank"}
    assert loaded.spec.provenance.status == ("measured" if measured else "unmeasured")


def test_a_measured_profile_names_a_result_that_exists(loaded: LoadedSpec) -> None:
    """The claim can be followed to the file with command, versions and date."""
    provenance = loaded.spec.provenance
    if provenance.status == "measured":
        assert (data_dir("deploy").parent / provenance.result).is_file()
    else:
        assert provenance.result == ""


def test_every_unmeasured_value_has_a_source(loaded: LoadedSpec) -> None:
    """That of its key or of the nearest table above it."""
    provenance = loaded.spec.provenance
    if provenance.status == "measured":
        return
    own = f"profile {loaded.spec.profile}"
    keys = [key for key, _ in leaves(loaded.spec.model_dump()) if loaded.origins[key] == own]
    bare = [
        key
        for key in keys
        if key != "profile" and not key.startswith("provenance.") and not find_source(provenance.sources, key)
    ]
    assert len(keys) > 40
    assert bare == []


def test_every_source_is_about_something(loaded: LoadedSpec) -> None:
    """A source whose key is gone, or misspelt, vouches for nothing."""
    keys = [key for key, _ in leaves(loaded.spec.model_dump())]
    idle = [
        source
        for source in loaded.spec.provenance.sources
        if not any(key == source or key.startswith(f"{source}.") for key in keys)
    ]
    assert idle == []


def test_a_profile_keeps_to_its_own_rules(loaded: LoadedSpec) -> None:
    """What a node file may not set, a profile does not set either."""
    spec = loaded.spec
    tables = [spec.engine, *spec.engines.values()]
    assert not {flag for table in tables for flag in table.args} & REFUSED.keys()
    assert not {name for table in tables for name in table.env} & REFUSED_ENV.keys()


def test_captured_batch_sizes_ascend_from_one(loaded: LoadedSpec) -> None:
    """SGLang pads a batch up to the next captured size, so one request alone needs the size 1."""
    for name, engine in loaded.spec.engines.items():
        if engine.graph_batch_sizes:
            assert engine.graph_batch_sizes == sorted(set(engine.graph_batch_sizes)), name
            assert engine.graph_batch_sizes[0] == 1, name
