"""The tables of a store, the version of their layout, and the hook that migrates older layouts.

`contexts` holds the texts that many records share (workload, target, policy) once; `records` holds one row
for each measurement: the columns that lookups need, and the whole rest as the self-describing JSON object of
`Record`. Rows are only ever added.

To change the layout: raise `LAYOUT_VERSION` to n + 1 and add `MIGRATIONS[n]`, a function that changes layout
n into n + 1 through the given connection. A store opened for writing runs the missing ones in order in one
transaction; it must not remove data. A change of the *record* needs none of this: see
`record.SCHEMA_VERSION`.
"""

from collections.abc import Callable

import sqlalchemy as sa

from tilewright.tuning_logs.record import utc_now

LAYOUT_VERSION = 1

MIGRATIONS: dict[int, Callable[[sa.Connection], None]] = {}

METADATA = sa.MetaData()

LAYOUT = sa.Table(
    "tilewright_layout",
    METADATA,
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("applied", sa.Text, nullable=False),
)

CONTEXTS = sa.Table(
    "tilewright_contexts",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False, unique=True),
    sa.Column("key_digest", sa.Text, nullable=False, index=True),
    sa.Column("workload_hash", sa.Text, nullable=False, index=True),
    sa.Column("family", sa.Text, nullable=False, index=True),
    sa.Column("target_hash", sa.Text, nullable=False, index=True),
    sa.Column("policy_hash", sa.Text, nullable=False),
    sa.Column("workload", sa.Text, nullable=False),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("policy", sa.Text, nullable=False),
)

RECORDS = sa.Table(
    "tilewright_records",
    METADATA,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("context_id", sa.ForeignKey(CONTEXTS.c.id), nullable=False, index=True),
    sa.Column("key_digest", sa.Text, nullable=False),
    sa.Column("candidate", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("median_ns", sa.Double),
    sa.Column("is_default", sa.Boolean, nullable=False),
    sa.Column("run_id", sa.Text, nullable=False, index=True),
    sa.Column("digest", sa.Text, nullable=False, index=True),
    sa.Column("body", sa.Text, nullable=False),
    sa.Index("ix_tilewright_records_ranking", "key_digest", "status", "median_ns", "id"),
    sa.Index("ix_tilewright_records_candidate", "key_digest", "candidate"),
)

DEFAULTS = sa.Index("ix_tilewright_records_defaults", RECORDS.c.key_digest, RECORDS.c.is_default, RECORDS.c.status)
"""Finds the comparisons with defaults. Older stores get it when they are opened for writing; without it a lookup is only
slower, so that it is no change of the layout."""


class LayoutError(Exception):
    """The tables are not ones this version can use; the text says what came and what to do."""


def check_layout(connection: sa.Connection) -> int | None:
    """The layout version of a database; None if it has no tables.

    Raises `LayoutError` for a foreign or newer one.
    """
    names = sa.inspect(connection).get_table_names()
    if LAYOUT.name not in names:
        if names and connection.dialect.name == "sqlite":
            raise LayoutError(
                "expected a tilewright store, got a database of something else "
                f"(tables: {', '.join(names[:5])}); give another path"
            )
        return None
    version: int | None = connection.scalar(sa.select(sa.func.max(LAYOUT.c.version)))
    if version is None:
        raise LayoutError("expected a layout version, got none; the store is damaged: export it from a backup")
    if version > LAYOUT_VERSION:
        raise LayoutError(
            f"expected layout version {LAYOUT_VERSION} or older, got {version}: "
            "a newer tilewright wrote this store; upgrade tilewright, or give another path"
        )
    return version


def prepare_layout(connection: sa.Connection) -> None:
    """Create the tables, or migrate older ones, within the caller's transaction. Raises `LayoutError`."""
    version = check_layout(connection)
    if version is None:
        METADATA.create_all(connection)
        version = LAYOUT_VERSION
        connection.execute(sa.insert(LAYOUT).values(version=version, applied=utc_now()))
    DEFAULTS.create(connection, checkfirst=True)
    for older in range(version, LAYOUT_VERSION):
        if older not in MIGRATIONS:
            raise LayoutError(f"expected a migration from layout version {older}, got none; this is a bug")
        MIGRATIONS[older](connection)
        connection.execute(sa.insert(LAYOUT).values(version=older + 1, applied=utc_now()))
