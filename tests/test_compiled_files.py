"""Model files (``.tw``): nothing in them is believed. Whatever is wrong ends in ModelError, which says what to do."""

from __future__ import annotations

import dataclasses
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import damaged
import tilewright
from tilewright.compiled import ModelError, Slot
from tilewright.graph import ops, sealed, strict_json
from tilewright.model_file import read
from tilewright.runtime import Executable, load
from tilewright.schedules import jit, objects
from tilewright.schedules.target import Target

Parts = dict[str, bytes]


@pytest.fixture(scope="module")
def whole() -> Parts:
    """The parts of a model file."""
    return damaged.unpacked(damaged.whole_model()[0])


def refused(content: bytes, tmp_path: Path) -> str:
    """The text of the refusal of a file."""
    path = tmp_path / "m.tw"
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        load(path)
    assert "m.tw" in str(caught.value) or "machine code" in str(caught.value)
    return str(caught.value)


def test_every_byte_counts(tmp_path: Path) -> None:
    """A file with one other bit, wherever it is, is refused; so is one that is a byte shorter or longer."""
    content = damaged.whole_model()[0]
    for at in [*range(0, len(content), 37), *range(len(content) - 200, len(content))]:
        other = bytearray(content)
        other[at] ^= 1 << at % 8
        assert "m.tw: expected" in refused(bytes(other), tmp_path)
    refused(content[:-1], tmp_path)
    refused(content + b"\0", tmp_path)


def test_a_file_is_what_was_saved(tmp_path: Path) -> None:
    """Reading gives the same model; saving that again gives the same bytes of every part."""
    path = tmp_path / "m.tw"
    path.write_bytes(damaged.whole_model()[0])
    found = read(path)
    again = damaged.unpacked(damaged.file_of(Executable(found).save))
    assert again == damaged.unpacked(damaged.whole_model()[0])


def test_constants_of_every_type(tmp_path: Path) -> None:
    """Shapes, types and values come back, also of scalars and truth values, whatever their order in memory."""
    g = tilewright.Graph()
    x = g.input("x", (2, 3))
    y = ops.add(x, g.constant(np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))))
    y = ops.add(y, g.constant(np.array(0.5, np.float32)))
    y = ops.where(g.constant(np.array([[True, False, True]])), y, x)
    g.output(y, "y")
    g.output(ops.gather(x, g.constant(np.array([2, 0], np.int64)), 1), "g")
    model = tilewright.compile(g)
    model.save(tmp_path / "m")
    value = np.ones((2, 3), np.float32)
    for a, b in zip(model(value), load(tmp_path / "m")(value), strict=True):
        np.testing.assert_array_equal(a, b)


def described(change: Callable[[Any], object]) -> Callable[[Parts], None]:
    """A change of ``model.json``."""

    def apply(parts: Parts) -> None:
        data = json.loads(parts["model.json"])
        change(data)
        parts["model.json"] = json.dumps(data).encode()

    return apply


def part(name: str, content: bytes) -> Callable[[Parts], None]:
    return lambda parts: parts.update({name: content})


