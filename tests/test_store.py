"""The store: nothing added is lost, readers change nothing, and a miss says why."""

import json
import math
import os
import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from stored import HOST, HOT, hit, make, miss
from tilewright.tuning_logs import Hit, Miss, Record, RecordError, Store, StoreError, candidate_id, standings, tables

_SERVER = "TILEWRIGHT_TEST_SERVER"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sub" / "records.sqlite"


@pytest.fixture(params=["file", "memory", "server"])
def store(request: pytest.FixtureRequest, path: Path) -> Iterator[Store]:
    """Every contract holds for every place; the server is an empty scratch database, named by its URL."""
    places: dict[str, str | Path | None] = {"file": path, "memory": ":memory:"}
    place = places.get(request.param, os.environ.get(_SERVER))
    if place is None:
        pytest.skip(f"needs {_SERVER}=postgresql+psycopg://... (its tilewright tables are dropped)")
    if request.param == "server":
        engine = sa.create_engine(str(place))
        tables.METADATA.drop_all(engine)
        engine.dispose()
    with Store(place) as opened:
        yield opened


# Adding and reading


def test_what_was_added_is_read_back_in_order(store: Store) -> None:
    records = [make(trial=trial, error="\ud800 ü", seed=2**100) for trial in range(1203)]
    store.add(records[0])
    assert store.add_many(records[1:]) == 1202
    assert list(store.records()) == records
    assert store.count() == 1203
    assert store.add_many([]) == 0
    assert store.unreadable == {}


def test_filters(store: Store) -> None:
    other = make(workload_hash="w2", run_id="second", status="crash", policy='{"cache":"cold"}')
    third = make(target={"hard": {"threads": 9}, "soft": {}})
    store.add_many([make(), other, third])
    assert list(store.records(workload_hash="w2")) == [other]
    assert list(store.records(run_id="second")) == [other]
    assert list(store.records(status="crash")) == [other]
    assert list(store.records(policy_hash=other.policy_hash)) == [other]
    assert list(store.records(target_hash=third.target_hash)) == [third]
    assert list(store.records(workload_hash="w2", status="ok")) == []
    assert list(store.records(limit=2)) == [make(), other]
    assert list(store.records(limit=0)) == []
    with pytest.raises(StoreError, match=r"status: expected one of ok, rejected.*got 'fine'"):
        store.records(status="fine")


def test_reading_while_writing_ends(store: Store) -> None:
    store.add_many([make(trial=trial) for trial in range(600)])
    seen = 0
    for record in store.records():
        store.add(record)
        seen += 1
    assert seen == 600
    assert store.count() == 1200


def test_skip_known_is_by_content(store: Store) -> None:
    assert store.add_many([make(), make(), make(trial=1)], skip_known=True) == 2
    assert store.add_many([make(), make(trial=2)], skip_known=True) == 1
    assert store.add_many([make()]) == 1  # plain adding repeats


def test_a_failed_batch_leaves_nothing(store: Store) -> None:
    def broken() -> Iterator[Record]:
        yield make()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.add_many(broken())
    assert store.count() == 0


def test_measured_gives_what_stands_for_each_candidate(store: Store) -> None:
    store.add_many(
        [
            make(trial=0),
            make(trial=1, median_ns=50.0),
            make(trial=2, params={"tile": 8}, status="crash", error="boom"),
            make(trial=3, workload_hash="w2"),
        ]
    )
    found = store.measured("w1", HOST, HOT)
    assert {name: record.trial for name, record in found.items()} == {
        candidate_id("split i 4", {"tile": 4}): 1,
        candidate_id("split i 4", {"tile": 8}): 2,
    }


def test_a_row_that_cannot_be_read_is_set_aside(path: Path) -> None:
    with Store(path) as store:
        store.add_many([make(trial=trial, median_ns=10.0 + trial, is_default=True) for trial in range(3)])
    connection = sqlite3.connect(path)
    connection.execute("UPDATE tilewright_records SET body = '{\"schema\":' WHERE id = 1")
    connection.commit()
    connection.close()
    with Store(path) as store:
        assert [record.trial for record in store.records()] == [1, 2]
        assert list(store.unreadable) == [1]
        assert hit(store.best("w1", HOST, HOT)).time_ns == 11.5


# Lookup


