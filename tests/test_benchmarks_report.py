"""The documents' tables are filled from what the benchmarks wrote."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import convergence, report
from benchmarks.workloads import suite

ORIGIN = {"machine": "a machine", "cores": 2, "python": "3.11", "numpy": "2.4", "llvm": "22.1", "tilewright": "0.1.0"}


def interval(ratio: float | None, half: float = 0.01, moved: int = 0) -> dict[str, Any]:
    """What a comparison says besides."""
    if ratio is None:
        return {"ratio_low": None, "ratio_high": None, "decided": False, "rounds": 7, "moved": moved}
    low, high = ratio - half, ratio + half
    return {"ratio_low": low, "ratio_high": high, "decided": not low <= 1 <= high, "rounds": 7, "moved": moved}


def op_row(name: str, ratio: float | None, threads: int = 2, suite: str = "peers", **more: Any) -> dict[str, Any]:
    peers = {} if ratio is None else {"numpy": 4.0 * ratio, "torch": 2.0 * ratio}
    return {
        "op": name,
        "suite": suite,
        "threads": threads,
        "ours_ms": 2.0,
        "peers": peers,
        "best_peer": "torch" if peers else None,
        "ratio": ratio,
        **interval(ratio),
        "floor_ms": 1.0,
        "floor_share": 0.5,
        "error": 1e-7,
        "tuning_s": 9.0,
        "trials": 30,
        "default_ms": 2.5,
        "notes": {},
        **more,
    }


def ops_report(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    rates = {"fma_gflops": 200.0, "gb_per_s": {"l1 read": 400.0, "dram copy": 45.0}}
    return {
        **ORIGIN,
        "date": "2026-11-30",
        "command": "python benchmarks/ops.py --store /here/s.sqlite --threads 2 --json '/a b/c.json'",
        "peers": {"numpy": "2.4", "torch": "2.13"},
        "absent": {},
        "failed": {},
        "ceilings": {"2": rates},
        "rows": list(rows),
        **more,
    }


def models_report() -> dict[str, Any]:
    row = {
        "model": "classifier",
        "file": "cls.onnx",
        "threads": 2,
        "ours_ms": 0.5,
        "default_ms": 0.75,
        "peers": {"onnxruntime": 1.0},
        "best_peer": "onnxruntime",
        "ratio": 2.0,
        **interval(2.0),
        "gflop": 0.033,
        "fma_share": 0.25,
        "error": 6e-7,
        "from_records": [78, 78],
        "tuning_s": 60.0,
        "trials": 400,
        "notes": {"openvino": "openvino: no such operator"},
    }
    return {
        **ORIGIN,
        "date": "2026-12-01",
        "command": "python benchmarks/models.py",
        "peers": {"onnxruntime": "1.32"},
    } | {"rows": [row]}


PAGE = """# Page
<!-- machine:begin -->
outdated
<!-- machine:end -->
kept
<!-- ceilings:begin --><!-- ceilings:end -->
<!-- operators:begin -->
<!-- operators:end -->
<!-- models:begin -->
untouched
<!-- models:end -->
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


def saved(folder: Path, name: str, data: Any) -> str:
    path = folder / name
    path.write_text(json.dumps(data))
    return str(path)


def test_a_page_is_filled(tmp_path: Path, page: Path) -> None:
    first = ops_report(op_row("matmul_512", 2.0), op_row("softmax", 0.5, notes={"jax": "no softmax"}))
    second = ops_report(op_row("matmul_512", 1.0, 1), absent={"jax, 1 thread": "not installed"})
    files = [saved(tmp_path, "a.json", first), saved(tmp_path, "b.json", second)]
    assert report.main(["--ops", *files, "--docs", str(page)]) == 0
    text = page.read_text()
    assert "outdated" not in text
    assert "kept" in text
    assert "untouched" in text
    assert "a machine, 2 cores; Tilewright 0.1.0, Python 3.11, LLVM 22.1, NumPy 2.4; 2026-11-30." in text
    assert "| float32 multiply-add, GFLOP/s | 200.0 |" in text
    assert "| DRAM copy, GB/s | 45.0 |" in text
    assert "`python benchmarks/ops.py --threads 2`, 2026-11-30, numpy 2.4, torch 2.13. Times in ms." in text
    assert "### Operators of common networks, 2 threads" in text
    assert "### Operators of common networks, 1 thread\n" in text
    assert "| matmul_512 | 2.000 | 8.000 | **4.000** | 2.00 (1.99 to 2.01) |" in text
    assert "| geometric mean |  |  |  | 1.00 |" in text
    assert "- softmax, 2 threads, jax: no softmax" in text
    assert "- without jax, 1 thread: not installed" in text
    again = page.read_text()
    assert report.main(["--ops", *files, "--docs", str(page)]) == 0
    assert page.read_text() == again


