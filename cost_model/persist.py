"""Model files: one zip with `meta.json` and the weights as UBJSON or NumPy arrays; nothing in it is ever
executed.

A model answers with numbers whatever it is fed, so a file says what it belongs to (feature schema, target,
format) and is refused when any of it differs. A file appears whole or not at all.
"""

import hashlib
import io
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tilewright.cost_model import restored
from tilewright.cost_model.dataset import TrainingSummary
from tilewright.cost_model.ranker import (
    AbstractRanker,
    HistGradientRanker,
    PriorOnly,
    XGBoostRanker,
)
from tilewright.cost_model.schema import FeatureSchema
from tilewright.files import replacing
from tilewright.graph import sealed, strict_json

FORMAT = 2
META = "meta.json"
MOST_BYTES = 1 << 31
"""Of all parts unpacked: a hundred times a model of a million measurements."""
_KINDS: dict[str, type[AbstractRanker]] = {
    ranker.kind: ranker for ranker in (PriorOnly, XGBoostRanker, HistGradientRanker)
}
_BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, MemoryError)
"""What the standard library raises for a damaged or foreign zip; RuntimeError: an encrypted member."""
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""What well-formed JSON or arrays of the wrong content raise; XGBoost's own error is a ValueError."""


class ModelFileError(ValueError):
    """A model file cannot be used: what was expected, what was found, what to do."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a model file says about itself."""

    format: int
    kind: str
    schema_version: int
    schema_digest: str
    feature_names: tuple[str, ...]
    target: dict[str, Any]
    summary: TrainingSummary | None


def save_model(
    ranker: AbstractRanker, path: str | os.PathLike[str], schema: FeatureSchema, target: Mapping[str, Any]
) -> None:
    """Write `ranker` to `path`; an old file there stays intact until the new one is complete.

    `target` is the fingerprint of the hardware that the training times came from: JSON-able fields.
    """
    summary = ranker.summary()
    if summary is not None and summary.schema_digest != schema.digest:
        raise ModelFileError(
            f"ranker was trained on feature schema {summary.schema_digest}, expected {schema.digest} "
            f"(version {schema.version}); train it on features of this schema"
        )
    settings, files = ranker.dump()
    meta = {
        "format": FORMAT,
        "kind": ranker.kind,
        "settings": settings,
        "schema": {"version": schema.version, "digest": schema.digest, "names": schema.names()},
        "target": dict(target),
        "summary": None if summary is None else asdict(summary),
        "parts": {name: _digest(content) for name, content in files.items()},
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = sealed.UNSEALED
        for name, content in {META: json.dumps(meta, indent=1).encode(), **files}.items():
            # ZipInfo's fixed date, not the clock's: the same model is the same bytes.
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    sealed.seal(packed)
    _write_atomically(Path(path), packed.getvalue())


def load_model(path: str | os.PathLike[str], schema: FeatureSchema, target: Mapping[str, Any] | None) -> AbstractRanker:
    """Read a ranker that was trained on features of `schema` and times of `target`.

    `target=None` accepts any target, for transfer from another device; `model_info` tells which one it was.
    """
    info, settings, files = _read(Path(path))
    if info.schema_digest != schema.digest:
        raise ModelFileError(
            f"{path}: expected feature schema version {schema.version} ({schema.digest}), got version "
            f"{info.schema_version} ({info.schema_digest}){_name_difference(schema, info)}; train a new model"
        )
    if target is not None:
        wanted = json.loads(json.dumps(dict(target)))
        differing = sorted(
            name for name in wanted.keys() | info.target.keys() if wanted.get(name) != info.target.get(name)
        )
        if differing:
            fields = "; ".join(f"{n} {wanted.get(n)!r}, got {info.target.get(n)!r}" for n in differing)
            raise ModelFileError(
                f"{path}: trained for another target: expected {fields}; train a model on this target's "
                "records, or pass target=None to transfer from that one"
            )
    try:
        return _KINDS[info.kind].restore(settings, files)
    except ImportError as error:
        raise ModelFileError(f"{path}: a {info.kind} model needs a missing package: {error}") from None
    except (*_BROKEN, *_MALFORMED) as error:
        raise _corrupt(Path(path), f"its weights cannot be read ({type(error).__name__})") from None


def model_info(path: str | os.PathLike[str]) -> ModelInfo:
    """What the file belongs to, without using its weights."""
    return _read(Path(path))[0]


def _read(path: Path) -> tuple[ModelInfo, dict[str, Any], dict[str, bytes]]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ModelFileError(
            f"{path}: expected a model file, got {error.strerror}; train and save a model first"
        ) from None
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            if not sealed.is_sealed(io.BytesIO(raw)):
                raise _corrupt(path, "its bytes are not those that this release wrote")
            if sum(part.file_size for part in archive.infolist()) > MOST_BYTES:
                raise _corrupt(path, f"its parts are larger than {MOST_BYTES} bytes")
            files = {part.filename: archive.read(part) for part in archive.infolist()}
        meta = strict_json.loads(files.pop(META))
        found = meta["format"]
    except ModelFileError:
        raise
    except (*_BROKEN, *_MALFORMED) as error:
        raise _corrupt(path, f"it is not a readable model archive ({type(error).__name__})") from None
    if found != FORMAT:
        raise ModelFileError(
            f"{path}: expected model format {FORMAT}, got {found!r}; read it with the release that wrote it, "
            "or train a new model"
        )
    try:
        schema, summary = restored.mapping(meta["schema"], "schema"), meta["summary"]
        info = ModelInfo(
            found, restored.text(meta, "kind"), restored.integer(schema, "version"), restored.text(schema, "digest"),
            tuple(str(name) for name in schema["names"]), restored.mapping(meta["target"], "target"),
            None if summary is None else restored.summary(summary),
        )  # fmt: skip
        settings = restored.mapping(meta["settings"], "settings")
    except _MALFORMED as error:
        raise _corrupt(path, f"its {META} lacks a field ({type(error).__name__})") from None
    if meta.get("parts") != {name: _digest(content) for name, content in files.items()}:
        # XGBoost's reader of weights ends the process, or never ends, for some that are not as it wrote them.
        raise _corrupt(path, f"its parts are not those that its {META} names")
    if info.kind not in _KINDS:
        raise ModelFileError(f"{path}: expected a ranker of kind {', '.join(_KINDS)}, got {info.kind!r}")
    return info, settings, files


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _name_difference(schema: FeatureSchema, info: ModelInfo) -> str:
    """The features that only one side has."""
    here, there = set(schema.names()), set(info.feature_names)
    parts = [
        f", {text} {', '.join(sorted(names))}"
        for text, names in (("without", here - there), ("with the unknown", there - here))
        if names
    ]
    return "".join(parts)


def _corrupt(path: Path, why: str) -> ModelFileError:
    return ModelFileError(f"{path}: expected an intact model file, but {why}; delete it, train a new one")


def _write_atomically(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(content)
