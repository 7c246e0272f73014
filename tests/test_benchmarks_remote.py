"""Benchmarks: libraries in other processes, and the comparison with TVM, by a stand-in."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import common, serve, tvm
from benchmarks.peers import PEERS, InductorPeer, JaxPeer, Lacking, open_peers
from benchmarks.remote import Remote
from benchmarks.workloads import Workload, suite

pytestmark = pytest.mark.workers

CAP = 12
SOFTMAX = suite("peers", CAP)["softmax_512x1024"]
FAKE = "tests.fake_side"


@pytest.fixture(scope="module")
def fake() -> Iterator[Remote]:
    with Remote("fake", FAKE, ["--threads", "2"]) as remote:
        yield remote


def test_an_operator_is_run_and_timed_elsewhere(fake: Remote) -> None:
    assert fake.version == "fake for 2"
    arrays = SOFTMAX.arrays()
    info = fake.prepare(SOFTMAX, arrays, trials=3, cpu="x")
    assert info == {"tuning_s": 2.5, "trials": 3, "cpu": "x"}
    side = fake.side()
    assert common.relative_error(side.results()[0], SOFTMAX.reference(arrays)) < 1e-12
    assert side.timed is not None
    assert 0 < side.round_ms() < 1000
    times = common.side_by_side([side, common.Side("here", lambda: None, list)], 2, pause=0).ms()
    assert times["fake"] > times["here"]


def test_a_side_that_was_replaced_is_refused(fake: Remote) -> None:
    arrays = SOFTMAX.arrays()
    fake.prepare(SOFTMAX, arrays)
    old = fake.side()
    fake.prepare(SOFTMAX, arrays)
    with pytest.raises(RuntimeError, match="fake: this operator was replaced"):
        old.call()
    fake.side().call()


def test_what_is_lacking_elsewhere_is_lacking_here(fake: Remote) -> None:
    with pytest.raises(Lacking, match="fake: no softmax_512x1024 here"):
        fake.prepare(SOFTMAX, SOFTMAX.arrays(), misdeed="lack")
    fake.prepare(SOFTMAX, SOFTMAX.arrays())  # and the other end is still there


def test_ends_are_told_with_the_last_word() -> None:
    with Remote("fake", FAKE, ["--threads", "1"]) as remote:
        with pytest.raises(Lacking, match="fake: its process ended with status 7: the last word"):
            remote.prepare(SOFTMAX, SOFTMAX.arrays(), misdeed="exit")
        with pytest.raises(Lacking, match="ended with status 7"):
            remote.prepare(SOFTMAX, SOFTMAX.arrays())


def test_late_answers_end_the_process() -> None:
    with Remote("fake", FAKE, ["--threads", "1"]) as remote, pytest.raises(Lacking, match="no answer within 1 s"):
        remote.prepare(SOFTMAX, SOFTMAX.arrays(), 1.0, misdeed="sleep")


def test_programs_that_cannot_start() -> None:
    with pytest.raises(Lacking, match="fake: three threads at most"):
        Remote("fake", FAKE, ["--threads", "4"])
    with pytest.raises(Lacking, match="x: /no/python cannot be started"):
        Remote("x", FAKE, [], "/no/python")
    with pytest.raises(Lacking, match=r"x: its process ended with status 1: .*No module named tests.no_such"):
        Remote("x", "tests.no_such", [])


def served(requests: list[dict[str, Any]], start: Any) -> list[dict[str, Any]]:
    answers = io.StringIO()
    serve.answer(start, io.StringIO("".join(json.dumps(r) + "\n" for r in requests)), answers)
    return [json.loads(line) for line in answers.getvalue().splitlines()]


def test_the_protocol(tmp_path: Path) -> None:
    """Word by word."""
    np.savez(tmp_path / "a.npz", x=np.arange(3.0))
    asked: list[Any] = []

    def prepare(request: Any, arrays: Any) -> serve.Prepared:
        asked.append(request["n"])
        if request["n"] > 1:
            raise NotImplementedError("too many")
        return serve.Prepared(lambda: None, lambda: arrays["x"] + 1, {"k": 5})

    given = {"do": "prepare", "arrays": str(tmp_path / "a.npz"), "n": 1}
    result = {"do": "call", "result": str(tmp_path / "r.npy")}
    got = served(
        [given, result, {"do": "time", "min_s": 0, "min_calls": 3, "warm_s": 0}, {**given, "n": 2}],
        lambda: ("v", prepare),
    )
    assert [list(a) for a in got] == [["version"], ["info"], [], ["ms"], ["lacking"]]
    assert got[1] == {"info": {"k": 5}}
    assert got[4] == {"lacking": "too many"}
    assert np.load(tmp_path / "r.npy").tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="expected prepare, or call or time after it; got 'call'"):
        served([result], lambda: ("v", prepare))
    with pytest.raises(ValueError, match="got 'dance'"):
        served([given, {"do": "dance"}], lambda: ("v", prepare))


def test_tensors_are_aligned_at_the_other_end_too() -> None:
    """What comes out of a file is not."""
    for shape in ((), (3,), (1000, 7)):
        for kind in ("float32", "float64", "int8"):
            a = np.ones(shape, kind)
            got = serve.aligned(a)
            assert got.ctypes.data % 64 == 0
            assert got.dtype == a.dtype
            np.testing.assert_array_equal(got, a)


def test_a_library_that_is_not_there() -> None:
    def start() -> Any:
        raise ImportError("no such library")

    assert served([], start) == [{"lacking": "no such library"}]


@pytest.mark.parametrize("kind", [JaxPeer, InductorPeer])
def test_served_peers_mean_the_reference(kind: type[JaxPeer | InductorPeer]) -> None:
    pytest.importorskip("jax" if kind is JaxPeer else "torch")
    with open_peers([kind.name], 1) as (peers, absent):
        if not peers:
            pytest.skip(absent[kind.name])
        w = suite("peers", CAP)["conv_64x56_k3_bias_relu"]  # it has constants
        arrays = w.arrays()
        got = peers[0].side(w, arrays).results()[0]
        assert got.dtype == np.float32
        assert common.relative_error(got, w.reference(arrays)) < 1e-5


def test_more_threads_than_cores_are_lacking() -> None:
    pytest.importorskip("jax")
    with open_peers(["jax"], 4096) as (peers, absent):
        assert peers == []
        assert "cores for 4096 threads" in absent["jax"]
    assert set(PEERS) == {"numpy", "torch", "inductor", "onnxruntime", "openvino", "jax"}


# ---------------------------------------------------------------- TVM


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ops", "nope"], "argument --ops: expected some of matmul_512"),
        (["--trials", "0"], "expected an integer of at least 1"),
        (["--time", "0"], "expected more than 0 seconds"),
        (["--time", "5", "--trials", "5"], "not allowed with argument"),
        (["--threads", "x"], "expected thread counts"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        tvm.main(arguments)
    assert stop.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_without_tvm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(common, "share_openmp", lambda: None)  # an OpenMP runtime is loaded already
    assert tvm.main(["--tvm-python", "/no/python"]) == 2
    said = capsys.readouterr().err
    assert "tvm: /no/python cannot be started" in said
    assert "pip install apache-tvm==" in said


def small(name: str) -> dict[str, Workload]:
    return suite(name, CAP)


def test_tvm_by_a_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole program: two operators, three trials."""
    monkeypatch.setattr(common, "share_openmp", lambda: None)
    monkeypatch.setattr(tvm, "suite", small)
    monkeypatch.setattr(tvm, "SIDE", FAKE)
    path = tmp_path / "rows.json"
    arguments = ["--ops", "matmul_512,softmax_512x1024", "--threads", "1", "--trials", "3", "--rounds", "2"]
    assert tvm.main([*arguments, "--markdown", "--json", str(path)]) == 0
    assert "| geometric mean |" in capsys.readouterr().out
    report = json.loads(path.read_text())
    assert report["peers"] == {"tvm": "fake for 1"}
    assert report["trials"] == 3
    first = report["rows"][0]
    assert first["tvm"]["trials"] == 3
    assert first["ours"]["trials"] >= 1
    assert 0 < first["ratio_low"] <= first["ratio"] <= first["ratio_high"]
    assert first["notes"] == {}


