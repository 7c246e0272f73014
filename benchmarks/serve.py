"""The far end of a pipe: a program that holds one operator of a library and runs and times it when told to.

A library needs a process of its own where its number of threads is fixed when it is loaded, and an interpreter of
its own where its dependencies must not enter ours. So this module needs nothing but the standard library and NumPy.

One JSON object a line each way. The first line comes from this end: ``{"version": ...}``, or ``{"lacking": why}``.
Requests and their answers:

    {"do": "prepare", "arrays": FILE, ...}   {"info": {...}}: the operator that later requests mean is ready
    {"do": "call", "result": FILE}           {}: one call, its result written as .npy
    {"do": "time", "min_s": S, "min_calls": K, "warm_s": S}   {"ms": median of a call}

What cannot be done is answered with ``{"lacking": why}``. Anything else that goes wrong ends the process.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from benchmarks.clock import Call, call_ms

Array = NDArray[Any]
_PR_SET_PDEATHSIG = 1


class Lacking(Exception):
    """What a peer cannot do here; the text says what and why."""


@dataclass(frozen=True)
class Prepared:
    """An operator, ready to run."""

    call: Call
    result: Callable[[], Array]
    """Of one call."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else is known about it, for instance how long tuning took."""


Prepare = Callable[[Mapping[str, Any], Mapping[str, Array]], Prepared]
"""From a request and the arrays of its tensors. Raises Lacking."""


def private_streams() -> tuple[TextIO, TextIO]:
    """The pipe, moved to descriptors that no child process inherits; what a library prints goes to stderr."""
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return requests, answers


def answer(start: Callable[[], tuple[str, Prepare]], requests: TextIO, answers: TextIO) -> None:
    """Answer requests until there are no more. ``start`` loads the library; it gives the version and what prepares
    operators, and raises Lacking or ImportError where it cannot."""

    def send(message: Mapping[str, Any]) -> None:
        print(json.dumps(message), file=answers, flush=True)

    try:
        version, prepare = start()
    except (Lacking, ImportError) as error:
        send({"lacking": str(error)})
        return
    send({"version": version})
    ready: Prepared | None = None
    for line in requests:
        request = json.loads(line)
        match request["do"], ready:
            case "prepare", _:
                ready = None  # before the next one takes memory
                try:
                    with np.load(request["arrays"]) as arrays:
                        ready = prepare(request, {name: aligned(a) for name, a in arrays.items()})
                except (Lacking, NotImplementedError) as error:
                    send({"lacking": str(error)})
                else:
                    send({"info": ready.info})
            case "call", Prepared():
                np.save(request["result"], ready.result())
                send({})
            case "time", Prepared():
                ms = call_ms(ready.call, request["min_s"], request["min_calls"], request["warm_s"])
                send({"ms": ms})
            case wrong, _:
                raise ValueError(f"do: expected prepare, or call or time after it; got {wrong!r}")


def aligned(a: Array) -> Array:
    """A copy at a multiple of 64 bytes, as every side of a comparison has its tensors."""
    raw = np.empty(a.nbytes + 64, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    out = raw[start : start + a.nbytes].view(a.dtype).reshape(a.shape)
    out[...] = a
    return out


def use_cores(threads: int) -> None:
    """Keep this process, and every thread it will start, on as many cores. Raises Lacking where that is not possible."""
    if not hasattr(os, "sched_setaffinity"):
        raise Lacking("this system cannot keep a process on given cores")
    usable = sorted(os.sched_getaffinity(0))
    if threads > len(usable):
        raise Lacking(f"there are {len(usable)} cores for {threads} threads")
    os.sched_setaffinity(0, usable[:threads])


def thread_argument(description: str | None, argv: Sequence[str] | None = None) -> int:
    """The command line of such a program: ``--threads N``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, required=True)
    threads: int = parser.parse_args(argv).threads
    return threads


def end_with_parent() -> None:
    """Have the system end this process when the one that started it is gone, even in the middle of a long search."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(start: Callable[[], tuple[str, Prepare]]) -> None:
    """The program: answer on standard input and output."""
    end_with_parent()
    requests, answers = private_streams()
    with requests, answers:
        answer(start, requests, answers)
        sys.stderr.flush()
