"""``torch.compile`` in a process of its own (started by `served.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.backends import TorchOps
from benchmarks.serve import Array, Lacking, Prepare, Prepared, serve, thread_argument
from benchmarks.workloads import Workload, requested


def start(threads: int) -> tuple[str, Prepare]:
    """Load PyTorch and look for a compiler."""
    import torch
    from torch._inductor import config, cpp_builder, exc

    try:
        cpp_builder.get_cpp_compiler()
    except exc.InvalidCxxCompiler as error:
        raise Lacking("torch.compile needs a C++ compiler (g++ or clang++), and there is none") from error
    torch.set_num_threads(threads)
    config.freezing = True

    base: Any = torch.nn.Module  # without PyTorch's types it is Any as well, so checks agree

    class Module(base):  # type: ignore[misc]
        """A workload whose constants are parameters, which is what freezing looks for."""

        def __init__(self, workload: Workload, arrays: Mapping[str, Array]) -> None:
            super().__init__()
            self.workload = workload
            self.ops = TorchOps()
            constants = {i.name: torch.from_numpy(arrays[i.name]) for i in workload.inputs if i.constant}
            self.weights = torch.nn.ParameterDict(
                {n: torch.nn.Parameter(t, requires_grad=False) for n, t in constants.items()}
            )

        def forward(self, *inputs: Any) -> Any:
            rest = iter(inputs)
            values = [self.weights[i.name] if i.constant else next(rest) for i in self.workload.inputs]
            return self.workload.body(self.ops, *values).contiguous()

    def prepare(request: Mapping[str, Any], arrays: Mapping[str, Array]) -> Prepared:
        workload = requested(request)
        torch.compiler.reset()
        compiled: Any = torch.compile(Module(workload, arrays).eval(), mode="max-autotune", fullgraph=True)
        given = [torch.from_numpy(arrays[i.name]) for i in workload.inputs if not i.constant]

        def call() -> Any:
            with torch.no_grad():
                return compiled(*given)

        try:
            call()
        except torch._dynamo.exc.TorchDynamoException as error:
            raise Lacking(f"torch.compile: {str(error).strip().splitlines()[0][:200]}") from error
        return Prepared(call, lambda: call().numpy())

    return str(torch.__version__), prepare


if __name__ == "__main__":
    wanted = thread_argument(__doc__)
    serve(lambda: start(wanted))
