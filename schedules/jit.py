"""LLVM IR text to machine code in this process, and to object code.

The pass pipeline is short and ours: inline the maths, promote register buffers to SSA values, simplify. LLVM's own vectoriser and
unroller stay off: vectors, unrolling and tiles come from the schedule. NewGVN is left out on purpose: it miscompiled guarded loads
of padded convolutions, and what it removed, the back end removes too.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import glob
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from tilewright.schedules import objects
from tilewright.schedules.target import Target


class CompileError(RuntimeError):
    """LLVM refused a module: a bug in lowering, or a target that cannot be generated for."""


_RUNTIME_NAMES = ("libgomp", "libiomp5", "libomp")


def loaded_openmp() -> str | None:
    """Path of an OpenMP runtime that is already loaded in this process."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for line in maps.splitlines():
        path = line.rsplit(" ", 1)[-1]
        if path.startswith("/") and os.path.basename(path).startswith(_RUNTIME_NAMES):
            return path
    return None


def _bundled_openmp() -> list[str]:
    """Runtimes bundled by packages we depend on, and the system's."""
    found: list[str] = []
    for package in ("sklearn", "xgboost"):
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            continue
        site = Path(spec.origin).parent.parent
        for pattern in ("scikit_learn.libs", "xgboost_cpu.libs", "xgboost.libs"):
            found += sorted(glob.glob(str(site / pattern / "libgomp*")))
    system = ctypes.util.find_library("gomp") or ctypes.util.find_library("omp")
    return found + ([system] if system else [])


@functools.cache
def openmp() -> ctypes.CDLL:
    """The OpenMP runtime of this process. One that is loaded already is taken first (two pools that spin on the same cores
    cost more than any schedule gains). Raises CompileError if there is none."""
    path = loaded_openmp()
    for candidate in ([path] if path else []) + _bundled_openmp():
        try:
            lib = ctypes.CDLL(candidate, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        for name in ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"):
            llvm.add_symbol(name, ctypes.cast(getattr(lib, name), ctypes.c_void_p).value)
        return lib
    raise CompileError(
        "no OpenMP runtime: expected one loaded in the process, one bundled by scikit-learn or xgboost, or the system's "
        "libgomp; install libgomp1 (or use Target.with_threads(1))"
    )


@functools.cache
def _initialise() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


_UNUSED = ("sse4a",)
"""Instruction sets that are there but cost more than they save: SSE4a has no form for the upper halves of the registers, and
each change between such code and AVX takes hundreds of cycles."""


@functools.cache
def target_machine(target: Target, for_jit: bool) -> Any:
    """LLVM's description of a target."""
    _initialise()
    try:
        description = llvm.Target.from_triple(target.triple)
    except RuntimeError as error:
        raise CompileError(
            f"target {target.name}: LLVM has no code generator for {target.triple!r} ({error})"
        ) from error
    features = [f for f in target.features if f[1:] not in _UNUSED]
    features += [f"-{name}" for name in _UNUSED if f"+{name}" in target.features]
    return description.create_target_machine(
        cpu=target.cpu, features=",".join(features), opt=3, reloc="default" if for_jit else "pic", jit=for_jit
    )


def optimise(text: str, target: Target, for_jit: bool = True) -> Any:
    """Parse a module and run the passes."""
    machine = target_machine(target, for_jit)
    try:
        module = llvm.parse_assembly(text)
    except RuntimeError as error:
        raise CompileError(f"LLVM does not accept the module: {error}") from error
    module.triple = target.triple
    module.data_layout = str(machine.target_data)
    tuning = llvm.create_pipeline_tuning_options(speed_level=2)
    tuning.loop_vectorization = False
    tuning.slp_vectorization = False
    tuning.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, tuning)
    passes = llvm.create_new_module_pass_manager()
    for add in _PIPELINE:
        getattr(passes, f"add_{add}")()
    passes.run(module, builder)
    return module


_PIPELINE = (
    "always_inliner_pass",
    "sroa_pass",
    "instruction_combine_pass",
    "simplify_cfg_pass",
    "loop_rotate_pass",
    "instruction_combine_pass",
    "dead_code_elimination_pass",
)


