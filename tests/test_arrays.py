"""What a compiled model takes: arrays that machine code may work on, and a refusal for all others."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.compiled import Array, ModelError
from tilewright.graph import ops
from tilewright.runtime import Executable
from tilewright.schedules.kernel import Kernel, aligned, build
from tilewright.schedules.steps import parse
from tilewright.schedules.target import Target
from tilewright.tasks import extract

HOST = Target.host(threads=1)
SHAPE = (4, 16)


@pytest.fixture(scope="module")
def model() -> Executable:
    """Two outputs: ``x + 1`` and ``2 x`` with a sum in between."""
    g = tilewright.Graph()
    x = g.input("x", SHAPE)
    g.output(ops.add(x, g.constant(np.ones(SHAPE, np.float32))), "more")
    g.output(ops.mul(x, g.constant(np.full(SHAPE, 2, np.float32))), "twice")
    return tilewright.compile(g, HOST)


def ones() -> Array:
    return np.ones(SHAPE, np.float32)


def outputs() -> list[Array]:
    made: list[Array] = [aligned(256).view(np.float32).reshape(SHAPE) for _ in range(2)]
    for a in made:
        a.fill(0)
    return made


def test_invoke_before_bind_is_refused(model: Executable) -> None:
    """It was a segmentation fault."""
    with pytest.raises(ModelError, match=r"call bind\(inputs, outputs\) first"):
        tilewright.Executable(model.compiled).invoke()


def test_a_refused_bind_binds_nothing(model: Executable) -> None:
    """A bind that fails half-way leaves what was bound before."""
    out = outputs()
    model.bind([ones()], out)
    read_only = outputs()
    read_only[1].flags.writeable = False
    with pytest.raises(ModelError, match="read-only"):
        model.bind([np.zeros(SHAPE, np.float32)], read_only)
    model.invoke()
    np.testing.assert_array_equal(out[0], 2)
    np.testing.assert_array_equal(out[1], 2)


def placed(offset: int) -> Array:
    """Zeros at an address that is ``offset`` past a multiple of 64."""
    a = aligned(256, 64, offset)
    a.fill(0)
    return a.view(np.float32).reshape(SHAPE)


def _read_only() -> Array:
    a = outputs()[0]
    a.flags.writeable = False
    return a


def _of_a_closed_file() -> Array:
    memory = mmap.mmap(-1, 4096, access=mmap.ACCESS_READ)
    return np.frombuffer(memory, np.float32, 64).reshape(SHAPE)


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (_read_only(), "output 'more': expected an array that may be written; got a read-only one"),
        (_of_a_closed_file(), "read-only"),
        (np.broadcast_to(np.float32(0), SHAPE), "not contiguous"),
        (placed(4), "64-byte boundary"),
        (placed(2), "not aligned"),
        (outputs()[0].astype(">f4"), "got >f4"),
        (outputs()[0].astype(np.float64), "got float64"),
        (outputs()[0].astype(np.int32), "got int32"),
        (np.zeros((4, 32), np.float32)[:, ::2], "not contiguous"),
        (np.asfortranarray(ones()), "not contiguous"),
        (outputs()[0].reshape(64), r"got float32 of shape \(64,\)"),
        (np.ma.masked_array(ones()), "got MaskedArray"),
        (ones().tolist(), "got list"),
        (None, "got NoneType"),
    ],
)
def test_outputs_that_must_not_be_written(model: Executable, output: Any, text: str) -> None:
    """Each is refused by name, and nothing is written."""
    before = np.array(output, copy=True) if isinstance(output, np.ndarray) else None
    with pytest.raises(ModelError, match=text):
        model.bind([ones()], [output, outputs()[1]])
    if before is not None:
        np.testing.assert_array_equal(np.asarray(output), before)


def test_outputs_lie_apart(model: Executable) -> None:
    """An output over an input, over another output, or over a part of one, is refused; inputs may be one array."""
    x, (more, twice) = ones(), outputs()
    both = aligned(256 + 64).view(np.float32)
    both.fill(0)
    with pytest.raises(ModelError, match="'twice': expected memory of its own; it shares memory with output 'more'"):
        model.bind([x], [more, more])
    with pytest.raises(ModelError, match="shares memory"):
        model.bind([x], [both[:64].reshape(SHAPE), both[16:].reshape(SHAPE)])
    with pytest.raises(ModelError, match="shares memory"):
        model.bind([more], [more, twice])
    with pytest.raises(ModelError, match="'x': expected memory of its own; it shares memory with output 'more'"):
        model.bind([both[16:].reshape(SHAPE)], [both[:64].reshape(SHAPE), twice])
    g = tilewright.Graph()
    a, b = g.input("a", SHAPE), g.input("b", SHAPE)
    g.output(ops.add(a, b), "y")
    double = tilewright.compile(g, HOST)
    y = double.allocate()
    double.bind([x, x], y)
    double.invoke()
    np.testing.assert_array_equal(y[0], 2)


def test_bound_arrays_are_kept_alive(model: Executable) -> None:
    """Neither the inputs nor the outputs of a binding go away with their names; after another bind they may."""
    out = outputs()
    model.bind([np.full(SHAPE, 7, np.float32)], out)
    gc.collect()
    noise = [np.zeros(SHAPE, np.float32) for _ in range(100)]  # would take the place of what was freed
    model.invoke()
    np.testing.assert_array_equal(out[0], 8)
    assert len(noise) == 100


def test_a_call_keeps_no_array_alive(model: Executable) -> None:
    """What a call was given and returned is the caller's alone afterwards."""
    freed: list[str] = []

    class Tracked(np.ndarray[Any, Any]):
        def __del__(self) -> None:
            freed.append("gone")

    x = ones().view(Tracked)
    model(x)
    del x
    gc.collect()
    assert freed


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.ma.masked_array(ones(), mask=True), "without a mask"),
        (ones().astype(">f4"), "got >f4"),
        (ones().astype(np.float16), "got float16"),
        (ones().astype(object), "got object"),
        (np.float32(1), r"got float32 of shape \(\)"),
        (3.0, "got float"),
        (np.ones((4, 17), np.float32), r"shape \(4, 17\)"),
    ],
)
def test_inputs_of_another_kind(model: Executable, value: Any, text: str) -> None:
    """Nothing is converted silently."""
    with pytest.raises(ModelError, match=f"input 'x': .*{text}"):
        model(value)


