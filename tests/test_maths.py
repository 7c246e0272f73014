"""The vector maths functions are as accurate as they say, for every exponent, both signs and every special.

References are NumPy's and SciPy's double-precision functions; the error is in units of the last place of the
float32 nearest to the reference (the fixed spacing of subnormals below the smallest normal).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
import pytest
from scipy import special

from tilewright.schedules import maths
from tilewright.schedules.maths_emit import llvm_type

Array = npt.NDArray[Any]


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _sigmoid(x: Array) -> Array:
    t = np.exp(-np.abs(x))
    return np.where(x < 0, t, 1.0) / (1.0 + t)


REFERENCE: dict[str, Callable[..., Array]] = {
    "exp": np.exp, "exp_falling": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log1p": np.log1p,
    "tanh": np.tanh, "erf": special.erf, "sigmoid": _sigmoid, "softplus": _softplus, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "sin": np.sin, "cos": np.cos, "tan": np.tan, "pow": np.power,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
}  # fmt: skip


def _machine() -> llvm.TargetMachine:
    """A fresh one: an execution engine takes it over and frees it."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
    )


@cache
def compiled(name: str, lanes: int, dtype: str) -> tuple[llvm.ExecutionEngine, Callable[..., None]]:
    """`apply(count, out, x[, y])` over arrays whose length is `count * lanes`; the engine must stay alive."""
    arity = maths.FUNCTIONS[name].arity
    text, declares = maths.define(name, lanes, dtype)
    element = "float" if dtype == "float32" else "double"
    vector, size = llvm_type(element, lanes), 4 if dtype == "float32" else 8
    pointers = ["%px", "%py"][:arity]
    loads = "\n".join(
        f"  %a{n} = getelementptr {element}, ptr {p}, i64 %at\n  %v{n} = load {vector}, ptr %a{n}, align {size}"
        for n, p in enumerate(pointers)
    )
    module = llvm.parse_assembly(f"""
{chr(10).join(sorted(declares))}
{text}
define void @apply(i64 %count, ptr noalias %out, {", ".join(f"ptr noalias {p}" for p in pointers)}) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %at = mul i64 %i, {lanes}
{loads}
  %r = call {vector} @{maths.symbol(name, lanes, dtype)}({", ".join(f"{vector} %v{n}" for n in range(arity))})
  %ao = getelementptr {element}, ptr %out, i64 %at
  store {vector} %r, ptr %ao, align {size}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %count
  br i1 %more, label %loop, label %done
done:
  ret void
}}
""")
    module.verify()
    machine = _machine()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    passes = builder.getModulePassManager()
    passes.run(module, builder)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int64, *[ctypes.c_void_p] * (arity + 1))
    return engine, kind(engine.get_function_address("apply"))


def evaluate(name: str, lanes: int, *arrays: Array) -> Array:
    """The function over whole arrays, padded to a multiple of `lanes`."""
    count = -(-len(arrays[0]) // lanes)
    padded = [np.ascontiguousarray(np.resize(a, count * lanes)) for a in arrays]
    out = np.empty_like(padded[0])
    _, apply = compiled(name, lanes, str(out.dtype))
    apply(count, out.ctypes.data, *(a.ctypes.data for a in padded))
    return out[: len(arrays[0])]


def ulp_error(got: Array, exact: Array) -> Array:
    """Units in the last place between `got` and the double `exact`; infinite where the kinds differ."""
    info = np.finfo(got.dtype)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        rounded = exact.astype(got.dtype)
        spacing = np.spacing(np.clip(np.abs(rounded), info.tiny, info.max)).astype(np.float64)
        error = np.abs(got.astype(np.float64) - exact) / spacing
    # Beyond the largest float, the error counts from where the next float would be.
    overflow = np.isinf(rounded) & np.isfinite(exact) & np.isfinite(got)
    same = (np.isnan(got) & np.isnan(exact)) | (np.isinf(rounded) & (got == rounded))
    strange = (np.isnan(got) != np.isnan(exact)) | (~overflow & np.isinf(rounded) & (got != rounded))
    early = np.isinf(got) & np.isfinite(rounded)
    error[early] = (float(info.max) - np.abs(exact[early])) / spacing[early] + 1
    strange |= (np.signbit(got) != np.signbit(exact)) & ~np.isnan(got)
    return np.where(strange, np.inf, np.where(same, 0.0, error))


SPECIALS = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32)