def test_wrong_and_failed_operators_of_tvm_have_no_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tvm, "suite", small)
    arguments = tvm.parse(["--ops", "softmax_512x1024", "--trials", "2", "--rounds", "1"])
    plain = Remote.prepare
    for misdeed, note in (("wrong", "wrong result"), ("lack", "no softmax_512x1024 here")):

        def spoiled(self: Remote, *given: Any, misdeed: str = misdeed, **more: Any) -> dict[str, Any]:
            return plain(self, *given, **more, misdeed=misdeed)

        monkeypatch.setattr(Remote, "prepare", spoiled)
        with Remote("tvm", FAKE, ["--threads", "1"]) as remote:
            row = tvm.measure(SOFTMAX, 1, remote, arguments)
        assert row["ratio"] is None
        assert row["tvm_ms"] is None
        assert note in row["notes"]["tvm"]


def test_table() -> None:
    row = {
        "op": "matmul_512",
        "ours_ms": 1.5,
        "default_ms": 1.75,
        "tvm_ms": 3.0,
        "ratio": 2.0,
        "ratio_low": 1.9,
        "ratio_high": 2.1,
        "decided": True,
        "ours": {"trials": 64, "tuning_s": 7.4},
        "tvm": {"trials": 63, "tuning_s": 58.8},
        "error": 9e-7,
        "errors": {"ours": 9e-7, "tvm": 8e-7},
    }
    lacking = {**row, "tvm_ms": None, "ratio": None, "tvm": {}, "errors": {"ours": 9e-7}}
    headers, cells = tvm.table([row, {**row, "ratio": 8.0}, lacking])
    assert all(len(c) == len(headers) for c in cells)
    assert cells[0] == [
        "matmul_512", "1.500", "3.000", "2.00 (1.90 to 2.10)", "1.750", "64", "7", "63", "59", "9e-07", "8e-07"
    ]  # fmt: skip
    assert cells[2][2:4] == ["-", "-"]
    assert cells[3][:4] == ["geometric mean", "", "", "4.00"]
    assert len(tvm.table([row])[1]) == 1
