"""Lengths and batches make no variants of the kernels that every prefill runs: once each kind has run, none is compiled in a request."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

VARIANTS = {
    "index_scores_kernel": 2,  # few groups of rows, many
    "index_keys_kernel": 4,  # two ratios, tiles for few rows and for many
    "compress_kernel": 4,  # two ratios, warps for few rows and for many
    "candidate_scores_kernel": 1,
    "select_positions_kernel": 1,
    "select_blocks_kernel": 8,  # publishing or not: three sizes of a part, and parts to merge
}


def test_chunks_of_any_length_share_a_handful_of_variants() -> None:
    """19 chunk lengths after 6 contexts, rows cut from a batch at addresses of any alignment, 1 to 16 requests."""
    script = pathlib.Path(__file__).with_name("variants.py")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(pathlib.Path(__file__).parents[2] / "kernels")
    run = subprocess.run([sys.executable, script], check=False, capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == VARIANTS
