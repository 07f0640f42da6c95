"""The boards as a person sees them: drawn by Grafana's scenes engine in a headless Chromium, from the live Prometheus.

The pictures are left in the test's directory; BOARD_PICTURES names another, `make pictures` renews those of the documentation.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from dsv41_serving.dashboards import BOARDS

if TYPE_CHECKING:
    from tests.monitoring.observed import ObservedStack

RENDER = Path(__file__).parent / "render"
COMMITTED = Path(__file__).parents[2] / "monitoring" / "dashboards"
RANGE_S = 300
# Curves over five minutes are smooth with the window of a usual scrape; the stack under test is scraped every second.
WINDOW_SCRAPE_S = 5
NODE_NEEDED = 20
BUILD_TIMEOUT_S = 600
DRAW_TIMEOUT_S = 600
COLORS = 256
IN_THE_DOCUMENTATION = (
    "dsv41-main-kiosk",
    "dsv41-main-laptop",
    "dsv41-main-whole",
    "dsv41-node-whole",
    "dsv41-slo-whole",
)


@pytest.fixture(scope="module")
def page() -> Path:
    """The built page that draws boards."""
    chromium = os.environ.get("CHROMIUM", "chromium")
    if not shutil.which(chromium) or not shutil.which("node"):
        pytest.skip("needs Node and Chromium: apt-get install --no-install-recommends nodejs npm chromium")
    major = int(subprocess.check_output(["node", "--version"], text=True).lstrip("v").split(".")[0])
    if major < NODE_NEEDED:
        pytest.skip(
            f"needs Node {NODE_NEEDED} or newer for vite 7, this is {major}: apt-get install nodejs from a newer release"
        )
    if not (RENDER / "node_modules").is_dir():
        pytest.skip("needs Grafana's packages: npm ci --prefix tests/monitoring/render --ignore-scripts")
    subprocess.run(["npm", "run", "build"], cwd=RENDER, check=True, capture_output=True, timeout=BUILD_TIMEOUT_S)
    return RENDER / "dist"


@pytest.fixture(scope="module")
def drawn(page: Path, observed: ObservedStack, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the page reports of every board at every size; the pictures are kept."""
    assert (page / "index.html").is_file()
    raw = tmp_path_factory.mktemp("drawn")
    options = ["--prometheus", observed.prometheus_url, "--out", str(raw)]
    options += ["--range", str(RANGE_S), "--scrape", str(WINDOW_SCRAPE_S)]
    boards = [str(COMMITTED / f"{board.uid}.json") for board in BOARDS]
    with ThreadPoolExecutor() as beside:
        # Pictures of a stack at work.
        load = beside.submit(observed.load, 2)
        done = subprocess.run(
            ["node", "render.mjs", *options, *boards],
            cwd=RENDER,
            capture_output=True,
            text=True,
            timeout=DRAW_TIMEOUT_S,
            check=False,
        )
        load.result()
    assert done.returncode == 0, done.stderr
    if chosen := os.environ.get("BOARD_PICTURES"):
        _keep(raw, Path(chosen))
    reports: list[dict[str, Any]] = json.loads(done.stdout)
    return reports


def _keep(raw: Path, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name in IN_THE_DOCUMENTATION:
        picture = Image.open(raw / f"{name}.png").convert("RGB")
        few = picture.quantize(COLORS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        few.save(directory / f"{name}.png", optimize=True)


def _all(drawn: list[dict[str, Any]], key: str) -> list[str]:
    return [f"{report['board']} at {report['size']} size: {found}" for report in drawn for found in report[key]]


def test_every_board_is_drawn_at_both_sizes(drawn: list[dict[str, Any]]) -> None:
    seen = {(report["board"], report["size"]): sorted(report["panels"]) for report in drawn}
    expected = {board.uid: sorted(panel.title for panel in board.panels) for board in BOARDS}
    assert seen == {(uid, size): titles for uid, titles in expected.items() for size in ("kiosk", "laptop")}


def test_nothing_goes_wrong_in_the_page(drawn: list[dict[str, Any]]) -> None:
    assert _all(drawn, "crashes") == []
    assert _all(drawn, "problems") == []


def test_every_variable_is_resolved(drawn: list[dict[str, Any]]) -> None:
    assert _all(drawn, "unresolved") == []
    assert [asked["expr"] for report in drawn for asked in report["queries"] if "$" in asked["expr"]] == []


def test_no_panel_lies_on_another(drawn: list[dict[str, Any]]) -> None:
    assert _all(drawn, "overlaps") == []


def test_no_title_is_cut_off(drawn: list[dict[str, Any]]) -> None:
    assert _all(drawn, "cut") == []


def test_what_has_data_is_drawn(drawn: list[dict[str, Any]]) -> None:
    for report in drawn:
        answered = {asked["panel"] for asked in report["queries"] if asked["series"]}
        assert {title for title, kind in report["drawn"].items() if kind != "no data"} == answered