@cache
def arguments() -> Array:
    """Every float32 exponent (subnormals too): 400 random mantissas and the ends, both signs; specials."""
    rng = np.random.default_rng(7)
    exponents = np.arange(255, dtype=np.uint32)[:, None] << 23
    ends = np.array([0, 1, 2, (1 << 23) - 2, (1 << 23) - 1], np.uint32)
    low = np.concatenate(
        [rng.integers(0, 1 << 23, (255, 400), dtype=np.uint32), np.broadcast_to(ends, (255, 5))], axis=1
    )
    positive = (exponents | low).ravel().view(np.float32)
    # Where exp and its relatives overflow, turn subnormal or reach 0, tanh and erf reach 1, cases change.
    edges = np.array([88.72283, 88.72284, 88.37626, 103.97208, 103.2789, 104, 87.33655, 128, 149, 149.5, 150,
                      9.01, 9.02, 3.92, 3.93, 89.41598, 89.41599, 1, np.pi / 2, np.pi, 0.5, 16.6, 17.4, 1e22,
                      2.0**30, 2.0**44, 2.0**65, 2.0**86, 2.0**107], np.float32)  # fmt: skip
    near = [edges, np.nextafter(edges, np.float32(0)), np.nextafter(edges, np.float32(np.inf))]
    dense = [np.linspace(0, top, 60000, dtype=np.float32) for top in (4, 110)]
    values = np.concatenate([positive, *near, *dense])
    return np.concatenate([values, -values, SPECIALS])


def reference(name: str, *arrays: Array) -> Array:
    with np.errstate(all="ignore"):
        return REFERENCE[name](*(a.astype(np.float64) for a in arrays))


def check(name: str, bound: float, got: Array, *arrays: Array) -> None:
    error = ulp_error(got, reference(name, *arrays))
    worst = int(np.argmax(error))
    at = ", ".join(repr(a[worst]) for a in arrays)
    print(f"{name}: {error[worst]:.3f} ulp at {at}")
    assert error[worst] <= bound, f"{name}({at}) = {got[worst]!r}, {error[worst]} ulp off"


INFO = maths.FUNCTIONS
UNARY = sorted(name for name in INFO if INFO[name].arity == 1)


def test_every_function_has_a_reference_and_a_bound_of_at_most_4_ulp() -> None:
    """But for the exponential that stands beside a 1: its last bits count less the smaller it is."""
    assert set(REFERENCE) == set(INFO)
    assert all(
        name == info.name and info.max_ulp <= (5.5 if name == "exp_falling" else 4) for name, info in INFO.items()
    )


@pytest.mark.parametrize("name", UNARY)
def test_float32_error_is_within_the_stated_bound(name: str) -> None:
    x = arguments()
    if name == "exp_falling":
        x = x[~(x > 0) & ~(x < -87.3)]
    check(name, INFO[name].max_ulp, evaluate(name, 8, x), x)


@pytest.mark.parametrize("name", ["erf", "tanh", "sigmoid"])
def test_roundings_do_not_lead_above_1(name: str) -> None:
    """sqrt(1 - erf(x)^2) should not be NaN."""
    first, last = np.array([2, 20], np.float32).view(np.int32)
    x = np.arange(int(first), int(last), 7, dtype=np.int32).view(np.float32)
    got = evaluate(name, 8, np.concatenate([x, -x, SPECIALS]))
    assert np.nanmax(np.abs(got)) == 1


def test_a_falling_exp_holds_a_little_above_0_and_ends_at_0() -> None:
    """Its bound is 3 ulp for what counts in a sum with a 1, and above 0 the reduction's error grows with the exponent."""
    x = arguments()
    x = x[(x <= 0) & (x > -20)]
    check("exp_falling", 3, evaluate("exp_falling", 8, x), x)
    x = np.linspace(0, 80, 9001, dtype=np.float32)
    check("exp_falling", INFO["exp_falling"].max_ulp, evaluate("exp_falling", 8, x), x)
    low = arguments()
    low = low[(low < -87.3)]
    got = evaluate("exp_falling", 8, low)
    assert np.all(np.abs(got - np.exp(low.astype(np.float64))) < 2.0**-126)
    assert not got[low < -87.7].any()


