"""What a model computes that depends on no input, and is too large to be a constant of it (``graph/folding.py``): such kernels run
once, when the model is loaded, and their results stay."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from tilewright.graph.graph import Graph
from tilewright.graph.storage import Storage, storage
from tilewright.search_space.fusion import Group

log = logging.getLogger("tilewright")


def fixed_groups(graph: Graph, groups: Sequence[Group], places: Storage) -> tuple[frozenset[int], tuple[str, ...]]:
    """The positions of the groups that depend on no input, and the tensors in whose storage their results lie. A tensor that other
    groups write too (a joined one) changes with every call, and so does what writes into it."""
    writers = Counter(places.of(g.output).root for g in groups)
    known = set(graph.constants)
    found: dict[int, str] = {}
    for k, g in enumerate(groups):
        if all(places.of(g.names[n]).root in known for n, _, _ in g.workload.inputs):
            root = places.of(g.output).root
            found[k] = root
            writers[root] -= 1
            if not writers[root]:
                known.add(root)
    done = {k: root for k, root in found.items() if root in known}
    return frozenset(done), tuple(dict.fromkeys(done.values()))


def groups_of_a_call(graph: Graph, groups: Sequence[Group]) -> list[Group]:
    """The groups that every call of the compiled model runs."""
    once, _ = fixed_groups(graph, groups, storage(graph))
    return [g for k, g in enumerate(groups) if k not in once]


def report_fixed_outputs(graph: Graph, roots: Sequence[str], places: Storage) -> None:
    """Say which outputs are the same for all inputs: most often a model was exported wrongly."""
    for name, tensor in zip(graph.output_names, graph.outputs, strict=True):
        root = places.of(tensor).root
        if root in graph.constants:
            log.warning("output %r depends on no input: it is a constant of the compiled model", name)
        elif root in roots:
            log.warning("output %r depends on no input: it is computed once, when the model is loaded", name)
