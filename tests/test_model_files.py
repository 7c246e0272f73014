"""Model files: the same predictions in another process, and refusals of what cannot be trusted."""

import hashlib
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from made_up_data import NAMES, RANKERS, SCHEMA, TARGET, kind_of, space
from tilewright.cost_model import (
    AbstractRanker,
    Feature,
    FeatureSchema,
    HistGradientRanker,
    ModelFileError,
    PriorOnly,
    XGBoostRanker,
    load_model,
    model_info,
    save_model,
)
from tilewright.graph import sealed

pytestmark = pytest.mark.workers

IN_ANOTHER_PROCESS = """
import sys
import numpy as np
from made_up_data import SCHEMA, TARGET, space
from tilewright.cost_model import load_model
data = space(1, 3, 50)
np.save(sys.argv[2], load_model(sys.argv[1], SCHEMA, TARGET).predict_ns(data.x, data.prior_ns))
"""


@pytest.mark.parametrize("make_ranker", RANKERS, ids=kind_of)
def test_saved_model_predicts_the_same_in_another_process(
    tmp_path: Path, make_ranker: Callable[[], AbstractRanker]
) -> None:
    data = space(1, 3, 50)
    ranker = make_ranker().fit(data)
    save_model(ranker, tmp_path / "new folder" / "model.zip", SCHEMA, TARGET)
    command = [sys.executable, "-c", IN_ANOTHER_PROCESS, "new folder/model.zip", "predicted.npy"]
    environment = {"PYTHONPATH": str(Path(__file__).parent), "PATH": ""}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=60)
    expected = ranker.predict_ns(data.x, data.prior_ns)
    np.testing.assert_array_equal(np.load(tmp_path / "predicted.npy"), expected)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.zip"
    save_model(XGBoostRanker().fit(space(0, 2, 40)), path, SCHEMA, TARGET)
    return path


@pytest.mark.parametrize("make_ranker", RANKERS, ids=kind_of)
def test_untrained_and_scaled_models_are_kept_too(tmp_path: Path, make_ranker: Callable[[], AbstractRanker]) -> None:
    data = space(0, 1, 40)
    for ranker in (make_ranker(), make_ranker().fit(data.take(np.arange(5)))):
        save_model(ranker, tmp_path / "m", SCHEMA, TARGET)
        again = load_model(tmp_path / "m", SCHEMA, TARGET)
        np.testing.assert_array_equal(again.predict_ns(data.x, data.prior_ns), ranker.predict_ns(data.x, data.prior_ns))


def test_model_file_says_what_it_belongs_to(saved: Path) -> None:
    info = model_info(saved)
    assert (info.kind, info.schema_digest, info.feature_names) == ("xgboost", SCHEMA.digest, NAMES)
    assert info.target == TARGET
    assert info.summary is not None
    assert info.summary.rows == 80


def test_same_model_is_the_same_bytes_and_leaves_no_other_file(saved: Path) -> None:
    first = saved.read_bytes()
    save_model(XGBoostRanker().fit(space(0, 2, 40)), saved, SCHEMA, TARGET)
    assert saved.read_bytes() == first
    assert [path.name for path in saved.parent.iterdir()] == ["model.zip"]


