"""Tune two real models, compile them from the records in a second process, check them, and show the speed-up.

The models are the text-direction classifier and the text detector of PP-OCR, as the pip package ``rapidocr-onnxruntime`` carries
them. Run it with ``make demo``; or, with the packages installed::

    python examples/ocr_demo.py --time 270 --store demo.sqlite
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime

import tilewright
from tilewright.display import TuneDisplay, print_table, time_text
from tilewright.options import EXIT_CHECK

MODELS = (("cls_infer.onnx", {"x": (1, 3, 48, 192)}, 0.3), ("det_infer.onnx", {"x": (1, 3, 320, 320)}, 0.7))
TOLERANCE = 1e-4


def find_model(suffix: str) -> Path:
    """Path of a model file in the installed package ``rapidocr-onnxruntime``."""
    try:
        files = importlib.metadata.files("rapidocr-onnxruntime") or []
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit("install the models first: pip install --no-deps rapidocr-onnxruntime") from None
    return next(Path(str(f.locate())) for f in files if str(f).endswith(suffix))


def session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    """onnxruntime with the same number of threads."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def compile_elsewhere(path: Path, shapes: Mapping[str, tuple[int, ...]], store: Path, output: Path) -> str:
    """``tilewright compile`` in a process of its own; any missing record is an error there, and nothing is measured."""
    binding = [arg for n, s in shapes.items() for arg in ("--shape", f"{n}={','.join(map(str, s))}")]
    command = [sys.executable, "-m", "tilewright.cli", "compile", str(path), "-o", str(output), *binding]
    done = subprocess.run(
        [*command, "--store", str(store), "--on-miss", "error"], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def main() -> None:
    """Tune, compile, check, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time", type=float, default=270.0, help="seconds of tuning for both models together")
    parser.add_argument(
        "--store", type=Path, default=None, help="where to keep the records (default: a temporary file)"
    )
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    arguments = parser.parse_args()
    target = tilewright.Target.host()
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        store_path = arguments.store or Path(folder) / "records.sqlite"
        for suffix, shapes, share in MODELS:
            rows.append(demonstrate(suffix, shapes, arguments.time * share, target, store_path, Path(folder)))
    if arguments.json:
        print(json.dumps(rows))
    else:
        headers = (
            "model",
            "default",
            "tuned",
            "speed-up",
            "onnxruntime",
            "against it",
            "error",
            "from records",
            "measured",
        )
        print_table(f"{target.model}, {target.threads} threads", headers, [[str(r[h]) for h in headers] for r in rows])
    if any(float(str(r["error"])) > TOLERANCE for r in rows):
        raise SystemExit(EXIT_CHECK)


def page_of_text(shape: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Rows of dark blocks on a light field: something for a text detector to find."""
    rng = np.random.default_rng(0)
    n, c, h, w = shape
    page = np.ones((h, w), np.float32)
    for top in range(12, h - 24, 40):
        dark = rng.random((6, (w - 32) // 4)) < 0.5
        page[top : top + 24, 16 : 16 + 4 * dark.shape[1]] = np.where(np.repeat(np.repeat(dark, 4, 0), 4, 1), -1, 1)
    return np.ascontiguousarray(np.broadcast_to(page, (n, c, h, w)))


def demonstrate(
    suffix: str,
    shapes: Mapping[str, tuple[int, ...]],
    seconds: float,
    target: tilewright.Target,
    store_path: Path,
    folder: Path,
) -> dict[str, object]:
    """One model: one row of the table."""
    path = find_model(suffix)
    graph = tilewright.load(path, shapes)
    print(f"tuning {path.name} for {seconds:.0f} s", file=sys.stderr, flush=True)
    with tilewright.Store(store_path) as store, TuneDisplay() as display:
        result = tilewright.tune(graph, target, store, tilewright.Budget(seconds), listener=display.show)
        before = store.count()
    output = folder / f"{path.stem}.tw"
    print(compile_elsewhere(path, shapes, store_path, output), file=sys.stderr, flush=True)
    with tilewright.Store(store_path, read_only=True) as store:
        if store.count() != before:
            raise SystemExit("compiling measured something: the store has changed")
    tuned = tilewright.load_compiled(output)
    default = tilewright.compile(graph, target)
    peer = session(path, target.threads)
    inputs = tuned.allocate_inputs()  # all sides get the same arrays, aligned alike
    for array in inputs:
        array[...] = page_of_text(array.shape)
    feeds = {p.name: array for p, array in zip(tuned.inputs, inputs, strict=True)}
    expected = peer.run(None, feeds)
    got = tuned.run(feeds)
    error = max(
        float(np.linalg.norm(a.astype(np.float64) - b) / np.linalg.norm(b)) for a, b in zip(got, expected, strict=True)
    )
    names = [o.name for o in peer.get_outputs()]
    for model in (default, tuned):
        model.bind(inputs, model.allocate())
    times = {"default": [], "tuned": [], "peer": []}  # type: dict[str, list[float]]
    for _ in range(5):  # interleaved rounds: whatever else the machine does meets all three
        times["default"].append(default.time(0.2))
        times["tuned"].append(tuned.time(0.2))
        times["peer"].append(_median_time(lambda: peer.run(names, feeds)))
    median = {k: float(np.median(v)) * 1e9 for k, v in times.items()}
    ratio = {k: float(np.median(np.divide(v, times["tuned"]))) for k, v in times.items()}  # within rounds
    covered, kernels = tuned.compiled.coverage()
    return {
        "model": path.name,
        "default": time_text(median["default"]),
        "tuned": time_text(median["tuned"]),
        "speed-up": f"{ratio['default']:.2f}x",
        "onnxruntime": time_text(median["peer"]),
        "against it": f"{ratio['peer']:.2f}x",
        "error": f"{error:.1e}",
        "from records": f"{covered}/{kernels}",
        "measured": result.trials,
    }


def _median_time(call: object, seconds: float = 0.2) -> float:
    samples: list[float] = []
    start = time.perf_counter()
    while len(samples) < 5 or time.perf_counter() - start < seconds:
        before = time.perf_counter()
        call()  # type: ignore[operator]
        samples.append(time.perf_counter() - before)
    return float(np.median(samples))


if __name__ == "__main__":
    main()
