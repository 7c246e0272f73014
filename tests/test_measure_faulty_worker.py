"""A worker program for tests: the real worker, which misbehaves where a comment of a schedule asks for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tilewright.graph.workload import Workload
from tilewright.measure.harness import Harness
from tilewright.measure.messages import Message
from tilewright.measure.worker import Worker
from tilewright.measure.worker_process import serve
from tilewright.schedules.lower import module
from tilewright.schedules.target import Target

_WRONG = """
define float @wrong_sum(float %a, float %b, float %c) alwaysinline {
  %d = fmul float %a, %b
  ret float %d
}
"""  # the sum is forgotten


class FaultyWorker(Worker):
    """Does what ``# fault: STAGE KIND`` in a schedule says."""

    def __init__(self, target: Target, folder: Path | None = None) -> None:
        super().__init__(target, folder)
        self.faults: dict[int, str] = {}
        self.checked = 0

    def digest(self, workload: Workload, schedule: str, text: str) -> str:
        return super().digest(workload, schedule, text + schedule)  # a fault is part of the code

    def answer(self, message: Message) -> Message:
        if message["op"] == "build" and "# fault: " in message["schedule"]:
            self.faults[message["id"]] = message["schedule"].split("# fault: ")[1].splitlines()[0]
        stage, _, kind = self.faults.get(message.get("id", -1), "").partition(" ")
        if stage == message["op"]:
            self.misbehave(kind)
        answer = super().answer(message)
        if stage == message["op"]:
            answer = self.lie(kind, answer)
        if message["op"] == "check":
            self.checked += 1
        return answer

    def misbehave(self, kind: str) -> None:
        if kind == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif kind == "abort":
            os.abort()
        elif kind == "exit":
            os._exit(3)
        elif kind == "hang":
            while True:
                time.sleep(0.01)
        elif kind == "hang with children":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            time.sleep(60)
        elif kind == "raise":
            raise KeyError("a bug in the worker")
        elif kind == "memory":
            raise MemoryError("no room")
        elif kind == "damaged worker" and self.checked > 0:
            os.kill(os.getpid(), signal.SIGSEGV)  # an earlier candidate is to blame

    def lie(self, kind: str, answer: Message) -> Message:
        if kind == "garbage":
            os.write(self.answers(), b"\xff\xff\xff\xff this is no message")
        elif kind == "no status":
            return {k: v for k, v in answer.items() if k != "status"}
        elif kind == "wrong code":
            candidate = self.candidates[max(self.candidates)]
            built = candidate.harness.built
            text = module([built.lowered])
            assert "llvm.fmuladd" in text
            candidate.harness = Harness(
                built,
                text.replace("declare float @llvm.fmuladd.f32(float, float, float)", _WRONG).replace(
                    "@llvm.fmuladd.f32", "@wrong_sum"
                ),
            )
        return answer

    @staticmethod
    def answers() -> int:
        """The handle that answers are written to: the highest pipe."""
        return max(int(n) for n in os.listdir("/proc/self/fd") if _is_pipe(n))


def _is_pipe(name: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{name}").startswith("pipe:")
    except OSError:
        return False


def main() -> None:
    """Entry of the process."""
    serve(FaultyWorker)
