"""Models, side by side with onnxruntime (and OpenVINO where it is installed), from the records of a store.

    python benchmarks/models.py --time 120     # tune each for 120 s, then compare
    python benchmarks/models.py --models classifier --profile # where the time of our model goes

Some models are taken from pip packages that carry them (``pip install --no-deps rapidocr-onnxruntime nudenet
ddddocr``); those that are not installed are left out. Others are well-known networks that ``built_models.py`` writes
(needs ``onnx``). Exit codes: 0 ok, 2 usage or no model, 4 an output differs
from onnxruntime's, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import tilewright
from benchmarks import common
from benchmarks.built_models import built_path
from benchmarks.common import Array, Side
from benchmarks.peers import PEERS, Lacking, OnnxRuntimePeer, OpenVinoPeer, make_peers
from tilewright.compiled import Port
from tilewright.display import print_table
from tilewright.graph.graph import Graph
from tilewright.graph.traverse import loads, variables
from tilewright.runtime import random_input
from tilewright.schedules.factors import product_factors
from tilewright.schedules.kernel import Kernel, build
from tilewright.schedules.steps import parse as parse_schedule
from tilewright.search_space.fusion import Group, fuse
from tilewright.search_space.prologue import is_contraction

DEFAULT_PEERS = ["onnxruntime", "openvino"]
AGREEMENT = 1e-3
"""Largest difference from onnxruntime by the norm of an output: both compute in float32."""
SHOWN = 15
Row = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """A model file in a pip package, or one that we build (its name is the ``suffix``), and the shapes of its inputs."""

    package: str
    suffix: str
    shapes: Mapping[str, tuple[int, ...]]
    image: bool = False
    """Whether noise is no good as an input: a detector of text answers noise with values near 5e-5, where float32
    sigmoids of different libraries have little in common."""

    def path(self) -> Path:
        """The file; a built model is written on first use."""
        path = built_path(self.suffix) if self.package == BUILD else self._file()
        assert path is not None, "only installed models are asked for"
        return path

    def installed(self) -> bool:
        """Whether the package that has it, or that it is built with, is here."""
        return importlib.util.find_spec("onnx") is not None if self.package == BUILD else self._file() is not None

    def _file(self) -> Path | None:
        try:
            files = importlib.metadata.files(self.package) or []
        except importlib.metadata.PackageNotFoundError:
            return None
        return next((Path(str(f.locate())) for f in files if str(f).endswith(self.suffix)), None)


BUILD = "onnx"
"""The package that built models need."""
_OCR = "rapidocr-onnxruntime"
MODELS = {
    "classifier": Model(_OCR, "cls_infer.onnx", {"x": (1, 3, 48, 192)}),
    "detector": Model(_OCR, "det_infer.onnx", {"x": (1, 3, 320, 320)}, image=True),
    "recogniser": Model(_OCR, "rec_infer.onnx", {"x": (1, 3, 48, 320)}),
    "nudenet": Model("nudenet", "320n.onnx", {"images": (1, 3, 320, 320)}),
    "ddddocr": Model("ddddocr", "common_det.onnx", {"images": (1, 3, 416, 416)}),
    "resnet18": Model(BUILD, "resnet18", {"x": (1, 3, 224, 224)}),
    "mobilenet_v2": Model(BUILD, "mobilenet_v2", {"x": (1, 3, 224, 224)}),
    "bert_base": Model(BUILD, "bert_base", {"x": (1, 128, 768), "mask": (1, 1, 1, 128)}),
}


def image_like(shape: tuple[int, ...], seed: int = 0) -> Array:
    """Lines of dark blocky letters (-1) on bright paper (+1), the same in every channel."""
    rng = np.random.default_rng(seed)
    h, w = shape[-2:]
    dots = np.kron(rng.random((-(-h // 4), -(-w // 4))) > 0.4, np.ones((4, 4), dtype=np.bool_))[:h, :w]
    y, x = np.arange(h)[:, None] - 20, np.arange(w)[None, :] - 20
    letters = (y >= 0) & (y % 52 < 20) & (x >= 0) & (x % 20 < 12)
    return np.broadcast_to(np.where(letters & dots, -1, 1).astype(np.float32), shape).copy()


def contraction_flops(graph: Graph, target: tilewright.Target) -> int:
    """Operations of convolutions and matrix products of one run."""
    return sum(2 * s.points for g in fuse(graph, target) for s in g.stages if is_contraction(s))


KINDS = ("attention", "product", "windows", "reduction", "map")
"""Kinds of kernels: two products around a normalisation; products whose factors are both reused (dense convolutions,
matrix products); products of which only the weights are (depthwise); other reductions; no reduction."""


def kind_of(group: Group) -> str:
    """The kind of a kernel, from the structure of its stages."""
    contractions = [s for s in group.stages if is_contraction(s)]
    if len(contractions) > 1:
        return "attention"
    for s in contractions:
        wide = {a for a, e in s.axes if e > 1}
        factors = [f for f in product_factors(s.body) if loads(f)]
        return "product" if all(wide - variables(f) for f in factors) else "windows"
    return "reduction" if any(e > 1 for s in group.stages for _, e in s.reduce) else "map"


def feeds_for(model: Model, executable: tilewright.Executable) -> dict[str, Array]:
    """Seeded inputs."""
    rng = np.random.default_rng(0)
    return {
        p.name: common.aligned_copy(image_like(p.shape) if model.image else random_input(p, rng))
        for p in executable.inputs
    }


def profile(graph: Graph, target: tilewright.Target, executable: tilewright.Executable) -> list[Row]:
    """Each distinct kernel on its own, hot, with the schedule that the model uses; the most costly first."""
    rows: dict[str, Row] = {}
    rng = np.random.default_rng(0)
    for group, info in zip(fuse(graph, target), executable.compiled.kernels, strict=True):
        w = group.workload
        if w.hash in rows:
            rows[w.hash]["runs"] += 1
            continue
        kernel = Kernel(build(w, parse_schedule(info.schedule), target))
        arrays = {}
        for name, kind, constant in w.inputs:
            port = Port(name, kind.shape, kind.dtype)
            arrays[name] = graph.constants[group.names[name]] if constant else random_input(port, rng)
        out = w.types[w.output]
        arrays[w.output] = common.empty(Port(w.output, out.shape, out.dtype))
        kernel.bind(arrays)
        ms = common.call_ms(kernel.run, 0.02)
        rows[w.hash] = {
            "node": info.origin,
            "workload": info.describe,
            "source": info.source,
            "kind": kind_of(group),
            "runs": 1,
            "ms": ms,
            "gflops": w.flops / ms / 1e6,
        }
    total = sum(r["runs"] * r["ms"] for r in rows.values())
    for r in rows.values():
        r["share"] = r["runs"] * r["ms"] / total
    return sorted(rows.values(), key=lambda r: -r["share"])


def measure(
    name: str,
    threads: int,
    arguments: argparse.Namespace,
    peers: Sequence[OnnxRuntimePeer | OpenVinoPeer],
    roofline: common.Roofline,
) -> Row:
    """One row: tune if asked to, compile, check, compare."""
    model = MODELS[name]
    path = model.path()
    target = tilewright.Target.host(threads)
    graph = tilewright.load(path, model.shapes)
    with common.open_store(arguments.store) as store:
        tuned = common.tune(graph, target, store, arguments.time)
        ours = tilewright.compile(graph, target, store)
    feeds = feeds_for(model, ours)
    sides: list[Side] = [common.our_side("ours", ours, feeds)]
    sides.append(common.our_side("default", tilewright.compile(graph, target), feeds))
    notes: dict[str, str] = {}
    for peer in peers:
        try:
            sides.append(peer.model(path, feeds))
        except Lacking as error:
            notes[peer.name] = str(error)
    for side in sides:
        side.call()
    results = {s.name: s.results() for s in sides}
    errors = {
        n: common.norm_error(r, results["onnxruntime"])
        for n, r in results.items()
        if "onnxruntime" in results and n != "onnxruntime"
    }
    times = common.side_by_side(sides, arguments.rounds)
    found = {n: ms for n, ms in times.items() if n not in ("ours", "default")}
    best = min(found, key=lambda n: found[n]) if found else None
    flops = contraction_flops(graph, target)
    covered, kernels = ours.compiled.coverage()
    row: Row = {
        "model": name,
        "file": path.name,
        "threads": threads,
        "ours_ms": times["ours"],
        "default_ms": times["default"],
        "peers": found,
        "best_peer": best,
        "ratio": None if best is None else found[best] / times["ours"],
        "gflop": flops / 1e9,
        "fma_share": flops / times["ours"] / 1e6 / roofline.gflops(threads),
        "error": errors.get("ours"),
        "errors": errors,
        "from_records": [covered, kernels],
        "tuning_s": tuned.seconds,
        "trials": tuned.trials,
        "notes": notes,
    }
    if arguments.profile:
        row["profile"] = profile(graph, target, ours)
        row["kinds"] = {k: sum(r["share"] for r in row["profile"] if r["kind"] == k) for k in KINDS}
    return row


def kinds_text(shares: Mapping[str, float]) -> str:
    """``product 80 %, map 20 %``: where the time goes, the most first."""
    return ", ".join(f"{k} {100 * v:.0f} %" for k, v in sorted(shares.items(), key=lambda x: -x[1]) if v >= 0.005)


def table(rows: Sequence[Row], peers: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Headers and cells for people."""
    shown = [p for p in peers if any(p in r["peers"] for r in rows)]
    headers = ["model", "ours ms", *[f"{p} ms" for p in shown], "best peer / ours", "default ms", "GFLOP"]
    headers += ["of FMA peak", "error", "from records", "tuning s"]
    profiled = any("kinds" in r for r in rows)
    headers += ["time in"] if profiled else []
    cells = [
        [
            r["model"],
            common.ms_text(r["ours_ms"]),
            *[common.ms_text(r["peers"].get(p)) for p in shown],
            "-" if r["ratio"] is None else f"{r['ratio']:.2f}",
            common.ms_text(r["default_ms"]),
            f"{r['gflop']:.3f}",
            f"{100 * r['fma_share']:.0f} %",
            "-" if r["error"] is None else f"{r['error']:.0e}",
            "{}/{}".format(*r["from_records"]),
            f"{r['tuning_s']:.0f}",
            *([kinds_text(r.get("kinds", {}))] if profiled else []),
        ]
        for r in rows
    ]
    mean = common.geometric_mean(r["ratio"] for r in rows if r["ratio"] is not None)
    if mean is not None and len(rows) > 1:
        cells.append(["geometric mean", "", *[""] * len(shown), f"{mean:.2f}", *[""] * (6 + profiled)])
    return headers, cells


