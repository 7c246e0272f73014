"""Texts inside records and target files: what is wrong in them is refused with one typed error."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import damaged
import tilewright
from stored import HOST, HOT, make
from tilewright.graph import ops
from tilewright.graph.dtypes import GraphError
from tilewright.graph.read_workload import from_json, parse
from tilewright.schedules.apply import apply
from tilewright.schedules.steps import ScheduleError
from tilewright.schedules.steps import parse as parse_schedule
from tilewright.schedules.target import Target, TargetError
from tilewright.tasks import extract
from tilewright.tuning_logs import Miss, Record, RecordError, Store
from tilewright.tuning_logs.tables import CONTEXTS


def product() -> Any:
    """The JSON of a workload with a reduction and constants."""
    return json.loads(next(w for w in damaged.workloads() if "reduce" in w.text and "select" not in w.text).text)


def stage(data: Any) -> Any:
    """Its first stage with a reduction."""
    return next(n for n in data["nodes"] if "reduce" in n)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda d: d.update(format=10**18), "workload format: expected"),
        (lambda d: d.update(format=True), "workload format: expected"),
        (lambda d: d["inputs"][0].__setitem__(1, [10**18]), "and 70368744177664 elements"),
        (lambda d: d["inputs"][0].__setitem__(1, [2.0]), "sizes of at least 1"),
        (lambda d: d["inputs"][0].__setitem__(1, [1] * 65), "at most 64 sizes"),
        (lambda d: d["inputs"][0].__setitem__(2, "float16"), "data type: expected one of"),
        (lambda d: d["inputs"][0].__setitem__(3, "maybe"), "input or constant"),
        (lambda d: d["inputs"].append(d["inputs"][0]), "one definition of each tensor"),
        (lambda d: d["nodes"].append(d["nodes"][0]), "one definition of each tensor"),
        (lambda d: d["nodes"].clear(), "a tensor that a node defines"),
        (lambda d: d.update(output="x0"), "a tensor that a node defines"),
        (lambda d: stage(d).update(reducer="mean"), "expected a reducer"),
        (lambda d: stage(d).update(reduce=[0]), "sizes of at least 1"),
        (lambda d: stage(d).update(axes=[10**9] * 3), "elements"),
        (lambda d: stage(d).update(body=[]), "a body"),
        (lambda d: stage(d)["body"].append(["add", "float32", [0, 10**6]]), "numbers of earlier rows"),
        (lambda d: stage(d)["body"].append(["add", "float32", [-1, -1]]), "numbers of earlier rows"),
        (lambda d: stage(d)["body"].append(["explode", "float32", [0]]), "explode"),
        (lambda d: stage(d)["body"].append(["add", "float64", [0, 0]]), "a data type that add gives"),
        (lambda d: stage(d)["body"].append(["const", "int8", 300]), "a constant of int8"),
        (lambda d: stage(d)["body"].append(["const", "float32", "1"]), "a constant of float32"),
        (lambda d: stage(d)["body"].append(["load", "float32", "q", []]), "defined before"),
        (lambda d: stage(d)["body"].append(["load", "float32", "x0", []]), "a load of float32 with"),
        (lambda d: stage(d)["body"].append(None), "expected a list of 3"),
    ],
)
def test_workloads(change: Callable[[Any], object], text: str) -> None:
    """Each is named; the whole one is read as it was written."""
    data = product()
    assert from_json(data).text == json.dumps(data, separators=(",", ":"))
    change(data)
    with pytest.raises(GraphError, match=text):
        from_json(data)


def test_workloads_that_are_no_json() -> None:
    """Deep nesting, NaN and double keys are refused; a long chain of operations is read, or refused, but ends."""
    for text in ("[" * 10**5, '{"format": NaN}', '{"format": 1, "format": 1}', "", "7"):
        with pytest.raises(GraphError, match="workload"):
            parse(text)
    data = product()
    body = stage(data)["body"]
    for _ in range(60):  # 2**60 paths, 60 nodes
        body.append(["add", "float32", [len(body) - 1, len(body) - 1]])
    assert from_json(data).flops > 0


@pytest.mark.parametrize("number", ["9" * 19, "9" * 5000, "٣", "1_0", "-1", "1.5", "²"])
def test_schedules(number: str) -> None:
    """Numbers that do not fit 64 bits, or that are written in another way than ours."""
    with pytest.raises(
        ScheduleError, match=r"schedule line 1: expected a (whole number|number of at most 18 digits); got"
    ):
        parse_schedule(f"split t0 i0 {number}")
    assert str(parse_schedule("split t0 i0 " + "9" * 18)) == "split t0 i0 " + "9" * 18


def test_schedules_that_ask_for_memory_without_bound() -> None:
    """A packed tile of 10**10 steps of an axis of 32 would be a buffer of terabytes; one of 4 steps is fine."""
    g = tilewright.Graph()
    g.output(ops.matmul(g.input("a", (32, 32)), g.input("b", (32, 32))))
    (task,) = extract(g, Target.host(threads=1))
    text = """split t0 i1 16
        order t0 i0.0 i1.0 i1.1
        vectorize t0 i1.1
        split t0_acc r0 {}
        order t0_acc r0.0 r0.1 i1.1
        pack t0_acc 1 root i1.0 r0.0 r0.1 i1.1"""
    assert apply(task.workload, parse_schedule(text.format(4))).shared[0].size == 32 * 32
    with pytest.raises(
        ScheduleError, match=r"expected a buffer of at most 1073741824 bytes; got .*choose smaller tiles"
    ):
        apply(task.workload, parse_schedule(text.format(9999999999)))


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("threads = 1000000", "threads of target 'x': expected an integer of at most 1024"),
        ("vector_bits = 1000000000000000000", "vector_bits of target 'x': expected an integer of at most 65536"),
        ("l1d_bytes = 1000000000000000000", "l1d_bytes of target 'x': expected an integer of at most"),
        ("l1d_bytes = nan", "expected an integer"),
        ("cores = true", "expected an integer"),
        ("features = 7\nvector_bits = 64\nvector_registers = 16", "a tuple of strings"),
        ("features = [['+a']]", "a tuple of strings"),
        ("model = [", "expected TOML"),
        ("model = " + "[" * 5000, "expected TOML"),
        ("model = 'a'\nmodel = 'b'", "expected TOML"),
        ("cores = " + "9" * 5000, "expected TOML"),
        ("model = '\udcff'", "expected TOML"),
    ],
)
def test_targets(line: str, text: str) -> None:
    """A target file says which field is wrong."""
    name = line.split(" = ")[0]
    lines = [k for k in damaged.target_text().splitlines() if not k.startswith(f"{name} = ")]
    if name == "features":
        lines = [k for k in lines if not k.startswith(("    ", "]"))]
    content = "\n".join([*lines, line]).encode("utf-8", "surrogateescape")
    with pytest.raises(TargetError, match=text):
        Target.from_toml("x", content)
    assert Target.from_toml("zen3", damaged.target_text().encode()) == Target.load("zen3")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ('"trial":0,"trial":1', "each key once, got 'trial' twice"),
        ('"trial":1e999', "'trial': expected an integer"),
        ('"trial":' + "9" * 5000, "expected JSON text"),
        ('"trial":[' + "[" * 70 + "]" * 70 + "]", "nested deeper than 64 levels"),
        ('"trial":0,"later":[' + "[" * 5000 + "]" * 5000 + "]", "nested deeper|recursion"),
    ],
)
def test_lines_of_records(change: str, text: str) -> None:
    """A line that two readers would read differently is none."""
    line = make().to_json_line()
    assert '"trial":0' in line
    with pytest.raises(RecordError, match=text):
        Record.from_json_line(line.replace('"trial":0', change))


def test_a_workload_that_no_database_can_hold() -> None:
    """Half a character is legal in JSON and in no other place."""
    with pytest.raises(RecordError, match="'workload': expected text that UTF-8 can hold"):
        make(workload='{"op":"\ud800"}')


@pytest.mark.parametrize("value", [b"\xff", "[" * 5000, "", 7, "[]", "{}"])
def test_a_damaged_context_costs_its_own_records_only(value: object, tmp_path: Path) -> None:
    """Everything else in the store is found, listed and explained."""
    path = tmp_path / "x.sqlite"
    with Store(path) as store:
        store.add(make())
        store.add(make(workload_hash="w2", median_ns=50.0))
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(f"UPDATE {CONTEXTS.name} SET target = ? WHERE workload_hash = 'w1'", (value,))
    connection.close()
    with Store(path) as store:
        assert [r.workload_hash for r in store.records()] == ["w2"]
        assert list(store.unreadable) == [1]
        assert [row.key.workload_hash for row in store.summary()] == ["w2"]
        assert isinstance(store.best("w1", HOST, HOT), Miss)
        assert isinstance(store.best("w3", HOST, HOT, "f1", "{}"), Miss)
