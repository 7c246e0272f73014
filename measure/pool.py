"""The workers of a runner: respawned after a fault, recycled before they grow, and builds that run side by
side."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, final

from tilewright.measure.job import Job
from tilewright.measure.messages import Message
from tilewright.measure.process import WorkerCrash, WorkerProcess, WorkerTimeout, environment

RECYCLE_AFTER: Final = 1000
"""Candidates after which a worker is replaced."""
RECYCLE_GROWTH: Final = 1 << 30
"""Growth of resident memory, in bytes beyond the reference's, after which a worker is replaced."""


@final
@dataclass
class Slot:
    """A place for a worker. ``generation`` counts the workers it had; what one has built is gone with it."""

    process: WorkerProcess | None = None
    generation: int = 0
    used: int = 0
    told: int = 0
    """How many of the known digests this worker was told."""
    reference: tuple[str, int] | None = None
    """Workload hash and seed of the reference that the worker has."""
    baseline: int = 0
    """Resident bytes after the last reference."""

    def learnt(self, reference: tuple[str, int]) -> None:
        """Note that the worker has a reference now."""
        assert self.process is not None
        self.reference, self.baseline = reference, self.process.resident


class Pool:
    """Workers in numbered slots. ``greeting`` is what each is told first."""

    def __init__(self, count: int, command: Sequence[str], threads: int, greeting: Message) -> None:
        self._command = command
        self._threads = threads
        self._greeting = greeting
        self.slots = [Slot() for _ in range(count)]

    def worker(self, index: int) -> Slot:
        """The slot with a live worker. Raises DeviceError if none can be started."""
        slot = self.slots[index]
        if slot.process is not None and (not slot.process.alive or slot.process.exited()):
            self.retire(index)  # it ended while idle: nobody's fault
        if slot.process is None:
            slot.process = WorkerProcess(self._command, environment(os.environ, self._threads), self._greeting)
            slot.generation += 1
            slot.used = slot.told = 0
            slot.reference = None
            slot.baseline = slot.process.resident
        return slot

    def retire(self, index: int) -> None:
        """End a slot's worker."""
        slot = self.slots[index]
        if slot.process is not None:
            slot.process.kill()
            slot.process = None

    def done(self, index: int) -> None:
        """Count a candidate that was run; end the worker if it has run enough of them or has grown."""
        slot = self.slots[index]
        slot.used += 1
        if slot.process is None:
            return
        if slot.used >= RECYCLE_AFTER or slot.process.resident - slot.baseline > RECYCLE_GROWTH:
            self.retire(index)

    def ask(self, index: int, message: Message, seconds: float) -> Message:
        """One question and its answer. Raises WorkerTimeout and WorkerCrash; the slot is empty then."""
        process = self.worker(index).process
        assert process is not None
        try:
            process.send(message)
            answer = process.receive(seconds)
        except (WorkerTimeout, WorkerCrash):
            self.retire(index)
            raise
        if answer["status"] == "crash":
            self.retire(index)
            raise WorkerCrash(str(answer.get("error")))
        return answer

    def close(self) -> None:
        """End all workers."""
        for index in range(len(self.slots)):
            self.retire(index)


Answer = Message | WorkerTimeout | WorkerCrash


def ask_all(
    pool: Pool, queues: Sequence[Sequence[Job]], message: Callable[[int, Job], Message], seconds: float
) -> dict[int, Answer]:
    """Ask each slot about its queue of jobs, all slots at the same time; the answers by number of the job.

    ``message(slot, job)`` makes the question. A worker that does not answer within ``seconds`` is replaced.
    """
    waiting = [list(q) for q in queues]
    asked: dict[int, tuple[int, float]] = {}  # slot: id, deadline
    answers: dict[int, Answer] = {}
    with selectors.DefaultSelector() as selector:

        def begin(index: int) -> None:
            while waiting[index]:
                question = message(index, waiting[index].pop(0))
                process = pool.worker(index).process
                assert process is not None
                try:
                    process.send(question)
                except WorkerCrash as crash:
                    pool.retire(index)
                    answers[question["id"]] = crash
                    continue
                asked[index] = question["id"], time.monotonic() + seconds
                selector.register(process.fileno(), selectors.EVENT_READ, index)
                return

        def finish(index: int, answer: Answer) -> None:
            process = pool.slots[index].process
            assert process is not None
            number, _ = asked.pop(index)
            answers[number] = answer
            if not isinstance(answer, dict):
                pool.retire(index)
            elif answer["status"] == "crash":
                answers[number] = WorkerCrash(str(answer.get("error")))
                pool.retire(index)
            begin(index)

        for index in range(len(waiting)):
            begin(index)
        while asked:
            now = time.monotonic()
            for index, (_, deadline) in list(asked.items()):
                if deadline <= now:
                    _unregister(selector, pool, index)
                    finish(index, WorkerTimeout(f"no answer within {seconds:.3g} s"))
            if not asked:
                break
            soonest = min(deadline for _, deadline in asked.values())
            for key, _ in selector.select(max(0.0, soonest - time.monotonic())):
                index = key.data
                process = pool.slots[index].process
                assert process is not None
                answer: Answer | None
                handle = key.fd
                try:
                    process.read()
                    answer = process.parse()
                except WorkerCrash as crash:
                    answer = crash
                if answer is not None:
                    selector.unregister(handle)
                    finish(index, answer)
    return answers


def _unregister(selector: selectors.BaseSelector, pool: Pool, index: int) -> None:
    process = pool.slots[index].process
    assert process is not None
    selector.unregister(process.fileno())