CHANGES: list[tuple[Callable[[Parts], object], str]] = [
    (part("code.o", b""), "expected a 64-bit little-endian ELF file; got 0 bytes"),
    (part("code.o", b"\x7fELF\x02\x01\x01" + bytes(200)), "expected relocatable code for"),
    (lambda p: part("code.o", p["code.o"][:-100])(p), "expected a table of sections inside the file"),
    (lambda p: part("code.o", damaged.other_parts()["code.o"][0])(p), "belongs to another description"),
    (part("constants.bin", b""), "constants.bin: expected .* bytes, as model.json says; got 0"),
    (part("model.json", b""), r"model\.json: expected JSON"),
    (part("model.json", b"[]"), "expected an object with"),
    (part("model.json", b"[" * 100_000), "nested deeper"),
    (part("model.json", b'{"format": 3, "format": 3}'), "each key once, got 'format' twice"),
    (part("model.json", b'{"format": NaN}'), "finite numbers only"),
    (part("more", b""), "expected the parts model.json, code.o, constants.bin; got .*more"),
    (lambda p: p.pop("code.o"), "expected the parts"),
    (described(lambda d: d.update(format=2)), "expected model format 3; got 2; compile it again"),
    (described(lambda d: d.update(format="3")), "expected model format 3; got '3'; compile it again"),
    (described(lambda d: d.pop("slots")), "expected an object with"),
    (described(lambda d: d.update(slots=[])), "slots: expected one or more for each of the 2 outputs"),
    (described(lambda d: d["slots"].pop()), "belongs to another description"),
    (described(lambda d: d["slots"].reverse()), "belongs to another description"),
    (described(lambda d: d["slots"].append(["arena", 10**12, 0])), "expected a place inside"),
    (described(lambda d: d["slots"].append(["arena", -1, 0])), "expected an integer from 0"),
    (described(lambda d: d["slots"].append(["input", 1, 0])), "expected a place inside"),
    (described(lambda d: d["slots"].append(["input", 0, 10**6])), "expected a place inside"),
    (described(lambda d: d["slots"].append(["constant", 9, 0])), "expected a place inside"),
    (described(lambda d: d["slots"].append(["nothing", 0, 0])), "expected a place inside"),
    (described(lambda d: d["slots"].append(["thread", 64, 0])), "expected a place inside"),
    (described(lambda d: d["slots"].append(["arena", 0.0, 0])), "expected an integer"),
    (described(lambda d: d["slots"].append(["arena", True, 0])), "expected an integer"),
    (described(lambda d: d["slots"].append(["arena", 0])), r"expected \[kind, ref, offset\]"),
    (described(lambda d: d["slots"].append(None)), r"expected \[kind, ref, offset\]"),
    (described(lambda d: d.update(arena_bytes=10**18)), "arena_bytes: expected an integer from 0"),
    (described(lambda d: d.update(arena_bytes=d["arena_bytes"] + 64)), "belongs to another description"),
    (described(lambda d: d.update(packed_bytes="64")), "packed_bytes: expected an integer"),
    (described(lambda d: d.update(thread_bytes=None)), "thread_bytes: expected an integer"),
    (described(lambda d: d.update(thread_bytes=1)), "belongs to another description"),
    (described(lambda d: d.update(constants=2)), "constants: expected a list"),
    (described(lambda d: d["constants"].pop()), "expected a place inside|as model.json says"),
    (described(lambda d: d["constants"][0].update(shape=[10**9, 10**9])), "at most 32 sizes, and"),
    (described(lambda d: d["constants"][0].update(shape=[1] * 40)), "at most 32 sizes"),
    (described(lambda d: d["constants"][0].update(shape=[24, 16])), "belongs to another description"),
    (described(lambda d: d["constants"][0].update(dtype="int32")), "belongs to another description"),
    (described(lambda d: d["constants"][0].update(dtype="object")), "expected one of float32"),
    (described(lambda d: d["constants"][0].update(dtype=["float32"])), "expected one of float32"),
    (described(lambda d: d["inputs"][0].update(shape=[4, 17])), "belongs to another description"),
    (described(lambda d: d["inputs"][0].update(shape=[4, 0])), "expected an integer from 1"),
    (described(lambda d: d["inputs"][0].update(shape="4")), "expected a list"),
    (described(lambda d: d["inputs"][0].update(name=None)), "name: expected a string"),
    (described(lambda d: d["inputs"][0].pop("name")), "expected an object with dtype, name, shape"),
    (described(lambda d: d["outputs"].append(d["outputs"][0])), "each name once"),
    (described(lambda d: d["outputs"].reverse()), "belongs to another description"),
    (described(lambda d: d["kernels"][0].update(why=1)), "why: expected a string"),
    (described(lambda d: d.update(kernels={})), "kernels: expected a list"),
    (described(lambda d: d.update(target=None)), "target: expected an object"),
    (described(lambda d: d["target"].update(threads=10**9)), "threads of target"),
    (described(lambda d: d["target"].update(threads=2)), "belongs to another description"),
    (described(lambda d: d["target"].update(triple="riscv64-unknown-linux-gnu")), "lacks architecture riscv64"),
    (described(lambda d: d["target"].update(features=[])), "belongs to another description"),
    (described(lambda d: d["target"].update(features="+avx")), "features of target"),
]


@pytest.mark.parametrize("k", range(len(CHANGES)))
def test_parts_that_do_not_fit(k: int, whole: Parts, tmp_path: Path) -> None:
    """A file that is sealed, so somebody meant it: each part is checked, and that the code is the one of the description."""
    change, text = CHANGES[k]
    parts = dict(whole)
    change(parts)
    with pytest.raises(ModelError, match=text):
        load(_file(tmp_path, damaged.packed(parts)))


