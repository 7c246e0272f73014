"""Several processes write at once, and may die at any moment."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stored import make
from tilewright.tuning_logs import Store

pytestmark = pytest.mark.workers


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sub" / "records.sqlite"


def _add_some(path: Path, name: str, count: int) -> None:
    with Store(path) as store:
        for trial in range(count):
            store.add(make(run_id=name, trial=trial, workload_hash=f"w{trial % 3}"))


def test_processes_write_at_once(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_add_some, args=(path, f"run{n}", 40)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
        worker.close()
    with Store(path, read_only=True) as store:
        assert store.count() == 160
        for number in range(4):
            assert [r.trial for r in store.records(run_id=f"run{number}")] == list(range(40))


_WRITER = """
import sys
from tilewright.tuning_logs import Record, Store
store = Store(sys.argv[1])
template = Record.from_json_line(sys.argv[2]).to_dict()
base = int(sys.argv[3])
print("ready", flush=True)
for number in range(10**6):
    batch = [Record.from_dict(template | {"trial": base + number, "seed": part}) for part in range(3)]
    store.add_many(batch)
    print(base + number, flush=True)
"""


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_killed_writer_loses_nothing_it_reported(path: Path) -> None:
    rng = random.Random(20)
    acknowledged: list[int] = []
    line = make().to_json_line()
    arguments = [sys.executable, "-c", _WRITER, str(path), line]
    # The children start side by side, so that their imports overlap; each is killed at a moment of its own.
    for wave in range(5):
        children = [
            subprocess.Popen([*arguments, str((4 * wave + n) * 10**6)], stdout=subprocess.PIPE, text=True)
            for n in range(4)
        ]
        outputs = []
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            time.sleep(rng.uniform(0, 0.05))
            child.send_signal(signal.SIGKILL)
            outputs.append(child.communicate()[0])
        for output in outputs:
            acknowledged += [int(text) for text in output.split("\n")[:-1]]
        with Store(path, read_only=True) as store:
            _check_whole_batches(store, acknowledged)
    with Store(path) as store:
        _check_whole_batches(store, acknowledged)
        store.add(make())
    assert acknowledged


def _check_whole_batches(store: Store, acknowledged: list[int]) -> None:
    parts: dict[int, set[int]] = {}
    for record in store.records():
        parts.setdefault(record.trial, set()).add(record.seed)
    assert set(acknowledged) <= set(parts)
    assert all(seeds == {0, 1, 2} for seeds in parts.values())
    assert store.unreadable == {}
