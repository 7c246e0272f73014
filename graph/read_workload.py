"""A workload from its JSON: records and messages hold workloads as text, and text may be damaged or come from elsewhere.

Each row is checked as the constructors of a graph would (kinds, data types, ranks, names that exist), but built as it is written,
so that what is read is what was written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from tilewright.graph import strict_json
from tilewright.graph.dtypes import FLOATS, GraphError, check_dtype, int_range
from tilewright.graph.expr import Const, Expr, Load, Op, Var, binary, select, unary
from tilewright.graph.stage import Axes, Node, Stage, TensorType, View
from tilewright.graph.workload import FORMAT, Workload, decode_reducer

MOST = 1 << 46
"""Elements of a tensor, and iterations of an axis: flat indices have to fit 64 bits with room to spare."""
_AXES = 64


def parse(text: str) -> Workload:
    """A workload from its canonical text. Raises GraphError."""
    try:
        data = strict_json.loads(text)
    except ValueError as error:
        raise GraphError(f"expected the JSON of a workload; got {text[:80]!r} ({error})") from error
    return from_json(data)


def from_json(data: Any) -> Workload:
    """The inverse of :func:`~tilewright.graph.workload.to_json`. Raises GraphError on data that is no workload."""
    rows = _fields("workload", data, {"format", "inputs", "nodes", "output"})
    if rows["format"] != FORMAT or type(rows["format"]) is not int:
        raise GraphError(f"workload format: expected {FORMAT}; got {rows['format']!r}")
    inputs = tuple(_input(f"inputs[{k}]", row) for k, row in enumerate(_list("inputs", rows["inputs"])))
    types: dict[str, TensorType] = {}
    for name, kind, _ in inputs:
        _define(types, name, kind)
    nodes: list[Node] = []
    for k, row in enumerate(_list("nodes", rows["nodes"])):
        try:
            node = _node(f"nodes[{k}]", row, types)
        except RecursionError as error:
            raise GraphError(f"workload: nodes[{k}]: expressions nested too deeply") from error
        _define(types, node.output, node.type)
        nodes.append(node)
    if rows["output"] not in [n.output for n in nodes]:
        _refuse("output", "a tensor that a node defines", rows["output"])
    return Workload(inputs, tuple(nodes), rows["output"])


def _input(where: str, row: object) -> tuple[str, TensorType, bool]:
    name, shape, dtype, kind = _row(where, row, 4)
    if kind not in ("constant", "input"):
        _refuse(where, "input or constant", kind)
    return _text(where, name), TensorType(_sizes(where, shape), _dtype(where, dtype)), kind == "constant"


def _define(types: dict[str, TensorType], name: str, kind: TensorType) -> None:
    if name in types:
        _refuse(name, "one definition of each tensor", "two")
    types[name] = kind


def _node(where: str, row: object, types: Mapping[str, TensorType]) -> Node:
    if isinstance(row, dict) and "view" in row:
        row = _fields(where, row, {"view", "of", "shape"})
        source = _tensor(where, row["of"], types)
        shape = _sizes(where, row["shape"])
        if math.prod(shape) != source.size:
            _refuse(where, f"a view of {source.size} elements", shape)
        return View(_text(where, row["view"]), row["of"], TensorType(shape, source.dtype))
    reduces = isinstance(row, dict) and "reduce" in row
    row = _fields(where, row, {"stage", "axes", "body"} | ({"reduce", "reducer"} if reduces else set()))
    axes = _axes(where, "i", row["axes"])
    reduce = _axes(where, "r", row["reduce"]) if reduces else ()
    reducer = decode_reducer(row["reducer"]) if reduces else None
    return Stage(_text(where, row["stage"]), axes, _body(where, row["body"], types), reduce, reducer)


def _axes(where: str, letter: str, value: object) -> Axes:
    return tuple((f"{letter}{k}", e) for k, e in enumerate(_sizes(where, value)))


def _body(where: str, value: object, types: Mapping[str, TensorType]) -> Expr:
    """The last of a table of expressions; the arguments of each are numbers of earlier rows."""
    table: list[Expr] = []
    for k, row in enumerate(_list(where, value)):
        e = _expression(f"{where}.body[{k}]", row, table, types)
        hash(e)  # remembered in each, so that the hash of a long chain is never worked out at once
        table.append(e)
    if not table:
        _refuse(where, "a body", value)
    return table[-1]


def _expression(where: str, row: object, table: list[Expr], types: Mapping[str, TensorType]) -> Expr:
    kind = row[0] if isinstance(row, list) and row else None
    if kind == "axis":
        _, name = _row(where, row, 2)
        return Var("int64", _text(where, name))
    if kind == "const":
        _, dtype, value = _row(where, row, 3)
        return Const(dtype, _constant(where, _dtype(where, dtype), value))
    if kind == "load":
        _, dtype, tensor, index = _row(where, row, 4)
        found = _tensor(where, tensor, types)
        args = _arguments(where, index, table)
        if dtype != found.dtype or len(args) != len(found.shape) or any(a.dtype != "int64" for a in args):
            _refuse(where, f"a load of {found.dtype} with {len(found.shape)} int64 indices", row)
        return Load(dtype, tensor, args)
    _, dtype, numbers = _row(where, row, 3)
    args = _arguments(where, numbers, table)
    if _dtype(where, dtype) != _result(where, _text(where, kind), dtype, args):
        _refuse(where, f"a data type that {kind} gives", dtype)
    return Op(dtype, str(kind), args)


def _result(where: str, kind: str, dtype: str, args: tuple[Expr, ...]) -> str:
    """The data type that an operation gives. Raises GraphError if it does not take such arguments."""
    if kind == "select" and len(args) == 3:
        return select(*args).dtype
    if kind == "cast" and len(args) == 1:
        return dtype
    if len(args) == 2:
        return binary(kind, *args).dtype
    if len(args) == 1:
        return unary(kind, args[0]).dtype
    _refuse(where, f"the arguments of {kind}", f"{len(args)}")


def _constant(where: str, dtype: str, value: object) -> bool | int | float:
    if dtype in FLOATS:
        if isinstance(value, str) and value in ("nan", "inf", "-inf"):
            return float(value)
        if type(value) is float and math.isfinite(value):
            return value
    elif dtype == "bool":
        if type(value) is bool:
            return value
    elif type(value) is int and int_range(dtype)[0] <= value <= int_range(dtype)[1]:
        return value
    _refuse(where, f"a constant of {dtype}", value)


def _arguments(where: str, numbers: object, table: list[Expr]) -> tuple[Expr, ...]:
    rows = _list(where, numbers)
    if not all(type(k) is int and 0 <= k < len(table) for k in rows):
        _refuse(where, "numbers of earlier rows", numbers)
    return tuple(table[k] for k in rows)


def _sizes(where: str, value: object) -> tuple[int, ...]:
    sizes = _list(where, value)
    if len(sizes) > _AXES or not all(type(n) is int and n > 0 for n in sizes) or math.prod(sizes) > MOST:
        _refuse(where, f"at most {_AXES} sizes of at least 1, and {MOST} elements", value)
    return tuple(sizes)


def _dtype(where: str, value: object) -> str:
    return check_dtype(_text(where, value))


def _tensor(where: str, name: object, types: Mapping[str, TensorType]) -> TensorType:
    if not isinstance(name, str) or name not in types:
        _refuse(where, "a tensor that was defined before", name)
    return types[name]


def _fields(where: str, value: object, names: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != names:
        _refuse(where, f"an object with {', '.join(sorted(names))}", value)
    return value


def _row(where: str, value: object, count: int) -> list[Any]:
    if not isinstance(value, list) or len(value) != count:
        _refuse(where, f"a list of {count}", value)
    return value


def _list(where: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        _refuse(where, "a list", value)
    return value


def _text(where: str, value: object) -> str:
    if not isinstance(value, str):
        _refuse(where, "a string", value)
    return value


def _refuse(where: str, expected: str, got: object) -> NoReturn:
    raise GraphError(f"workload: {where}: expected {expected}; got {repr(got)[:80]}")
