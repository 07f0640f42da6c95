"""Engines to patch: a fake one in this process, the installed one in a process of its own."""

import importlib.util
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from dsv41_serving.sglang_plugin import drift

ROOT = Path(__file__).parents[3]
ENTRY_POINT = "[sglang.srt.platforms]\ndsv41_embedded = dsv41_serving.sglang_plugin.platform:activate\n"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs the engine on a machine that only renders."""
    if importlib.util.find_spec("sglang"):
        return
    skip = pytest.mark.skip(reason="SGLang is not installed; install the extra `engine`")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(skip)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module `fake_engine` with one function, one class and SGLang's hook registry around them."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    module = types.ModuleType("fake_engine")
    exec(  # noqa: S102 - the functions belong to the module as an engine's do
        "def start(server_args, port=1): return ('started', server_args, port)\n"
        "class Agent:\n"
        "    def __init__(self, name): self.name = name\n"
        "    @staticmethod\n"
        "    def mask(logits): return 'masked on gpu'\n",
        module.__dict__,
    )
    monkeypatch.setitem(sys.modules, "fake_engine", module)
    monkeypatch.setattr(drift, "_installed", {})
    monkeypatch.setitem(drift.VERSIONS, "fake_engine", "1.0")
    monkeypatch.setattr(HookRegistry, "_hooks", type(HookRegistry._hooks)(list))
    monkeypatch.setattr(HookRegistry, "_patched", set())
    return module


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run code in a new interpreter that selects the embedded platform; `versions` fakes installed distributions."""

    def run(code: str, versions: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        for name, version in {"dsv41_serving": "0", **(versions or {})}.items():
            info = tmp_path / f"{name}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            (info / "entry_points.txt").write_text(ENTRY_POINT if name == "dsv41_serving" else "")
        environment = {
            **os.environ,
            "PYTHONPATH": f"{tmp_path}:{ROOT}",
            "SGLANG_PLATFORM": "dsv41_embedded",
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
        }
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)

    return run
