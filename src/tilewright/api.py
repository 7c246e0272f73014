"""The front door in Python: load a model, tune it, compile it from the store's records::

graph = tilewright.load("model.onnx", shapes={"x": (1, 3, 224, 224)})
with tilewright.Store() as store:
    tilewright.tune(graph, tilewright.Target.host(), store, tilewright.Budget(seconds=60))
    model = tilewright.compile(graph, tilewright.Target.host(), store)
outputs = model(array)
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from tilewright.compiled import Compiled
from tilewright.compiler import Choice, Lookup, compile_model, parse_choice
from tilewright.graph.dtypes import GraphError
from tilewright.graph.graph import Graph
from tilewright.graph.workload import Workload
from tilewright.measure import Policy
from tilewright.runtime import Executable
from tilewright.runtime import load as load_compiled
from tilewright.schedules.target import Target
from tilewright.tuning_logs import Miss, Store


def load(
    model: str | os.PathLike[str] | Graph,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, object] | None = None,
) -> Graph:
    """A graph from an ONNX file (needs the ``onnx`` extra); a graph is returned as it is. ``shapes`` binds dynamic dimensions.
    ``values`` gives inputs a constant value (a number, nested lists, an array), after which they are inputs no more: what a
    model branches on or takes shapes from must be known, ``values={"sr": 16000}``.

    Raises UnsupportedError naming every unsupported node, ImportFailure for a file that cannot be read and for wrong values,
    GraphError for a wrong shape binding, and for shapes or values of a graph, whose inputs are bound already.
    """
    if isinstance(model, Graph):
        if shapes or values:
            raise GraphError("shapes and values are for ONNX files; the inputs of a graph are bound already")
        return model
    from tilewright.graph.onnx.importer import import_onnx

    return import_onnx(model, None if shapes is None else {k: tuple(v) for k, v in shapes.items()}, values=values)


def records_lookup(store: Store, target: Target, policy: Policy | None = None) -> Lookup:
    """A function from a workload to the schedule of its best record under ``policy``, or to the reason why there is none. It
    raises ScheduleError for a record whose schedule cannot be read by this version."""
    identity = (policy or Policy()).identity()
    fingerprint = target.fingerprint()

    def lookup(workload: Workload) -> Choice | str:
        found = store.best(workload.hash, fingerprint, identity, family=workload.family, workload=workload.text)
        if isinstance(found, Miss):
            return str(found)
        why = f"{found.time_ns / 1e3:.1f} us, run {found.record.run_id[:8]}, trial {found.record.trial}"
        return parse_choice(found.record.schedule, "record", why)

    return lookup


def compile(
    model: str | os.PathLike[str] | Graph,
    target: Target | None = None,
    store: Store | None = None,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, object] | None = None,
    on_miss: str = "fallback",
    policy: Policy | None = None,
) -> Executable:
    """Machine code of a model for ``target`` (this machine if None), from the best records of ``store``. Never measures.

    ``model`` is a graph or an ONNX file, whose dynamic dimensions ``shapes`` binds and some of whose inputs
    ``values`` makes constant (:func:`load`). A workload without a record (every one if there
    is no store) gets its default schedule: silently (``on_miss="fallback"``), with a warning in the log (``"warn"``), or not at all
    (``"error"``). A record whose schedule does not apply to this version any more counts as none, and is warned of in any case.
    ``policy`` is the one that the records were measured under; ``Policy(algorithms="direct")`` also keeps
    default schedules to the sums as they are written.

    Raises what :func:`load` raises; MissError for ``on_miss="error"``; ValueError for another ``on_miss``; ModelError for a target
    whose code cannot run here (:func:`compile_for` compiles for other machines).
    """
    return Executable(
        compile_for(model, target or Target.host(), store, shapes=shapes, values=values, on_miss=on_miss, policy=policy)
    )


def compile_for(
    model: str | os.PathLike[str] | Graph,
    target: Target,
    store: Store | None = None,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, object] | None = None,
    on_miss: str = "fallback",
    policy: Policy | None = None,
) -> Compiled:
    """As :func:`compile`, for a target that need not be this machine: what a model file holds (``tilewright.model_file.save``
    writes it)."""
    lookup = None if store is None else records_lookup(store, target, policy)
    return compile_model(load(model, shapes, values), target, lookup, on_miss, (policy or Policy()).algorithms)


__all__ = ["compile", "compile_for", "load", "load_compiled", "records_lookup"]
