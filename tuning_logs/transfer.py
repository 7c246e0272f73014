"""Records in and out of a store as JSON Lines, and from one store into another.

An export appears whole or not at all: it is written beside its destination and renamed. An import never fails
because of a line: what is not a valid record is set aside, with the reason, in `<file>.quarantine.jsonl`, and
counted.
"""

import base64
import codecs
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from tilewright.files import replacing
from tilewright.tuning_logs.record import Record, RecordError
from tilewright.tuning_logs.store import Store

_BATCH = 500
_LONGEST_LINE = 16 * 1024 * 1024
_ERRORS_SHOWN = 5
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class TextSink(Protocol):
    """Anything with `write`, such as standard output."""

    def write(self, text: str, /) -> object:
        """Take a piece of text."""


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import did; every line that is not blank is counted once."""

    added: int = 0
    duplicates: int = 0
    quarantined: int = 0
    quarantine_path: Path | None = None  # None if there was nothing to set aside, or no place to write it
    first_errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _BadLine:
    number: int
    reason: str
    raw: bytes

    def to_json_line(self) -> str:
        try:
            content = {"text": self.raw.decode("utf-8")}
        except UnicodeDecodeError:
            content = {"base64": base64.b64encode(self.raw).decode("ascii")}
        return json.dumps({"line": self.number, "reason": self.reason} | content)


def export_jsonl(
    store: Store,
    destination: str | Path | TextSink,
    *,
    workload_hash: str | None = None,
    target_hash: str | None = None,
    policy_hash: str | None = None,
    run_id: str | None = None,
    status: str | None = None,
    limit: int | None = None,
) -> int:
    """Write the records that `Store.records` gives for these filters, one a line; return how many.

    A path is replaced only once everything has been written. Raises `StoreError`, and `WriteError` (an `OSError`) if the
    file cannot be written.
    """
    records = store.records(workload_hash, target_hash, policy_hash, run_id, status, limit)
    if not isinstance(destination, str | Path):
        return _write_lines(records, destination)
    with replacing(destination) as stream:
        return _write_lines(records, codecs.getwriter("ascii")(stream))


def import_jsonl(store: Store, path: str | Path, dedupe: bool = True) -> ImportReport:
    """Add the records of a file to `store`; with `dedupe`, those it already holds are only counted.

    Raises `OSError` if the file cannot be read and `StoreError` if the store fails; never for what a line
    holds.
    """
    path = Path(path)
    added = valid = 0
    batch: list[Record] = []
    bad: list[_BadLine] = []
    with path.open("rb") as stream:
        for number, raw, torn in _lines(stream):
            try:
                batch.append(_parse(raw, torn))
            except RecordError as error:
                bad.append(_BadLine(number, str(error), raw))
            if len(batch) == _BATCH:
                valid += len(batch)
                added += store.add_many(batch, skip_known=dedupe)
                batch = []
    valid += len(batch)
    added += store.add_many(batch, skip_known=dedupe)
    errors = [f"line {line.number}: {line.reason}" for line in bad[:_ERRORS_SHOWN]]
    quarantine = None
    if bad:
        try:
            quarantine = _set_aside(path, bad)
        except OSError as error:
            errors.append(f"the bad lines could not be set aside: {error}")
    return ImportReport(added, valid - added, len(bad), quarantine, tuple(errors))


def merge(into: Store, source: Store) -> ImportReport:
    """Add the records of `source` that `into` does not hold yet. Raises `StoreError`."""
    unreadable_before = len(source.unreadable)
    added = seen = 0
    for batch in _batched(source.records()):
        seen += len(batch)
        added += into.add_many(batch, skip_known=True)
    bad = list(source.unreadable.items())[unreadable_before:]
    errors = tuple(f"row {row}: {reason}" for row, reason in bad[:_ERRORS_SHOWN])
    return ImportReport(added, seen - added, len(bad), None, errors)


def _write_lines(records: Iterable[Record], sink: TextSink) -> int:
    count = 0
    for record in records:
        sink.write(record.to_json_line() + "\n")
        count += 1
    return count


def _lines(stream: BinaryIO) -> Iterator[tuple[int, bytes, bool]]:
    """The lines that are not blank: number, content, and whether the end of the line is missing."""
    number = 0
    while raw := stream.readline(_LONGEST_LINE):
        number += 1
        whole = raw.endswith(b"\n")
        if not whole and len(raw) == _LONGEST_LINE:
            while rest := stream.readline(_LONGEST_LINE):  # pass over what is left of an endless line
                if rest.endswith(b"\n"):
                    break
        raw = raw.removeprefix(_BYTE_ORDER_MARK) if number == 1 else raw
        if raw.strip():
            yield number, raw.rstrip(b"\r\n"), not whole


def _parse(raw: bytes, torn: bool) -> Record:
    try:
        return Record.from_json_line(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RecordError(f"expected UTF-8 text, got other bytes ({error})") from error
    except RecordError as error:
        hint = "the line does not end: it was cut off while being written, or is far too long; " if torn else ""
        raise RecordError(f"{hint}{error}") from error


def _set_aside(path: Path, bad: list[_BadLine]) -> Path:
    """Add the bad lines to those that earlier imports of this file set aside, each once."""
    quarantine = path.with_name(path.name + ".quarantine.jsonl")
    lines: dict[str, None] = {}
    if quarantine.exists():
        lines.update(dict.fromkeys(quarantine.read_text(encoding="ascii", errors="replace").splitlines()))
    lines.update(dict.fromkeys(line.to_json_line() for line in bad))
    with replacing(quarantine) as stream:
        stream.writelines(f"{line}\n".encode("ascii") for line in lines)
    return quarantine


def _batched(records: Iterable[Record]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    for record in records:
        batch.append(record)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