def power_arguments() -> tuple[Array, Array]:
    rng = np.random.default_rng(3)
    some = rng.permutation(arguments())
    anything = (some, rng.permutation(some))
    # Most random pairs overflow: these aim at answers between 2^-155 and 2^130, over all bases.
    base = np.abs(some[np.isfinite(some) & (some != 0) & (np.abs(some) != 1)])
    aimed = (base, (rng.uniform(-155, 130, len(base)) / np.log2(base.astype(np.float64))).astype(np.float32))
    near_one = rng.uniform(0.999, 1.001, 100_000).astype(np.float32)
    steep = (near_one, rng.uniform(-1e5, 1e5, 100_000).astype(np.float32))
    small = np.concatenate([np.arange(-9, 9.5, 0.5, dtype=np.float32), SPECIALS, arguments()[::9973],
                            np.array([2.0**24 - 1, 2.0**24, 2.0**25, 3e38, 1e-45], np.float32)])  # fmt: skip
    signed = np.concatenate([small, -small])
    every_pair = tuple(a.ravel() for a in np.meshgrid(signed, signed))
    pairs = (anything, aimed, steep, every_pair)
    return np.concatenate([p[0] for p in pairs]), np.concatenate([p[1] for p in pairs])


def test_pow_error_and_special_cases() -> None:
    x, y = power_arguments()
    check("pow", INFO["pow"].max_ulp, evaluate("pow", 8, x, y), x, y)


def same_bits(got: Array, wanted: Array) -> None:
    np.testing.assert_array_equal(got, wanted)  # takes NaNs for equal, and zeros of either sign
    np.testing.assert_array_equal(np.signbit(got) & ~np.isnan(got), np.signbit(wanted) & ~np.isnan(wanted))


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("name", sorted(INFO))
def test_every_lane_count_gives_the_same_bits(name: str, lanes: int) -> None:
    arrays = tuple(a[-20001:] for a in power_arguments()) if name == "pow" else (arguments()[::17],)
    same_bits(evaluate(name, lanes, *arrays), evaluate(name, 8, *arrays))


@pytest.mark.parametrize("lanes", [2, 7, 13, 16, 24])
@pytest.mark.parametrize("name", ["exp", "sin", "log1p"])
def test_unusual_lane_counts_give_the_same_bits(name: str, lanes: int) -> None:
    x = arguments()[::17]
    same_bits(evaluate(name, lanes, x), evaluate(name, 8, x))


@pytest.mark.parametrize("lanes", [1, 4, 5])
@pytest.mark.parametrize("name", sorted(INFO))
def test_float64_is_within_the_stated_bound(name: str, lanes: int) -> None:
    x = np.concatenate([np.linspace(-30, 30, 3001), np.linspace(-1, 1, 3001), SPECIALS.astype(np.float64)])
    arrays = (np.abs(x), x[::-1].copy())[: INFO[name].arity] if name == "pow" else (x,)
    check(name, INFO[name].max_ulp + 1, evaluate(name, lanes, *arrays), *arrays)  # the reference errs too


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_text_says_what_it_defines(dtype: str) -> None:
    text, declares = maths.define("rsqrt", 8, dtype)
    short, element = ("f32", "float") if dtype == "float32" else ("f64", "double")
    vector = f"<8 x {element}>"
    head = f"define internal {vector} @tw_rsqrt_{short}x8({vector} %x) alwaysinline nounwind {{"
    assert text.startswith(head)
    assert declares == {f"declare {vector} @llvm.sqrt.v8{short}({vector})"}
    assert maths.symbol("rsqrt", 1, dtype) == f"tw_rsqrt_{short}"


def test_mistakes_are_refused_by_name() -> None:
    with pytest.raises(KeyError, match=r"expected one of acos, .*; got 'gamma'"):
        maths.define("gamma", 8, "float32")
    with pytest.raises(ValueError, match=r"dtype of exp: expected one of float32, float64; got 'float16'"):
        maths.define("exp", 8, "float16")
    with pytest.raises(ValueError, match=r"lanes of exp: expected at least 1; got 0"):
        maths.define("exp", 0, "float32")
