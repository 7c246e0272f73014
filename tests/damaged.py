"""Damaged files, made by Hypothesis, and what reading them must end in: a typed error or a right result.

    python damaged.py PROPERTY

runs one of PROPERTIES under limits of memory and time (a reader that takes memory without bound or does not end is stopped by them),
in a process of its own, which may crash. ``test_damaged_files.py`` runs them all.
"""

from __future__ import annotations

import functools
import io
import json
import math
import resource
import signal
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import tilewright
from made_up_data import SCHEMA, TARGET, space
from stored import HOST, HOT, make
from tilewright.compiled import Array, ModelError
from tilewright.cost_model import HistGradientRanker, ModelFileError, PriorOnly, XGBoostRanker, load_model, save_model
from tilewright.graph import ops, sealed
from tilewright.graph.dtypes import GraphError
from tilewright.graph.read_workload import parse as parse_workload
from tilewright.graph.workload import Workload
from tilewright.runtime import load
from tilewright.schedules import objects
from tilewright.schedules.apply import apply
from tilewright.schedules.kernel import build
from tilewright.schedules.steps import Schedule, ScheduleError
from tilewright.schedules.steps import parse as parse_schedule
from tilewright.schedules.target import Target, TargetError
from tilewright.tasks import default_for, extract
from tilewright.tuning_logs import Hit, Miss, Record, RecordError, Store, StoreError, import_jsonl

MEMORY, SECONDS = 6 << 30, 100
"""Limits of a process that runs one property: address space (what the libraries map counts) and time."""
EACH_S = 10
"""No single file may take longer."""


def damaged_files(count: int) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Settings of all properties: the same examples in every run, no shrinking (a failure is looked at by hand)."""
    return settings(
        max_examples=count,
        deadline=EACH_S * 1000,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


# ---------------------------------------------------------------- damage

ONE: list[Any] = [1]
DEEP: Any = functools.reduce(lambda inner, _: [inner], range(500), ONE)
ODD: st.SearchStrategy[Any] = st.sampled_from(
    [
        None, True, False, 0, 1, -1, 3, 2**31, 2**63, 2**64, 10**18, -(10**18), 10**400, 0.5, -0.0, 1e308, math.inf, math.nan, "",
        "x", "x0", "t0", "float32", "int64", "bool", "object", "0", "ok", "input", "arena", "\ud800", "\0", "é" * 300, [], {}, [[]],
        {"": None}, [1, 2, 3], [0] * 3000, ["a"] * 40, DEEP, {"shape": [10**18]},
    ]
)  # fmt: skip


@st.composite
def changed(draw: st.DrawFn, value: Any) -> Any:
    """JSON data with something in it replaced, removed, repeated or exchanged."""
    if isinstance(value, dict | list) and value and draw(st.integers(0, 9)):
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = draw(st.sampled_from(keys))
        copy = value.copy()
        what = draw(st.integers(0, 11))
        if what == 0:
            del copy[key]
        elif what == 1:
            other = draw(st.sampled_from(keys))
            copy[key], copy[other] = copy[other], copy[key]
        elif what == 2 and isinstance(copy, list):
            copy.insert(key, copy[draw(st.sampled_from(keys))])
        elif what == 2:
            copy[draw(st.sampled_from(["more", "", "format", "0"]))] = copy[key]
        else:
            copy[key] = draw(changed(value[key]))
        return copy
    if type(value) is int and draw(st.booleans()):
        return value + draw(st.sampled_from([-1, 1, 4, 64, -64, 10**6]))
    if isinstance(value, str) and value and draw(st.booleans()):
        return draw(spoilt_text(value))
    return draw(ODD)


@st.composite
def spoilt_text(draw: st.DrawFn, text: str) -> str:
    """Text with a piece cut out, repeated, or replaced."""
    start = draw(st.integers(0, len(text)))
    end = min(len(text), start + draw(st.integers(0, 12)))
    piece = draw(
        st.sampled_from(
            ["", text[start:end] * 2, "0", "9" * 19, "9" * 5000, "-1", "NaN", "1e999", "[" * 3000, "٣", "\n"]
        )
    )
    return text[:start] + piece + text[end:]


@st.composite
def json_text(draw: st.DrawFn, value: Any) -> str:
    """The text of changed data, or the changed text of data."""
    if draw(st.integers(0, 4)):
        return json.dumps(draw(changed(value)))
    text = json.dumps(value)
    if isinstance(value, dict) and value and draw(st.booleans()):
        name = draw(st.sampled_from(list(value)))  # a key that is there twice
        return f"{text[:-1]}, {json.dumps(name)}: {json.dumps(draw(ODD))}}}"
    return draw(spoilt_text(text))


@st.composite
def flipped(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes changed, cut off, cut out or added."""
    out = bytearray(data)
    what = draw(st.integers(0, 5))
    at = draw(st.integers(0, max(0, len(out) - 1)))
    if what == 0:
        del out[at:]
    elif what == 1:
        del out[at : at + draw(st.integers(1, 200))]
    elif what == 2:
        out[at:at] = draw(st.binary(min_size=1, max_size=100))
    else:
        for _ in range(draw(st.integers(1, 20))):
            if out:
                out[draw(st.integers(0, len(out) - 1))] ^= draw(st.integers(1, 255))
    return bytes(out)


