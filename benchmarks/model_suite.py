"""The models that are compared: the files of some pip packages, networks that we build, and inputs for them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import tilewright
from benchmarks import common
from benchmarks.built_models import built_path
from benchmarks.common import Array
from tilewright.runtime import random_input


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


def feeds_for(model: Model, executable: tilewright.Executable) -> dict[str, Array]:
    """Seeded inputs."""
    rng = np.random.default_rng(0)
    return {
        p.name: common.aligned_copy(image_like(p.shape) if model.image else random_input(p, rng))
        for p in executable.inputs
    }
