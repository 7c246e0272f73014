"""Schedule steps: a schedule is data. Frozen, ordered, printable, parseable: ``parse(str(s)) == s``.

A schedule is a sequence of steps, one a line. Loops are named ``axis.level``: splitting an axis into blocks of 96 and tiles of
6 gives the loops ``i.0`` (over blocks), ``i.1`` (over tiles of a block) and ``i.2`` (inside a tile); an axis that is not split
has one loop, ``i.0``. Factors need not divide: a remainder becomes a second body of static size.

=====================  ====================================================================================================
``winograd S N AXES``  compute convolution S, which has windows of 3, from tiles of N (2 or 4) outputs along each window axis;
                       S becomes the stages ``S_data``, ``S_col``, ``S_in``, ``S_mul`` (the products), ``S_row``, ``S_out``,
                       stored with neighbouring ``tiles`` or ``channels`` side by side
``rfactor S AXIS N``   reduce S in parts of N values of one of its reduction axes (split-K): stage ``S_part`` has the parts along
                       a first axis ``AXISa``, and S reduces them. Where N leaves a rest, ``S_sum`` reduces the parts,
                       ``S_rest`` the rest, and S adds the two
``inline S``           compute S where it is read. ``t = relu(c); y = t * 2``  ->  ``y = relu(c) * 2``
``divide S AXIS N``    walk an axis of the output S as two, blocks of N (which divides its extent) and inside a block, named
                       ``AXISa`` and ``AXISb``. ``y[i] = t[i // N, i % N]``  ->  ``y[a, b] = t[a, b]``, in step with ``t``
``at S L LOOP``        compute S inside the named loop of stage L (``tile``: inside the innermost one that stays a loop), into a
                       local buffer that holds just what the loop needs. Where L is itself computed inside a stage,
                       ``tile`` computes S inside all loops of L, just before each element is read
``split S AXIS N...``  tile an axis.  ``for i in M``  ->  ``for i.0: for i.1: for i.2``
``order S LOOP...``    the order of the loops of S, outermost first (all of them)
``parallel S N``       run the N outermost loops of S in parallel, fused
``vectorize S LOOP``   run the loop as one vector
``unroll S LOOP``      repeat the body instead of looping
``spread S LOOP``      give each iteration of an unrolled reduction loop its own accumulator (rfactor)
``pack S N LOOP ...``  copy factor N of the product S sums into a buffer laid out in the given order of its loops, at the named
                       loop of S or of its leader (``root``: before all loops; of a constant: once, when the program is built)
``block S``            compute S in a stage ``S_block`` and copy it: with ``at S_block S LOOP`` a block of S is made in a buffer, in one
                       order of loops, and written out in another
``inplace S``          keep the result of S where the output of the leader will be, instead of in a buffer of its own
``stream S``           store the output of S past the caches (non-temporal)
``prefetch S LOOP N``  fetch what S reads N iterations of the loop, one around S that stays a loop, later; where S is the block of
                       a ``block`` step and the loop one around it, a share of that in each iteration that writes the block out
=====================  ====================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields


class ScheduleError(ValueError):
    """A schedule that does not apply; the text names the step, what was expected and what came."""


def check(condition: bool, text: str) -> None:
    """Raise :class:`ScheduleError` unless ``condition`` holds: the one way a step is refused."""
    if not condition:
        raise ScheduleError(text)


@dataclass(frozen=True, order=True, slots=True)
class Step:
    """Base of all steps; ``stage`` is the tensor name of the stage it shapes."""

    stage: str

    def __str__(self) -> str:
        parts = [KEYWORDS[type(self)]]
        for f in fields(self):
            value = getattr(self, f.name)
            parts.extend(str(v) for v in (value if isinstance(value, tuple) else (value,)))
        return " ".join(parts)


@dataclass(frozen=True, order=True, slots=True)
class Winograd(Step):
    """``y[x] = sum(d[x + k] * g[k])``  ->  ``y = A(U(g) * B(d))``, tile by tile (:mod:`tilewright.schedules.winograd`)."""

    tile: int
    layout: str


@dataclass(frozen=True, order=True, slots=True)
class RFactor(Step):
    """``y[i] = sum(f(i, r))``  ->  ``y_part[a, i] = sum(f(i, size * a + b)); y[i] = sum(y_part[a, i])``
    (:mod:`tilewright.schedules.rfactor`)."""

    axis: str
    size: int


@dataclass(frozen=True, order=True, slots=True)
class Inline(Step):
    """``t = f(c); y = g(t)``  ->  ``y = g(f(c))``."""


@dataclass(frozen=True, order=True, slots=True)
class Divide(Step):
    """``y[i] = f(i)``  ->  ``y[a, b] = f(size * a + b)``  (:mod:`tilewright.schedules.divide`)."""

    axis: str
    size: int


@dataclass(frozen=True, order=True, slots=True)
class At(Step):
    """``for i: s[i] = …`` and ``for i: y[i] = g(s[i])``  ->  ``for i: (s = …; y[i] = g(s))``."""

    leader: str
    loop: str


@dataclass(frozen=True, order=True, slots=True)
class Split(Step):
    """``for i in 100``  ->  ``for i.0 in 17: for i.1 in 6`` with ``sizes=(6,)`` and a last body of 4."""

    axis: str
    sizes: tuple[int, ...]


@dataclass(frozen=True, order=True, slots=True)
class Order(Step):
    """``for i: for j``  ->  ``for j: for i``."""

    loops: tuple[str, ...]


@dataclass(frozen=True, order=True, slots=True)
class Parallel(Step):
    """``for i: for j``  ->  ``parallel for (i, j)`` with ``count=2``."""

    count: int


@dataclass(frozen=True, order=True, slots=True)
class Vectorize(Step):
    """``for v in 8: y[v] = x[v]``  ->  ``y[0:8] = x[0:8]``."""

    loop: str


@dataclass(frozen=True, order=True, slots=True)
class Unroll(Step):
    """``for u in 2: f(u)``  ->  ``f(0); f(1)``."""

    loop: str


@dataclass(frozen=True, order=True, slots=True)
class Spread(Step):
    """``for u in 2: s += x[u]``  ->  ``s0 += x[0]; s1 += x[1]; s = s0 + s1``."""

    loop: str


@dataclass(frozen=True, order=True, slots=True)
class Pack(Step):
    """``c += a[i, k] * b[k, j]``  ->  ``p[j.0, k, j.1] = b[k, j]`` at ``loop``, then ``c += a[i, k] * p[j.0, k, j.1]``."""

    factor: int
    loop: str
    layout: tuple[str, ...]


@dataclass(frozen=True, order=True, slots=True)
class Stream(Step):
    """``y[i] = v``  ->  the same store with a non-temporal hint."""


@dataclass(frozen=True, order=True, slots=True)
class Prefetch(Step):
    """``for i: y[i] = f(x[i])``  ->  ``for i: (fetch x[i + distance]; y[i] = f(x[i]))``
    (:mod:`tilewright.schedules.prefetch`)."""

    loop: str
    distance: int


@dataclass(frozen=True, order=True, slots=True)
class Block(Step):
    """``y[i] = f(x)``  ->  ``y_block[i] = f(x); y[i] = y_block[i]``  (:mod:`tilewright.schedules.blocks`)."""


@dataclass(frozen=True, order=True, slots=True)
class InPlace(Step):
    """``e[i] = f(x[i]); y[i] = e[i] * c``  ->  ``y[i] = f(x[i]); y[i] = y[i] * c``."""


KEYWORDS: dict[type[Step], str] = {
    Winograd: "winograd",
    RFactor: "rfactor",
    Inline: "inline",
    At: "at",
    Split: "split",
    Order: "order",
    Parallel: "parallel",
    Vectorize: "vectorize",
    Unroll: "unroll",
    Spread: "spread",
    Pack: "pack",
    Divide: "divide",
    Block: "block",
    InPlace: "inplace",
    Stream: "stream",
    Prefetch: "prefetch",
}
_BY_KEYWORD = {k: c for c, k in KEYWORDS.items()}


@dataclass(frozen=True, slots=True)
class Schedule:
    """A sequence of steps."""

    steps: tuple[Step, ...] = ()

    def __str__(self) -> str:
        return "\n".join(str(s) for s in self.steps)

    def of(self, stage: str) -> list[Step]:
        """The steps that shape one stage."""
        return [s for s in self.steps if s.stage == stage]


def schedule(steps: Iterable[Step]) -> Schedule:
    """A schedule of the given steps."""
    return Schedule(tuple(steps))


def parse(text: str) -> Schedule:
    """The schedule printed as ``text``; blank lines and ``#`` comments are skipped. Raises ScheduleError with the line."""
    steps: list[Step] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#", 1)[0].split()
        if words:
            steps.append(_parse_line(words, number))
    return Schedule(tuple(steps))


