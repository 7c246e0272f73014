"""Fault 26: a run in which all but the defaults fail says so and ends with 3; limits below the wanted ones do not end a run."""

from __future__ import annotations

import functools
import json
import re
import resource
from pathlib import Path

import pytest

from program import limited, run
from test_cli import call, tiny
from test_tuner import TARGET, FakeRunner, model
from tilewright import cli
from tilewright.measure import DeviceError, LocalRunner, Outcome, Request
from tilewright.measure.worker_process import limit_address_space
from tilewright.tasks import default_for, extract
from tilewright.tuner import Budget, tune
from tilewright.tuning_logs import Store

pytestmark = pytest.mark.workers

DEFAULTS = {str(default_for(t.workload, TARGET).schedule) for t in extract(model(), TARGET)}
CAUSE = "the worker ended (exit code 7)\nline two of the cause"


class OnlyDefaults(FakeRunner):
    """A device on which nothing but some schedules runs."""

    def __init__(self, valid: set[str], status: str = "crash") -> None:
        super().__init__()
        self.valid = valid
        self.status = status

    def measure_one(self, request: Request, again: bool = False) -> Outcome:
        outcome = super().measure_one(request, again)
        return outcome if request.schedule in self.valid else Outcome(self.status, error=CAUSE)


def test_a_fruitless_run_is_told_in_python() -> None:
    """Counts of causes and the first error in full, for each task; the result is there."""
    with Store(":memory:") as store:
        result = tune(model(), TARGET, store, Budget(None, 40), runner=OnlyDefaults(DEFAULTS))
        assert result.fruitless
        assert result.best_ns == result.default_ns
        for t in result.tasks:
            assert t.only_default
            assert t.failures == {"crash": t.measured - 1}
            assert t.first_error == f"crash: {CAUSE}"
        # a run that finds nothing new to fail on is none, and one after which others are known is none either
        again = tune(model(), TARGET, store, Budget(None, 40), runner=FakeRunner())
        assert not again.fruitless
        after = tune(model(), TARGET, store, Budget(None, 10), runner=OnlyDefaults(DEFAULTS))
        assert not after.fruitless


def test_one_valid_candidate_or_one_too_slow_makes_a_run_fruitful() -> None:
    """A candidate that was abandoned as slow is a valid one; what has not failed is no failure."""
    with Store(":memory:") as store:
        result = tune(model(), TARGET, store, Budget(None, 30), runner=OnlyDefaults(DEFAULTS, "pruned_slow"))
        assert not result.fruitless
        assert all(t.others for t in result.tasks)
    with Store(":memory:") as store:
        result = tune(model(), TARGET, store, Budget(None, 2), runner=OnlyDefaults(DEFAULTS))
        assert not result.fruitless
        assert not any(t.only_default for t in result.tasks)


def test_a_single_task_without_others_is_named(tmp_path: Path) -> None:
    """Where one task fails but for its default and another does not, the run is good and the task is told."""
    first, second = extract(model(), TARGET)

    class OneTask(FakeRunner):
        def measure_one(self, request: Request, again: bool = False) -> Outcome:
            outcome = super().measure_one(request, again)
            broken = request.workload == first.workload.text and request.schedule not in DEFAULTS
            return Outcome("wrong_result", error=CAUSE) if broken else outcome

    with Store(":memory:") as store:
        result = tune(model(), TARGET, store, Budget(None, 40), runner=OneTask())
    assert not result.fruitless
    assert [t.only_default for t in result.tasks] == [True, False]
    assert result.tasks[1].task.workload.hash == second.workload.hash


@pytest.mark.parametrize("as_json", [True, False])
def test_a_fruitless_run_ends_with_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    """The command shows its results, says the causes on stderr, and exits with the code of no valid candidate."""

    class Broken(FakeRunner):
        """Only the first schedule of a workload that is asked for, its default, is valid."""

        def measure_one(self, request: Request, again: bool = False) -> Outcome:
            default = not self.seen or request.schedule == self.seen[0].schedule
            outcome = super().measure_one(request, again)
            return outcome if default else Outcome("run_timeout", error=CAUSE)

    monkeypatch.setattr(cli, "tune", functools.partial(tune, runner=Broken()))
    done = call(
        "tune", tiny(tmp_path / "m.onnx"), "--shape", "x=4,8", "--threads", 1, "--trials", 20,
        "--store", tmp_path / "r.sqlite", *(["--json"] if as_json else []),
    )  # fmt: skip
    assert done.exit_code == 3, done.output
    told = re.search(
        r"nothing but the default schedule could be measured \((\d+) run_timeout\)\. First error:", done.stderr
    )
    assert told is not None
    assert int(told[1]) >= 10
    assert CAUSE in done.stderr
    if as_json:
        data = json.loads(done.stdout)
        assert data["fruitless"] is True
        assert data["tasks"][0]["first_error"] == f"run_timeout: {CAUSE}"
    else:
        assert f"failures: {told[1]} run_timeout" in done.stdout


@pytest.mark.parametrize("soft_only", [False, True])
def test_a_limit_below_the_wanted_one_is_kept_to(tmp_path: Path, soft_only: bool) -> None:
    """``ulimit -v`` (and ``-S``) below what a worker would be given: it gets what is allowed, and the run goes on."""
    small = 2_500_000_000

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (small, resource.RLIM_INFINITY if soft_only else small))

    done = run(
        "tune", tiny(tmp_path / "m.onnx"), "--shape", "x=4,8", "--threads", "1", "--trials", "6",
        "--store", tmp_path / "r.sqlite", "--json", preexec_fn=limit,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["tasks"][0]["failures"].get("crash", 0) == 0
    assert data["best_ns"] > 0


def test_the_limit_of_a_worker_is_never_raised() -> None:
    """The least of what is wanted and what is allowed, in a child that has limits of its own."""
    import multiprocessing

    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(limit_address_space, (1 << 45,)) == 1 << 45
        assert pool.apply(limit_address_space, (1 << 44,)) == 1 << 44
        assert pool.apply(limit_address_space, (1 << 46,)) == 1 << 44


def test_no_room_for_temporary_files_is_a_device_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named, with what to do; from the command line without a traceback."""
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(DeviceError, match="temporary files: expected a folder that can be written"):
        LocalRunner(TARGET)
    monkeypatch.undo()
    done = run(
        "tune", tiny(tmp_path / "m.onnx"), "--shape", "x=4,8", "--threads", "1", "--trials", "6",
        "--store", tmp_path / "r.sqlite", preexec_fn=limited(resource.RLIMIT_NOFILE, 12),
    )  # fmt: skip
    assert done.returncode in (2, 6)
    assert "error: " in done.stderr