def test_best_and_top_follow_the_rule(store: Store) -> None:
    contest = {candidate_id("split i 4", {"tile": 4}): {"ratio": 0.9, "low": 0.89, "high": 0.91, "margin": 0.01}}
    store.add_many(
        [
            make(trial=0, is_default=True, params={"tile": 1}, median_ns=100.0),
            make(trial=1, params={"tile": 2}, median_ns=10.0),  # a lucky sample
            make(trial=2, params={"tile": 4}, median_ns=95.0),
            make(trial=3, params={"tile": 2}, median_ns=120.0),
            make(trial=4, params={"tile": 2}, median_ns=121.0),
            make(trial=5, params={"tile": 8}, median_ns=1.0),
            make(trial=6, params={"tile": 8}, status="wrong_result"),
            make(trial=7, is_default=True, params={"tile": 1}, median_ns=100.0, compared=contest),
        ]
    )
    best = hit(store.best("w1", HOST, HOT))
    assert (best.record.trial, best.time_ns, best.measurements) == (2, 90.0, 1)
    assert (best.settled, best.is_default, best.contested, best.default_ns) == (True, False, True, 100.0)
    assert [(h.record.params["tile"], h.time_ns) for h in store.top("w1", HOST, HOT, 5)] == [
        (4, 90.0),
        (1, 100.0),
        (2, 120.0),
    ]
    assert len(store.top("w1", HOST, HOT, 1)) == 1
    assert store.top("nothing", HOST, HOT) == []
    assert hit(store.best("w1", HOST, '{"timer":"loop","cache":"hot"}')) == best


def test_a_tie_goes_to_the_default(store: Store) -> None:
    store.add(make(median_ns=99.0, noise=0.02))
    store.add(make(params={"tile": 1}, is_default=True))
    assert hit(store.best("w1", HOST, HOT)).record.is_default


def test_without_a_contest_the_default_stays_and_the_miss_says_so(store: Store) -> None:
    """Times of different sittings make no winner: not of the look-up, the summary, nor of a family."""
    store.add(make(median_ns=50.0, noise=0.001))
    found = miss(store.best("w1", HOST, HOT))
    assert "no measurement of the default schedule" in str(found)
    assert found.default_ns is None
    store.add(make(params={"tile": 1}, is_default=True, noise=0.001))
    found = miss(store.best("w1", HOST, HOT))
    assert "no contest was held" in str(found)
    assert "the default stays; tune again" in str(found)
    assert found.default_ns == 100.0
    (row,) = store.summary()
    assert (row.best_ns, row.default_ns) == (100.0, 100.0)
    assert store.family_best("f1", HOST, HOT) == []
    assert [h.time_ns for h in store.top("w1", HOST, HOT)] == [50.0, 100.0]  # by which contestants are chosen


