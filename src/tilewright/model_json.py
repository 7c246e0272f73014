"""The description in a model file, as JSON and back. Nothing in it is believed: types, sizes, and that each part fits the others.

Sizes are bounded, so that a wrong one ends as a message and not as memory without end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, NoReturn, TypeVar

from tilewright.compiled import Compiled, KernelInfo, ModelError, Port, Slot
from tilewright.graph import strict_json
from tilewright.graph.dtypes import SIZES
from tilewright.schedules.target import Target, TargetError

FORMAT = 3
LARGEST = 1 << 46
"""Bytes of one tensor or one piece of memory: more than any machine has, and far from what an address cannot count."""
_RANKS = 32
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Constant:
    """Shape and data type of a constant, whose bytes are another part of the file."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * SIZES[self.dtype]


@dataclass(frozen=True, slots=True)
class Description:
    """All of a compiled model but the code and the bytes of the constants."""

    target: Target
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    slots: tuple[Slot, ...]
    kernels: tuple[KernelInfo, ...]
    arena_bytes: int
    packed_bytes: int
    thread_bytes: int
    constants: tuple[Constant, ...]


def describe(compiled: Compiled) -> dict[str, Any]:
    """Plain data for JSON."""
    return {
        "format": FORMAT,
        "target": asdict(compiled.target),
        "inputs": [asdict(p) for p in compiled.inputs],
        "outputs": [asdict(p) for p in compiled.outputs],
        "slots": [[s.kind, s.ref, s.offset] for s in compiled.slots],
        "kernels": [asdict(k) for k in compiled.kernels],
        "arena_bytes": compiled.arena_bytes,
        "packed_bytes": compiled.packed_bytes,
        "thread_bytes": compiled.thread_bytes,
        "constants": [{"shape": list(c.shape), "dtype": str(c.dtype)} for c in compiled.constants],
    }


def parse(text: bytes) -> Description:
    """The inverse of :func:`describe`. Raises ModelError that names the part, what was expected and what came."""
    try:
        data = strict_json.loads(text)
    except ValueError as error:
        raise ModelError(f"model.json: expected JSON ({error})") from error
    if isinstance(data, dict) and data.get("format") != FORMAT:
        raise ModelError(f"expected model format {FORMAT}; got {data.get('format')!r}; compile it again")
    data = _object("model.json", data, {"format", *(f.name for f in fields(Description))})
    try:
        target = Target.from_mapping(_object("target", data["target"], {f.name for f in fields(Target)}))
    except TargetError as error:
        raise ModelError(f"model.json: {error}") from error
    found = Description(
        target,
        _ports("inputs", data["inputs"]),
        _ports("outputs", data["outputs"]),
        _list("slots", data["slots"], _slot),
        _list("kernels", data["kernels"], _kernel),
        _integer("arena_bytes", data["arena_bytes"]),
        _integer("packed_bytes", data["packed_bytes"]),
        _integer("thread_bytes", data["thread_bytes"]),
        _list("constants", data["constants"], _constant),
    )
    _check_slots(found)
    return found


def _check_slots(found: Description) -> None:
    """Every address lies in what it points to, and every output is written."""
    sizes = {
        "input": [_port_bytes(p) for p in found.inputs],
        "output": [_port_bytes(p) for p in found.outputs],
        "constant": [c.nbytes for c in found.constants],
    }
    places = {"arena": found.arena_bytes, "packed": found.packed_bytes, "thread": 1}
    for k, slot in enumerate(found.slots):
        if slot.kind in sizes:
            right = slot.ref < len(sizes[slot.kind]) and slot.offset < sizes[slot.kind][slot.ref]
        else:
            right = slot.kind in places and slot.ref < places[slot.kind] and not slot.offset
        if not right:
            _refuse(f"slots[{k}]", "a place inside an input, output, constant, arena, packed or thread", slot)
    written = {slot.ref for slot in found.slots if slot.kind == "output"}
    if len(written) != len(found.outputs):
        _refuse("slots", f"one or more for each of the {len(found.outputs)} outputs", sorted(written))


def _port_bytes(port: Port) -> int:
    return math.prod(port.shape) * SIZES[port.dtype]


def _ports(where: str, value: object) -> tuple[Port, ...]:
    ports = _list(where, value, _port)
    if len({p.name for p in ports}) != len(ports):
        _refuse(where, "each name once", [p.name for p in ports])
    return ports


def _port(where: str, value: object) -> Port:
    data = _object(where, value, {"name", "shape", "dtype"})
    return Port(_text(f"{where}.name", data["name"]), *_type(where, data))


def _constant(where: str, value: object) -> Constant:
    return Constant(*_type(where, _object(where, value, {"shape", "dtype"})))


def _type(where: str, data: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    dtype = data["dtype"]
    if not isinstance(dtype, str) or dtype not in SIZES:
        _refuse(f"{where}.dtype", f"one of {', '.join(SIZES)}", dtype)
    shape = _list(f"{where}.shape", data["shape"], lambda name, size: _integer(name, size, 1))
    if len(shape) > _RANKS or math.prod(shape) * SIZES[dtype] > LARGEST:
        _refuse(f"{where}.shape", f"at most {_RANKS} sizes, and {LARGEST} bytes", list(shape))
    return shape, dtype


def _slot(where: str, value: object) -> Slot:
    if not isinstance(value, list) or len(value) != 3:
        _refuse(where, "[kind, ref, offset]", value)
    kind, ref, offset = value
    return Slot(_text(where, kind), _integer(where, ref), _integer(where, offset))


def _kernel(where: str, value: object) -> KernelInfo:
    names = [f.name for f in fields(KernelInfo)]
    data = _object(where, value, set(names))
    return KernelInfo(*(_text(f"{where}.{name}", data[name]) for name in names))


def _object(where: str, value: object, names: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != names:
        _refuse(
            where, f"an object with {', '.join(sorted(names))}", sorted(value) if isinstance(value, dict) else value
        )
    return value


def _list(where: str, value: object, item: Callable[[str, object], _T]) -> tuple[_T, ...]:
    if not isinstance(value, list):
        _refuse(where, "a list", value)
    return tuple(item(f"{where}[{k}]", v) for k, v in enumerate(value))


def _integer(where: str, value: object, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= LARGEST:
        _refuse(where, f"an integer from {least} to {LARGEST}", value)
    return value


def _text(where: str, value: object) -> str:
    if not isinstance(value, str):
        _refuse(where, "a string", value)
    return value


def _refuse(where: str, expected: str, got: object) -> NoReturn:
    shown = repr(got)
    raise ModelError(
        f"model.json: {where}: expected {expected}; got {shown if len(shown) < 120 else shown[:120] + '…'}"
    )
