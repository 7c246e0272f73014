"""Fills the tables of the documents from what the benchmarks wrote with ``--json``, so that no figure is typed by hand.

    python benchmarks/report.py --ops ops.json --models models.json --tvm tvm.json \\
        --convergence convergence.json --docs docs/performance.md --readme README.md

A table goes between ``<!-- tag:begin -->`` and ``<!-- tag:end -->``; what no file is given for stays as it is. Files
of the same kind (a run for each thread count or suite) may be given one after another.
Exit codes: 0 ok, 2 usage: a file is missing or is not what it should be.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import common, convergence, models, ops, tvm
from benchmarks.model_suite import MODELS
from benchmarks.text import UNDECIDED, geometric_mean, ms_text, ratio_text, table_lines, threads_text

Report = dict[str, Any]
Row = dict[str, Any]
SAME = ("machine", "python", "llvm", "numpy", "tilewright")
"""What all files must agree in, where they say it."""
PLACES = ("--json", "--store", "--tvm-python")
"""Options of the benchmarks that are paths, and change no figure."""
SUITE_TITLES = {"peers": "Operators of common networks", "kernelbench": "KernelBench, at sizes for a CPU"}


class ReportError(Exception):
    """A file that cannot be used; the text says which and why."""


def load(path: Path) -> Report:
    """A benchmark's JSON. Raises ReportError for anything else."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ReportError(f"{path}: {error}") from error
    if not isinstance(report, dict) or not isinstance(report.get("rows"), list) or not report["rows"]:
        raise ReportError(f"{path}: expected what a benchmark wrote with --json, with at least one row")
    return report


def fill(text: str, tag: str, content: str, name: str = "document") -> str:
    """The text with new content between a pair of marks. Raises ReportError if they are not there exactly once."""
    begin, end = f"<!-- {tag}:begin -->", f"<!-- {tag}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ReportError(f"{name}: expected {begin} and, after it, {end}, once each")
    head, _, rest = text.partition(begin)
    return f"{head}{begin}\n{content.strip()}\n{end}{rest.partition(end)[2]}"


def command(report: Report) -> str:
    """The command that made a file, without the paths of the machine it ran on."""
    words = shlex.split(report.get("command", "unknown command"))
    kept = [w for k, w in enumerate(words) if w not in PLACES and (k == 0 or words[k - 1] not in PLACES)]
    return shlex.join(kept)


def said(report: Report) -> str:
    """How the figures came about, in a line: other blocks of a document may be from other days and versions."""
    peers = "".join(f", {name} {version}" for name, version in sorted(report.get("peers", {}).items()))
    return f"`{command(report)}`, {report.get('date', 'unknown date')}{peers}. Times in ms."


