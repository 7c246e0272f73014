"""JAX in a process of its own, on a given number of cores (started by `served.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.backends import JaxOps
from benchmarks.serve import Array, Prepare, Prepared, serve, thread_argument, use_cores
from benchmarks.workloads import requested


def start(threads: int) -> tuple[str, Prepare]:
    """Load JAX once the cores are settled: XLA counts them when its pool starts."""
    use_cores(threads)
    import jax

    def prepare(request: Mapping[str, Any], arrays: Mapping[str, Array]) -> Prepared:
        """Jitted, with constants closed over and inputs on the device; a call waits for its result."""
        workload = requested(request)
        ops = JaxOps()
        given = [jax.device_put(arrays[i.name]) for i in workload.inputs if not i.constant]

        def body(*inputs: Any) -> Any:
            rest = iter(inputs)
            return workload.body(ops, *(arrays[i.name] if i.constant else next(rest) for i in workload.inputs))

        compiled = jax.jit(body).lower(*given).compile()

        def call() -> Any:
            return compiled(*given).block_until_ready()

        return Prepared(call, lambda: np.asarray(call()))

    return str(jax.__version__), prepare


if __name__ == "__main__":
    wanted = thread_argument(__doc__)
    serve(lambda: start(wanted))
