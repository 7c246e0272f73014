"""The benchmarks: every workload means the same on every side, at sizes cut down to be quick; arguments; timing and tables."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tilewright
from benchmarks import clock, common, measured_space, model_suite, models, roofline, search
from benchmarks import ops as bench_ops
from benchmarks import rounds as rounds_
from benchmarks.peers import Lacking, NumpyPeer, OnnxRuntimePeer, TorchPeer, make_peers
from benchmarks.workloads import SUITES, Workload, suite
from tilewright.graph.evaluate import evaluate
from tilewright.measure import Outcome
from tilewright.measure.ceilings import Bandwidth, Ceilings
from tilewright.search_space.space import space
from tilewright.tasks import extract

CAP = 12
SMALL = [w for s in SUITES for w in suite(s, CAP).values()]
CLOSE = 1e-5


def feeds(w: Workload, arrays: dict[str, Any]) -> dict[str, Any]:
    return {i.name: arrays[i.name] for i in w.inputs if not i.constant}


@pytest.mark.parametrize("w", SMALL, ids=lambda w: str(w.name))
def test_graph_means_the_reference(w: Workload) -> None:
    arrays = w.arrays()
    expected = w.reference(arrays)
    assert expected.dtype == np.float64
    assert expected.shape == w.shape
    (got,) = evaluate(w.graph(arrays), feeds(w, arrays))
    assert common.relative_error(got, expected) < 1e-12


@pytest.mark.parametrize("w", SMALL, ids=lambda w: str(w.name))
def test_onnx_means_the_reference(w: Workload) -> None:
    pytest.importorskip("onnxruntime")
    arrays = w.arrays()
    side = OnnxRuntimePeer(1).side(w, arrays)
    side.call()
    assert common.relative_error(side.results()[0], w.reference(arrays)) < CLOSE


@pytest.mark.parametrize("w", SMALL, ids=lambda w: str(w.name))
def test_numpy_peer_means_the_reference(w: Workload) -> None:
    arrays = w.arrays()
    side = NumpyPeer(1).side(w, arrays)
    side.call()
    got = side.results()[0]
    assert got.dtype == np.float32
    assert common.relative_error(got, w.reference(arrays)) < CLOSE


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("w", SMALL, ids=lambda w: str(w.name))
def test_torch_means_the_reference(w: Workload) -> None:
    pytest.importorskip("torch")
    arrays = w.arrays()
    side = TorchPeer(1).side(w, arrays)
    side.call()
    got = side.results()[0]
    assert got.flags.c_contiguous
    assert common.relative_error(got, w.reference(arrays)) < CLOSE


def test_arithmetic_and_bytes() -> None:
    """Against numbers worked out by hand."""
    w = suite("peers")
    assert len(w) == 17
    assert w["matmul_1024"].flops == 2 * 1024**3
    assert w["matmul_1024"].nbytes == 4 * 3 * 1024**2
    assert w["gemm_bias_gelu"].flops == 2 * 128 * 768 * 3072
    assert w["conv_3x224_k7s2"].flops == 2 * 64 * 112 * 112 * 3 * 49
    assert w["depthwise_144x56_k3"].flops == 2 * 144 * 56 * 56 * 9
    assert w["attention_12x512x64"].flops == 4 * 12 * 512 * 512 * 64
    assert w["softmax_512x1024"].flops == 5 * 512 * 1024
    assert w["elementwise_16M"].flops == 12 * 4096**2
    assert w["transpose_4096"].flops == 0
    assert w["rowsum_4096"].nbytes == 4 * (4096**2 + 4096)
    assert w["rowsum_4096"].written_bytes == 4 * 4096
    gather = suite("selection")["gather_50000x128_4096"]
    assert gather.read_bytes == 8 * 4096 + 4 * 4096 * 128  # the rows that are read, not all there are
    assert suite("selection")["gather_1000x64_5000"].read_bytes == 8 * 5000 + 4 * 1000 * 64
    assert w["transpose_4096"].is_single
    assert not w["gemm_bias_gelu"].is_single
    assert 3.6e9 < 224**2 / 96**2 * suite("kernelbench")["l3_09_resnet18"].flops < 3.8e9


def test_inputs_are_seeded_and_signed() -> None:
    w = suite("kernelbench", CAP)["l1_08_matmul_irregular"]
    a, b = w.arrays()["a"], w.arrays()["a"]
    assert np.array_equal(a, b)
    assert a.min() < 0 < a.max()
    assert a.shape == (13, 13)
    with pytest.raises(ValueError, match="expected one of peers, selection, kernelbench; got 'x'"):
        suite("x")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ops", "nope"], "argument --ops: expected some of matmul_512"),
        (["--peers", "cublas"], "argument --peers: expected some of numpy"),
        (["--threads", "0"], r"expected thread counts joined by commas \(2,1\); got '0'"),
        (["--threads", "two"], "expected thread counts"),
        (["--time", "-1"], "expected a number of seconds of at least 0"),
        (["--time", "nan"], "expected a number of seconds of at least 0"),
        (["--rounds", "0"], "expected an integer of at least 1"),
        (["--suite", "x"], "invalid choice"),
        (["--ops", ","], "expected names joined by commas"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        bench_ops.main(arguments)
    assert stop.value.code == 2
    text = " ".join(capsys.readouterr().err.split())
    assert message.replace("\\", "") in text


def test_wrong_model_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["--models", "x"], "argument --models: expected some of classifier"),
        (["--peers", "numpy"], "argument --peers: expected some of onnxruntime"),
    ):
        with pytest.raises(SystemExit) as stop:
            models.main(arguments)
        assert stop.value.code == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_ops.main(["--list", "--ops", "matmul_512"]) == 0
    assert capsys.readouterr().out == "matmul_512  268.4 MFLOP  3.1 MB\n"


def test_absent_peers_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    found, absent = make_peers(["openvino"], 1)
    assert found == []
    assert "openvino is not installed" in absent["openvino"]


def test_a_peer_that_lacks_an_operator_says_so() -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(Lacking, match="onnxruntime"):
        OnnxRuntimePeer(1).model(b"no model", {})


def test_errors() -> None:
    one = np.ones((2, 3))
    assert common.relative_error(one, one) == 0
    assert common.relative_error(one.astype(np.float32) * 1.5, 2 * one) == 0.25
    assert common.relative_error(one[0], one) == math.inf
    assert common.relative_error(np.full((2, 3), np.nan), one) == math.inf
    assert common.norm_error([one], [one]) == 0
    assert common.norm_error([one * 2], [one]) == pytest.approx(1)
    assert common.norm_error([one, one], [one]) == math.inf
    assert common.norm_error([np.full((2, 3), np.nan)], [one]) == math.inf


def test_side_by_side_rotates_and_takes_medians() -> None:
    order: list[str] = []

    def side(name: str, s: float) -> common.Side:
        def call() -> None:
            if not order or order[-1] != name:
                order.append(name)
            time.sleep(s)

        return common.Side(name, call, list)

    found = common.side_by_side([side("slow", 0.01), side("fast", 0.001)], 2, pause=0)
    times = found.ms()
    assert order == ["slow", "fast", "slow"]  # the second round starts with the side that came second
    assert times["fast"] < times["slow"]
    assert times["slow"] >= 10
    assert found.ratio("slow", "fast").value > 2


def made_up(rounds: list[tuple[float, float, tuple[float, ...]]], asked: int) -> rounds_.Comparison:
    """A comparison of two sides that take these times, and of a reference kernel that takes these before, between and after."""
    turn = [-1, 0]

    def reference() -> float:
        if turn[1] % 3 == 0:
            turn[0] += 1
        turn[1] += 1
        return rounds[turn[0]][2][(turn[1] - 1) % 3]

    sides = [("ours", lambda: rounds[turn[0]][0]), ("peer", lambda: rounds[turn[0]][1])]
    found = rounds_.compare(sides, asked, reference)
    assert turn[0] + 1 == len(rounds)  # as many rounds as expected
    return found


STEADY = (1.0, 1.02, 1.01)


def test_a_row_is_the_median_of_ratios_not_a_ratio_of_medians() -> None:
    """The machine is 1.4 times slower in some rounds, and one side happens to meet more of these: in each round the peer takes 1.1
    times as long. The ratio of the medians would be 1.54."""
    speeds = [1.0, 1.0, 1.0, 1.0, 1.4, 1.4, 1.4]
    found = made_up([(s, 1.1 * s, tuple(s * x for x in STEADY)) for s in speeds], 7)
    assert found.ratio("peer", "ours").value == pytest.approx(1.1)
    uneven = [(1.0, 1.1), (1.0, 1.1), (1.0, 1.54), (1.4, 1.54), (1.0, 1.54), (1.4, 1.54), (1.0, 1.1)]
    found = made_up([(a, b, STEADY) for a, b in uneven], 7)
    assert found.ms()["peer"] / found.ms()["ours"] == pytest.approx(1.54)
    ratio = found.ratio("peer", "ours")
    assert ratio.value == pytest.approx(1.1)
    assert [ratio.low, ratio.high] == pytest.approx([1.1, 1.54])
    assert ratio.decided
    row = found.against("ours", ["peer"])
    assert (row["best_peer"], row["ratio"], row["decided"]) == ("peer", pytest.approx(1.1), True)
    assert found.against("ours", []) == {
        "best_peer": None, "ratio": None, "ratio_low": None, "ratio_high": None, "decided": False, "rounds": 7, "moved": 0
    }  # fmt: skip


def test_what_rounds_do_not_show_is_undecided() -> None:
    """One of 0.96 and one of 1.38 say nothing; nor do few rounds, however alike."""
    mixed = made_up([(1.0, x, STEADY) for x in (0.96, 1.38, 1.0, 1.1, 1.2, 1.05, 1.3)], 7).ratio("peer", "ours")
    assert (mixed.low, mixed.high) == (0.96, 1.38)
    assert not mixed.decided
    assert not made_up([(1.0, 1.5, STEADY)] * 5, 5).ratio("peer", "ours").decided
    assert made_up([(1.0, 1.5, STEADY)] * 6, 6).ratio("peer", "ours").decided
    assert made_up([(1.0, 0.5, STEADY)] * 6, 6).ratio("peer", "ours").decided


def test_rounds_in_which_the_reference_moved_are_repeated() -> None:
    """Up to as many as were asked for; then those count in which it moved least, and the row says how many."""
    moved = (1.0, 1.4, 1.4)
    found = made_up([(1.0, 1.4, moved), (1.0, 1.0, STEADY), (1.4, 1.0, moved), (1.0, 1.0, STEADY)], 2)
    assert (found.rounds, found.moved) == (({"ours": 1.0, "peer": 1.0},) * 2, 0)
    found = made_up([(1.0, 2.0, (1.0, 1.0, 1.0 + k / 4)) for k in (3, 1, 2, 4)], 2)
    assert found.moved == 2
    assert len(found.rounds) == 2
    found = made_up(
        [(1.0, 4.0, (1.0, 1.9, 1.0)), (1.0, 3.0, (1.0, 1.5, 1.0)), (1.0, 2.0, STEADY), (1.0, 5.0, moved)], 2
    )
    assert [r["peer"] for r in found.rounds] == [2.0, 5.0]
    assert found.moved == 1
    assert common.reference_kernel(1)() > 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="affinity is Linux's")
def test_threads_are_parted_while_warming_up_only() -> None:
    everywhere = os.sched_getaffinity(0)
    if len(everywhere) == 1:
        pytest.skip("there is one core")
    seen: list[set[int]] = []
    with threads_at_rest(2) as (free, bound):
        os.sched_setaffinity(bound, {max(everywhere)})

        def call() -> None:
            seen[:] = [os.sched_getaffinity(t) for t in (threading.get_native_id(), free, bound)]

        with clock.parted_threads():
            call()
        here, there, kept = seen
        assert len(here) == len(there) == 1
        assert here != there
        assert kept == {max(everywhere)}
        call()
        assert seen == [everywhere, everywhere, {max(everywhere)}]
        clock.call_ms(call, 0.0, 1)
        assert seen[0] == everywhere


@contextlib.contextmanager
def threads_at_rest(count: int) -> Iterator[list[int]]:
    """Ids of threads that wait."""
    end = threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield [t.native_id for t in threads if t.native_id is not None]
    finally:
        end.set()
        for thread in threads:
            thread.join()


def test_levels_of_memory() -> None:
    target = tilewright.Target.host(2)
    assert roofline.level_of(1000, target) == "l1"
    assert roofline.level_of(1 << 40, target) == "dram"
    if target.l2_bytes > 2 * target.l1d_bytes:
        assert roofline.level_of(3 * target.l1d_bytes // 1, target) == "l2"


def ceilings(one: float, two: float, seconds: float = 0) -> Ceilings:
    """Made up, for one and two threads."""
    streams = [
        Bandwidth(level, kind, n, 1, gb * n)
        for level, kind, gb in (
            ("l3", "read", 100.0),
            ("l3", "copy", 50.0),
            ("dram", "read", 10.0),
            ("dram", "copy", 6.0),
            ("dram", "nt_copy", 20.0),
        )
        for n in (1, 2)
    ]
    return Ceilings({"float32": {1: one, 2: two}}, tuple(streams), seconds)


def test_ceilings_are_the_best_of_passes_and_repeat_while_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter([(100.0, 20.0), (90.0, 30.0), (80.0, 190.0), (1.0, 1.0)])
    monkeypatch.setattr(roofline, "measure_ceilings", lambda target, seconds: ceilings(*next(rates)))
    found = roofline.Roofline([1, 2])
    assert found.gflops(1) == 100
    assert found.gflops(2) == 190
    assert found.gb_per_s("dram", "copy", 1) == 20  # past the caches is the better way
    assert found.as_json()["2"]["fma_gflops"] == 190
    assert found.as_json()["2"]["gb_per_s"]["dram copy"] == 40
    assert next(rates) == (1.0, 1.0)  # three passes were enough


def test_floors(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: 100 GFLOP/s; the last cache holds 32 MB, reads at 100 GB/s and copies at 50; memory reads at 10, copies at 20."""
    host = dataclasses.replace(tilewright.Target.host(1), l1d_bytes=1, l2_bytes=1, l3_bytes=32 * 10**6)
    monkeypatch.setattr(tilewright.Target, "host", lambda threads: host)
    monkeypatch.setattr(roofline, "measure_ceilings", lambda target, seconds: ceilings(100.0, 200.0))
    floor_ms = roofline.Roofline([1]).floor_ms
    assert floor_ms(10**9, 10**3, 10**3, 1) == pytest.approx(10)  # arithmetic
    assert floor_ms(0, 10**7, 0, 1) == pytest.approx(0.1)  # a cache, read only
    assert floor_ms(0, 10**7, 10**7, 1) == pytest.approx(2 * 10 / 50)  # a cache, copied
    assert floor_ms(0, 132 * 10**6, 0, 1) == pytest.approx(0.32 + 10)  # what the cache keeps, and memory
    assert floor_ms(0, 132 * 10**6, 50 * 10**6, 1) == pytest.approx(0.32 + 100 / 20 + 50 / 10)
    assert floor_ms(0, 32 * 10**6, 50 * 10**6, 1) == pytest.approx(0.32 + 50 / 20)  # writing counts as copying


