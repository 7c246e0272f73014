"""The record: every field is checked, and its JSON line gives it back; the rule of standing; the analyses."""

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.measure import outcome, policy
from tilewright.tuning_logs import (
    SCHEMA_VERSION,
    STATUSES,
    UNSAID_TOLERANCE,
    Key,
    Record,
    RecordError,
    best_so_far,
    calibration,
    candidate_id,
    default_vs_best,
    environment_versions,
    failures_by_status,
    policy_hash,
    policy_text,
    spearman,
    standings,
    system_load,
    target_hash,
    time_split,
    utc_now,
    verdict,
)

VALID: dict[str, Any] = {
    "workload_hash": "w1",
    "workload": '{"i":64}',
    "family": "f1",
    "target": {"hard": {"threads": 1}, "soft": {"governor": "performance"}},
    "policy": '{"cache":"hot","timer":"loop"}',
    "sketch": "contraction",
    "schedule": "split i 4",
    "params": {"tile_i": 4},
    "is_default": False,
    "status": "ok",
    "median_ns": 100.0,
    "run_id": "run",
    "trial": 0,
    "elapsed_s": 1.0,
    "created": "2025-01-01T00:00:00+00:00",
}


def make(**changes: Any) -> Record:
    """A valid record with `changes`; a status other than ok has no median."""
    if changes.get("status", "ok") != "ok":
        changes.setdefault("median_ns", None)
    return Record(**(VALID | changes))


finite = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
positive = st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False)
tokens = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)
any_text = st.text(st.characters())  # lone surrogates too: the output of a child may hold them
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(), plain, max_size=4)


@st.composite
def any_record(draw: st.DrawFn) -> Record:
    status = draw(st.sampled_from(STATUSES))
    return Record(
        workload_hash=draw(tokens),
        workload=json.dumps(draw(objects)),
        family=draw(tokens),
        target={"hard": draw(objects), "soft": draw(objects)},
        policy=json.dumps(draw(objects)),
        sketch=draw(any_text),
        schedule=draw(any_text),
        params=draw(st.dictionaries(any_text, st.integers(), max_size=4)),
        is_default=draw(st.booleans()),
        status=status,
        median_ns=draw(positive) if status == "ok" else None,
        samples_ns=tuple(draw(st.lists(finite, max_size=5))),
        noise=draw(st.none() | finite),
        stop_reason=draw(any_text),
        error=draw(st.none() | any_text),
        max_error=draw(st.none() | finite),
        error_bound=draw(st.none() | positive),
        build_s=draw(finite),
        run_s=draw(finite),
        run_id=draw(tokens),
        trial=draw(st.integers(0, 2**63 - 1)),
        elapsed_s=draw(finite),
        predicted_ns=draw(st.none() | positive),
        strategy=draw(any_text),
        seed=draw(st.integers()),
        versions=draw(st.dictionaries(any_text, any_text, max_size=3)),
        load=draw(objects),
    )


def test_whatever_is_measured_can_be_recorded() -> None:
    """The two lists of outcomes are the same: the format of records depends on no other package."""
    assert outcome.STATUSES == STATUSES


def test_both_layers_agree_on_the_tolerance_that_is_not_named() -> None:
    """Of records of older versions: these were checked at 1e-4."""
    assert UNSAID_TOLERANCE == policy.UNSAID_TOLERANCE == 1e-4


@settings(deadline=None)
@given(any_record())
def test_a_line_gives_an_equal_record_back(record: Record) -> None:
    line = record.to_json_line()
    assert "\n" not in line
    assert line.isascii()
    again = Record.from_json_line(line)
    assert again == record
    assert again.to_json_line() == line
    assert Record.from_json_line(line.encode()) == record


def test_numpy_numbers_become_plain_ones() -> None:
    record = make(trial=np.int64(3), median_ns=np.float32(1.5), samples_ns=[np.float64(1), 2])
    assert record == make(trial=3, median_ns=1.5, samples_ns=(1.0, 2.0))
    assert type(record.trial) is int
    assert type(record.median_ns) is float


