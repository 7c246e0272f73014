"""Logs as files: export, import, merge; and every released version of the format stays readable."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tilewright.files import WriteError
from tilewright.tuning_logs import (
    SCHEMA_VERSION,
    ImportReport,
    Miss,
    Record,
    Store,
    export_jsonl,
    import_jsonl,
    merge,
)

ASSETS = Path(__file__).parent / "assets"


@pytest.fixture
def store() -> Iterator[Store]:
    with Store(":memory:") as opened:
        yield opened


def released() -> list[Record]:
    lines = (ASSETS / "records_v1.jsonl").read_text(encoding="utf-8").splitlines()
    return [Record.from_json_line(line) for line in lines]


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION + 1))
def test_every_released_version_imports(store: Store, version: int, tmp_path: Path) -> None:
    original = ASSETS / f"records_v{version}.jsonl"
    path = tmp_path / original.name
    path.write_bytes(original.read_bytes())
    lines = len(path.read_text().splitlines())
    assert import_jsonl(store, path) == ImportReport(added=lines)
    assert list(tmp_path.iterdir()) == [path]


def test_version_1_means_what_it_meant(store: Store) -> None:
    records = released()
    assert [record.status for record in records] == ["ok", "ok", "ok", "wrong_result", "crash", "ok"]
    assert records[0].to_dict() == {
        "schema": 1,
        "workload_hash": "3f1c9a",
        "workload": '{"axes":{"i":128,"j":128,"k":64},"dtype":"float32","op":"matmul"}',
        "family": "8bd2e0",
        "target": {
            "hard": {"arch": "x86-64", "isa": "avx2", "threads": 4},
            "soft": {"governor": "performance"},
        },
        "target_hash": "4297fe6d0ab05cb0731f2ecde7611a33",
        "policy": '{"cache":"hot","timer":"loop"}',
        "policy_hash": "cb885ecd1c1b30d63baa6e6603147016",
        "sketch": "default",
        "schedule": "parallel i",
        "params": {},
        "is_default": True,
        "status": "ok",
        "median_ns": 41200.5,
        "samples_ns": [41100.0, 41200.5, 41900.25],
        "noise": 0.012,
        "stop_reason": "confidence",
        "error": None,
        "max_error": 0.0,
        "build_s": 0.021,
        "run_s": 0.3,
        "run_id": "0b9c0f8e-5a0e-4f6e-9a53-2f0f4c1d7a11",
        "trial": 0,
        "elapsed_s": 0.4,
        "predicted_ns": 39000.0,
        "strategy": "ranked",
        "seed": 7,
        "created": "2025-01-31T12:00:00.000000+00:00",
        "versions": {"llvm": "20.1.8", "llvmlite": "0.46.0", "python": "3.11.7", "tilewright": "0.1.0"},
        "load": {"cpus": 8, "load_1min": 0.25},
    }
    assert records[5].extra == {"a_field_of_a_newer_writer": [1, 2]}
    store.add_many(records)
    best = store.best("3f1c9a", records[0].target, records[0].policy)
    assert isinstance(best, Miss)  # no contest was held then, and without one the default stays
    assert best.default_ns == 41200.5
    (fastest,) = store.top("3f1c9a", records[0].target, records[0].policy, 1)
    assert fastest.record == records[2]


def test_export_and_import_give_the_same_records(store: Store, tmp_path: Path) -> None:
    store.add_many(released())
    path = tmp_path / "out.jsonl"
    assert export_jsonl(store, path) == 6
    assert list(tmp_path.iterdir()) == [path]
    with Store(tmp_path / "copy.sqlite") as copy:
        assert import_jsonl(copy, path) == ImportReport(added=6)
        assert import_jsonl(copy, str(path)) == ImportReport(duplicates=6)
        assert list(copy.records()) == list(store.records())
        assert import_jsonl(copy, path, dedupe=False) == ImportReport(added=6)


def test_export_to_a_stream_with_filters(store: Store) -> None:
    store.add_many(released())
    sink = io.StringIO()
    assert export_jsonl(store, sink, status="crash") == 1
    assert Record.from_json_line(sink.getvalue()).status == "crash"
    assert export_jsonl(store, io.StringIO(), limit=2, workload_hash="3f1c9a") == 2


def test_a_failed_export_keeps_the_old_file(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add_many(released())
    path = tmp_path / "out.jsonl"
    path.write_text("precious\n")

    def broken(*args: Any) -> Iterator[Record]:
        yield released()[0]
        raise OSError("disk full")

    monkeypatch.setattr(store, "records", broken)
    with pytest.raises(OSError, match="disk full"):
        export_jsonl(store, path)
    assert path.read_text() == "precious\n"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(WriteError, match="expected the name of a file, got a folder"):
        export_jsonl(store, tmp_path)


def bad_file(tmp_path: Path) -> Path:
    good = released()[0].to_json_line().encode()
    data = json.loads(good)
    lines = [
        b"\xef\xbb\xbf" + good + b"\r\n",  # as some editors write it
        b"\n",
        b"not json\n",
        good.replace(b'"noise":0.012', b'"noise":NaN') + b"\n",
        json.dumps(data | {"schema": 2}).encode() + b"\n",
        json.dumps(data | {"status": "fine"}).encode() + b"\n",
        good.replace(b"parallel", b"\xff\xfe") + b"\n",
        released()[1].to_json_line().encode() + b"\n",
        good[:100],  # torn
    ]
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"".join(lines))
    return path


def test_bad_lines_are_set_aside_and_counted(store: Store, tmp_path: Path) -> None:
    path = bad_file(tmp_path)
    before = path.read_bytes()
    report = import_jsonl(store, path)
    assert (report.added, report.duplicates, report.quarantined) == (2, 0, 6)
    assert report.quarantine_path == tmp_path / "log.jsonl.quarantine.jsonl"
    assert report.quarantine_path is not None
    lines = [json.loads(line) for line in report.quarantine_path.read_text().splitlines()]
    assert [line["line"] for line in lines] == [3, 4, 5, 6, 7, 9]
    for line, reason in zip(
        lines,
        [
            "expected JSON text",
            "finite numbers only, got 'NaN'",
            "'schema': expected a schema version up to 1",
            "'status': expected one of ok",
            "expected UTF-8 text",
            "the line does not end",
        ],
        strict=True,
    ):
        assert reason in line["reason"]
    assert lines[0]["text"] == "not json"
    assert "base64" in lines[4]
    assert len(report.first_errors) == 5
    assert report.first_errors[0].startswith("line 3: ")
    assert path.read_bytes() == before

    again = import_jsonl(store, path)
    assert (again.added, again.duplicates, again.quarantined) == (0, 2, 6)
    assert len(report.quarantine_path.read_text().splitlines()) == 6
    assert store.count() == 2


@pytest.mark.parametrize("size", [1, 50, 400])
def test_a_torn_last_line_costs_only_itself(store: Store, tmp_path: Path, size: int) -> None:
    whole = (ASSETS / "records_v1.jsonl").read_bytes()
    start = whole[:-1].rindex(b"\n") + 1
    path = tmp_path / "torn.jsonl"
    path.write_bytes(whole[: start + size])
    report = import_jsonl(store, path)
    assert (report.added, report.quarantined) == (5, 1)


def test_a_last_line_without_its_newline_is_good(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "whole.jsonl"
    path.write_bytes((ASSETS / "records_v1.jsonl").read_bytes().rstrip(b"\n"))
    assert import_jsonl(store, path) == ImportReport(added=6)


def test_a_file_of_something_else_is_never_fatal(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "binary"
    path.write_bytes(bytes(range(256)) * 50)
    report = import_jsonl(store, path)
    assert report.added == 0
    assert report.quarantined > 0
    path.write_bytes(b"")
    assert import_jsonl(store, path) == ImportReport()
    with pytest.raises(FileNotFoundError):
        import_jsonl(store, tmp_path / "none")


def test_an_endless_line_is_cut(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.tuning_logs.transfer._LONGEST_LINE", 3000)
    path = tmp_path / "long.jsonl"
    path.write_bytes(b"x" * 10_000 + b"\n" + released()[0].to_json_line().encode() + b"\n")
    report = import_jsonl(store, path)
    assert (report.added, report.quarantined) == (1, 1)
    assert "far too long" in report.first_errors[0]


def test_a_quarantine_that_cannot_be_written_is_reported(store: Store, tmp_path: Path) -> None:
    path = bad_file(tmp_path)
    (tmp_path / "log.jsonl.quarantine.jsonl").mkdir()
    report = import_jsonl(store, path)
    assert (report.added, report.quarantined, report.quarantine_path) == (2, 6, None)
    assert "could not be set aside" in report.first_errors[-1]


def test_merge_adds_what_is_missing(store: Store, tmp_path: Path) -> None:
    records = released()
    with Store(tmp_path / "source.sqlite") as source:
        source.add_many(records)
    store.add_many(records[:2])
    with Store(tmp_path / "source.sqlite", read_only=True) as source:
        assert merge(store, source) == ImportReport(added=4, duplicates=2)
        assert merge(store, source) == ImportReport(duplicates=6)
    assert store.count() == 6
