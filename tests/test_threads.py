"""One compiled model, several callers: threads, signal handlers, forks. Every call is right, and none waits for another."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tilewright
from benchmarks import threads as benchmark
from tilewright.compiled import Array, ModelError
from tilewright.graph import ops
from tilewright.runtime import Executable
from tilewright.schedules.pool import pool
from tilewright.schedules.target import Target

pytestmark = pytest.mark.workers


def chain(threads: int = 1, width: int = 96) -> Executable:
    """Three products with what lies between them in the arena; at several threads, each is a region of the pool."""
    rng = np.random.default_rng(0)
    g = tilewright.Graph()
    h = g.input("x", (width, width))
    for _ in range(3):
        h = ops.tanh(ops.matmul(h, g.constant(rng.standard_normal((width, width), dtype=np.float32) / 10)))
    g.output(h, "y")
    return tilewright.compile(g, Target.host(threads=threads))


def softmaxes() -> Executable:
    """Another kind of kernels: reductions over rows, kept in the arena."""
    g = tilewright.Graph()
    x = g.input("x", (16, 64))
    g.output(ops.softmax(ops.matmul(ops.softmax(x, -1), ops.transpose(x, (1, 0))), -1), "y")
    return tilewright.compile(g, Target.host(threads=1))


def inputs_of(model: Executable, count: int) -> list[Array]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal(model.inputs[0].shape, dtype=np.float32) for _ in range(count)]


def in_threads(work: Callable[[int], None], count: int) -> None:
    """Run ``work(0)`` to ``work(count - 1)`` at the same time; raises what one of them raised."""
    errors: list[BaseException] = []
    together = threading.Barrier(count)

    def run(k: int) -> None:
        together.wait()
        try:
            work(k)
        except (AssertionError, ValueError) as error:
            errors.append(error)

    team = [threading.Thread(target=run, args=(k,)) for k in range(count)]
    for t in team:
        t.start()
    for t in team:
        t.join(120)
        assert not t.is_alive(), "a caller hangs"
    if errors:
        raise errors[0]


@pytest.mark.parametrize("make", [chain, softmaxes, lambda: chain(threads=2)], ids=["chain", "softmaxes", "pool"])
def test_calls_from_many_threads_do_not_mix(make: Callable[[], Executable]) -> None:
    """Every thread gets the outputs of its own inputs, bit by bit."""
    model = make()
    inputs = inputs_of(model, 8)
    right = [model(x)[0].tobytes() for x in inputs]

    def work(k: int) -> None:
        for _ in range(300):
            assert model(inputs[k])[0].tobytes() == right[k]

    in_threads(work, 8)


def test_every_way_to_call_at_once() -> None:
    """``bind`` and ``invoke`` of several threads, ``run``, ``time`` and calls, together on one model."""
    model = chain()
    inputs = inputs_of(model, 8)
    right = [model(x)[0].tobytes() for x in inputs]

    def work(k: int) -> None:
        out = model.allocate()
        if k < 4:
            model.bind([inputs[k]], out)
        for _ in range(200):
            if k < 4:
                out[0].fill(0)
                model.invoke()
                assert out[0].tobytes() == right[k]
            elif k < 6:
                assert model.run({"x": inputs[k]})[0].tobytes() == right[k]
            else:
                assert model.time(min_seconds=0, min_calls=1) > 0

    in_threads(work, 8)


def test_a_call_leaves_alone_what_is_bound_and_what_was_returned() -> None:
    """What ``bind`` was given stays bound after calls on other arrays; ``invoke`` does not write what a call returned."""
    model = chain()
    a, b = inputs_of(model, 2)
    right = [model(x)[0].copy() for x in (a, b)]
    out = model.allocate()
    model.bind([a], out)
    (returned,) = model(b)
    assert model.time(min_seconds=0, min_calls=1) > 0
    model.invoke()
    np.testing.assert_array_equal(out[0], right[0])
    np.testing.assert_array_equal(returned, right[1])


def test_what_one_thread_bound_is_not_bound_in_another() -> None:
    """``invoke`` in a thread that has bound nothing is refused, whatever others have bound."""
    model = chain()
    (x,) = inputs_of(model, 1)
    model.bind([x], model.allocate())

    def work(_: int) -> None:
        with pytest.raises(ModelError, match="bound by this thread"):
            model.invoke()

    in_threads(work, 1)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no interval timers on this system")
def test_a_signal_handler_may_call_the_model_that_it_interrupts() -> None:
    """A call inside a call (a lock would wait for itself, a shared arena would be overwritten): both are right."""
    model = chain(threads=2)
    a, b = inputs_of(model, 2)
    right = [model(x)[0].tobytes() for x in (a, b)]
    inside: list[bool] = []

    def handler(*_: object) -> None:
        inside.append(model(b)[0].tobytes() == right[1])

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        until = time.monotonic() + 30
        while len(inside) < 50 and time.monotonic() < until:
            assert model(a)[0].tobytes() == right[0]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(inside) >= 50
    assert all(inside)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_while_other_threads_call() -> None:
    """The child is right and is not held up, whatever was going on in the threads that it does not have."""
    model = chain(threads=2)
    inputs = inputs_of(model, 3)
    right = [model(x)[0].tobytes() for x in inputs]
    done = threading.Event()

    def call(k: int) -> None:
        while not done.is_set():
            model(inputs[k])

    others = [threading.Thread(target=call, args=(k,)) for k in range(2)]
    for t in others:
        t.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                signal.alarm(30)
                os._exit(0 if all(model(x)[0].tobytes() == r for x, r in zip(inputs, right, strict=True)) else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        done.set()
        for t in others:
            t.join()


@pytest.mark.timing
def test_two_models_share_the_pool() -> None:
    """Two models whose kernels are regions of the same pool, called at the same time: both right, and neither starves: a caller that
    finds the pool busy works by itself, so the slower one still gets what one core can do."""
    models = [chain(threads=2, width=128), chain(threads=2, width=128)]
    inputs = inputs_of(models[0], 2)
    right = [m(x)[0].tobytes() for m, x in zip(models, inputs, strict=True)]
    calls = [0, 0]
    end = time.monotonic() + 2

    def work(k: int) -> None:
        while time.monotonic() < end:
            assert models[k](inputs[k])[0].tobytes() == right[k]
            calls[k] += 1

    in_threads(work, 2)
    assert min(calls) > max(calls) / 10


def test_models_of_different_thread_counts_at_once() -> None:
    """Each thread count has a pool of its own; more threads than cores end all the same."""
    models = [chain(threads=n) for n in (1, 2, 3)]
    (x,) = inputs_of(models[0], 1)
    right = [m(x)[0].tobytes() for m in models]

    def work(k: int) -> None:
        for _ in range(100):
            assert models[k % 3](x)[0].tobytes() == right[k % 3]

    in_threads(work, 6)


def test_compiling_in_several_threads() -> None:
    """One pool for each thread count, however many threads ask for it first; every model is right."""
    (x,) = inputs_of(softmaxes(), 1)
    right = softmaxes()(x)[0].tobytes()
    pools: list[object] = [None] * 4

    def work(k: int) -> None:
        pools[k] = pool(5)
        assert softmaxes()(x)[0].tobytes() == right

    in_threads(work, 4)
    assert len(set(map(id, pools))) == 1


@pytest.mark.parametrize("name", benchmark.MODELS)
def test_the_benchmark(name: str) -> None:
    """It counts wrong results (an answer that is always wrong counts each call), and compares with and without the guard."""
    model = benchmark.MODELS[name](1)
    assert benchmark.wrong_results(model, threads=4, calls=25) == 0
    numbers = iter(range(10**6))
    broken = lambda x: [np.array(next(numbers))]  # noqa: E731
    broken.inputs = model.inputs  # type: ignore[attr-defined]
    assert benchmark.wrong_results(broken, threads=4, calls=25) == 100  # type: ignore[arg-type]
    call, ratio = benchmark.guard_cost(model.compiled, rounds=9, round_s=0.001)
    assert call > 0
    assert 0 < ratio.low <= ratio.value <= ratio.high