def test_failed_save_keeps_the_old_file(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = saved.read_bytes()

    def full_disk(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="no space left"):
        save_model(PriorOnly(), saved, SCHEMA, TARGET)
    assert saved.read_bytes() == first
    assert [path.name for path in saved.parent.iterdir()] == ["model.zip"]


def test_save_refuses_a_ranker_of_another_schema(tmp_path: Path) -> None:
    ranker = XGBoostRanker().fit(space(0, 2, 40))
    with pytest.raises(ModelFileError, match=r"trained on feature schema .* \(version 2\); train it on features"):
        save_model(ranker, tmp_path / "m", FeatureSchema(2, SCHEMA.features), TARGET)


def test_load_refuses_another_schema(saved: Path) -> None:
    with pytest.raises(ModelFileError, match=r"expected feature schema version 2 .* got version 1 .* train a new"):
        load_model(saved, FeatureSchema(2, SCHEMA.features), TARGET)
    renamed = (*SCHEMA.features[1:], Feature("bytes_l2", "byte", ""))
    with pytest.raises(ModelFileError, match="without bytes_l2, with the unknown register_tile; train a new"):
        load_model(saved, FeatureSchema(1, renamed), TARGET)


def test_load_refuses_another_target_unless_asked_to_transfer(saved: Path) -> None:
    with pytest.raises(ModelFileError, match=r"another target: expected cores 4, got 8; train .* target=None"):
        load_model(saved, SCHEMA, {"isa": "avx2", "cores": 4})
    with pytest.raises(ModelFileError, match="expected isa None, got 'avx2'"):
        load_model(saved, SCHEMA, {"cores": 8})
    assert load_model(saved, SCHEMA, None).kind == "xgboost"


def rewrite(path: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    """Change the members of an intact archive, name them and seal it again: as if it had been written so."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    before = dict(files)
    change(files)
    if "meta.json" in files and files["meta.json"] == before["meta.json"]:
        parts = {name: hashlib.sha256(content).hexdigest() for name, content in files.items() if name != "meta.json"}
        with_meta(parts=parts)(files)
    with path.open("w+b") as file:
        with zipfile.ZipFile(file, "w") as archive:
            archive.comment = sealed.UNSEALED
            for name, content in files.items():
                archive.writestr(name, content)
        sealed.seal(file)


def with_meta(**changes: object) -> Callable[[dict[str, bytes]], None]:
    def change(files: dict[str, bytes]) -> None:
        files["meta.json"] = json.dumps(json.loads(files["meta.json"]) | changes).encode()

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_meta(format=99), "expected model format 2, got 99; read it with the release that wrote it"),
        (with_meta(kind="neural"), "expected a ranker of kind prior, xgboost, hist_gradient, got 'neural'"),
        (with_meta(schema=None), "its meta.json lacks a field"),
        (with_meta(settings={}), "its weights cannot be read"),
        (with_meta(settings={"n_jobs": 10**18, "seed": 0, "learnt": None}), "its weights cannot be read"),
        (with_meta(settings={"n_jobs": 1, "seed": 0, "learnt": [1]}), "its weights cannot be read"),
        (with_meta(summary={"rows": -1}), "its meta.json lacks a field"),
        (with_meta(target=[]), "its meta.json lacks a field"),
        (lambda files: files.update({"meta.json": files["meta.json"][:-1] + b', "kind": "prior"}'}), "not a readable"),
        (lambda files: files.update({"meta.json": b"[" * 10**5}), "not a readable model archive"),
        (with_meta(kind="hist_gradient"), "its weights cannot be read"),
        (lambda files: files.pop("meta.json"), "not a readable model archive"),
        (lambda files: files.pop("member_2.ubj"), "its weights cannot be read"),
        (lambda files: files.update({"meta.json": b"[]"}), "not a readable model archive"),
        (lambda files: files.update({"meta.json": b"\xff{"}), "not a readable model archive"),
        (lambda files: files.update({"gate.ubj": b"{"}), "its weights cannot be read"),
    ],
)
def test_load_refuses_malformed_archives(saved: Path, change: Callable[[dict[str, bytes]], None], message: str) -> None:
    rewrite(saved, change)
    with pytest.raises(ModelFileError, match=message):
        load_model(saved, SCHEMA, TARGET)


def test_load_refuses_a_file_that_is_not_sealed(saved: Path) -> None:
    """Well-formed parts with sums of their own, exchanged by another program: none of them is looked at."""
    with zipfile.ZipFile(saved) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(saved, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    with pytest.raises(ModelFileError, match="its bytes are not those that this release wrote"):
        load_model(saved, SCHEMA, TARGET)


@pytest.mark.parametrize("content", [b"", b"{", None], ids=["empty", "text", "other"])
def test_load_refuses_weights_that_the_file_does_not_name(saved: Path, content: bytes | None) -> None:
    """XGBoost ends the process for an empty file of weights: it does not get to see it."""

    def exchange(files: dict[str, bytes]) -> None:
        files["member_0.ubj"] = files["member_1.ubj"] if content is None else content
        files["meta.json"] += b" "  # as it is, so that it does not name the new part

    rewrite(saved, exchange)
    with pytest.raises(ModelFileError, match=r"its parts are not those that its meta\.json names"):
        load_model(saved, SCHEMA, TARGET)


def test_load_refuses_weights_of_other_features(saved: Path, tmp_path: Path) -> None:
    """Trees that ask for features which the schema does not have would read beyond a row."""
    import xgboost as xgb

    rows = np.random.default_rng(0).random((50, 20))
    other = xgb.train({"verbosity": 0}, xgb.DMatrix(rows, label=rows[:, 0]), num_boost_round=2)
    rewrite(saved, lambda files: files.update({"member_0.ubj": bytes(other.save_raw("ubj"))}))
    with pytest.raises(ModelFileError, match="its weights cannot be read"):
        load_model(saved, SCHEMA, TARGET)


def test_load_refuses_arrays_without_end(tmp_path: Path) -> None:
    """An array whose header says that it is larger than the file takes no memory; nor do parts that unpack to more than they may."""
    path = tmp_path / "m"
    save_model(HistGradientRanker().fit(space(0, 2, 40)), path, SCHEMA, TARGET)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**15,)})

    def enlarge(files: dict[str, bytes]) -> None:
        inner = io.BytesIO()
        with zipfile.ZipFile(inner, "w") as archive:
            archive.writestr("x.npy", header.getvalue())
        files["training.npz"] = inner.getvalue()

    rewrite(path, enlarge)
    with pytest.raises(ModelFileError, match="its weights cannot be read"):
        load_model(path, SCHEMA, TARGET)


def test_load_refuses_parts_that_unpack_to_too_much(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the parts say they unpack to is added up before any is unpacked."""
    monkeypatch.setattr("tilewright.cost_model.persist.MOST_BYTES", 100)
    with pytest.raises(ModelFileError, match="its parts are larger than 100 bytes"):
        load_model(saved, SCHEMA, TARGET)


def test_load_refuses_pickles_in_training_arrays(tmp_path: Path) -> None:
    path = tmp_path / "m"
    save_model(HistGradientRanker().fit(space(0, 2, 40)), path, SCHEMA, TARGET)

    def pickled(files: dict[str, bytes]) -> None:
        np.savez(tmp_path / "evil.npz", x=np.array([object], dtype=object))
        files["training.npz"] = (tmp_path / "evil.npz").read_bytes()

    rewrite(path, pickled)
    with pytest.raises(ModelFileError, match="its weights cannot be read"):
        load_model(path, SCHEMA, TARGET)


def test_load_refuses_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="expected a model file, got No such file or directory; train and save"):
        load_model(tmp_path / "none", SCHEMA, TARGET)


def test_load_says_which_package_is_missing(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(ModelFileError, match=r"a xgboost model needs a missing package: .*xgboost"):
        load_model(saved, SCHEMA, TARGET)


def test_damaged_files_are_refused_or_harmless(saved: Path) -> None:
    intact = saved.read_bytes()
    data = space(3, 1, 20)
    expected = load_model(saved, SCHEMA, TARGET).predict_ns(data.x, data.prior_ns)
    rng = np.random.default_rng(0)
    refused = 0
    for number in range(300):
        damaged = bytearray(intact)
        if number % 3 == 0:
            del damaged[int(rng.integers(len(intact))) :]
        else:
            damaged[int(rng.integers(len(intact)))] ^= int(rng.integers(1, 256))
        saved.write_bytes(damaged)
        try:
            ranker = load_model(saved, SCHEMA, TARGET)
        except ModelFileError:
            refused += 1
        else:
            np.testing.assert_array_equal(ranker.predict_ns(data.x, data.prior_ns), expected)
    assert refused > 250
