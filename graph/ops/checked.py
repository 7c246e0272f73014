"""What every operator refuses before it looks at its operands: something that is no tensor where one is expected, and tensors of
different graphs.

Which parameters take tensors is read from the annotations, so an operator says it once.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from numbers import Real
from typing import TypeVar

import numpy as np

from tilewright.graph.dtypes import GraphError
from tilewright.graph.graph import Tensor, expect_tensor

F = TypeVar("F", bound=Callable[..., object])
_ONE = ("Tensor", "Tensor | None")
_MANY = ("Sequence[Tensor]",)
_OPERANDS = ("Operand", "Operand | None")
NUMBERS = (Real, np.bool_)


def checked(operator: F, name: str) -> F:
    """``operator``, called ``name``, which first refuses operands that are none with a GraphError."""
    signature = inspect.signature(operator)
    kinds = {n: str(p.annotation) for n, p in signature.parameters.items()}

    @functools.wraps(operator)
    def check_first(*args: object, **named: object) -> object:
        given = signature.bind(*args, **named).arguments
        graph = None
        for parameter, value in given.items():
            kind = kinds[parameter]
            values = value if signature.parameters[parameter].kind is inspect.Parameter.VAR_POSITIONAL else (value,)
            if kind in _MANY:
                if isinstance(value, Tensor) or not hasattr(value, "__iter__"):
                    raise GraphError(f"{name}: {parameter}: expected several tensors; got {type(value).__name__}")
                values = value
            elif kind not in (*_ONE, *_OPERANDS):
                continue
            assert isinstance(values, list | tuple) or hasattr(values, "__iter__")
            for v in values:
                if (v is None and kind.endswith("None")) or (kind in _OPERANDS and isinstance(v, NUMBERS)):
                    continue
                expect_tensor(v, f"{name}: {parameter}", graph)
                graph = v.graph
        return operator(*args, **named)

    return check_first  # type: ignore[return-value]
