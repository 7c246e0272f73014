"""The store: nothing added is lost, readers change nothing, and a miss says why."""

import hashlib
import math
import multiprocessing
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import platformdirs
import pytest
import sqlalchemy as sa

from tilewright.tuning_logs import Hit, Miss, Record, RecordError, Store, StoreError, candidate_id, standings, tables

HOST: dict[str, Any] = {"hard": {"arch": "x86", "threads": 1}, "soft": {"governor": "performance"}}
_SERVER = "TILEWRIGHT_TEST_SERVER"
HOT = {"cache": "hot", "timer": "loop"}


def make(**changes: Any) -> Record:
    """A valid record with `changes`."""
    values: dict[str, Any] = {
        "workload_hash": "w1",
        "workload": '{"op":"matmul","shape":[64,64]}',
        "family": "f1",
        "target": HOST,
        "policy": '{"cache":"hot","timer":"loop"}',
        "sketch": "contraction",
        "schedule": "split i 4",
        "params": {"tile": 4},
        "is_default": False,
        "status": "ok",
        "median_ns": 100.0 if changes.get("status", "ok") == "ok" else None,
        "run_id": "run",
        "trial": 0,
        "elapsed_s": 1.0,
        "created": "2025-01-01T00:00:00+00:00",
    }
    return Record(**(values | changes))


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


def hit(answer: Hit | Miss) -> Hit:
    assert isinstance(answer, Hit), answer
    return answer


def miss(answer: Hit | Miss) -> Miss:
    assert isinstance(answer, Miss), answer
    return answer


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
    key = make().key()[:3]
    store.add_many(
        [
            make(trial=0),
            make(trial=1, median_ns=50.0),
            make(trial=2, params={"tile": 8}, status="crash", error="boom"),
            make(trial=3, workload_hash="w2"),
        ]
    )
    found = store.measured(*key)
    assert {name: record.trial for name, record in found.items()} == {
        candidate_id("split i 4", {"tile": 4}): 1,
        candidate_id("split i 4", {"tile": 8}): 2,
    }


def test_a_row_that_cannot_be_read_is_set_aside(path: Path) -> None:
    with Store(path) as store:
        store.add_many([make(trial=trial, median_ns=10.0 + trial) for trial in range(3)])
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
    store.add_many(
        [
            make(trial=0, is_default=True, params={"tile": 1}, median_ns=100.0),
            make(trial=1, params={"tile": 2}, median_ns=10.0),  # a lucky sample
            make(trial=2, params={"tile": 4}, median_ns=90.0),
            make(trial=3, params={"tile": 2}, median_ns=120.0),
            make(trial=4, params={"tile": 2}, median_ns=121.0),
            make(trial=5, params={"tile": 8}, median_ns=1.0),
            make(trial=6, params={"tile": 8}, status="wrong_result"),
        ]
    )
    best = hit(store.best("w1", HOST, HOT))
    assert (best.record.trial, best.time_ns, best.measurements) == (2, 90.0, 1)
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


