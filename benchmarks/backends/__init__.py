"""One vocabulary of operators, spoken by every side of a comparison.

A workload is written once, as a function of one of these classes and of its tensors. NumPy (also the float64
reference), PyTorch, ONNX, JAX and Tilewright each say the same operator in their own best words; a counting
class gives output shapes and arithmetic. So the sides cannot drift apart.

Nothing here needs a library before it is used, so that an interpreter that has only NumPy and one of them can say
what it has; `tilewright_ops`, which needs all of Tilewright, is imported by name.
"""

from benchmarks.backends.count import CountOps as CountOps
from benchmarks.backends.jax_ops import JaxOps as JaxOps
from benchmarks.backends.numpy_ops import NumpyOps as NumpyOps
from benchmarks.backends.onnx_ops import OnnxOps as OnnxOps
from benchmarks.backends.torch_ops import TorchOps as TorchOps
from benchmarks.backends.tvm_ops import TvmOps as TvmOps
from benchmarks.backends.vocabulary import Array as Array
from benchmarks.backends.vocabulary import Ops as Ops
from benchmarks.backends.vocabulary import Value as Value