BAD: list[tuple[str, object, str]] = [
    ("workload_hash", "", "1 to 200 printable ASCII"),
    ("workload_hash", "a b", "1 to 200 printable ASCII"),
    ("workload", "{", "JSON text"),
    ("workload", '{"i":NaN}', "finite numbers only"),
    ("family", 7, "1 to 200 printable ASCII"),
    ("target", {"hard": {}}, "exactly the parts"),
    ("target", {"hard": [], "soft": {}}, "an object"),
    ("target", {"hard": {"x": math.nan}, "soft": {}}, "finite numbers"),
    ("target", {"hard": {"x": object()}, "soft": {}}, "plain JSON data"),
    ("target_hash", "something", "leave it out"),
    ("policy", "[]", "an object"),
    ("policy_hash", "something", "leave it out"),
    ("sketch", None, "a string"),
    ("schedule", 1, "a string"),
    ("params", [1], "an object of integers"),
    ("params", {"a": 1.5}, "params.a.*an integer, got 1.5"),
    ("params", {"a": True}, "params.a.*an integer, got True"),
    ("is_default", 1, "true or false"),
    ("status", "fine", "one of ok, rejected"),
    ("status", ["ok"], "one of ok, rejected"),
    ("median_ns", None, "because status is ok"),
    ("median_ns", 0.0, "a finite number > 0"),
    ("median_ns", -1, "a finite number > 0"),
    ("median_ns", math.inf, "a finite number > 0"),
    ("median_ns", "5", "a finite number > 0"),
    ("median_ns", 10**400, "a finite number > 0"),
    ("samples_ns", (1.0, math.nan), r"samples_ns\[1\]"),
    ("samples_ns", 5, "a list"),
    ("noise", -0.1, "a finite number >= 0"),
    ("stop_reason", None, "a string"),
    ("error", b"x", "a string"),
    ("max_error", math.nan, "a finite number >= 0"),
    ("error_bound", 0.0, "a finite number > 0"),
    ("build_s", None, "a finite number >= 0"),
    ("run_s", math.inf, "a finite number >= 0"),
    ("run_id", "", "printable ASCII"),
    ("trial", -1, "an integer >= 0"),
    ("trial", 2**63, "an integer >= 0"),
    ("trial", 1.0, "an integer >= 0"),
    ("elapsed_s", True, "a finite number >= 0"),
    ("predicted_ns", 0, "a finite number > 0"),
    ("strategy", 1, "a string"),
    ("seed", "1", "an integer"),
    ("created", "yesterday", "ISO 8601 time in UTC"),
    ("created", "2025-01-01T00:00:00", "ISO 8601 time in UTC"),
    ("created", "2025-01-01T00:00:00+02:00", "ISO 8601 time in UTC"),
    ("versions", {"python": 3}, "versions.python.*a string"),
    ("load", {"x": math.inf}, "finite numbers"),
    ("load", 3, "an object"),
    ("compared", 3, "an object"),
    ("compared", {"x": {"ratio": 1.0}}, "an object with ratio, low, high, margin"),
    ("compared", {"x": {"ratio": 0.0, "low": 1.0, "high": 1.0, "margin": 0.0}}, "a finite number > 0"),
    ("schema", 0, "an integer >= 1"),
    ("schema", SCHEMA_VERSION + 1, "newer records need a newer tilewright"),
    ("extra", {"trial": 1}, "only names that are not fields"),
]


@pytest.mark.parametrize(("name", "value", "expected"), BAD)
def test_a_bad_field_is_refused_by_name(name: str, value: object, expected: str) -> None:
    with pytest.raises(RecordError, match=rf"(?s)record field '(?={name}).*{expected}"):
        make(**{name: value})


def test_every_field_has_a_refusal_tested() -> None:
    assert {name for name, _, _ in BAD} == {field.name for field in dataclasses.fields(Record)}


def test_only_ok_has_a_median() -> None:
    with pytest.raises(RecordError, match=r"'median_ns': expected null for crash, got 5\.0"):
        make(status="crash", median_ns=5.0)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", "JSON text"),
        ("[]", "a JSON object"),
        ("null", "a JSON object"),
        ('{"schema":1}', "the field is missing"),
        ("{}", "'schema': expected an integer"),
        ("[" * 100_000, "JSON text"),
        ('{"schema":99,"whatever":1}', "newer tilewright"),
        (b"\xff\xfe", "JSON text"),
        ('{"schema": 1' + "0" * 5000 + "}", "JSON text"),
    ],
)
def test_a_bad_line_is_refused(line: str | bytes, expected: str) -> None:
    with pytest.raises(RecordError, match=expected):
        Record.from_json_line(line)


@pytest.mark.parametrize("name", ["workload_hash", "status", "created", "schema", "is_default"])
def test_a_missing_field_is_named(name: str) -> None:
    data = make().to_dict()
    del data[name]
    with pytest.raises(RecordError, match=name):
        Record.from_dict(data)