def groups(reports: Iterable[Report], key: Callable[[Row], tuple[Any, ...]]) -> dict[tuple[Any, ...], list[Row]]:
    """Rows by a key, in the order of the files."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for report in reports:
        for row in report["rows"]:
            found.setdefault(key(row), []).append(row)
    return found


def notes(report: Report) -> list[str]:
    """What is not in the tables, and why."""
    lines = [f"- without {who}: {why}" for who, why in report.get("absent", {}).items()]
    lines += [f"- {what} failed: {why}" for what, why in report.get("failed", {}).items()]
    for row in report["rows"]:
        what = f"{row.get('op', row.get('model'))}, {threads_text(row['threads'])}"
        lines += [f"- {what}, {who}: {why}" for who, why in row.get("notes", {}).items()]
        if row.get("moved"):
            lines += [f"- {what}: the machine changed its speed within {row['moved']} of {row['rounds']} rounds"]
    if any(row.get("ratio") is not None and not row["decided"] for row in report["rows"]):
        lines += [f"- {UNDECIDED}"]
    return lines


def machine(reports: Sequence[Report]) -> str:
    """The machine and the versions. Raises ReportError if the files are from different ones."""
    found: dict[str, Any] = {}
    for report in reports:
        for key in SAME:
            if key in report and found.setdefault(key, report[key]) != report[key]:
                raise ReportError(f"{key}: expected files of one machine; got {found[key]} and {report[key]}")
    versions = [("Tilewright", "tilewright"), ("Python", "python"), ("LLVM", "llvm"), ("NumPy", "numpy")]
    parts = [f"{name} {found[key]}" for name, key in versions if key in found]
    cores = next((r["cores"] for r in reports if "cores" in r), None)
    dates = sorted({r["date"] for r in reports if "date" in r})
    where = f"{found.get('machine', 'unknown machine')}{'' if cores is None else f', {cores} cores'}"
    return f"{where}; {', '.join(parts)}; {' and '.join(dates)}."


def ceilings(reports: Sequence[Report]) -> str:
    """Measured peak rates, the best of all files."""
    best: dict[str, dict[int, float]] = {}
    for report in reports:
        for count, rates in report.get("ceilings", {}).items():
            named = {"float32 multiply-add, GFLOP/s": rates["fma_gflops"]}
            for stream, rate in rates["gb_per_s"].items():
                level, _, kind = stream.partition(" ")
                named[f"{level.upper()} {kind}, GB/s"] = rate
            for name, rate in named.items():
                by_count = best.setdefault(name, {})
                by_count[int(count)] = max(rate, by_count.get(int(count), 0.0))
    counts = sorted({n for by_count in best.values() for n in by_count})
    rows = [[name, *(f"{by[n]:.1f}" if n in by else "-" for n in counts)] for name, by in best.items()]
    return "\n".join(table_lines(["what", *(threads_text(n) for n in counts)], rows))


def operators(reports: Sequence[Report]) -> str:
    """A table for each suite and thread count."""
    parts = [*(said(r) for r in reports), "Bold is the best peer."]
    peers = list(dict.fromkeys(p for r in reports for p in r.get("peers", {})))
    for (suite, threads), rows in groups(reports, lambda r: (r["suite"], r["threads"])).items():
        parts += [f"### {SUITE_TITLES.get(suite, suite)}, {threads_text(threads)}"]
        parts += ["\n".join(table_lines(*ops.table(rows, peers))), regions(rows)]
    parts += ["\n".join(line for r in reports for line in notes(r))]
    return "\n\n".join(p for p in parts if p)


def regions(rows: Sequence[Row]) -> str:
    """How far apart the cores were: an empty parallel region, once a row."""
    found = sorted(r["region_ns"] for r in rows if r.get("region_ns") is not None)
    if not found:
        return ""
    middle = found[len(found) // 2]
    return f"An empty parallel region, measured once a row, took {found[0]:.0f} to {found[-1]:.0f} ns (median {middle:.0f})."


def networks(reports: Sequence[Report]) -> str:
    """A table of models for each thread count."""
    parts = [said(r) for r in reports]
    peers = list(dict.fromkeys(p for r in reports for p in r.get("peers", {})))
    for (threads,), rows in groups(reports, lambda r: (r["threads"],)).items():
        parts += [f"### Models, {threads_text(threads)}", "\n".join(table_lines(*models.table(rows, peers)))]
    parts += ["\n".join(line for r in reports for line in notes(r))]
    return "\n\n".join(p for p in parts if p)


def against_tvm(reports: Sequence[Report]) -> str:
    """A table for each thread count."""
    parts = [said(r) for r in reports]
    for (threads,), rows in groups(reports, lambda r: (r["threads"],)).items():
        parts += [f"### Against TVM, {threads_text(threads)}", "\n".join(table_lines(*tvm.table(rows)))]
    parts += ["\n".join(line for r in reports for line in notes(r))]
    return "\n\n".join(p for p in parts if p)


def convergences(reports: Sequence[Report]) -> str:
    """How long searches took, an operator a line."""
    rows = [row for report in reports for row in report["rows"]]
    return "\n\n".join([*(said(r) for r in reports), "\n".join(table_lines(*convergence.table(rows)))])


def model_text(row: Row) -> str:
    """A model, its file and the shape of its input."""
    known = MODELS.get(row["model"])
    shapes = "" if known is None else ", ".join("x".join(map(str, s)) for s in known.shapes.values())
    return f"{row['model']} ({row['file']}{f', {shapes}' if shapes else ''})"


def summary(about_ops: Sequence[Report], about_models: Sequence[Report]) -> str:
    """What the front page says: models against the best peer and operators as a whole, at the most threads."""
    parts: list[str] = []
    if about_models:
        by_count = groups(about_models, lambda r: (r["threads"],))
        (threads,) = most = max(by_count)
        cells = [
            [
                model_text(r),
                f"{ms_text(r['ours_ms'])} ms",
                "-" if r["best_peer"] is None else f"{ms_text(r['peers'][r['best_peer']])} ms ({r['best_peer']})",
                ratio_text(r),
                "-" if r["error"] is None else f"{r['error']:.0e}",
                "{}/{}".format(*r["from_records"]),
            ]
            for r in by_count[most]
        ]
        first = about_models[0]
        where = (
            f"{first.get('machine', 'unknown machine')}, {threads_text(threads)}, {first.get('date', 'unknown date')}"
        )
        parts += [f"{where} (`{command(first)}`):"]
        headers = ["model", "tuned", "best peer", "ratio", "error", "kernels from records"]
        parts += ["\n".join(table_lines(headers, cells))]
        if any(r["ratio"] is not None and not r["decided"] for r in by_count[most]):
            parts += [UNDECIDED]
    rows = [r for report in about_ops for r in report["rows"] if r["ratio"] is not None]
    if rows:
        threads = max(r["threads"] for r in rows)
        for suite in dict.fromkeys(r["suite"] for r in rows):
            parts += [operators_text([r for r in rows if r["suite"] == suite and r["threads"] == threads], suite)]
    return "\n\n".join(p for p in parts if p)


def operators_text(rows: Sequence[Row], suite: str) -> str:
    """Ratios of a suite, in a sentence."""
    if not rows:
        return ""
    ratios = sorted(r["ratio"] for r in rows)
    peers = sorted({p for r in rows for p in r["peers"]})
    slower = [r for r in ratios if r < 1]
    extremes = list(dict.fromkeys(f"{r:.2f}" for r in (slower[:1] + slower[-1:])))
    range_text = f", the other{'s' if len(slower) > 1 else ''} at {' to '.join(extremes)}" if slower else ""
    mean = geometric_mean(ratios) or 0.0
    open_text = (
        "" if not (n := sum(not r["decided"] for r in rows)) else f"; {n} of all undecided (the interval contains 1)"
    )
    return (
        f"{SUITE_TITLES.get(suite, suite)}, against the best of {', '.join(peers)} in each row: geometric mean {mean:.2f} over "
        f"{len(ratios)} at {threads_text(rows[0]['threads'])}; {len(ratios) - len(slower)} at least as fast{range_text}{open_text}."
    )


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; exits with 2 for a wrong one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("ops", "models", "tvm", "convergence"):
        parser.add_argument(
            f"--{name}", type=Path, nargs="+", default=[], metavar="FILE", help=f"from {name}.py --json"
        )
    parser.add_argument("--docs", type=Path, default=None, metavar="FILE", help="the page on performance")
    parser.add_argument("--readme", type=Path, default=None, metavar="FILE", help="the front page")
    arguments = parser.parse_args(argv)
    if not (arguments.ops or arguments.models or arguments.tvm or arguments.convergence):
        parser.error("expected at least one of --ops, --models, --tvm and --convergence")
    if arguments.docs is None and arguments.readme is None:
        parser.error("expected --docs, --readme or both")
    if arguments.readme is not None and not (arguments.ops and arguments.models):
        parser.error("argument --readme: expected --ops and --models too, as it sums up both")
    return arguments


def blocks(arguments: argparse.Namespace) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Content by tag, for the page on performance and for the front page. Raises ReportError."""
    about = {
        name: [load(path) for path in getattr(arguments, name)] for name in ("ops", "models", "tvm", "convergence")
    }
    everything = [r for reports in about.values() for r in reports]
    page = {"machine": machine(everything)}
    if any(r.get("ceilings") for r in everything):
        page["ceilings"] = ceilings(everything)
    for tag, name, text in (
        ("operators", "ops", operators),
        ("models", "models", networks),
        ("tvm", "tvm", against_tvm),
        ("convergence", "convergence", convergences),
    ):
        if about[name]:
            page[tag] = text(about[name])
    front = {"measured": summary(about["ops"], about["models"])} if about["ops"] and about["models"] else {}
    return page, front


def main(argv: Sequence[str] | None = None) -> int:
    """The program."""
    arguments = parse(argv)
    try:
        for path, content in zip((arguments.docs, arguments.readme), blocks(arguments), strict=True):
            if path is None:
                continue
            text = path.read_text(encoding="utf-8")
            for tag, block in content.items():
                text = fill(text, tag, block, str(path))
            path.write_text(text, encoding="utf-8")
            common.say(f"{path}: {', '.join(content) or 'nothing to fill in'}")
    except KeyError as error:
        common.say(f"a row lacks {error}: the file is from another version of the benchmarks")
        return common.EXIT_USAGE
    except (ReportError, OSError) as error:
        common.say(str(error))
        return common.EXIT_USAGE
    return 0


if __name__ == "__main__":
    sys.exit(main())
