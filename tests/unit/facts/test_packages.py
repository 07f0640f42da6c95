"""What is installed, compared with a lock file."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from dsv41_serving.facts.packages import LockDifference, read_packages
from dsv41_serving.resources import lock_file


def test_a_lock_file_is_compared_with_what_is_installed(tmp_path: Path) -> None:
    """Names are normalised, hashes ignored, a package for another machine may be absent, of two versions one is right."""
    lock = tmp_path / "requirements.lock"
    click, pydantic = metadata.version("click"), metadata.version("pydantic")
    lock.write_text(
        f"click=={click} \\\n    --hash=sha256:00 \\\n    --hash=sha256:11\n"
        f"Pydantic==0.1 ; python_full_version < '3' \\\n    --hash=sha256:22\n"
        f"pydantic=={pydantic} ; python_full_version >= '3' \\\n    --hash=sha256:22\n"
        "only-elsewhere==1.0 ; sys_platform == 'win32' \\\n    --hash=sha256:33\n"
        "not-here==2.0 \\\n    --hash=sha256:44\n"
        "rich==0.0.1 \\\n    --hash=sha256:55\n"
    )
    packages = read_packages(lock)
    assert packages.locked == 5
    assert packages.differences == (
        LockDifference(name="not-here", wanted="2.0", found=None),
        LockDifference(name="rich", wanted="0.0.1", found=metadata.version("rich")),
    )


def test_without_a_lock_file_nothing_is_compared() -> None:
    packages = read_packages(None)
    assert (packages.locked, packages.differences) == (None, ())


def test_this_environment_is_read() -> None:
    """The checkout has a lock file; our plug-in and the engine's parsers are found without importing them."""
    assert lock_file() == Path(__file__).parents[3] / "requirements.lock"
    packages = read_packages(lock_file())
    assert packages.versions["click"] == metadata.version("click")
    assert packages.engine_plugins["dsv41_contract"] == "dsv41-serving"
    assert "deepseek-v41" in packages.reasoning_parsers
    assert "deepseekv41" in packages.tool_parsers
    assert packages.torch_cuda is None or packages.torch_cuda.count(".") == 1
