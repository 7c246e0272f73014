"""Stands in for a library behind a pipe: NumPy, and the misdeeds that tests ask for (``python -m tests.fake_side``)."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.backends import NumpyOps
from benchmarks.serve import Array, Lacking, Prepare, Prepared, serve, thread_argument
from benchmarks.workloads import requested


def start(threads: int) -> tuple[str, Prepare]:
    """More than three threads are more than it can."""
    if threads > 3:
        raise Lacking("three threads at most")

    def prepare(request: Mapping[str, Any], arrays: Mapping[str, Array]) -> Prepared:
        workload = requested(request)
        match request.get("misdeed"):
            case "exit":
                print("the last word", file=sys.stderr)
                os._exit(7)
            case "sleep":
                time.sleep(60)
            case "lack":
                raise Lacking(f"no {workload.name} here")
        print("noise of a library on stdout")
        wide = [arrays[i.name].astype(np.float64) for i in workload.inputs]

        def call() -> Array:
            y = np.asarray(workload.body(NumpyOps(), *wide))
            return y + 1 if request.get("misdeed") == "wrong" else y

        return Prepared(call, call, {"tuning_s": 2.5, "trials": request.get("trials"), "cpu": request.get("cpu")})

    return f"fake for {threads}", prepare


if __name__ == "__main__":
    count = thread_argument(__doc__)
    serve(lambda: start(count))
