"""The names that the nodes of one graph, branch or function body see."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tilewright.graph.onnx.context import ImportFailure, Value
from tilewright.graph.onnx.functions import Key

MAX_DEPTH = 100
"""Branches and calls may lie so deep in one another."""


class Missing:
    """The value of a tensor whose producer has no translation."""


MISSING = Missing()
INITIALIZER = "an initializer"
"""What :meth:`Scope.define` is told of one: it may hide a name of the graph around it, and be the default of an input."""
Given = Value | Missing | None
"""The value of a name; None is an input that the call of a function leaves out."""


@dataclass
class Scope:
    """Values by name, the operator set of the default domain, and where in the model the scope lies.

    Every name is defined once: ONNX is in static single assignment form, and with two definitions nobody can say
    which one a node reads.
    """

    opset: int
    values: dict[str, Given] = field(default_factory=dict)
    path: str = ""
    calls: tuple[Key, ...] = ()
    depth: int = 0
    _own: dict[str, str] = field(default_factory=dict)

    def branch(self, path: str) -> Scope:
        """The scope of a graph inside a node of this one: it sees what is defined here."""
        return Scope(self.opset, dict(self.values), self._deeper(path), self.calls, self.depth + 1)

    def call(self, path: str, key: Key, opset: int) -> Scope:
        """The scope of a function's body: it sees its inputs only. Raises ImportFailure if the function calls itself."""
        if key in self.calls:
            raise ImportFailure(f"function {key[1]!r} of domain {key[0]!r} calls itself")
        return Scope(opset, {}, self._deeper(path), (*self.calls, key), self.depth + 1)

    def _deeper(self, path: str) -> str:
        if self.depth >= MAX_DEPTH:
            raise ImportFailure(f"branches and functions lie more than {MAX_DEPTH} deep in one another at {path[:80]}")
        return path

    def define(self, name: str, value: Given, what: str) -> None:
        """Give ``name`` its value. Raises ImportFailure if this graph, or one around it, has the name."""
        self._claim(name, what, what == INITIALIZER)
        self.values[name] = value

    def define_input(self, name: str, value: Given) -> None:
        """As :meth:`define`, for an input of the graph, which may have an initializer too: that is its default."""
        if self._own.get(name) == INITIALIZER:
            del self._own[name], self.values[name]
        self.define(name, value, "an input")

    def outputs(self, names: Iterable[str], values: Iterable[Given], label: str) -> None:
        """Give the outputs of a node their values; an output with an empty name has none."""
        for name, value in zip(names, values, strict=False):
            if name:
                self.define(name, value, f"node {label}")

    def _claim(self, name: str, what: str, may_shadow: bool) -> None:
        first = self._own.get(name) or ("the graph around it" if name in self.values and not may_shadow else "")
        if first:
            raise ImportFailure(f"{name!r} is defined twice: by {first} and by {what}; every name has one definition")
        self._own[name] = what
