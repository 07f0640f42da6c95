"""The real stack on this machine: SGLang on the CPU, NIXL over UCX, smg, the distilled toy model."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.engine.stack import StackUnderTest

if TYPE_CHECKING:
    from collections.abc import Iterator

_REAL: dict[str, str] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/engine" in str(item.path):
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackUnderTest]:
    """A node description of its own; whatever runs on it is taken down at the end."""
    stack = StackUnderTest(tmp_path_factory.mktemp("node"))
    yield stack
    stack.down()


@pytest.fixture(scope="module")
def stack(node: StackUnderTest) -> StackUnderTest:
    """The stack, up and past its gate."""
    node.up()
    _note_real_parts(node.state_dir)
    return node


def _note_real_parts(state_dir: Path) -> None:
    log = (state_dir / "log" / "prefill.log").read_text(errors="replace")
    lane = re.search(r"NIXL.*backend.*|Backend UCX.*", log)
    _REAL["engine"] = f"SGLang {version('sglang')} on torch {version('torch')}, CPU, prefill + decode processes"
    _REAL["hand-off"] = f"NIXL {version('nixl')}" + (f": {lane[0][:100]}" if lane else ", UCX")
    _REAL["router"] = f"smg {version('smg')}"
    _REAL["client"] = f"openai {version('openai')}, curl"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _REAL:
        terminalreporter.section("real parts that ran")
        for part, what in _REAL.items():
            terminalreporter.write_line(f"{part:<9} {what}")


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """The prepared toy model, made now if it is not in the cache."""
    from dsv41_serving.embedded import prepare_model
    from dsv41_serving.spec import load_spec

    cache = Path(load_spec(profile="embedded").spec.node.cache_dir)
    return prepare_model("smollm2-v41", cache / "models", report=print).path
