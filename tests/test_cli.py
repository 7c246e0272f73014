"""The command line: results, exit codes, and one clear message (never a traceback) for every kind of bad input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from tilewright import cli_info  # noqa: E402
from tilewright.cli import main  # noqa: E402
from tilewright.measure import Ceilings  # noqa: E402
from tilewright.tuning_logs import Store  # noqa: E402

pytestmark = pytest.mark.workers


def tiny(path: Path, nodes: list[str] | None = None) -> Path:
    """A small model file: ``y = relu(x @ w)`` with a dynamic first dimension, and nodes of the given types after it."""
    w = numpy_helper.from_array(np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32), "w")
    body = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
    last = "y"
    for k, kind in enumerate(nodes or []):
        body.append(helper.make_node(kind, [last], [f"z{k}"], name=f"node_{k}"))
        last = f"z{k}"
    graph = helper.make_graph(
        body,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)],
        [w],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(path))
    return path


def call(*args: object) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(main, [str(a) for a in args])


def refused(result: Result, code: int, *texts: str) -> None:
    """The command ended with ``code`` and one message holding ``texts``; no traceback."""
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    for t in texts:
        assert t in result.output


def test_whole_way(tmp_path: Path) -> None:
    """tune, best, records, compile, run, bench."""
    model, store = tiny(tmp_path / "m.onnx"), tmp_path / "r.sqlite"
    shape = ("--shape", "x=4,8", "--threads", "1")
    tuned = call("tune", model, *shape, "--time", "60s", "--trials", "6", "--store", store, "--json")
    assert tuned.exit_code == 0, tuned.output
    data = json.loads(tuned.stdout.strip().splitlines()[-1])
    assert 2 <= data["trials"] <= 6
    assert data["best_ns"] <= data["default_ns"]
    assert data["records"].endswith("r.sqlite")
    best = call("best", model, *shape, "--store", store, "--json")
    assert best.exit_code == 0
    assert json.loads(best.stdout)[0]["time_ns"] > 0
    listed = call("records", "list", "--store", store)
    assert listed.exit_code == 0
    assert "ok" in listed.stdout
    output = tmp_path / "m.tw"
    compiled = call("compile", model, *shape, "-o", output, "--store", store, "--on-miss", "error")
    assert compiled.exit_code == 0, compiled.output
    assert "1 kernels, 1 from records" in compiled.stdout
    x = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    ran = call("run", output, "--input", f"x={tmp_path / 'x.npy'}", "--output-dir", tmp_path / "out")
    assert ran.exit_code == 0, ran.output
    w = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    np.testing.assert_allclose(np.load(tmp_path / "out" / "y.npy"), np.maximum(x @ w, 0), rtol=1e-5, atol=1e-6)
    benched = call("bench", output, "--time", "0.1s", "--json")
    assert json.loads(benched.stdout)["median_ms"] > 0


def test_a_record_that_does_not_apply_is_said_and_replaced(tmp_path: Path) -> None:
    """A look-up finds it and cannot use it: every command that would use it obeys ``--on-miss`` and says why; ``best`` calls it
    missing; tuning puts it out of the way."""
    model, a, b = tiny(tmp_path / "m.onnx"), tmp_path / "a.sqlite", tmp_path / "b.sqlite"
    shape = ("--shape", "x=4,8", "--threads", "1")
    assert call("tune", model, *shape, "--trials", "1", "--store", a).exit_code == 0
    with Store(a) as source, Store(b) as store:
        store.add_many(replace(r, schedule="vectorize t0 i7", params={}) for r in source.records())
    stale = "its record does not apply to this version: "
    refused(call("best", model, *shape, "--store", b), 5, "missing: " + stale[:20])
    output = ("-o", tmp_path / "m.tw")
    refused(call("compile", model, *shape, *output, "--store", b, "--on-miss", "error"), 5, stale)
    for command in ("run", "bench"):
        refused(call(command, model, *shape, "--store", b, "--on-miss", "error"), 5, stale)
        assert call(command, model, *shape, "--store", b).exit_code == 0
    for on_miss in ("warn", "fallback"):
        made = call("compile", model, *shape, *output, "--store", b, "--on-miss", on_miss)
        assert made.exit_code == 0
        assert "1 kernels, 0 from records" in made.stdout
    assert call("tune", model, *shape, "--trials", "1", "--store", b).exit_code == 0
    assert call("compile", model, *shape, *output, "--store", b, "--on-miss", "error").exit_code == 0


def test_export_import(tmp_path: Path) -> None:
    """Records go to another store; importing twice adds nothing; a bad line is set aside."""
    model, a, b = tiny(tmp_path / "m.onnx"), tmp_path / "a.sqlite", tmp_path / "b.sqlite"
    call("tune", model, "--shape", "x=4,8", "--threads", "1", "--trials", "4", "--store", a)
    lines = tmp_path / "r.jsonl"
    assert call("records", "export", lines, "--store", a).exit_code == 0
    first = call("records", "import", lines, "--store", b)
    assert first.exit_code == 0
    assert " 0 set aside" in first.output
    with lines.open("a", encoding="utf-8") as f:
        f.write("{not json\n")
    again = call("records", "import", lines, "--store", b)
    assert again.exit_code == 0
    assert again.output.startswith("0 added")
    assert "1 set aside" in again.output


def test_unsupported_nodes_are_all_named(tmp_path: Path) -> None:
    """One error names every unsupported node with its type."""
    model = tiny(tmp_path / "m.onnx", ["NonMaxSuppression", "Relu", "Det"])
    refused(
        call("compile", model, "--shape", "x=4,8", "-o", tmp_path / "m.tw"), 2, "NonMaxSuppression", "Det", "node_0"
    )


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x07\x12\x04abcd"])
def test_broken_file(tmp_path: Path, content: bytes) -> None:
    """A file that is no model."""
    path = tmp_path / "broken.onnx"
    path.write_bytes(content)
    refused(call("tune", path, "--trials", "1"), 2, "broken.onnx")


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there."""
    refused(call("compile", tmp_path / "none.onnx", "-o", tmp_path / "m.tw"), 2, "none.onnx")


