"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.dtypes import GraphError
from tilewright.graph.expr import Expr, index
from tilewright.graph.graph import Tensor
from tilewright.graph.ops.core import Operand, broadcast_shape, elementwise, reduction
from tilewright.graph.ops.elementwise import add


def _batch(t: Tensor, i: Sequence[Expr], shape: Sequence[int]) -> list[Expr]:
    skip = len(shape) - (t.rank - 2)
    return [index(0) if d == 1 and shape[k] != 1 else i[k] for k, d in enumerate(t.shape[:-2], skip)]


def matmul(a: Tensor, b: Tensor, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """The matrix product of the last two dimensions; leading dimensions broadcast, vectors act as in
    NumPy. The transposes are index maps, not copies."""
    if a.rank == 0 or b.rank == 0:
        raise GraphError(f"matmul: expected tensors of rank 1 or more; got {a.shape} and {b.shape}")
    if a.rank == 1 or b.rank == 1:
        left = a.graph.view(a, (1, *a.shape)) if a.rank == 1 else a
        right = a.graph.view(b, (*b.shape, 1)) if b.rank == 1 else b
        y = matmul(left, right, transpose_a, transpose_b)
        shape = list(y.shape)
        if b.rank == 1:
            shape.pop(-1)
        if a.rank == 1:
            shape.pop(-1 if b.rank == 1 else -2)
        return a.graph.view(y, shape)
    m, k = a.shape[-2:] if not transpose_a else (a.shape[-1], a.shape[-2])
    k2, n = b.shape[-2:] if not transpose_b else (b.shape[-1], b.shape[-2])
    if k != k2:
        raise GraphError(f"matmul: expected equal inner sizes; got {a.shape} and {b.shape}")
    batch = broadcast_shape(a.shape[:-2], b.shape[:-2])

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        row, column, inner = i[-2], i[-1], r[0]
        left = (inner, row) if transpose_a else (row, inner)
        right = (column, inner) if transpose_b else (inner, column)
        return a.at([*_batch(a, i, batch), *left]) * b.at([*_batch(b, i, batch), *right])

    return reduction(a.graph, (*batch, m, n), (k,), "sum", body, "matmul")


def gemm(
    a: Tensor,
    b: Tensor,
    c: Operand | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> Tensor:
    """``alpha * a @ b + beta * c`` for matrices, with either operand transposed."""
    y = matmul(a, b, transpose_a, transpose_b)
    if alpha != 1:
        y = elementwise("gemm_alpha", lambda e: e * _number(alpha, y.dtype), y)
    if c is None or beta == 0:
        return y
    return add(y, c) if beta == 1 else elementwise("gemm_add", lambda e, f: e + f * _number(beta, y.dtype), y, c)


def _number(value: float, dtype: str) -> float | int:
    return value if dtype.startswith("float") or not float(value).is_integer() else int(value)
