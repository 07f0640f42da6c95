"""What watching costs: measured within its targets, and told as it was measured."""

from __future__ import annotations

import json
from pathlib import Path

from dsv41_serving.bench.monitoring_cost import FIGURES

MONITORING = Path(__file__).parents[3] / "monitoring"
RESULT = json.loads((MONITORING / "results" / "embedded.json").read_text(encoding="utf-8"))


def test_every_figure_is_measured_and_within_its_target() -> None:
    assert [(f["name"], f["target"]) for f in RESULT["figures"]] == [
        (name, target) for name, _, _, _, target in FIGURES
    ]
    assert all(figure["value"] <= figure["target"] for figure in RESULT["figures"])


def test_the_document_says_what_was_measured() -> None:
    text = (MONITORING / "README.md").read_text(encoding="utf-8")
    for figure in RESULT["figures"]:
        assert f"{figure['value']:.3g} {figure['unit']}" in text