@pytest.mark.parametrize("location", ["weights.bin", "../outside.bin", "/etc/hostname"])
def test_external_data(tmp_path: Path, location: str) -> None:
    """External data that is missing, or whose path leaves the model's folder."""
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "outside.bin").write_bytes(bytes(8 * 16 * 4))
    path = tiny(folder / "m.onnx")
    model = onnx.load(str(path))
    w = model.graph.initializer[0]
    w.ClearField("raw_data")
    w.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("length", str(8 * 16 * 4))):
        entry = w.external_data.add()
        entry.key, entry.value = key, value
    path.write_bytes(model.SerializeToString())
    refused(call("compile", path, "--shape", "x=4,8", "-o", tmp_path / "m.tw"), 2, location)


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        ([], "--shape"),
        (["x=4"], "x"),
        (["x=4,9"], "x"),
        (["q=4,8"], "q"),
        (["x=4,zero"], "expected NAME=SIZE"),
        (["x=0,8"], "expected NAME=SIZE"),
        (["x=4,8", "x=5,8"], "twice"),
    ],
)
def test_wrong_shapes(tmp_path: Path, shapes: list[str], text: str) -> None:
    """A dimension left open, a wrong rank, a contradiction, an unknown input, no number, given twice."""
    model = tiny(tmp_path / "m.onnx")
    options = [o for s in shapes for o in ("--shape", s)]
    refused(call("compile", model, *options, "-o", tmp_path / "m.tw"), 2, text)


def test_misses_and_bad_arguments(tmp_path: Path) -> None:
    """A missing record with ``error``, an unknown target, a store that is none, a time that is none."""
    model, shape = tiny(tmp_path / "m.onnx"), ("--shape", "x=4,8")
    store = tmp_path / "r.sqlite"
    refused(
        call("compile", model, *shape, "-o", tmp_path / "m.tw", "--store", store, "--on-miss", "error"), 5, "no record"
    )
    refused(call("best", model, *shape, "--store", store), 5, "missing")
    refused(call("tune", model, *shape, "--target", "abacus"), 2, "abacus", "host")
    refused(call("tune", model, *shape, "--time", "soon"), 2, "soon")
    (tmp_path / "text").write_text("hello" * 300, encoding="utf-8")
    refused(call("records", "list", "--store", tmp_path / "text"), 2, "text")
    refused(call("records", "list", "--store", tmp_path / "nothing.sqlite"), 2, "nothing.sqlite")
    refused(call("records", "import", tmp_path / "nothing.jsonl", "--store", store), 2, "nothing.jsonl")
    refused(call("run", tmp_path / "nothing.tw"), 2, "nothing.tw")
    assert (tmp_path / "text").read_text(encoding="utf-8") == "hello" * 300


def test_device() -> None:
    """Targets are described; the host's ceilings are optional."""
    shown = call("device", "--no-ceilings", "--json")
    assert shown.exit_code == 0
    assert "host" in json.loads(shown.stdout)["known"]
    assert call("device", "--target", "zen3").exit_code == 0


def test_device_says_that_another_program_disturbed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rate that several threads did not reach together is shown, with a note beside it."""
    for two, noted in ((99.0, True), (199.0, False)):
        rates = Ceilings({"float32": {1: 100.0, 2: two}}, (), 1.0)
        monkeypatch.setattr(cli_info, "measure_ceilings", lambda target, rates=rates: rates)
        shown = call("device", "--threads", 2)
        assert shown.exit_code == 0
        assert ("another program used a core" in shown.stderr) is noted
        assert "GFLOP/s" in shown.stdout