def test_fields_of_a_newer_writer_are_kept() -> None:
    line = json.dumps(make().to_dict() | {"clock_mhz": [3000, 3100]})
    record = Record.from_json_line(line)
    assert record.extra == {"clock_mhz": [3000, 3100]}
    assert json.loads(record.to_json_line())["clock_mhz"] == [3000, 3100]
    with pytest.raises(RecordError, match="extra"):
        Record.from_dict(make().to_dict() | {"extra": {}})


def test_the_key_follows_from_hard_fields_and_policy() -> None:
    record = make()
    assert record.key() == Key("w1", target_hash(VALID["target"]), policy_hash(VALID["policy"]))
    assert make(target={"soft": {}, "hard": {"threads": 1}}).key() == record.key()
    assert make(policy='{ "timer": "loop", "cache": "hot" }').key() == record.key()
    assert make(policy='{ "timer": "loop", "cache": "hot" }').policy == record.policy
    assert policy_text({"timer": "loop", "cache": "hot"}) == record.policy
    others = [
        make(workload_hash="w2"),
        make(target={"hard": {"threads": 2}, "soft": {}}),
        make(policy='{"cache":"cold"}'),
    ]
    assert len({record.key(), *(other.key() for other in others)}) == 4
    assert len({record.key().digest(), *(other.key().digest() for other in others)}) == 4


def test_a_candidate_is_its_steps_and_parameters() -> None:
    assert make().candidate == candidate_id("split i 4", {"tile_i": 4})
    assert make(sketch="renamed", trial=9).candidate == make().candidate
    assert make(params={"tile_i": 8}).candidate != make().candidate
    assert make(schedule="split i 8").candidate != make().candidate


def test_a_record_owns_its_data() -> None:
    target: dict[str, Any] = {"hard": {"threads": 1}, "soft": {}}
    record = make(target=target)
    target["hard"]["threads"] = 2
    assert record.target["hard"]["threads"] == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.trial = 1  # type: ignore[misc]  # that is what is tested


def test_provenance_helpers_give_valid_fields() -> None:
    record = make(versions=environment_versions(), load=system_load(), created=utc_now())
    assert {"python", "tilewright", "llvmlite", "llvm"} <= set(record.versions)


# The rule of standing


def times(*records: Record) -> list[float]:
    return [item.time_ns for item in standings(records)]


def test_repeated_measurements_count_by_their_median() -> None:
    lucky = [make(median_ns=value) for value in (10.0, 100.0, 101.0)]
    steady = [make(params={"tile_i": 8}, median_ns=90.0)]
    assert times(*lucky, *steady) == [90.0, 100.0]


def test_a_candidate_stands_only_on_a_good_latest_verdict() -> None:
    assert times(make(), make(status="crash", trial=1)) == []
    assert times(make(status="crash"), make(trial=1)) == [100.0]
    assert times(make(), make(status="pruned_slow"), make(status="duplicate")) == [100.0]
    assert times(make(status="duplicate")) == []


def test_a_wrong_result_distrusts_the_versions_it_came_from() -> None:
    old, new = {"tilewright": "1"}, {"tilewright": "2"}
    wrong = make(status="wrong_result", versions=old)
    assert times(make(versions=old), wrong) == []
    assert times(wrong, make(versions=old)) == []
    assert times(wrong, make(median_ns=50.0, versions=old), make(versions=new)) == [100.0]


def chosen(*records: Record) -> Record:
    """What wins, which there must be."""
    found = verdict(records)
    assert found.winner is not None, found.reason
    return found.winner.record


def test_no_winner_without_a_contest() -> None:
    """The best of single sittings is mostly a lucky one: the default measured at 20.6, 27.7 and 27.8 ms and another once at
    22.1, in a fast moment of the machine, is no win."""
    default = [make(is_default=True, median_ns=ns, noise=0.002) for ns in (20.6e6, 27.7e6, 27.8e6)]
    lucky = make(params={"tile_i": 8}, median_ns=22.1e6, noise=0.002)
    found = verdict([*default, lucky])
    assert found.winner is None
    assert found.kept is not None
    assert found.kept.is_default
    assert "no contest was held" in found.reason
    assert "22100000 against 27700000 ns" in found.reason
    # half the time is no proof either, and a candidate whose interval is wide does not hide one that looks faster
    assert verdict([*default, dataclasses.replace(lucky, median_ns=5e6)]).winner is None
    assert verdict([*default, make(params={"tile_i": 9}, median_ns=20e6, noise=0.5), lucky]).winner is None
    # in one sitting it was slower
    entry = {lucky.candidate: versus(1.3, 1.35)}
    held = make(is_default=True, median_ns=27.7e6, compared=entry)
    assert chosen(*default, lucky, held).is_default
    assert verdict([*default, lucky, held]).contested


