"""A table that does not fit the installed engine stops the process and says which row."""

import types
from collections.abc import Callable
from pathlib import Path

import pytest

from dsv41_serving.errors import EngineDriftError
from dsv41_serving.sglang_plugin import drift
from dsv41_serving.sglang_plugin.drift import Patch

# SGLang warns at import about kernels that this machine lacks.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def patch(target: str, signature: str, hook: Callable[..., object], kind: str = "replace") -> Patch:
    return Patch(target=target, signature=signature, kind=kind, hook=hook, why="a test", effect="a test")


START = patch("fake_engine.start", "(server_args, port=1)", lambda *_args: "replaced")
MASK = patch("fake_engine.Agent.mask", "(logits)", lambda _logits: "masked on cpu")


def test_patches_of_function_and_static_method_take_effect(engine: types.ModuleType) -> None:
    """Both kinds of target run the hook afterwards, and the proof succeeds."""
    drift.apply([START, MASK])
    assert engine.start("args") == "replaced"
    assert engine.Agent.mask("logits") == "masked on cpu"
    drift.verify([START, MASK])


def test_after_hook_sees_the_result_and_the_object(engine: types.ModuleType) -> None:
    """An `after` hook on a constructor works on the constructed object."""

    def rename(_result: None, agent: object, *_args: object) -> None:
        agent.name = "patched"

    drift.apply([patch("fake_engine.Agent.__init__", "(self, name)", rename, kind="after")])
    assert engine.Agent("stock").name == "patched"


def test_applying_twice_wraps_once(engine: types.ModuleType) -> None:
    """The server process and `init_backend` may both apply the table."""
    calls = []
    counting = patch("fake_engine.start", "(server_args, port=1)", lambda *_args: calls.append(1), kind="after")
    drift.apply([counting])
    drift.apply([counting])
    engine.start("args")
    assert calls == [1]


def test_missing_target_is_named_with_both_versions(engine: types.ModuleType) -> None:
    """A function that a release removed."""
    del engine.start
    with pytest.raises(EngineDriftError) as caught:
        drift.apply([START])
    assert str(caught.value) == (
        "fake_engine.start: not found (module 'fake_engine' has no attribute 'start'); installed is fake_engine none, "
        "the patch is for 1.0; install the versions of requirements.lock"
    )


def test_missing_module_is_named(engine: types.ModuleType) -> None:
    """A module that a release moved."""
    gone = patch("fake_engine.gone.start", "()", lambda: None)
    with pytest.raises(EngineDriftError, match=r"^fake_engine\.gone\.start: not found"):
        drift.apply([gone])
    assert engine.start("args")[0] == "started"


def test_changed_signature_shows_both(engine: types.ModuleType) -> None:
    """A function that got another parameter."""
    engine.start = lambda server_args, port, rank: (server_args, port, rank)
    with pytest.raises(EngineDriftError) as caught:
        drift.apply([START])
    assert "its parameters are (server_args, port, rank), the patch is for (server_args, port=1)" in str(caught.value)


def test_one_drifted_row_leaves_every_target_alone(engine: types.ModuleType) -> None:
    """Half a table is worse than none."""
    with pytest.raises(EngineDriftError):
        drift.apply([START, patch("fake_engine.Agent.mask", "(logits, mask)", lambda *_args: None)])
    assert engine.start("args") == ("started", "args", 1)


def test_failure_that_the_registry_only_logs_is_raised(engine: types.ModuleType) -> None:
    """SGLang's registry refuses to wrap a class, logs that and goes on."""
    wrapped_class = patch("fake_engine.Agent", "(self, name)", lambda result, *_args: result, kind="after")
    with pytest.raises(EngineDriftError, match=r"^fake_engine\.Agent: the hook registry did not apply"):
        drift.apply([wrapped_class])
    assert engine.Agent("stock").name == "stock"


def test_verify_refuses_a_process_without_the_patch(engine: types.ModuleType) -> None:
    """A scheduler that was neither forked nor patched."""
    assert engine.start("args")[0] == "started"
    with pytest.raises(EngineDriftError, match="the patch is not in this process"):
        drift.verify([START])


def test_verify_notices_a_later_replacement(engine: types.ModuleType) -> None:
    """Somebody else patched the same target after us."""
    drift.apply([START])
    engine.start = lambda server_args, port=1: (server_args, port)
    with pytest.raises(EngineDriftError, match="something else replaced the patched object"):
        drift.verify([START])


@pytest.mark.parametrize(("version", "found"), [("0.5.24", "0.5.24"), (None, "none")])
def test_wrong_version_is_refused(monkeypatch: pytest.MonkeyPatch, version: str | None, found: str) -> None:
    """Another SGLang, or none at all."""

    def installed(name: str) -> str:
        if version is None:
            raise drift.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(drift.metadata, "version", installed)
    with pytest.raises(EngineDriftError) as caught:
        drift.check_versions({"sglang": "0.5.23"})
    assert str(caught.value) == (
        f"sglang {found} is installed, the patches are for 0.5.23; install the versions of requirements.lock"
    )


def test_drift_ends_the_process_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """`SystemExit` passes the `except Exception` that SGLang has around plugins."""
    with pytest.raises(SystemExit) as caught, drift.stop_on_drift("dsv41_some_plugin"):
        raise EngineDriftError("is missing", where="sglang.srt.x", remedy="reinstall")
    assert caught.value.code == 2
    assert capsys.readouterr().err == "dsv41_some_plugin: sglang.srt.x: is missing; reinstall\n"


def test_signature_of_a_compiled_constructor() -> None:
    """pybind11 leaves a docstring instead of a signature."""
    docstring = "__init__(self: ns.Agent, arg0: str, arg1: ns.Config) -> None\n\nMore."
    assert drift.describe_docstring(docstring) == "(self, arg0, arg1)"
    assert drift.describe_docstring("Nothing of the kind") == "(...)"


def test_pins_are_those_of_the_package() -> None:
    """The versions of the table and of `pyproject.toml` are the same fact."""
    import tomllib

    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    pins = dict(line.split("==") for line in project["optional-dependencies"]["engine"])
    assert {name: pins[name] for name in drift.VERSIONS} == drift.VERSIONS