def test_geometric_mean() -> None:
    assert common.geometric_mean([2.0, 8.0]) == pytest.approx(4)
    assert common.geometric_mean([]) is None


def test_markdown() -> None:
    text = common.markdown("t", ["a", "b"], [["1", "2"]])
    assert text == "### t\n\n| a | b |\n|---|---:|\n| 1 | 2 |\n"


def test_ops_without_tuning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole program on two small operators, with NumPy as the peer."""
    monkeypatch.setattr(bench_ops, "suite", lambda name: suite(name, 24))
    monkeypatch.setattr(common, "share_openmp", lambda: None)  # an OpenMP runtime is loaded already

    class Flat:
        """Ceilings that take no time."""

        def __init__(self, counts: object) -> None: ...

        def floor_ms(self, flops: int, read: int, written: int, threads: int) -> float:
            return (read + written) / 1e9

        def as_json(self) -> dict[str, Any]:
            return {}

    monkeypatch.setattr(common, "Roofline", Flat)
    path = tmp_path / "rows.json"
    arguments = ["--ops", "matmul_512,softmax_512x1024", "--threads", "1", "--peers", "numpy", "--rounds", "2"]
    arguments += ["--no-tune", "--markdown", "--json", str(path), "--store", str(tmp_path / "s.sqlite")]
    assert bench_ops.main(arguments) == 0
    out = capsys.readouterr().out
    assert "| matmul_512 |" in out
    assert "| geometric mean |" in out
    report = json.loads(path.read_text())
    first = report["rows"][0]
    wanted = {"op", "threads", "ours_ms", "peers", "best_peer", "ratio", "floor_ms", "floor_share", "error"}
    assert wanted | {"tuning_s", "trials", "default_ms"} <= set(first)
    assert first["best_peer"] == "numpy"
    assert 0 < first["ratio_low"] <= first["ratio"] <= first["ratio_high"]
    assert (first["rounds"], first["decided"]) == (2, False)
    assert first["moved"] in (0, 1, 2)
    assert first["error"] < common.TOLERANCE
    assert report["geometric_mean"]["1"] > 0


def test_known_counts_every_run_once(tmp_path: Path) -> None:
    w = suite("peers", CAP)["softmax_512x1024"]
    graph = w.graph(w.arrays())
    target = tilewright.Target.host(1)
    with common.open_store(tmp_path / "deep" / "s.sqlite") as store:
        assert common.known(graph, target, store) == common.Tuned(0.0, 0)


def test_image_like() -> None:
    image = model_suite.image_like((1, 3, 100, 120))
    assert set(np.unique(image)) == {-1.0, 1.0}
    assert np.array_equal(image[0, 0], image[0, 2])
    assert 0.02 < (image < 0).mean() < 0.5


def test_search_by_replay(tmp_path: Path) -> None:
    """A made-up table: its best is known, every strategy reaches it once the space is used up, and regret only falls."""
    target = tilewright.Target.host(1)
    (task,) = extract(search.matmul_graph(32), target)
    small = measured_space.thinned(space(task.workload, target), 24)
    candidates = measured_space.points(small)
    assert 8 < len(candidates) <= 25  # the default comes on top
    texts = sorted({str(c.schedule) for c in candidates})
    made = {s: Outcome("ok", 100.0 + 7 * k) for k, s in enumerate(texts)}
    table = measured_space.Table(small, made)
    assert table.best_ns == 100
    for name in search.COMPARED:
        # optuna draws with replacement: the last points of a space take it long
        after = (2, 8) if name == "optuna" else (2, 8, len(candidates))
        runs = search.searches(table, name, 2, after[-1])
        found = search.regrets(table, runs, after)
        assert found == sorted(found, reverse=True)
        assert name == "optuna" or found[-1] == 0
        counts, seconds = search.until_near(table, runs)
        assert len(counts) == len(seconds) == 2
        assert name == "optuna" or 1 <= counts[0] <= counts[1] <= len(candidates)
    path = tmp_path / "table.json"
    table.save(path)
    assert measured_space.load(path, small).outcomes == made
    other = measured_space.thinned(space(task.workload, target), 60)
    with pytest.raises(measured_space.TableError, match="points are missing"):
        measured_space.load(path, other)
    path.write_text("{}")
    with pytest.raises(measured_space.TableError, match="expected a table written by this program"):
        measured_space.load(path, small)
    with pytest.raises(ValueError, match="limit: expected at least"):
        measured_space.thinned(space(task.workload, target), 1)