def test_paged_ranking_equals_plain_sorting(store: Store) -> None:
    rng = random.Random(7)
    records = [
        make(trial=trial, params={"tile": rng.randrange(300)}, median_ns=float(rng.randrange(1, 500)))
        for trial in range(1500)
    ]
    store.add_many(records)
    by_tile: dict[int, list[float]] = {}
    for record in records:
        by_tile.setdefault(record.params["tile"], []).append(record.median_ns or math.nan)
    expected = sorted((sorted(v)[(len(v) - 1) // 2] + sorted(v)[len(v) // 2]) / 2 for v in by_tile.values())
    assert [h.time_ns for h in store.top("w1", HOST, HOT, 1000)] == expected
    assert hit(store.best("w1", HOST, HOT)).time_ns == expected[0]


def test_soft_differences_are_listed_and_do_not_miss(store: Store) -> None:
    store.add(make())
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
    store.add_many([make(), make(workload_hash="w2", median_ns=5.0), make(workload_hash="w3", status="crash")])
    store.add(make(workload_hash="w4", target={"hard": {}, "soft": {}}))
    assert {h.record.workload_hash: h.time_ns for h in store.family_best("f1", HOST, HOT)} == {
        "w1": 100.0,
        "w2": 5.0,
    }


def test_summary_has_a_row_for_each_key(store: Store) -> None:
    store.add_many(
        [
            make(is_default=True),
            make(params={"tile": 8}, median_ns=40.0),
            make(params={"tile": 9}, status="crash"),
            make(workload_hash="w2", status="crash"),
        ]
    )
    store.add(make(target={"hard": HOST["hard"], "soft": {"governor": "other"}}, is_default=True, median_ns=102.0))
    first, second = store.summary()
    assert first.key == make().key()
    assert first.counts == {"crash": 1, "ok": 3}
    assert (first.best_ns, first.default_ns) == (40.0, 101.0)
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


def test_lookup_stays_fast_among_many_records(path: Path) -> None:
    with Store(path) as store:
        store.add(make())
        _multiply(store, 100_000)
        assert store.count() == 100_000
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


# Places


def test_the_default_place_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platformdirs, "user_data_dir", lambda *args, **kwargs: str(tmp_path / "data"))
    with Store() as store:
        assert store.path_text == str(tmp_path / "data" / "records.sqlite")
        assert repr(store) == f"Store({store.path_text!r}, read_only=False)"
    assert (tmp_path / "data" / "records.sqlite").is_file()


def test_sqlite_urls_and_plain_paths_are_the_same_place(path: Path) -> None:
    with Store(f"sqlite:///{path}") as store:
        store.add(make())
    with Store(str(path)) as store:
        assert store.count() == 1
        assert store.path_text == str(path)
    with Store("sqlite://") as store:
        assert store.path_text == ":memory:"


def test_a_strange_file_name_works(tmp_path: Path) -> None:
    name = tmp_path / "a b?c#d%20é.sqlite"
    with Store(name) as store:
        store.add(make())
    assert name.is_file()
    with Store(name, read_only=True) as store:
        assert store.count() == 1


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("content", [b"hello\n", b'{"schema":1}\n', b"SQLite format 3\0" + b"x" * 2000])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_is_no_store_is_refused_and_kept(tmp_path: Path, content: bytes, read_only: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"file: expected .*database.* got"):
        Store(path, read_only=read_only)
    assert path.read_bytes() == content


@pytest.mark.parametrize("read_only", [False, True])
def test_a_database_of_something_else_is_refused_and_kept(tmp_path: Path, read_only: bool) -> None:
    path = tmp_path / "other.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE studies (id INTEGER)")
    connection.commit()
    connection.close()
    before = digest_of(path)
    with pytest.raises(StoreError, match=r"something else \(tables: studies\); give another path"):
        Store(path, read_only=read_only)
    assert digest_of(path) == before


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_store_is_refused_and_kept(path: Path, read_only: bool) -> None:
    with Store(path) as store:
        store.add(make())
    connection = sqlite3.connect(path)
    connection.execute("UPDATE tilewright_layout SET version = 99")
    connection.commit()
    connection.close()
    before = digest_of(path)
    with pytest.raises(StoreError, match=r"expected layout version 1 or older, got 99.*upgrade tilewright"):
        Store(path, read_only=read_only)
    assert digest_of(path) == before


def test_places_that_cannot_be_a_store(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("x")
    with pytest.raises(StoreError, match="expected a file, got a directory"):
        Store(tmp_path)
    with pytest.raises(StoreError, match="expected an existing file to read, got none"):
        Store(tmp_path / "none.sqlite", read_only=True)
    assert not (tmp_path / "none.sqlite").exists()
    with pytest.raises(StoreError, match="expected a file that can be opened, got"):
        Store(tmp_path / "plain" / "records.sqlite")
    with pytest.raises(StoreError, match="driver is installed"):
        Store("nosuch://host/db")
    with pytest.raises(StoreError, match="store URL: expected scheme"):
        Store("://secret")
    with pytest.raises(StoreError, match="without options"):
        Store(f"sqlite:///{tmp_path}/x.sqlite?mode=ro")
    with pytest.raises(StoreError, match="empty memory store"):
        Store(":memory:", read_only=True)
    (tmp_path / "empty").touch()
    with pytest.raises(StoreError, match="got no tables of a store"):
        Store(tmp_path / "empty", read_only=True)
    with Store(tmp_path / "empty") as store:
        assert store.count() == 0


def test_a_password_is_not_shown() -> None:
    with pytest.raises(StoreError) as caught:
        Store("nosuch://me:hunter2@host/db")
    assert "hunter2" not in str(caught.value)


def test_a_closed_store_says_so(path: Path) -> None:
    store = Store(path)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="got a closed one"):
        store.count()


def test_an_older_layout_is_migrated_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(path) as store:
        store.add(make())
    monkeypatch.setattr(tables, "LAYOUT_VERSION", 2)
    with pytest.raises(StoreError, match="got the older layout version 1; open it for writing once"):
        Store(path, read_only=True)
    with pytest.raises(StoreError, match="expected a migration from layout version 1"):
        Store(path)
    calls = []

    def migrate(connection: sa.Connection) -> None:
        calls.append(1)
        connection.exec_driver_sql("CREATE TABLE tilewright_new (id INTEGER)")

    monkeypatch.setitem(tables.MIGRATIONS, 1, migrate)
    for _ in range(2):
        with Store(path) as store:
            assert list(store.records()) == [make()]
    assert calls == [1]


# Readers


def test_readers_change_nothing(path: Path) -> None:
    with Store(path) as store:
        store.add(make())
    before = digest_of(path)
    stat = path.stat()
    with Store(path, read_only=True) as reader:
        assert list(reader.records()) == [make()]
        hit(reader.best("w1", HOST, HOT))
        miss(reader.best("w2", HOST, HOT))
        assert len(reader.summary()) == 1
        with pytest.raises(StoreError, match="got read_only=True"):
            reader.add(make())
    assert digest_of(path) == before
    assert path.stat().st_mtime_ns == stat.st_mtime_ns


def test_a_reader_sees_what_a_living_writer_committed(path: Path) -> None:
    with Store(path) as writer, Store(path, read_only=True) as reader:
        for number in range(3):
            writer.add(make(trial=number))
            assert reader.count() == number + 1
        paused = reader.records()
        next(paused)
        writer.add(make(trial=3))  # is not held up by the reader


# Several writers, sudden deaths


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
