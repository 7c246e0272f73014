"""The oracle: what a graph means, computed by NumPy in float64 with no schedule.

Every measured kernel and every test is compared with this. Floating-point work is done in float64 whatever the declared
type (results are returned in float64 too, so that a comparison is not limited by float32); integers and booleans keep
their own type, with its wrap-around.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import numpy as np

from tilewright.graph.dtypes import FLOATS, GraphError, numpy_dtype
from tilewright.graph.expr import Const, Expr, Load, Op, Var
from tilewright.graph.graph import Array, Graph
from tilewright.graph.ordered import Ordered, Scan, Select
from tilewright.graph.stage import Node, Stage, View, identity
from tilewright.graph.traverse import postorder

_CHUNK = 1 << 22  # body evaluations held in memory at once

_erf = np.frompyfunc(math.erf, 1, 1)


def _oracle_dtype(dtype: str) -> np.dtype[Any]:
    return np.dtype(np.float64) if dtype in FLOATS else numpy_dtype(dtype)


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return cast(Array, np.divide(a, b))
    # integers truncate towards zero, as ONNX and C do; a zero divisor gives 0 (no value is defined)
    b_safe = np.where(b == 0, 1, b)
    q = np.floor_divide(a, b_safe)
    inexact = (np.remainder(a, b_safe) != 0) & (np.less(a, 0) != np.less(b_safe, 0))
    return cast(Array, np.where(b == 0, 0, q + inexact).astype(a.dtype))


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(cast(Any, x)))
    return cast(Array, np.where(cast(Any, x) >= 0, 1 / (1 + e), e / (1 + e)))


def _power(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return cast(Array, np.power(cast(Any, a), cast(Any, b)))
    # integers to a negative power truncate: 1 and -1 stay units, all others give 0
    negative = np.less(b, 0)
    whole = np.power(cast(Any, a), np.where(negative, 0, cast(Any, b)))
    unit = np.where(np.remainder(b, 2) == 0, 1, cast(Any, a))
    return cast(Array, np.where(negative, np.where(np.abs(a) == 1, unit, 0), whole).astype(a.dtype))


def _softplus(x: Array) -> Array:
    return cast(Array, np.maximum(x, 0) + np.log1p(np.exp(-np.abs(cast(Any, x)))))


def _half_even(x: Array) -> Array:
    return cast(Array, np.rint(cast(Any, x)))


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _divide, "floordiv": np.floor_divide,
    "mod": np.remainder, "fmod": np.fmod, "max": np.maximum, "min": np.minimum, "pow": _power, "lt": np.less,
    "le": np.less_equal, "eq": np.equal, "ne": np.not_equal, "and": np.logical_and, "or": np.logical_or,
    "xor": np.logical_xor, "bitand": np.bitwise_and, "bitor": np.bitwise_or, "bitxor": np.bitwise_xor,
    "shl": np.left_shift, "shr": np.right_shift, "bounded": lambda a, n: np.clip(a, 0, n - 1),
}  # fmt: skip
_UNARY: dict[str, Callable[[Any], Any]] = {
    "exp": np.exp, "log": np.log, "tanh": np.tanh, "sigmoid": _sigmoid, "sqrt": np.sqrt,
    "erf": lambda x: np.asarray(_erf(x), dtype=np.float64), "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "log1p": np.log1p, "expm1": np.expm1, "softplus": _softplus, "floor": np.floor, "ceil": np.ceil, "round": _half_even,
    "trunc": np.trunc, "neg": np.negative, "abs": np.abs, "not": np.logical_not, "isnan": np.isnan,
    "isinf": np.isinf, "bitnot": np.invert,
}  # fmt: skip


def evaluate_expr(e: Expr, values: Mapping[str, Array], env: Mapping[str, Array], memo: dict[Expr, Array]) -> Array:
    """``e`` over broadcast index arrays ``env`` (axis name to int64 array). Loads outside a tensor are legal only under a
    ``select`` that does not take them, so indices are clipped and the select drops the value."""
    for n in postorder(e):
        if n not in memo:
            memo[n] = _evaluate(n, values, env, memo)
    return memo[e]


def _evaluate(e: Expr, values: Mapping[str, Array], env: Mapping[str, Array], memo: Mapping[Expr, Array]) -> Array:
    """``e``, whose sub-expressions are known."""
    if isinstance(e, Const):
        out: Any = np.asarray(e.value, dtype=_oracle_dtype(e.dtype))
    elif isinstance(e, Var):
        out = env[e.name]
    elif isinstance(e, Load):
        source = values[e.tensor]
        index = [np.clip(cast(Any, memo[i]), 0, n - 1) for i, n in zip(e.index, source.shape, strict=True)]
        out = source[tuple(index)] if index else source
    else:
        assert isinstance(e, Op)
        args: list[Any] = [memo[a] for a in e.args]
        if e.kind == "select":
            out = np.where(args[0], args[1], args[2])
        elif e.kind == "cast":
            out = _cast(args[0], e.dtype)
        elif len(args) == 2:
            out = _BINARY[e.kind](*args)
        else:
            out = _UNARY[e.kind](args[0])
    return cast(Array, out)


def _cast(a: Any, dtype: str) -> Any:
    if dtype == "bool":
        return a != 0
    target = _oracle_dtype(dtype)
    if a.dtype.kind == "f" and target.kind in "iu":
        return np.trunc(a).astype(np.int64).astype(target)
    if a.dtype.kind == "f" and dtype == "float32":
        return a.astype(np.float32).astype(np.float64)
    return a.astype(target)


def _factors(e: Expr) -> list[Expr]:
    if isinstance(e, Op) and e.kind == "mul" and e.dtype in FLOATS:
        return _factors(e.args[0]) + _factors(e.args[1])
    return [e]


def _axes_used(e: Expr, names: list[str]) -> list[str]:
    from tilewright.graph.traverse import variables

    used = variables(e)
    return [n for n in names if n in used]


def _grid(axes: list[tuple[str, int, int]]) -> dict[str, Array]:
    """Broadcast index arrays for axes ``(name, start, stop)``."""
    out: dict[str, Array] = {}
    for n, (name, start, stop) in enumerate(axes):
        shape = [1] * len(axes)
        shape[n] = stop - start
        out[name] = np.arange(start, stop, dtype=np.int64).reshape(shape)
    return out


def evaluate_stage(stage: Stage, values: Mapping[str, Array]) -> Array:
    """The tensor a stage defines, from the arrays of its sources."""
    with np.errstate(all="ignore"):
        if stage.ordered is not None:
            return _ordered(stage, stage.ordered, values)
        if stage.reducer == "sum" and stage.body.dtype in FLOATS and stage.points > _CHUNK // 8:
            return _contract(stage, values)
        return _direct(stage, values)


def _ordered(stage: Stage, form: Ordered, values: Mapping[str, Array]) -> Array:
    """Scans and selections: the body over the axes that are not listed and, last, the reduction axis."""
    listed = form.axis if isinstance(form, Scan) else len(stage.axes) - 1
    axes = [a for k, a in enumerate(stage.axes) if k != listed] + list(stage.reduce)
    grid = _grid([(n, 0, e) for n, e in axes])
    block: Any = np.broadcast_to(evaluate_expr(stage.body, values, grid, {}), tuple(e for _, e in axes))
    if isinstance(form, Select):
        # descending: the ascending order of the reversed row, read backwards, keeps equal values in order of position
        if form.largest:
            last = block.shape[-1] - 1
            order = last - np.argsort(block[..., ::-1], axis=-1, kind="stable")[..., ::-1]
        else:
            order = np.argsort(block, axis=-1, kind="stable")
        return cast(Array, np.ascontiguousarray(order[..., : stage.axes[-1][1]]).astype(np.int64))
    if form.reverse:
        block = block[..., ::-1]
    out = np.empty(block.shape, dtype=_oracle_dtype(stage.body.dtype))
    first = 1 if form.exclusive else 0
    out[..., :first] = identity(form.reducer, stage.body.dtype).value
    out[..., first:] = _SCANS[form.reducer].accumulate(
        block[..., : block.shape[-1] - first], axis=-1, dtype=None if block.dtype.kind == "f" else block.dtype
    )
    if form.reverse:
        out = out[..., ::-1]
    return cast(Array, np.ascontiguousarray(np.moveaxis(out, -1, form.axis)))


_SCANS: dict[str, Any] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def _direct(stage: Stage, values: Mapping[str, Array]) -> Array:
    shape = tuple(e for _, e in stage.axes)
    out = np.empty(shape, dtype=_oracle_dtype(stage.body.dtype))
    names = list(stage.axes + stage.reduce)
    first = stage.axes[0][1] if stage.axes else 1
    step = max(1, _CHUNK * first // stage.points)
    for start in range(0, first, step):
        stop = min(first, start + step)
        axes = [(n, 0, e) for n, e in names]
        if stage.axes:
            axes[0] = (axes[0][0], start, stop)
        full = tuple(b - a for _, a, b in axes)
        block = np.broadcast_to(evaluate_expr(stage.body, values, _grid(axes), {}), full)
        if isinstance(stage.reducer, str):
            block = _reduce(stage.reducer, block, len(stage.axes))
        if stage.axes:
            out[start:stop] = block
        else:
            out[...] = block
    return out


def _reduce(reducer: str, block: Any, spatial: int) -> Any:
    dims = tuple(range(spatial, block.ndim))
    if reducer == "sum":
        return block.sum(axis=dims, dtype=block.dtype)
    if reducer == "prod":
        return block.prod(axis=dims, dtype=block.dtype)
    return block.max(axis=dims) if reducer == "max" else block.min(axis=dims)


def _contract(stage: Stage, values: Mapping[str, Array]) -> Array:
    """A big sum of products: each factor over its own axes only, then one ``einsum`` for each slice of the largest axes."""
    names = [n for n, _ in stage.axes + stage.reduce]
    letters = {n: chr(ord("a") + k) for k, n in enumerate(names)}
    extents = stage.extents
    factors = _factors(stage.body)
    if max(math.prod(extents[n] for n in _axes_used(f, names)) for f in factors) > 1 << 26:
        return _direct(stage, values)
    operands: list[Any] = []
    subscripts: list[str] = []
    scale: Any = 1.0
    for f in factors:
        used = _axes_used(f, names)
        grid = _grid([(n, 0, extents[n]) for n in used])
        value: Any = evaluate_expr(f, values, grid, {})
        if not used:
            scale = scale * value
            continue
        operands.append(np.broadcast_to(value, tuple(extents[n] for n in used)))
        subscripts.append("".join(letters[n] for n in used))
    for n, _ in stage.reduce:  # an axis that no factor uses still multiplies the sum
        if not any(letters[n] in s for s in subscripts):
            scale = scale * extents[n]
    seen = set("".join(subscripts))
    out_letters = [letters[n] for n, _ in stage.axes]
    result: Any = np.einsum(
        ",".join(subscripts) + "->" + "".join(c for c in out_letters if c in seen), *operands, optimize=True
    )
    shape = tuple(e if letters[n] in seen else 1 for n, e in stage.axes)
    full = tuple(e for _, e in stage.axes)
    return cast(Array, np.array(np.broadcast_to((result * scale).reshape(shape), full)))


def evaluate_nodes(nodes: Iterable[Node], values: dict[str, Array]) -> None:
    """Run stages and views in order; ``values`` holds the sources and receives the results."""
    for n in nodes:
        if isinstance(n, View):
            values[n.output] = values[n.source].reshape(n.type.shape)
        else:
            values[n.output] = evaluate_stage(n, values)


def evaluate(graph: Graph, inputs: Mapping[str, Array]) -> list[Array]:
    """The outputs of a graph for named input arrays, in float64 for floating-point tensors.

    Raises GraphError if an input is missing, unknown or of another shape.
    """
    if set(inputs) != set(graph.inputs):
        raise GraphError(f"inputs: expected {sorted(graph.inputs)}; got {sorted(inputs)}")
    values: dict[str, Array] = {}
    for name, array in {**graph.constants, **inputs}.items():
        t = graph.types[name]
        if tuple(array.shape) != t.shape:
            raise GraphError(f"input {name}: expected shape {t.shape}; got {tuple(array.shape)}")
        values[name] = array.astype(_oracle_dtype(t.dtype))
    last = {s: k for k, n in enumerate(graph.nodes) for s in n.sources}
    for k, n in enumerate(graph.nodes):
        evaluate_nodes([n], values)
        for s in n.sources:
            if last[s] == k and s not in graph.outputs:
                values.pop(s, None)
    return [values[o] for o in graph.outputs]