def show(title: str, headers: Sequence[str], cells: Sequence[Sequence[str]], arguments: argparse.Namespace) -> None:
    """A table on stdout."""
    if arguments.markdown:
        print(common.markdown(title, headers, cells))
    else:
        print_table(title, headers, cells)


def show_profile(row: Row, arguments: argparse.Namespace) -> None:
    """The most costly kernels of a model."""
    headers = ["node", "kind", "workload", "runs", "ms each", "share", "GFLOP/s", "schedule"]
    cells = [
        [
            r["node"][:40],
            r["kind"],
            r["workload"],
            str(r["runs"]),
            f"{r['ms']:.4f}",
            f"{100 * r['share']:.1f} %",
            f"{r['gflops']:.1f}",
            r["source"],
        ]
        for r in row["profile"][:SHOWN]
    ]
    show(f"{row['model']}, {common.threads_text(row['threads'])}: kernels one by one", headers, cells, arguments)


def run(arguments: argparse.Namespace) -> int:
    """Everything that was asked for; returns the exit code."""
    common.share_openmp()
    roofline = common.Roofline(arguments.threads)
    report: dict[str, Any] = {
        **common.provenance(),
        "peers": {},
        "ceilings": roofline.as_json(),
        "rows": [],
    }
    wrong = False
    for threads in arguments.threads:
        peers, absent = make_peers(arguments.peers, threads)
        for name, why in absent.items():
            common.say(f"{threads} threads, without {name}: {why}")
        runners = [p for p in peers if isinstance(p, OnnxRuntimePeer | OpenVinoPeer)]
        report["peers"] |= {p.name: p.version for p in runners}
        rows: list[Row] = []
        for name in arguments.models:
            row = measure(name, threads, arguments, runners, roofline)
            rows.append(row)
            report["rows"].append(row)
            wrong |= row["error"] is not None and row["error"] > AGREEMENT
            common.say(
                f"{name}, {common.threads_text(threads)}: ours {common.ms_text(row['ours_ms'])} ms, "
                + ", ".join(f"{n} {common.ms_text(ms)}" for n, ms in row["peers"].items())
                + "".join(f"; {n}: {text}" for n, text in row["notes"].items())
            )
            common.write_json(arguments.json, report)
        title = f"{tilewright.Target.host().model}, {common.threads_text(threads)}, median ms"
        show(title, *table(rows, arguments.peers), arguments)
        for row in rows if arguments.profile else []:
            show_profile(row, arguments)
    return common.EXIT_CHECK if wrong else 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; exits with 2 for a wrong one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    able = [n for n, p in PEERS.items() if issubclass(p, OnnxRuntimePeer | OpenVinoPeer)]
    parser.add_argument("--models", type=common.names, default=None, metavar="NAME,...", help=f"of {', '.join(MODELS)}")
    parser.add_argument(
        "--peers", type=common.names, default=DEFAULT_PEERS, metavar="NAME,...", help=f"of {', '.join(able)}"
    )
    parser.add_argument("--profile", action="store_true", help="also time our kernels one by one")
    common.add_shared_arguments(parser, 0.0)
    arguments = parser.parse_args(argv)
    for option, given, expected in (("--models", arguments.models or [], MODELS), ("--peers", arguments.peers, able)):
        unknown = [n for n in given if n not in expected]
        if unknown:
            parser.error(f"argument {option}: expected some of {', '.join(expected)}; got {', '.join(unknown)}")
    here = {n for n, m in MODELS.items() if m.installed()}
    for name in arguments.models or MODELS:
        if name not in here:
            common.say(f"without {name}: pip install --no-deps {MODELS[name].package}")
    arguments.models = [n for n in arguments.models or MODELS if n in here]
    if not arguments.models:
        parser.error(
            "no model is installed: pip install --no-deps rapidocr-onnxruntime nudenet ddddocr; pip install onnx"
        )
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """The program."""
    arguments = parse(argv)
    try:
        return run(arguments)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    common.restart_clean()
    sys.exit(main())
