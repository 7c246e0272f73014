"""The candidates of a key, judged as they are needed.

The defaults and what was compared with them are judged first; as a rule they decide. Where they do not, the others
follow in ascending order of their fastest measurement. A candidate's time is a median of its measurements, so it is
never below the fastest of them: as soon as the next unseen measurement is slower than a judged candidate, that
candidate's place is certain. A lookup thus reads a few rows of an index, however many records exist.
"""

import heapq
import math
from collections.abc import Iterator, Mapping

import sqlalchemy as sa

from tilewright.tuning_logs.checked import answering_keys, counts
from tilewright.tuning_logs.record import Key, Record
from tilewright.tuning_logs.rows import Reader, batches, grouped
from tilewright.tuning_logs.standing import Standing, Verdict, comparisons, decide, defaults, settle, standing
from tilewright.tuning_logs.tables import RECORDS

_FIRST_PAGE = 16
_LAST_PAGE = 256


class Candidates:
    """The candidates that may answer a request for `key` under `policy`, as far as they were asked for."""

    def __init__(self, connection: sa.Connection, reader: Reader, key: Key, policy: Mapping[str, object]) -> None:
        self._connection = connection
        self._reader = reader
        self._policy = policy
        self.keys = answering_keys(connection, key, policy)
        column = RECORDS.c.key_digest
        self._of_keys = column == self.keys[0] if len(self.keys) == 1 else column.in_(self.keys)
        of_default = [record for _, record in self._records(RECORDS.c.is_default)]
        self._compared = comparisons(of_default)
        names = defaults(of_default)
        self.tried = len(names) > 0
        self._first = dict.fromkeys([*names, *self._compared])
        judged = self._judge(list(self._first))
        self._name = next((name for name in names if name in judged), None)
        self.default: Standing | None = None if self._name is None else judged[self._name]
        self.judged = self._settle(judged)  # the defaults, and what was compared with one
        self.default = next((item for item in self.judged if item.is_default), None)

    def verdict(self) -> Verdict:
        """The winner, or why there is none."""
        settled = [item for item in self.judged if item.settled]
        return decide(self.default, self.tried, settled, self.fastest_first())

    def measured(self) -> dict[str, Record]:
        """By candidate: its latest "ok" record if it stands, else its latest record of any status."""
        stored = grouped(self._records(sa.true()))
        judged = {candidate: (standing(group), group[-1][1]) for candidate, group in stored.items()}
        return {candidate: found.record if found else latest for candidate, (found, latest) in judged.items()}

    def fastest_first(self) -> Iterator[Standing]:
        """The standing candidates; reads no further than it is asked to."""
        seen = set(self._first)
        heap = [(item.time_ns, item.first, item) for item in self.judged]
        heapq.heapify(heap)
        last: tuple[float, int] = (-1.0, -1)
        size = _FIRST_PAGE
        while True:
            page = self._connection.execute(
                sa.select(RECORDS.c.id, RECORDS.c.median_ns, RECORDS.c.candidate)
                .where(self._of_keys, RECORDS.c.status == "ok")
                .where(sa.tuple_(RECORDS.c.median_ns, RECORDS.c.id) > last)
                .order_by(RECORDS.c.median_ns, RECORDS.c.id)
                .limit(size)
            ).all()
            fresh = list(dict.fromkeys(row.candidate for row in page if row.candidate not in seen))
            seen.update(fresh)
            for item in self._settle(self._judge(fresh)):
                heapq.heappush(heap, (item.time_ns, item.first, item))
            certain = page[-1].median_ns if len(page) == size else math.inf
            while heap and heap[0][0] < certain:
                yield heapq.heappop(heap)[2]
            if certain == math.inf:
                return
            last = (page[-1].median_ns, page[-1].id)
            size = min(2 * size, _LAST_PAGE)

    def _settle(self, judged: dict[str, Standing]) -> list[Standing]:
        return settle(judged, self._name, self.default, self._compared)

    def _records(self, condition: sa.ColumnElement[bool]) -> list[tuple[int, Record]]:
        found = self._reader.records(self._connection, sa.and_(self._of_keys, condition))
        return [(position, record) for position, record in found if counts(record, self._policy)]

    def _judge(self, candidates: list[str]) -> dict[str, Standing]:
        measurements: list[tuple[int, Record]] = []
        for batch in batches(candidates):
            measurements += self._records(RECORDS.c.candidate.in_(batch))
        judged = {candidate: standing(group) for candidate, group in grouped(measurements).items()}
        return {candidate: item for candidate, item in judged.items() if item is not None}
