"""The report shows what the result lines say, losses included."""

import json
import pathlib
from types import SimpleNamespace

import pytest

from dsv41_kernels import bench, overview, report

ROOFLINE = {"bandwidth": 4e12, "matmul": 8e14, "floor_us": 4.0}
LINE = {
    "op": "compress",
    "gpu": "NVIDIA H200",
    "problem": "decode",
    "bound_us": 2.0,
    "mode": "graph",
    "p20_us": 9.0,
    "p80_us": 11.0,
    "roofline": ROOFLINE,
    "driver": "1",
    "torch": "2",
    "triton": "3",
    "sglang": "0.5.23",
    "date": "2026-01-01",
    "commit": "abc",
    "command": "python -m dsv41_kernels.bench",
}


def _write(directory: pathlib.Path, lines: list[dict[str, object]]) -> str:
    (directory / "compress.jsonl").write_text("\n".join(json.dumps({**LINE, **line}) for line in lines))
    report.write_report(directory, directory / "RESULTS.md")
    return (directory / "RESULTS.md").read_text()


def test_gains_losses_and_paths_that_did_not_run_all_appear(tmp_path: pathlib.Path):
    """A win, a loss below 1 and a skipped path stand in one row; the bound is a percentage of the time."""
    page = _write(
        tmp_path,
        [
            {"path": "kernel", "median_us": 10.0},
            {"path": "slow", "median_us": 25.0},
            {"path": "fast", "median_us": 5.0},
            {"path": "absent", "skipped": "no package"},
        ],
    )
    row = next(line for line in page.splitlines() if line.startswith("| decode"))
    assert "| 10.0 (9.0..11.0) | 2.00 | 20 % |" in row
    assert "**2.50**" in row
    assert "**0.50**" in row
    assert "not run: no package" in row


def test_what_else_ran_is_said(tmp_path: pathlib.Path):
    """A measurement that had neighbours says so beside its versions."""
    page = _write(tmp_path, [{"path": "kernel", "median_us": 10.0, "note": "an engine started"}])
    assert "; `python -m dsv41_kernels.bench`; meanwhile: an engine started" in page


def test_the_newest_line_of_a_path_counts(tmp_path: pathlib.Path):
    """A repeated measurement replaces the older one."""
    page = _write(tmp_path, [{"path": "kernel", "median_us": 10.0}, {"path": "kernel", "median_us": 4.0}])
    assert "| 4.0 " in page
    assert "| 10.0 " not in page


def test_a_red_gate_is_shown_instead_of_a_time(tmp_path: pathlib.Path):
    """A kernel that failed has its fault in the table and no number."""
    page = _write(tmp_path, [{"path": "kernel", "red": ["latent: relative error 1 above 3e-03"]}])
    assert "red: latent: relative error 1 above 3e-03" in page


def test_the_committed_page_is_the_generated_one(tmp_path: pathlib.Path):
    """RESULTS.md follows from results/*.jsonl; nobody edited it, nobody forgot to generate it."""
    root = pathlib.Path(report.__file__).parent.parent
    (tmp_path / "serve").mkdir()
    for path in (root / "results").glob("**/*.jsonl"):
        (tmp_path / path.relative_to(root / "results")).write_bytes(path.read_bytes())
    report.write_report(tmp_path, tmp_path / "RESULTS.md")
    assert (tmp_path / "RESULTS.md").read_text() == (root / "RESULTS.md").read_text()


def test_a_record_says_what_else_ran_when_it_was_told(monkeypatch: pytest.MonkeyPatch):
    """`DSV41_NOTE` goes into the record, and nothing does without it."""
    monkeypatch.setattr(
        bench.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="1.0\n", returncode=0, stderr="")
    )
    monkeypatch.setattr(bench.torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(bench.torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.delenv("DSV41_NOTE", raising=False)
    assert "note" not in bench.describe_environment([])
    monkeypatch.setenv("DSV41_NOTE", "an engine started")
    assert bench.describe_environment([])["note"] == "an engine started"


def test_a_recorded_command_names_no_directory_of_one_machine():
    """It is read elsewhere: of an absolute path only the last name stays."""
    line = bench.describe_command("bench", ["compress", "--out", "/somewhere/else/results"])
    assert line == "python -m dsv41_kernels.bench compress --out results"


def test_the_committed_readme_tells_the_committed_results(tmp_path: pathlib.Path):
    """Both sections of kernels/README.md follow from the result lines; `python -m dsv41_kernels.report` writes them."""
    root = pathlib.Path(report.__file__).parent.parent
    page = tmp_path / "README.md"
    page.write_bytes((root / "README.md").read_bytes())
    report.write_overview(root / "results", page)
    assert page.read_text() == (root / "README.md").read_text()


def test_gains_are_told_by_kind_of_case_and_losses_are_counted():
    """Ranges over the cases that begin alike, apart by heads where those differ; the worst loss with its name."""

    def case(problem: str, heads: int, ours: float, theirs: float) -> list[dict[str, object]]:
        line = {**LINE, "op": "sparse_decode", "problem": problem, "sizes": {"heads": heads}}
        return [{**line, "path": "kernel", "median_us": ours}, {**line, "path": "engine", "median_us": theirs}]

    rows = overview.write_ops(
        [
            *case("decode-1x16", 16, 10.0, 15.0),
            *case("decode-8x16", 16, 10.0, 12.0),
            *case("decode-8x64", 64, 10.0, 9.0),
            *case("window-only-1x16", 16, 10.0, 20.0),
        ]
    )
    families = "decode of 16 heads 1.20 to 1.50, decode of 64 heads 0.90, window-only of 16 heads 2.00"
    assert rows[2:] == [f"| `sparse_decode` | NVIDIA H200 | engine | {families} | 1 of 4, least 0.90 (decode-8x64) |"]


def test_gains_of_a_served_model_are_over_its_first_variant(tmp_path: pathlib.Path):
    """Every context and batch that both were timed at."""
    line = {"kind": "decode", "context": 4096, "batch": 1, "gpu": "NVIDIA H200", "layers": 6, "heads": 16}
    lines = [
        {**line, "variant": "stock", "median_ms": 2.0},
        {**line, "variant": "stock", "median_ms": 3.0, "batch": 8},
        {**line, "variant": "all", "median_ms": 1.0},
        {**line, "variant": "all", "median_ms": 4.0, "batch": 8},
        {"kind": "answers", "variant": "all"},
    ]
    (tmp_path / "rank.jsonl").write_text("\n".join(json.dumps(each) for each in lines))
    told = "- rank (NVIDIA H200, 6 layers, 16 heads), all over stock: decode 2.00 at 4096, 0.75 at 4096 x 8"
    assert overview.write_served(tmp_path) == [told]


def test_a_page_without_its_marks_is_refused():
    with pytest.raises(ValueError, match="<!-- ops --> and <!-- /ops --> must each stand once"):
        overview.insert("no marks", "ops", [])
