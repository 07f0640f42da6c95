"""The page that `dsv41 bench` writes as a person sees it: opened in a headless Chromium, on a telephone and on a desk."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dsv41_serving.bench.report import describe_comparison, describe_set, write_pages
from dsv41_serving.bench.result import read_result

RESULTS = Path(__file__).parents[2] / "deploy" / "results" / "bench"
WIDTHS = {"telephone": 390, "desk": 1300}
TIMEOUT_S = 600
# Runs beside the page, in a frame of the width that is looked at: what a person would complain about.
_LOOK = """
function look(frame) {
  const page = frame.contentDocument, root = page.documentElement;
  const inside = (inner, outer) => inner.left >= outer.left - 1 && inner.right <= outer.right + 1
    && inner.top >= outer.top - 1 && inner.bottom <= outer.bottom + 1;
  const charts = [...page.querySelectorAll('svg')];
  const cut = charts.flatMap((chart) => [...chart.querySelectorAll('text')]
    .filter((text) => !inside(text.getBoundingClientRect(), chart.getBoundingClientRect()))
    .map((text) => `${chart.getAttribute('aria-label')}: ${text.textContent}`));
  document.querySelector('pre').textContent = JSON.stringify({
    title: page.querySelector('h1').innerText,
    width: root.clientWidth, needed: root.scrollWidth,
    charts: charts.map((chart) => [chart.getAttribute('aria-label'), chart.getBoundingClientRect().width]),
    cut,
  });
}
"""


@pytest.fixture(scope="module")
def chromium() -> str:
    """The browser."""
    found = shutil.which(os.environ.get("CHROMIUM", "chromium"))
    if found is None:
        pytest.skip("needs Chromium: apt-get install --no-install-recommends chromium")
    return found


def write_page(name: str) -> str:
    """Return the page of a committed result as this release writes it."""
    if name == "pd-single":
        a, b = (read_result(RESULTS / name / f"{side}.json") for side in "ab")
        return write_pages("pd against single", describe_comparison(a, b, 0.015))[1]
    return write_pages(name, describe_set(read_result(RESULTS / f"{name}.json")))[1]


def run(chromium: str, place: Path, *options: str) -> str:
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    command += ["--disable-background-networking", "--disable-component-update", f"--user-data-dir={place / 'browser'}"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def look(chromium: str, place: Path, page: str, width: int) -> dict[str, Any]:
    """Return what the page looks like in a window of `width`; a frame, because no browser window is as narrow as a telephone."""
    size = f'width="{width}" height="900" style="border: 0"'
    frame = f'<iframe {size} onload="look(this)" srcdoc="{html.escape(page)}"></iframe>'
    outer = place / "outer.html"
    outer.write_text(f"<!doctype html><body><script>{_LOOK}</script><pre></pre>{frame}", encoding="utf-8")
    seen = re.search(r"<pre>(.*)</pre>", run(chromium, place, "--dump-dom", outer.as_uri()), re.DOTALL)
    assert seen, "the page did not load"
    found: dict[str, Any] = json.loads(html.unescape(seen[1]))
    return found


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize(("name", "charts"), [("pd-single", 4), ("single", 14), ("scaling", 1)])
def test_a_report_fits_its_window_and_cuts_nothing_off(
    chromium: str, name: str, charts: int, width: int, tmp_path: Path
) -> None:
    """Two charts a scenario or one law, each drawn and with all of its words; wide tables scroll by themselves."""
    seen = look(chromium, tmp_path, write_page(name), width)
    assert (seen["width"], seen["needed"]) == (width, width)
    assert len(seen["charts"]) == charts
    assert all(0 < drawn <= width for _, drawn in seen["charts"])
    assert seen["cut"] == []


def test_a_report_is_a_picture(chromium: str, tmp_path: Path) -> None:
    """With the colours of both sides in it."""
    (tmp_path / "page.html").write_text(write_page("pd-single"), encoding="utf-8")
    picture = tmp_path / "page.png"
    run(
        chromium,
        tmp_path,
        f"--screenshot={picture}",
        "--window-size=1300,2400",
        "--force-device-scale-factor=1",
        (tmp_path / "page.html").as_uri(),
    )
    seen = Image.open(picture).convert("RGB")
    assert seen.width == 1300
    colours = {colour for _, colour in seen.getcolors(maxcolors=seen.width * seen.height) or []}
    assert {(0x1B, 0x6C, 0xA8), (0xD1, 0x49, 0x5B)} <= colours