class Code:
    """Machine code in memory; functions are looked up by name. The memory lives as long as this object."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def address(self, name: str) -> int:
        """Address of a function. Raises CompileError if the module has none of that name."""
        found = int(self._engine.get_function_address(name))
        if not found:
            raise CompileError(f"the compiled module has no function {name!r}")
        return found

    def data(self, name: str, nbytes: int) -> bytes:
        """The first bytes of a constant. Raises CompileError if the module has none of that name."""
        found = int(self._engine.get_global_value_address(name))
        if not found:
            raise CompileError(f"the compiled module has no constant {name!r}")
        return ctypes.string_at(found, nbytes)

    def function(self, name: str) -> Callable[[int], None]:
        """A ``void name(ptr)`` as a Python callable taking an address."""
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.address(name))
        engine = self._engine

        def run(args: int, _keep: Any = engine) -> None:
            call(args)

        return run


def _link_threads(text: str, target: Target) -> None:
    """Make known what parallel loops call: our pool, or an OpenMP runtime."""
    if "GOMP_parallel" in text:
        openmp()
    if "@tw_parallel_" in text:
        _link_pool(target)


def _link_pool(target: Target) -> None:
    from tilewright.schedules.pool import RUN, pool  # the pool is compiled by this module

    llvm.add_symbol(f"{RUN}_{target.threads}", pool(target.threads).address)


def compile_text(text: str, target: Target) -> Code:
    """Machine code of a module, for this process."""
    _link_threads(text, target)
    return compile_plain(text, target)


def compile_plain(text: str, target: Target) -> Code:
    """As :func:`compile_text`, for a module that has no parallel loops."""
    module = optimise(text, target)
    # an engine owns its target machine, so it gets one of its own
    machine = target_machine.__wrapped__(target, True)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return Code(engine)


def compile_object(text: str, target: Target) -> bytes:
    """Object code (ELF on Linux) of a module, position independent."""
    module = optimise(text, target, for_jit=False)
    return bytes(target_machine(target, False).emit_object(module))


def load_object(data: bytes, target: Target, names: Sequence[str]) -> Code:
    """Machine code from :func:`compile_object`'s bytes, which must have functions or data of all ``names``. Raises CompileError for
    anything else, before LLVM sees it: LLVM ends the process for object code that it does not expect."""
    _initialise()
    host = Target.host()  # nothing is generated any more, so LLVM need not know the target that came with the file
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine.__wrapped__(host, True))
    _link_needed(data, target, names)  # (names of this process are found only once an engine has been made)
    engine.add_object_file(llvm.ObjectFileRef.from_data(data))
    engine.finalize_object()
    return Code(engine)


def _link_needed(data: bytes, target: Target, names: Sequence[str]) -> None:
    """Make known what object code calls, and refuse code that calls anything that is not there."""
    if "linux" not in target.triple:  # other formats than ELF are not looked into
        if target.threads > 1:
            _link_pool(target)
        return
    try:
        found = objects.symbols(data, target.arch)
    except objects.ObjectError as error:
        raise CompileError(str(error)) from error
    missing = sorted(set(names) - found.defined)
    if missing:
        raise CompileError(f"object code: expected {', '.join(names)}; it has no {', '.join(missing)}")
    if f"tw_parallel_{target.threads}" in found.needed:
        _link_pool(target)
    unknown = sorted(n for n in found.needed if llvm.address_of_symbol(n) is None)
    if unknown:
        raise CompileError(f"object code: it needs {', '.join(unknown)[:200]}, which this process does not have")


def assembly(text: str, target: Target) -> str:
    """Assembler text of a module, for people."""
    return str(target_machine(target, True).emit_assembly(optimise(text, target)))


def llvm_version() -> str:
    """Version of LLVM in use."""
    return ".".join(str(v) for v in llvm.llvm_version_info)


if sys.byteorder != "little":
    raise CompileError("expected a little-endian host")