def _file(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "m.tw"
    path.write_bytes(content)
    return path


def test_parts_are_not_unpacked(whole: Parts, tmp_path: Path) -> None:
    """A small file that unpacks to a large one is refused before it does."""
    bomb = damaged.packed({**whole, "constants.bin": bytes(1 << 24)}, zipfile.ZIP_DEFLATED)
    assert len(bomb) < 1 << 17
    assert "expected parts that are stored as they are; got compressed ones" in refused(bomb, tmp_path)


def test_a_file_of_an_older_version_says_so(whole: Parts, tmp_path: Path) -> None:
    """Files of format 2 had constants.npz and no seal."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as z:
        z.writestr("model.json", json.dumps({"format": 2}))
        z.writestr("code.o", whole["code.o"])
        z.writestr("constants.npz", b"")
    assert "written by an older one; compile it again" in refused(file.getvalue(), tmp_path)


def test_a_part_that_is_there_twice(whole: Parts, tmp_path: Path) -> None:
    """Readers would differ in which one they take."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as z:
        z.comment = sealed.UNSEALED
        for name, content in whole.items():
            z.writestr(name, content)
        with pytest.warns(UserWarning, match="Duplicate name"):
            z.writestr("code.o", whole["code.o"])
    sealed.seal(file)
    assert "expected the parts" in refused(file.getvalue(), tmp_path)


@pytest.mark.parametrize("name", ["missing/m.tw", ".", "m.tw/inside", "x" * 300 + ".tw"])
def test_places_that_cannot_be_written_or_read(name: str, tmp_path: Path) -> None:
    """One message, and no file left behind."""
    model = damaged.model(16)
    (tmp_path / "m.tw").write_bytes(b"kept")
    with pytest.raises(ModelError, match="cannot write"):
        model.save(tmp_path / name)
    with pytest.raises(ModelError, match="cannot read"):
        load(tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == ["m.tw"]
    assert (tmp_path / "m.tw").read_bytes() == b"kept"


def test_a_model_in_memory_is_checked_too() -> None:
    """A description that was changed does not run with the code of another; memory that is not there is one message."""
    compiled = damaged.model(16).compiled
    with pytest.raises(ModelError, match="belongs to another description"):
        Executable(dataclasses.replace(compiled, slots=(*compiled.slots, Slot("arena", 0))))
    with pytest.raises(ModelError, match="belongs to another description"):
        Executable(dataclasses.replace(compiled, constants=compiled.constants[::-1]))


def test_code_that_calls_what_is_not_there() -> None:
    """LLVM would end the process at the first unknown name; so it would for code of another processor."""
    target = Target.host(threads=1)
    text = "declare void @tw_nowhere()\ndefine void @f(ptr %a) {\n  call void @tw_nowhere()\n  ret void\n}\n"
    code = jit.compile_object(text, target)
    assert objects.symbols(code, target.arch) == objects.Symbols(frozenset({"f"}), frozenset({"tw_nowhere"}))
    with pytest.raises(jit.CompileError, match="it needs tw_nowhere, which this process does not have"):
        jit.load_object(code, target, ("f",))
    with pytest.raises(jit.CompileError, match="expected g; it has no g"):
        jit.load_object(code, target, ("g",))
    other = Target.load("generic-rv64gcv")
    foreign = jit.compile_object("define void @f(ptr %a) {\n  ret void\n}\n", other)
    assert objects.symbols(foreign, "riscv64").defined == {"f"}
    with pytest.raises(jit.CompileError, match=f"expected relocatable code for {target.arch}"):
        jit.load_object(foreign, target, ("f",))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "Expecting"),
        (b"\xff", "codec"),
        ("[NaN]", "finite numbers only, got 'NaN'"),
        ("-Infinity", "finite numbers only"),
        ('{"a": 1, "b": 2, "a": 3}', "each key once, got 'a' twice"),
        ("[" * 65 + "]" * 65, "nested deeper than 64 levels"),
        ("[" * 10**6, "nested deeper than 64 levels|Expecting"),
        ("9" * 5000, "digits"),
    ],
)
def test_json_is_read_strictly(text: str | bytes, error: str) -> None:
    """What two readers would understand differently is refused."""
    with pytest.raises(ValueError, match=error):
        strict_json.loads(text)
    assert strict_json.loads("[" * 64 + "]" * 64)
    assert strict_json.loads(json.dumps([[], {}] * 50)) == [[], {}] * 50