def test_the_front_page_sums_up(tmp_path: Path, page: Path) -> None:
    front = tmp_path / "README.md"
    front.write_text("# Name\n<!-- measured:begin -->\n<!-- measured:end -->\n")
    rows = [op_row("a", 2.0), op_row("b", 0.5), op_row("c", 0.8), op_row("d", None), op_row("a", 9.0, 1)]
    about_ops = saved(tmp_path, "o.json", ops_report(*rows))
    about_models = saved(tmp_path, "m.json", models_report())
    arguments = ["--ops", about_ops, "--models", about_models, "--readme", str(front), "--docs", str(page)]
    assert report.main(arguments) == 0
    text = front.read_text()
    assert "a machine, 2 threads, 2026-12-01 (`python benchmarks/models.py`):" in text
    assert (
        "| classifier (cls.onnx, 1x3x48x192) | 0.500 ms | 1.000 ms (onnxruntime) | 2.00 (1.99 to 2.01) | 6e-07 | 78/78 |"
        in text
    )
    assert (
        "Operators of common networks, against the best of numpy, torch in each row: geometric mean 0.93 over 3 at "
        "2 threads; 1 at least as fast, the others at 0.50 to 0.80." in text
    )
    assert "| classifier | 0.500 | 1.000 |" in page.read_text()
    assert "- classifier, 2 threads, openvino: openvino: no such operator" in page.read_text()
    assert "2026-11-30 and 2026-12-01." in page.read_text()


def test_tvm(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("<!-- machine:begin --><!-- machine:end -->\n<!-- tvm:begin --><!-- tvm:end -->\n")
    row = op_row("matmul_512", 2.0) | {"tvm_ms": 4.0, "ours": {"trials": 32, "tuning_s": 5.0}, "errors": {"tvm": 1e-7}}
    data = ops_report(row | {"tvm": {"trials": 31, "tuning_s": 40.0}})
    assert report.main(["--tvm", saved(tmp_path, "t.json", data | {"ceilings": {}}), "--docs", str(path)]) == 0
    assert (
        "| matmul_512 | 2.000 | 4.000 | 2.00 (1.99 to 2.01) | 2.500 | 32 | 5 | 31 | 40 | 1e-07 | 1e-07 |"
        in path.read_text()
    )


def test_convergence(tmp_path: Path) -> None:
    """Searches: medians and ranges over the seeds; one that never came near is not left out."""
    runs = [
        convergence.Run((0.5, 1.0, 2.0), (300.0, 210.0, 200.0)),
        convergence.Run((0.6, 1.5), (float("inf"), 240.0)),
    ]
    found = convergence.row(suite("peers")["softmax_512x1024"], 1, runs)
    assert found["own"] == [(2, 1.0), (2, 1.5)]
    assert found["all"] == [(2, 1.0), None]
    place = tmp_path / "convergence.json"
    place.write_text(json.dumps({**ORIGIN, "date": "2026-12-01", "rows": [found]}))
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- machine:begin -->\n<!-- machine:end -->\n<!-- convergence:begin -->\n<!-- convergence:end -->\n"
    )
    assert report.main(["--convergence", str(place), "--docs", str(page)]) == 0
    line = next(line for line in page.read_text().splitlines() if line.startswith("| softmax_512x1024"))
    assert "| 20 % | 3 (2 to 3) | 2 (2 to 2) | 1.5 (1.0 to 1.5) | never (2 to never) | never (1.0 to never) |" in line


