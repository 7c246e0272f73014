"""Binding the inputs of a model to fixed shapes, or to values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tilewright.graph.dtypes import SIZES
from tilewright.graph.graph import Array, Graph, Tensor
from tilewright.graph.onnx.context import ImportFailure
from tilewright.graph.onnx.values import given_value

if TYPE_CHECKING:
    from onnx import GraphProto, ValueInfoProto

_Dim = int | str


def bind_inputs(
    graph: Graph,
    proto: GraphProto,
    shapes: Mapping[str, Sequence[int]],
    values: Mapping[str, object],
    initialized: set[str],
) -> dict[str, Tensor | Array]:
    """Declare every input that has no initializer, with the shape of the model or of ``shapes``. An input of ``values`` is an array
    of its type and shape instead, also where it has an initializer, which is a default."""
    names = [i.name for i in proto.input]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise ImportFailure(f"input {twice[0]!r} is defined twice; every name has one definition")
    wanted = [i for i in proto.input if i.name not in initialized or i.name in values]
    _known_names("shape", shapes, [i.name for i in wanted])
    _known_names("value", values, names)
    declared = {i.name: _dimensions(i) for i in wanted}
    arrays = {
        i.name: given_value(i, declared[i.name], values[i.name], shapes.get(i.name)) for i in wanted if i.name in values
    }
    bound = _bound(declared, {**shapes, **{n: a.shape for n, a in arrays.items()}}, arrays)
    return {
        i.name: arrays[i.name] if i.name in arrays else graph.input(i.name, bound[i.name], _dtype(i)) for i in wanted
    }


def _known_names(what: str, given: Iterable[str], names: Sequence[str]) -> None:
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise ImportFailure(
            f"{what} for unknown input {unknown[0]!r}: the model's inputs are {', '.join(names) or 'none'}"
        )


def _bound(
    declared: Mapping[str, tuple[_Dim, ...] | None], shapes: Mapping[str, Sequence[int]], arrays: Mapping[str, Array]
) -> dict[str, tuple[int, ...]]:
    """The shape of every input. Raises ImportFailure naming all that are not bound."""
    symbols = _symbols(declared, shapes)
    bound: dict[str, tuple[int, ...]] = {}
    unbound: list[str] = []
    for name, dims in declared.items():
        if name in shapes:
            bound[name] = _checked(name, dims, tuple(int(d) for d in shapes[name]), name in arrays)
        elif dims is None:
            unbound.append(f"{name!r} has no shape: give one, for example --shape {name}=1,3,224,224")
        else:
            full = [symbols.get(d, d) if isinstance(d, str) else d for d in dims]
            if any(isinstance(d, str) for d in full):
                text = ", ".join(str(d) for d in dims)
                example = ",".join(str(d) if isinstance(d, int) else "1" if k == 0 else "N" for k, d in enumerate(full))
                unbound.append(f"{name!r} has dynamic dimensions [{text}]: bind them with --shape {name}={example}")
            bound[name] = tuple(d for d in full if isinstance(d, int))
    if unbound:
        raise ImportFailure("input " + "; input ".join(unbound))
    for name, shape in bound.items():
        if 0 in shape and name not in arrays:
            raise ImportFailure(f"input {name!r} has shape {shape}: an empty tensor has nothing to compute")
    return bound


def _dimensions(info: ValueInfoProto) -> tuple[_Dim, ...] | None:
    if not info.type.HasField("tensor_type"):
        kind = info.type.WhichOneof("value") or "nothing"
        raise ImportFailure(f"input {info.name!r}: expected a tensor; got {kind.replace('_type', '')}")
    t = info.type.tensor_type
    if not t.HasField("shape"):
        return None
    return tuple(
        int(d.dim_value) if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or "?" for d in t.shape.dim
    )


def _dtype(info: ValueInfoProto) -> str:
    from onnx import TensorProto, helper

    element = info.type.tensor_type.elem_type
    text = TensorProto.DataType.Name(element).lower()
    name = "" if text == "string" or element == 0 else np.dtype(helper.tensor_dtype_to_np_dtype(element)).name
    if name not in SIZES or text not in (name, {"float32": "float", "float64": "double"}.get(name)):
        raise ImportFailure(f"input {info.name!r}: data type {text} is not supported; convert the model to float32")
    return name


def _symbols(declared: Mapping[str, tuple[_Dim, ...] | None], shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Sizes of named dimensions that the given shapes agree on; another input of the same symbol gets them
    too."""
    seen: dict[str, set[int]] = {}
    for name, given in shapes.items():
        dims = declared[name]
        if dims is not None and len(dims) == len(given):
            for d, size in zip(dims, given, strict=True):
                if isinstance(d, str) and d != "?":
                    seen.setdefault(d, set()).add(int(size))
    return {d: next(iter(sizes)) for d, sizes in seen.items() if len(sizes) == 1}


def _checked(name: str, dims: tuple[_Dim, ...] | None, given: tuple[int, ...], may_be_empty: bool) -> tuple[int, ...]:
    if dims is None:
        return given
    text = ", ".join(str(d) for d in dims)
    if len(dims) != len(given):
        raise ImportFailure(f"input {name!r}: expected a shape of {len(dims)} dimensions [{text}]; got {given}")
    for d, size in zip(dims, given, strict=True):
        if isinstance(d, int) and d != size:
            raise ImportFailure(f"input {name!r}: expected a shape that fits [{text}]; got {given}")
        if size < 1 and not may_be_empty:
            raise ImportFailure(f"input {name!r}: expected sizes of at least 1; got {given}")
    return given