def _parse_line(words: list[str], number: int) -> Step:
    cls = _BY_KEYWORD.get(words[0])
    if cls is None:
        raise ScheduleError(f"schedule line {number}: expected one of {', '.join(_BY_KEYWORD)}; got {words[0]!r}")
    args: list[object] = []
    rest = words[1:]
    for f in fields(cls):
        kind = str(f.type)
        if kind.startswith("tuple"):
            args.append(tuple(_integer(w, number) if "int" in kind else w for w in rest))
            rest = []
            continue
        if not rest:
            raise ScheduleError(f"schedule line {number}: {words[0]!r} expects a value for {f.name!r}")
        word = rest.pop(0)
        args.append(_integer(word, number) if kind == "int" else word)
    if rest:
        raise ScheduleError(f"schedule line {number}: {words[0]!r} does not expect {' '.join(rest)!r}")
    return cls(*args)  # type: ignore[arg-type]


_DIGITS = 18
"""Of a number in a schedule: what follows from it has to fit 64 bits."""


def _integer(word: str, number: int) -> int:
    if not (word.isascii() and word.isdecimal()):
        raise ScheduleError(f"schedule line {number}: expected a whole number; got {word[:40]!r}")
    if len(word) > _DIGITS:
        raise ScheduleError(f"schedule line {number}: expected a number of at most {_DIGITS} digits; got {word[:40]}")
    return int(word)