def test_a_default_that_nothing_is_faster_than_needs_no_contest() -> None:
    default = make(is_default=True, median_ns=100.0)
    assert chosen(default) == default
    assert chosen(default, make(params={"tile_i": 8}, median_ns=100.0)) == default
    assert chosen(default, make(params={"tile_i": 8}, median_ns=99.0, noise=0.02)) == default
    noisy = make(params={"tile_i": 8}, median_ns=97.0, noise=0.001, load={"aa_noise": 0.05})
    assert chosen(default, noisy) == default


def test_without_a_measured_default_nothing_wins() -> None:
    """Records of part of a run, for instance: what they had to beat is not known. A default that fails is another matter."""
    fast, slow = make(params={"tile_i": 8}, median_ns=50.0), make(params={"tile_i": 16}, median_ns=80.0)
    found = verdict([fast, slow])
    assert (found.winner, found.kept) == (None, None)
    assert "no measurement of the default" in found.reason
    broken = make(is_default=True, status="compile_error", error="no")
    assert chosen(broken, slow, fast) == fast
    near = dataclasses.replace(slow, median_ns=50.5)
    assert chosen(broken, near, dataclasses.replace(fast, noise=0.02)) == near  # a tie: the one measured first
    assert verdict([]).winner is None
    assert verdict([]).reason == ""


def test_a_comparison_counts_with_the_default_of_today() -> None:
    """Another version may have another default: what beat the old one has to beat the new one, in one sitting too."""
    rival = make(params={"tile_i": 8}, median_ns=80.0)
    old = make(is_default=True, median_ns=100.0, compared={rival.candidate: versus(0.8, 0.81)})
    assert chosen(rival, old) == rival
    new = make(is_default=True, params={"tile_i": 2}, median_ns=90.0)
    assert verdict([rival, old, new]).winner is None
    again = dataclasses.replace(new, compared={rival.candidate: versus(1.05, 1.06)})
    assert chosen(rival, old, new, again) == again
    # a new default that fails is none: the old one is what there is
    assert chosen(rival, old, dataclasses.replace(new, status="crash", median_ns=None)) == rival


# Analyses


def test_best_so_far() -> None:
    records = [
        make(trial=2, elapsed_s=3.0, median_ns=80.0),
        make(trial=0, elapsed_s=1.0, status="crash"),
        make(trial=1, elapsed_s=2.0, median_ns=100.0),
        make(trial=3, elapsed_s=4.0, median_ns=90.0),
    ]
    steps = best_so_far(records)
    assert [(s.trial, s.elapsed_s, s.best_ns) for s in steps] == [
        (1, 2.0, 100.0),
        (2, 3.0, 80.0),
        (3, 4.0, 80.0),
    ]
    assert best_so_far([]) == []
    with pytest.raises(ValueError, match="one key and one run, got 2"):
        best_so_far([make(), make(run_id="other")])


def test_failures_keep_each_distinct_error_in_full() -> None:
    long = "x" * 100_000
    records = [
        make(status="crash", error=long),
        make(status="crash", error="second"),
        make(status="crash", error=long),
        make(status="rejected"),
        make(),
    ]
    crash, rejected = failures_by_status(records)
    assert (crash.status, crash.count, crash.first_error) == ("crash", 3, long)
    assert crash.distinct_errors == ((long, 2), ("second", 1))
    assert (rejected.status, rejected.count, rejected.first_error) == ("rejected", 1, None)
    assert failures_by_status([]) == []


def test_default_vs_best() -> None:
    """By the rule of standing: a gain needs a contest."""
    rival = make(params={"tile_i": 8}, median_ns=150.0)
    records = [
        make(is_default=True, median_ns=200.0, compared={rival.candidate: versus(0.5, 0.51)}),
        rival,
        make(workload_hash="w2", median_ns=5.0),
        make(workload_hash="w2", is_default=True, status="crash", params={}),
        make(workload_hash="w3", status="crash"),
        make(workload_hash="w4", median_ns=5.0),
        make(workload_hash="w4", is_default=True, median_ns=50.0, params={}),
        make(workload_hash="w5", median_ns=5.0),
    ]
    first, second, third = default_vs_best(records)
    assert (first.best_ns, first.default_ns, first.speedup) == (100.0, 200.0, 2.0)
    assert (second.key.workload_hash, second.default_ns, second.speedup) == ("w2", None, None)
    assert (third.key.workload_hash, third.best_ns, third.speedup) == ("w4", 50.0, 1.0)