def unpacked(content: bytes) -> dict[str, bytes]:
    """The parts of a zip."""
    with zipfile.ZipFile(io.BytesIO(content)) as z:
        return {name: z.read(name) for name in z.namelist()}


def packed(parts: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """A sealed zip: whoever wrote it meant what is in it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as z:
        z.comment = sealed.UNSEALED
        for name, content in parts.items():
            z.writestr(name, content)
    sealed.seal(file)
    return file.getvalue()


@st.composite
def rebuilt(draw: st.DrawFn, parts: dict[str, bytes], described: str, others: dict[str, list[bytes]]) -> bytes:
    """A sealed file with one part changed: the JSON of ``described``, or a part taken from elsewhere."""
    out = dict(parts)
    if draw(st.integers(0, 3)):
        out[described] = draw(json_text(json.loads(out[described]))).encode("utf-8", "surrogatepass")
    else:
        name = draw(st.sampled_from(list(others)))
        out[name] = draw(st.sampled_from([b"", b"\0" * 64, b"{}", *others[name]]))
    if not draw(st.integers(0, 9)):
        del out[draw(st.sampled_from(list(out)))]
    if not draw(st.integers(0, 9)):
        out["more"] = b"\0" * 10
    return packed(out, draw(st.sampled_from([zipfile.ZIP_STORED] * 5 + [zipfile.ZIP_DEFLATED])))


# ---------------------------------------------------------------- compiled models


def model(width: int, threads: int = 1) -> tilewright.Executable:
    """Two kernels, two constants, an arena, an output that is also read."""
    rng = np.random.default_rng(0)
    g = tilewright.Graph()
    x = g.input("x", (4, width))
    w = g.constant(rng.standard_normal((width, 24), dtype=np.float32))
    y = ops.softmax(ops.matmul(x, w), -1)
    g.output(ops.matmul(y, g.constant(rng.standard_normal((24, 8), dtype=np.float32))), "z")
    g.output(y, "y")
    return tilewright.compile(g, Target.host(threads=threads))


def file_of(written: Callable[[Path], object]) -> bytes:
    """The bytes that ``written`` puts into a file."""
    with tempfile.TemporaryDirectory() as folder:
        written(Path(folder) / "file")
        return (Path(folder) / "file").read_bytes()


@functools.cache
def whole_model() -> tuple[bytes, Array, list[bytes]]:
    """A model file, an input and the right outputs."""
    compiled = model(16)
    x = np.random.default_rng(1).standard_normal((4, 16), dtype=np.float32)
    return file_of(compiled.save), x, [y.tobytes() for y in compiled(x)]


@functools.cache
def other_parts() -> dict[str, list[bytes]]:
    """Parts of other models, of other processors, and pieces of our own."""
    whole = unpacked(whole_model()[0])
    others = [unpacked(file_of(m.save)) for m in (model(17), model(16, threads=2))]
    code = [o["code.o"] for o in others] + [whole["code.o"][:n] for n in (10, 64, 500, -1)] + [b"\x7fELF" + bytes(300)]
    return {"code.o": code, "constants.bin": [o["constants.bin"] for o in others] + [whole["constants.bin"][:-64]]}


def check_model(content: bytes) -> None:
    """A damaged model file."""
    _, x, right = whole_model()
    path = Path(tempfile.gettempdir()) / "damaged.tw"
    path.write_bytes(content)
    try:
        found = load(path)
        got = [y.tobytes() for y in found(x)]
    except ModelError:
        return
    assert got == right


@damaged_files(500)
@given(st.deferred(lambda: flipped(whole_model()[0])))
def model_files_with_other_bytes(content: bytes) -> None:
    """Every byte counts: only the file as it was written loads."""
    check_model(content)


@damaged_files(600)
@given(st.deferred(lambda: rebuilt(unpacked(whole_model()[0]), "model.json", other_parts())))
def model_files_with_other_parts(content: bytes) -> None:
    """Sealed, so what is in them is looked at."""
    check_model(content)


@damaged_files(300)
@given(st.deferred(lambda: flipped(unpacked(whole_model()[0])["code.o"])))
def object_files(content: bytes) -> None:
    """The reader of symbols stays inside the file."""
    try:
        found = objects.symbols(content, Target.host().arch)
    except objects.ObjectError:
        return
    assert not found.defined & found.needed or len(content) > 0


# ---------------------------------------------------------------- model files of the cost model


@functools.cache
def whole_rankers() -> dict[str, bytes]:
    """A file of each kind of ranker."""
    data = space(0, 2, 30)
    rankers = (XGBoostRanker().fit(data), HistGradientRanker().fit(data.take(np.arange(6))), PriorOnly())
    return {r.kind: file_of(lambda path, r=r: save_model(r, path, SCHEMA, TARGET)) for r in rankers}  # type: ignore[misc]


def check_ranker(content: bytes) -> None:
    """A damaged file of a ranker: refused, or it answers with numbers."""
    path = Path(tempfile.gettempdir()) / "damaged.zip"
    path.write_bytes(content)
    try:
        ranker = load_model(path, SCHEMA, TARGET)
    except ModelFileError:
        return
    data = space(3, 1, 5)
    assert np.isfinite(ranker.predict_ns(data.x, data.prior_ns)).all()


@damaged_files(250)
@given(st.deferred(lambda: st.sampled_from(sorted(whole_rankers())).flatmap(lambda k: flipped(whole_rankers()[k]))))
def ranker_files_with_other_bytes(content: bytes) -> None:
    """Refused by the seal."""
    check_ranker(content)


@st.composite
def _ranker(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from(sorted(whole_rankers())))
    parts = unpacked(whole_rankers()[kind])
    spare = [c for k in sorted(whole_rankers()) for n, c in unpacked(whole_rankers()[k]).items() if n != "meta.json"]
    return draw(rebuilt(parts, "meta.json", {n: spare for n in parts if n != "meta.json"} or {"x": spare}))


@damaged_files(300)
@given(_ranker())
def ranker_files_with_other_parts(content: bytes) -> None:
    """Sealed, so what is in them is looked at, by XGBoost too."""
    check_ranker(content)


# ---------------------------------------------------------------- records


@damaged_files(400)
@given(
    st.deferred(
        lambda: json_text(make(compared={"c": {"ratio": 1.0, "low": 0.9, "high": 1.1, "margin": 0.1}}).to_dict())
    )
)
def lines_of_records(text: str) -> None:
    """A line is a record that is written back as it is, or none; and a store takes what is one."""
    try:
        record = Record.from_json_line(text)
    except RecordError:
        return
    assert Record.from_json_line(record.to_json_line()) == record
    with Store(":memory:") as store:
        store.add(record)
        assert list(store.records()) == [record]


@functools.cache
def export() -> bytes:
    """Three lines."""
    return "".join(make(trial=k).to_json_line() + "\n" for k in range(3)).encode()


@damaged_files(150)
@given(st.deferred(lambda: flipped(export())))
def exported_files(content: bytes) -> None:
    """Bad lines are set aside and counted."""
    with tempfile.TemporaryDirectory() as folder, Store(":memory:") as store:
        path = Path(folder) / "x.jsonl"
        path.write_bytes(content)
        report = import_jsonl(store, path)
        assert report.added == store.count()


@functools.cache
def whole_store() -> bytes:
    """A store of five records under two keys."""

    def write(path: Path) -> None:
        with Store(path) as store:
            store.add_many([make(trial=k, params={"tile": k}, median_ns=100.0 + k) for k in range(4)])
            store.add(make(workload_hash="w2"))

    return file_of(write)


@damaged_files(200)
@given(st.deferred(lambda: flipped(whole_store())), st.booleans())
def store_files(content: bytes, read_only: bool) -> None:
    """Whatever is asked of a damaged store ends in StoreError or an answer of valid records; opening to read changes nothing."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.sqlite"
        path.write_bytes(content)
        try:
            with Store(path, read_only=read_only) as store:
                assert all(isinstance(r, Record) for r in store.records())
                assert isinstance(store.best("w1", HOST, HOT, "f1", '{"op":"matmul"}'), Hit | Miss)
                store.summary()
                store.measured("w1", HOST, HOT)
                if not read_only:
                    store.add(make(run_id="later"))
        except StoreError:
            return
        finally:
            assert not read_only or path.read_bytes() == content


@damaged_files(200)
@given(
    st.sampled_from(["body", "status", "median_ns", "candidate", "run_id", "context_id", "is_default"]),
    st.sampled_from(["target", "policy", "workload", "family", "target_hash", "workload_hash"]),
    st.booleans(),
    st.sampled_from(
        [None, 1, 1.5, -1, 2**60, "", "x", "[]", "{}", "[" * 5000, b"\xff\xfe", b"", '{"schema":1}', "null"]
    ),
)
def store_columns(column: str, shared: str, in_records: bool, value: object) -> None:
    """Cells of another type than the table was made for (SQLite takes any) cost their rows only, or end in StoreError."""
    import sqlite3

    from tilewright.tuning_logs.tables import CONTEXTS, RECORDS

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.sqlite"
        path.write_bytes(whole_store())
        table, name = (RECORDS.name, column) if in_records else (CONTEXTS.name, shared)
        with sqlite3.connect(path) as connection:
            try:
                connection.execute(f"UPDATE {table} SET {name} = ? WHERE id = 1", (value,))
            except sqlite3.IntegrityError:
                return
        connection.close()
        try:
            with Store(path) as store:
                assert all(isinstance(r, Record) for r in store.records())
                assert isinstance(store.best("w1", HOST, HOT, "f1", '{"op":"matmul"}'), Hit | Miss)
                store.summary()
        except StoreError:
            return


# ---------------------------------------------------------------- texts inside records


@functools.cache
def workloads() -> list[Workload]:
    """A product with an epilogue, a convolution, a softmax, a gather."""
    g = tilewright.Graph()
    x = g.input("x", (1, 4, 12, 12))
    w = g.constant(np.ones((8, 4, 3, 3), np.float32))
    y = ops.relu(ops.conv(x, w, pads=(1, 1, 1, 1)))
    flat = g.view(y, (8, 144))
    g.output(ops.softmax(ops.matmul(flat, g.constant(np.ones((144, 40), np.float32))), -1))
    g.output(ops.gather(flat, g.input("i", (5,), "int64"), 0))
    return [t.workload for t in extract(g, Target.host(threads=1))]


@damaged_files(500)
@given(st.deferred(lambda: st.sampled_from(workloads()).flatmap(lambda w: json_text(json.loads(w.text)))))
def texts_of_workloads(text: str) -> None:
    """A workload that is written back as it is and can be described, or GraphError."""
    try:
        found = parse_workload(text)
    except GraphError:
        return
    assert parse_workload(found.text) == found
    assert found.describe()
    assert found.flops >= 0
    assert len(found.hash) == len(found.family) == 16


@functools.cache
def schedules() -> list[tuple[Workload, str]]:
    """The default schedules."""
    target = Target.host(threads=2)
    return [(w, str(default_for(w, target, "any").schedule)) for w in workloads()]


SIZES = ["0", "1", "2", "3", "5", "7", "12", "16", "64", "100", "1000", "1000000", "9" * 10, "9" * 18]


@st.composite
def _schedule(draw: st.DrawFn) -> tuple[Workload, str]:
    workload, text = draw(st.sampled_from(schedules()))
    if not draw(st.integers(0, 4)):
        return workload, draw(spoilt_text(text))
    lines = [line.split(" ") for line in text.splitlines()]
    for _ in range(draw(st.integers(1, 3))):
        words = draw(st.sampled_from(lines))
        numbers = [k for k, word in enumerate(words) if word.isdecimal()]
        what = draw(st.integers(0, 5))
        if what == 0:
            lines = [line for line in lines if line is not words] or lines
        elif what == 1:
            lines.append(list(words))
        elif what == 2:
            words[draw(st.integers(0, len(words) - 1))] = draw(st.sampled_from(draw(st.sampled_from(lines))))
        elif numbers:
            words[draw(st.sampled_from(numbers))] = draw(st.sampled_from(SIZES))
    text = "\n".join(" ".join(words) for words in lines)
    return workload, text


@damaged_files(400)
@given(_schedule())
def texts_of_schedules(case: tuple[Workload, str]) -> None:
    """A schedule that can be built for its workload, or ScheduleError."""
    workload, text = case
    try:
        schedule: Schedule = parse_schedule(text)
        assert parse_schedule(str(schedule)) == schedule
        apply(workload, schedule)
        built = build(workload, schedule, Target.host(threads=2))
    except ScheduleError:
        return
    assert max(*built.layout.nbytes, built.layout.thread_bytes) <= 4 << 30


@functools.cache
def target_text() -> str:
    """A target file as the package has them."""
    from importlib import resources

    return resources.files("tilewright.schedules.targets").joinpath("zen3.toml").read_text(encoding="utf-8")


@st.composite
def _target(draw: st.DrawFn) -> bytes:
    if draw(st.booleans()):
        return draw(flipped(target_text().encode()))
    lines = target_text().splitlines()
    at = draw(st.sampled_from([k for k, line in enumerate(lines) if " = " in line and not line.endswith("[")]))
    value = draw(
        st.sampled_from(
            [
                "1e400",
                "nan",
                "[[[]]]",
                "{a = 1}",
                "'x'",
                "-1",
                "0",
                "9" * 18,
                "9" * 5000,
                "true",
                '["+zvl99999999999b"]',
                "[" * 5000,
            ]
        )
    )
    lines[at] = f"{lines[at].split(' = ')[0]} = {value}"
    return "\n".join(lines).encode()


@damaged_files(300)
@given(_target())
def target_files(content: bytes) -> None:
    """A target that makes sense, or TargetError."""
    try:
        found = Target.from_toml("x", content)
    except TargetError:
        return
    assert Target.from_json(found.to_json()) == found
    assert found.lanes("float32") <= 2048


PROPERTIES: dict[str, Callable[[], None]] = {
    p.__name__: p
    for p in (
        model_files_with_other_bytes, model_files_with_other_parts, object_files, ranker_files_with_other_bytes,
        ranker_files_with_other_parts, lines_of_records, exported_files, store_files, store_columns, texts_of_workloads,
        texts_of_schedules, target_files,
    )
}  # fmt: skip


def main() -> None:
    """Run one property in this process under limits."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.alarm(SECONDS)
    if "ranker" in sys.argv[1]:
        whole_rankers()  # training draws random numbers, which would confuse those of Hypothesis
    PROPERTIES[sys.argv[1]]()


if __name__ == "__main__":
    main()