def test_a_row_whose_interval_is_wider_than_its_claim_says_so() -> None:
    """5 % faster within 8 % is not faster; nor is a round steady in which the machine changed its speed."""
    wide = op_row("a", 1.05) | interval(1.05, 0.08, 2)
    text = report.operators([ops_report(wide, op_row("b", 0.95) | interval(0.95, 0.02))])
    assert "| 1.05 (0.97 to 1.13) ? |" in text
    assert "| 0.95 (0.93 to 0.97) |" in text
    assert "`?`: the 95 % interval contains 1" in text
    assert "- a, 2 threads: the machine changed its speed within 2 of 7 rounds" in text
    assert "`?`" not in report.operators([ops_report(op_row("b", 1.5))])
    network = models_report()["rows"][0] | {"ratio": 1.05} | interval(1.05, 0.08)
    front = report.summary([], [models_report() | {"rows": [network]}])
    assert "| 1.05 (0.97 to 1.13) ? |" in front
    assert "`?`: the 95 % interval contains 1" in front


def test_files_of_ratios_of_medians_are_refused(tmp_path: Path, page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their rows have no interval."""
    old = {k: v for k, v in op_row("a", 1.05).items() if k not in interval(1.0)}
    assert report.main(["--ops", saved(tmp_path, "old.json", ops_report(old)), "--docs", str(page)]) == 2
    assert "the file is from another version of the benchmarks" in capsys.readouterr().err
    assert page.read_text() == PAGE


def test_sentences_about_operators() -> None:
    assert "3 at least as fast." in report.operators_text([op_row("a", r) for r in (1.5, 2.0, 3.0)], "peers")
    assert "3 at least as fast; 1 of all undecided (the interval contains 1)." in report.operators_text(
        [op_row("a", r) for r in (1.0, 2.0, 3.0)], "peers"
    )
    assert "1 at least as fast, the other at 0.70." in report.operators_text(
        [op_row("a", r) for r in (1.2, 0.7)], "peers"
    )
    assert "1 at least as fast, the others at 0.70." in report.operators_text(
        [op_row("a", r) for r in (1.2, 0.7, 0.701)], "peers"
    )
    assert report.operators_text([], "peers") == ""


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("nothing", "expected <!-- machine:begin --> and, after it, <!-- machine:end -->, once each"),
        ("<!-- machine:end --><!-- machine:begin -->", "after it"),
        ("<!-- machine:begin --><!-- machine:end -->" * 2, "once each"),
    ],
)
def test_marks_that_are_not_there(text: str, match: str) -> None:
    with pytest.raises(report.ReportError, match=match):
        report.fill(text, "machine", "new")


def test_wrong_files(tmp_path: Path, page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = saved(tmp_path, "good.json", ops_report(op_row("a", 1.0)))
    other = saved(tmp_path, "other.json", ops_report(op_row("a", 1.0), machine="another"))
    bad_row = op_row("a", 1.0)
    del bad_row["ours_ms"]
    for files, message in (
        ([str(tmp_path / "none.json")], "none.json: [Errno 2]"),
        ([saved(tmp_path, "no.json", {"rows": []})], "expected what a benchmark wrote with --json"),
        ([saved(tmp_path, "list.json", [])], "expected what a benchmark wrote with --json"),
        ([good, other], "machine: expected files of one machine; got a machine and another"),
        ([saved(tmp_path, "old.json", ops_report(bad_row))], "a row lacks 'ours_ms'"),
    ):
        assert report.main(["--ops", *files, "--docs", str(page)]) == 2
        assert message in capsys.readouterr().err
        assert page.read_text() == PAGE


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--docs", "x"], "expected at least one of --ops, --models, --tvm and --convergence"),
        (["--ops", "x"], "expected --docs, --readme or both"),
        (["--ops", "x", "--readme", "y"], "argument --readme: expected --ops and --models too"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        report.main(arguments)
    assert stop.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_the_documents_have_the_marks() -> None:
    """Else a run of hours ends in an error."""
    root = Path(__file__).resolve().parents[1]
    page, front = (root / "docs" / "performance.md").read_text(), (root / "README.md").read_text()
    for tag in ("machine", "ceilings", "operators", "models", "tvm", "convergence"):
        assert "new" in report.fill(page, tag, "new")
    assert "new" in report.fill(front, "measured", "new")


def test_how_far_apart_the_cores_were(tmp_path: Path) -> None:
    """The cost of a parallel region is said with a table of several threads, and only where it was measured."""
    rows = [op_row("a", 1.0, region_ns=450.0), op_row("b", 1.0, region_ns=1210.0), op_row("c", 1.0, 1, region_ns=None)]
    text = report.operators([ops_report(*rows)])
    assert "took 450 to 1210 ns" in text
    assert text.count("empty parallel region") == 1
    assert "parallel region" not in report.operators([ops_report(op_row("a", 1.0))])
