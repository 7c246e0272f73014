"""TVM in an interpreter of its own: tunes an operator with MetaSchedule and runs the best that was measured.

Started by `tvm.py`. Needs TVM, NumPy and this folder, nothing of Tilewright.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import platform
import sys
import tempfile
import time
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.backends import TvmOps
from benchmarks.serve import Array, Lacking, Prepare, Prepared, serve, thread_argument
from benchmarks.workloads import Workload, requested

NO_END = 100_000
"""Trials where seconds limit the search."""
PER_ROUND = (8, 64)
"""Trials between two trainings of TVM's cost model: a quarter of all within these bounds (its own default, 64, would
leave a short search without any training)."""
INTRINSICS = ("arm_cpu", "cuda", "hexagon", "riscv_cpu", "rocm", "x86")
OURS = {"x86_64": "x86", "aarch64": "arm_cpu", "riscv64": "riscv_cpu"}


def skip_foreign_intrinsics() -> None:
    """Leave out tensor intrinsics of other processors. Every process of a search reads them all when it starts, and
    the parser looks up source lines for each frame of each, which takes a minute of processor time: longer than
    MetaSchedule lets a build take, so that nothing would ever be built."""
    inspect.stack = functools.partial(inspect.stack, 0)
    for name in INTRINSICS:
        if name != OURS.get(platform.machine()):
            module = f"tvm.s_tir.tensor_intrin.{name}"
            sys.modules.setdefault(module, types.ModuleType(module))


def order_of_times(folder: Path) -> list[float]:
    """Mean seconds of each measurement of a search, in the order in which they were made (a failure is infinite)."""
    means = []
    for line in (folder / "database_tuning_record.json").read_text().splitlines():
        seconds = json.loads(line)[1][1]
        means.append(sum(map(float, seconds)) / len(seconds) if seconds else float("inf"))
    return means


class Tuner:
    """MetaSchedule for this processor, with the default rules, cost model and measurements."""

    def __init__(self, threads: int) -> None:
        import tvm
        from tvm import te
        from tvm.s_tir import Schedule, meta_schedule

        self.tvm: Any = tvm
        self.te: Any = te
        self.ms: Any = meta_schedule
        self.schedule: Any = Schedule
        self.threads = threads

    def prepare(self, request: Mapping[str, Any], arrays: Mapping[str, Array]) -> Prepared:
        """Tune within ``trials`` or ``seconds``, and build the best for the given arrays. Raises Lacking."""
        workload = requested(request)
        target = self.tvm.target.Target({"kind": "llvm", "mcpu": request["cpu"], "num-cores": self.threads})
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            database = self._search(workload, target, Path(folder), request["trials"], request["seconds"])
            spent = time.perf_counter() - start
            times = order_of_times(Path(folder))
            best = [r for r in database.get_all_tuning_records() if r.run_secs]
            if not best:
                raise Lacking(f"none of {len(times)} measurements was valid")
            record = min(best, key=lambda r: sum(map(float, r.run_secs)) / len(r.run_secs))
            schedule = self.schedule(record.workload.mod)
            record.trace.apply_to_schedule(schedule, remove_postproc=False)
        function = self.tvm.compile(schedule.mod, target)["main"]
        tensors = [self.tvm.runtime.tensor(a) for a in arrays.values()]
        out = self.tvm.runtime.tensor(np.zeros(workload.shape, np.float32))
        info = {"tuning_s": spent, "trials": len(times), "search_ms": 1e3 * min(times)}
        return Prepared(lambda: function(*tensors, out), lambda: self._result(function, tensors, out), info)

    @staticmethod
    def _result(function: Any, tensors: list[Any], out: Any) -> Array:
        function(*tensors, out)
        return np.asarray(out.numpy())

    def _search(self, workload: Workload, target: Any, folder: Path, trials: int | None, seconds: float | None) -> Any:
        """The database of a search. TVM counts trials only: seconds are watched after each round."""
        ms, deadline = self.ms, time.perf_counter() + (seconds or float("inf"))
        over: list[bool] = []

        @self.tvm.ir.utils.derived_object
        class Watch(ms.measure_callback.PyMeasureCallback):  # type: ignore[misc, name-defined]
            """Ends a search that is over its time."""

            def apply(self, *_: Any) -> None:
                if time.perf_counter() > deadline:
                    over.append(True)
                    raise TimeoutError

        inputs = [self.te.placeholder(i.shape, name=i.name) for i in workload.inputs]
        function = self.te.create_prim_func([*inputs, workload.body(TvmOps(), *inputs)])
        wanted = trials or NO_END
        database = ms.database.JSONDatabase(work_dir=str(folder))
        callbacks = [ms.measure_callback.AddToDatabase(), ms.measure_callback.UpdateCostModel(), Watch()]
        try:
            ms.tune_tir(
                function,
                target,
                str(folder),
                wanted,
                num_trials_per_iter=min(max(wanted // 4, PER_ROUND[0]), PER_ROUND[1]) if trials else 16,
                builder=ms.builder.LocalBuilder(initializer=skip_foreign_intrinsics),
                runner=ms.runner.LocalRunner(initializer=skip_foreign_intrinsics),
                database=database,
                measure_callbacks=callbacks,
                num_tuning_cores=os.cpu_count(),
                seed=0,
            )
        except (RuntimeError, TimeoutError):  # it comes back from TVM as another exception
            if not over:
                raise
        return database


def start(threads: int) -> tuple[str, Prepare]:
    """Load TVM."""
    skip_foreign_intrinsics()
    import tvm

    return str(tvm.__version__), Tuner(threads).prepare


if __name__ == "__main__":
    wanted_threads = thread_argument(__doc__)
    serve(lambda: start(wanted_threads))