class Exporter:
    """A tensor of another library, which exports itself or refuses to."""

    def __init__(self, array: Array | None, error: Exception | None = None, device: int = 1) -> None:
        self.array, self.error, self.device = array, error, device

    def __dlpack__(self, **options: Any) -> Any:
        if self.error is not None:
            raise self.error
        assert self.array is not None
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)


@pytest.mark.parametrize(
    "error",
    [BufferError("no"), RuntimeError("requires grad"), TypeError("bfloat16"), ValueError("v"), NotImplementedError()],
)
def test_tensors_that_are_not_exported(model: Executable, error: Exception) -> None:
    """Whatever the library raises becomes one message that names the input."""
    with pytest.raises(ModelError, match="input 'x': expected a DLPack tensor in the memory of the CPU"):
        model(Exporter(None, error))


def test_tensors_of_other_libraries(model: Executable) -> None:
    """Exported from the CPU they are read in place, read-only ones and ones with gaps too."""
    np.testing.assert_array_equal(model(Exporter(ones()))[0], 2)
    np.testing.assert_array_equal(model(Exporter(np.ones((16, 4), np.float32).T))[0], 2)


def test_arrays_that_are_copied(model: Executable, tmp_path: Path) -> None:
    """Gaps, another order, no alignment, read-only memory, subclasses: the values count."""
    values = np.arange(64, dtype=np.float32).reshape(SHAPE)
    odd = np.zeros(257, np.uint8)[1:].view(np.float32).reshape(SHAPE)
    odd[...] = values
    wide = np.zeros((8, 32), np.float32)
    wide[::2, ::2] = values
    on_disk = np.memmap(tmp_path / "x", np.float32, "w+", shape=SHAPE)
    on_disk[...] = values
    locked = values.copy()
    locked.flags.writeable = False
    for x in (odd, wide[::2, ::2], np.asfortranarray(values), on_disk, locked, values.view(np.matrix)):
        np.testing.assert_array_equal(model(x)[0], values + 1)


def test_inputs_by_name_only() -> None:
    """``run`` takes names; a scalar input takes a NumPy scalar."""
    g = tilewright.Graph()
    s = g.input("s", ())
    g.output(ops.add(s, s), "y")
    double = tilewright.compile(g, HOST)
    assert double(np.float32(2))[0] == 4
    assert double(np.array(2, np.float32))[0].shape == ()
    with pytest.raises(ModelError, match="expected arrays by name; got list"):
        double.run([np.float32(2)])  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=r"missing \['s'\], unknown \[3\]"):
        double.run({3: np.float32(2)})  # type: ignore[dict-item]
    with pytest.raises(ModelError, match="expected 1 input arrays; got 0"):
        double.bind([], double.allocate())
    assert double.time(min_seconds=0, min_calls=1) > 0


def test_a_kernel_runs_only_on_what_it_may_write() -> None:
    """The kernels that measurements use have the same guards."""
    g = tilewright.Graph()
    g.output(ops.relu(g.input("x", SHAPE)), "y")
    (task,) = extract(g, HOST)
    kernel = Kernel(build(task.workload, parse(""), HOST))
    with pytest.raises(ValueError, match="bind"):
        kernel.run()
    with pytest.raises(ValueError, match=r"tensor t0: expected .* may be written"):
        kernel.bind({"x0": ones(), "t0": _read_only()})
    with pytest.raises(ValueError, match="tensor t0: expected an array; got nothing"):
        kernel.bind({"x0": ones()})
    with pytest.raises(ValueError, match="bind"):
        kernel.run()
    np.testing.assert_array_equal(kernel({"x0": -ones()}), 0)