def test_time_split_adds_runs() -> None:
    records = [
        make(elapsed_s=5.0, build_s=1.0, run_s=2.0),
        make(elapsed_s=10.0, build_s=1.0, run_s=2.0),
        make(run_id="other", elapsed_s=4.0),
    ]
    split = time_split(records)
    assert (split.build_s, split.run_s, split.rest_s, split.total_s) == (2.0, 4.0, 8.0, 14.0)
    assert time_split([make(elapsed_s=1.0, build_s=9.0)]).rest_s == 0.0


def test_calibration() -> None:
    records = [make(median_ns=t, predicted_ns=2 * t) for t in (1.0, 2.0, 3.0)] + [
        make(),
        make(status="crash"),
    ]
    found = calibration(records)
    assert (found.count, found.median_ratio, found.median_factor) == (3, 0.5, 2.0)
    assert found.spearman == pytest.approx(1.0)
    assert calibration([]).spearman is None


def test_spearman_agrees_with_known_values() -> None:
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    assert spearman([1, 2, 2, 4], [1, 3, 2, 4]) == pytest.approx(0.9486832980505138)
    assert spearman([1, 1], [1, 2]) is None
    assert spearman([], []) is None


def test_statuses_are_those_of_measuring() -> None:
    """Records take exactly the outcomes that measuring can have; the two layers each list them, in one order."""
    from tilewright import measure, tuning_logs

    assert tuple(tuning_logs.STATUSES) == tuple(measure.STATUSES)


def versus(ratio: float, high: float, margin: float = 0.0) -> dict[str, float]:
    return {"ratio": ratio, "low": 2 * ratio - high, "high": high, "margin": margin}


def test_a_comparison_with_the_default_decides() -> None:
    """Measured side by side, ratios count instead of times; what the comparison leaves open goes to the default."""
    rival = make(params={"tile_i": 8}, median_ns=80.0)
    other = make(params={"tile_i": 16}, median_ns=85.0)

    def after(entry: dict[str, float], *more: Record) -> Record:
        return chosen(rival, make(is_default=True, median_ns=100.0, compared={rival.candidate: entry}), *more)

    assert after(versus(0.9, 0.92)) == rival
    assert after(versus(1.02, 1.04)).is_default  # the 80 ns were luck
    assert after(versus(0.97, 0.98, margin=0.05)).is_default
    assert after(versus(0.97, 1.01)).is_default
    assert after(versus(0.9, 0.92, margin=0.05)) == rival
    # a candidate with nothing but a time of another sitting beats neither, however fast it looks
    for ns in (50.0, 85.0, 95.0):
        assert after(versus(0.9, 0.92), dataclasses.replace(other, median_ns=ns)) == rival
        assert after(versus(1.1, 1.12), dataclasses.replace(other, median_ns=ns)).is_default
    # a noisy comparison does not hide a clear one
    both = {rival.candidate: versus(0.85, 1.05), other.candidate: versus(0.9, 0.91)}
    assert chosen(rival, other, make(is_default=True, median_ns=100.0, compared=both)) == other
    # of two that beat it the faster one wins
    both = {rival.candidate: versus(0.9, 0.91), other.candidate: versus(0.8, 0.82)}
    assert chosen(rival, other, make(is_default=True, median_ns=100.0, compared=both)) == other


def test_a_comparison_of_distrusted_versions_is_none() -> None:
    """Versions under which the candidate or the default computed a wrong result are believed in nothing."""
    bad, good = {"tilewright": "1"}, {"tilewright": "2"}
    rival = make(params={"tile_i": 8}, median_ns=80.0, versions=good)
    compared = make(is_default=True, versions=bad, compared={rival.candidate: versus(0.5, 0.51)})
    wrong = make(is_default=True, versions=bad, status="wrong_result", error="no")
    default = make(is_default=True, versions=good)
    assert chosen(rival, compared, default) == rival
    assert verdict([rival, compared, wrong, default]).winner is None
    assert verdict([compared, make(params=rival.params, versions=bad, status="wrong_result"), rival]).winner is None


def test_a_record_without_comparisons_is_written_as_before() -> None:
    assert "compared" not in make().to_dict()
    entry = {"c": versus(0.5, 0.6)}
    assert Record.from_json_line(make(compared=entry).to_json_line()).compared == entry
