from __future__ import annotations

import argparse
import functools
import warnings
from typing import TYPE_CHECKING

import pytest

from dsv41_serving.facts import Facts, read_facts
from dsv41_serving.run.launch_router import PACKAGES, make_parser
from tests.fixtures.machines.build import build_machine

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="session")
def facts_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Facts]:
    """Read a fixture machine by name, once."""
    directory = tmp_path_factory.mktemp("machines")
    return functools.cache(lambda name: read_facts(build_machine(name, directory)))


@pytest.fixture(scope="session")
def two_sockets(facts_of: Callable[[str], Facts]) -> Facts:
    """Return the machine that is as a deployment wants it: GPUs 0-3 on node 0, 4-7 on node 1."""
    return facts_of("two-socket-8gpu")


@pytest.fixture(scope="session")
def engine_parser() -> argparse.ArgumentParser:
    """Return the parser of the installed SGLang."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what its imports say about this machine is not what is tested
        server_args = pytest.importorskip(
            "sglang.srt.server_args", reason="SGLang is not installed: pip install -r requirements.lock"
        )
        parser = argparse.ArgumentParser()
        server_args.ServerArgs.add_cli_args(parser)
    return parser


@pytest.fixture(scope="session")
def router_parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each installed router, by its kind, with the flag our launcher adds."""
    for kind, package in PACKAGES.items():
        pytest.importorskip(package, reason=f"{kind} is not installed: pip install -r requirements.lock")
    return {kind: make_parser(kind) for kind in PACKAGES}