def test_paged_ranking_equals_plain_sorting(store: Store) -> None:
    rng = random.Random(7)
    records = [
        make(trial=trial, params={"tile": rng.randrange(300)}, median_ns=float(rng.randrange(1, 500)))
        for trial in range(1500)
    ]
    records.append(make(status="crash", params={"tile": 1000}, is_default=True))
    store.add_many(records)
    by_tile: dict[int, list[float]] = {}
    for record in records[:-1]:
        by_tile.setdefault(record.params["tile"], []).append(record.median_ns or math.nan)
    expected = sorted((sorted(v)[(len(v) - 1) // 2] + sorted(v)[len(v) // 2]) / 2 for v in by_tile.values())
    assert [h.time_ns for h in store.top("w1", HOST, HOT, 1000)] == expected
    assert hit(store.best("w1", HOST, HOT)).time_ns == expected[0]


def test_soft_differences_are_listed_and_do_not_miss(store: Store) -> None:
    store.add(make(is_default=True))
    asked = {"hard": HOST["hard"], "soft": {"governor": "powersave", "kernel": "6"}}
    assert hit(store.best("w1", asked, HOT)).soft_differences == (
        'target.soft.governor: asked "powersave", stored "performance"',
        'target.soft.kernel: asked "6", stored nothing',
    )
    assert hit(store.best("w1", HOST, HOT)).soft_differences == ()


def test_a_miss_names_the_target_field(store: Store) -> None:
    store.add_many([make(trial=trial, median_ns=50.0 - trial) for trial in range(14)])
    found = miss(store.best("w1", {"hard": {"arch": "x86", "threads": 2}, "soft": {}}, HOT))
    assert found.reasons == ("target.hard.threads: asked 2, stored 1 (14 records)",)
    assert found.nearest is not None
    assert found.nearest.trial == 13
    assert str(found) == found.reasons[0]


def test_a_miss_names_the_policy_field(store: Store) -> None:
    store.add(make())
    found = miss(store.best("w1", HOST, {"cache": "cold"}))
    assert found.reasons == (
        'policy.cache: asked "cold", stored "hot" (1 record)',
        'policy.timer: asked nothing, stored "loop" (1 record)',
    )


def test_a_miss_compares_with_the_nearest_key(store: Store) -> None:
    far = {"hard": {"arch": "arm", "threads": 64}, "soft": {}}
    store.add_many([make(target=far), make(), make(target=far, trial=2)])
    found = miss(store.best("w1", {"hard": {"arch": "x86", "threads": 2}, "soft": {}}, HOT))
    assert found.reasons == ("target.hard.threads: asked 2, stored 1 (1 record)",)


def test_a_miss_names_other_shapes_of_the_family(store: Store) -> None:
    store.add(make(workload_hash="w8", workload='{"op":"matmul","shape":[8,8]}'))
    store.add(make())
    asked = '{"op":"matmul","shape":[128,64]}'
    found = miss(store.best("unknown", HOST, HOT, family="f1", workload=asked))
    assert found.reasons == (
        "workload family known with other shapes: 2 workload(s) stored",
        "workload.shape[0]: asked 128, stored 64 (1 record)",
    )
    assert found.nearest == make()
    found = miss(store.best("unknown", HOST, HOT, family="f1"))
    assert found.reasons[1] == "workload: asked unknown, stored w1 (1 record)"


def test_a_miss_without_relatives(store: Store) -> None:
    store.add(make())
    found = miss(store.best("unknown", HOST, HOT, family="f9"))
    assert found == Miss(("no record of this workload or its family",))
    assert "no family was given" in miss(store.best("unknown", HOST, HOT)).reasons[0]


def test_a_miss_tells_that_nothing_usable_is_stored(store: Store) -> None:
    store.add_many([make(status="crash", error="SIGSEGV in kernel"), make(status="crash"), make(status="rejected")])
    found = miss(store.best("w1", HOST, HOT))
    assert found.reasons == (
        "the key is stored, but none of its candidates stands: 2 crash, 1 rejected",
        "first failure (crash): SIGSEGV in kernel",
    )


def test_lookup_refuses_what_is_no_target(store: Store) -> None:
    with pytest.raises(RecordError, match='exactly the parts "hard" and "soft"'):
        store.best("w1", {"threads": 1}, HOT)
    with pytest.raises(RecordError, match="policy"):
        store.best("w1", HOST, "hot")


def test_family_best_gives_one_hit_for_each_workload(store: Store) -> None:
    store.add_many([make(is_default=True), make(workload_hash="w2", median_ns=5.0, is_default=True)])
    store.add_many(
        [make(workload_hash="w3", status="crash"), make(workload_hash="w4", target={"hard": {}, "soft": {}})]
    )
    assert {h.record.workload_hash: h.time_ns for h in store.family_best("f1", HOST, HOT)} == {
        "w1": 100.0,
        "w2": 5.0,
    }


STRICT, LOOSE = {**HOT, "tolerance": 1e-6}, {**HOT, "tolerance": 0.01}


def test_what_a_loose_check_accepted_does_not_answer_a_strict_request(store: Store) -> None:
    """Records that name no tolerance were checked at 1e-4, as all were before it could be chosen."""
    store.add(make(policy=json.dumps(LOOSE), is_default=True, median_ns=50.0))
    for asked, said in ((HOT, "0.0001"), (STRICT, "1e-06"), ({**HOT, "tolerance": 0.009}, "0.009")):
        found = miss(store.best("w1", HOST, asked))
        assert found.reasons == (f"policy.tolerance: asked {said}, stored 0.01 (1 record)",)
        assert store.top("w1", HOST, asked) == []
        assert store.measured("w1", HOST, asked) == {}
        assert store.family_best("f1", HOST, asked) == []
    assert hit(store.best("w1", HOST, LOOSE)).time_ns == 50.0
    store.add(make(is_default=True, median_ns=70.0))  # of an older version, in effect
    assert hit(store.best("w1", HOST, HOT)).time_ns == 70.0
    assert "policy.tolerance: asked 1e-06, stored 0.0001" in str(miss(store.best("w1", HOST, STRICT)))


def test_what_a_strict_check_accepted_answers_a_loose_request(store: Store) -> None:
    rival = make(policy=json.dumps(STRICT), params={"tile": 8}, median_ns=50.0)
    entry = {rival.candidate: {"ratio": 0.5, "low": 0.49, "high": 0.51, "margin": 0.01}}
    default = make(policy=json.dumps(STRICT), is_default=True, compared=entry)
    store.add_many([default, rival, make(policy='{"cache":"cold","timer":"loop"}', median_ns=1.0, is_default=True)])
    for asked in (STRICT, {**HOT, "tolerance": 1}, LOOSE, HOT):
        assert hit(store.best("w1", HOST, asked)).record == rival
        assert [h.time_ns for h in store.top("w1", HOST, asked)] == [50.0, 100.0]
        assert set(store.measured("w1", HOST, asked)) == {default.candidate, rival.candidate}
        assert [h.record for h in store.family_best("f1", HOST, asked)] == [rival]
    # what is too far off for the strict check may do for the loose one; what damaged memory does for none
    far_off = make(policy=json.dumps(STRICT), params={"tile": 8}, status="wrong_result", max_error=1e-5)
    store.add_many([make(policy=json.dumps(LOOSE), params={"tile": 8}, median_ns=60.0), far_off])
    assert hit(store.best("w1", HOST, STRICT)).record.is_default
    assert hit(store.best("w1", HOST, LOOSE)).record.params == {"tile": 8}
    store.add(make(policy=json.dumps(STRICT), params={"tile": 8}, status="wrong_result", max_error=None))
    assert hit(store.best("w1", HOST, LOOSE)).record.is_default
    # and what a looser check refused is not right for a stricter one
    loose = make(policy=json.dumps(LOOSE), is_default=True, status="wrong_result", max_error=0.5)
    store.add(loose)
    assert "none of its candidates stands" in str(miss(store.best("w1", HOST, LOOSE)))


def test_a_tolerance_that_is_none_answers_only_for_itself(store: Store) -> None:
    """A record of something else may have a field of this name."""
    odd = {**HOT, "tolerance": "small"}
    store.add(make(policy=json.dumps(odd), is_default=True))
    assert hit(store.best("w1", HOST, odd)).time_ns == 100.0
    assert isinstance(store.best("w1", HOST, LOOSE), Miss)


def test_summary_has_a_row_for_each_key(store: Store) -> None:
    fast = make(params={"tile": 8}, median_ns=40.0)
    entry = {fast.candidate: {"ratio": 0.5, "low": 0.49, "high": 0.51, "margin": 0.01}}
    store.add_many(
        [
            make(is_default=True),
            fast,
            make(params={"tile": 9}, status="crash"),
            make(workload_hash="w2", status="crash"),
        ]
    )
    other = {"hard": HOST["hard"], "soft": {"governor": "other"}}
    store.add(make(target=other, is_default=True, median_ns=102.0, compared=entry))
    first, second = store.summary()
    assert first.key == make().key()
    assert first.counts == {"crash": 1, "ok": 3}
    assert (first.best_ns, first.default_ns) == (50.5, 101.0)
    assert first.target == HOST
    assert (second.counts, second.best_ns, second.default_ns) == ({"crash": 1}, None, None)


def test_a_lookup_follows_the_comparisons_with_the_default(path: Path) -> None:
    """The store answers as `standings` does, also where a compared candidate is not among the first by time."""
    with Store(path) as store:
        many = [make(params={"tile": k}, median_ns=60.0 + k) for k in range(40)]
        late = make(params={"tile": 100}, median_ns=500.0)
        entry = {"ratio": 0.5, "low": 0.49, "high": 0.51, "margin": 0.01}
        default = make(params={"tile": 200}, median_ns=100.0, is_default=True, compared={late.candidate: entry})
        store.add_many([*many, late, default])
        best = store.best("w1", many[0].target, many[0].policy)
        assert isinstance(best, Hit)
        assert best.record == late
        assert best.settled
        assert best.time_ns == 50.0
        order = [h.record for h in store.top("w1", many[0].target, many[0].policy, n=50)]
        assert order == [s.record for s in standings(store.records())]


@pytest.mark.timing
def test_lookup_stays_fast_among_many_records(path: Path) -> None:
    with Store(path) as store:
        store.add(make())
        _multiply(store, 100_000)
        store.add(make(params={"tile": 1}, is_default=True, median_ns=100.0))
        assert store.count() == 100_001
        elapsed = []
        for threads in [1] * 7 + [2] * 7:
            start = time.perf_counter()
            store.best("w1", {"hard": {"arch": "x86", "threads": threads}, "soft": {}}, HOT)
            elapsed.append(time.perf_counter() - start)
        assert min(elapsed[:7]) < 0.02
        assert min(elapsed[7:]) < 0.02


def _multiply(store: Store, total: int) -> None:
    """Fill the table by SQL, which is faster than building as many records."""
    connection = sqlite3.connect(store.path_text)
    connection.execute(
        "WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < ?) INSERT INTO "
        "tilewright_records "
        "(context_id, key_digest, candidate, status, median_ns, is_default, run_id, digest, body) "
        "SELECT context_id, key_digest, candidate || i, status, 100.0 + i, is_default, run_id, digest || i, "
        "json_set(body, '$.params.tile', i + 4, '$.median_ns', 100.0 + i) FROM tilewright_records, n",
        (total,),
    )
    connection.commit()
    connection.close()


def test_threads_share_a_store(store: Store) -> None:
    def add(name: str) -> None:
        for trial in range(20):
            store.add(make(run_id=name, trial=trial))
            store.count()

    threads = [threading.Thread(target=add, args=(f"run{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.count() == 80
