"""Commands that look: the best records of a model, the store, the device."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from tilewright.api import load
from tilewright.display import print_table, say, tell, time_text
from tilewright.files import refuse_unwritable
from tilewright.measure import Policy, measure_ceilings
from tilewright.options import (
    ALGORITHMS,
    CACHE,
    EXIT_MISS,
    JSON,
    SHAPE,
    STORE,
    TARGET,
    THREADS,
    VALUE,
    reported,
    store_to_read,
    target_of,
)
from tilewright.schedules.jit import llvm_version
from tilewright.schedules.target import Target
from tilewright.searches import why_stale
from tilewright.tasks import extract
from tilewright.tuning_logs import Hit, Store, StoreError, export_jsonl, import_jsonl


@click.command("best")
@click.argument("model", type=click.Path())
@SHAPE
@VALUE
@TARGET
@THREADS
@CACHE
@ALGORITHMS
@STORE
@JSON
@reported
def best_command(
    model: str,
    shapes: dict[str, tuple[int, ...]],
    values: dict[str, list[bool | int | float]],
    target_name: str,
    threads: int | None,
    cache: str,
    algorithms: str,
    store_path: str | None,
    as_json: bool,
) -> None:
    """Show the best record of every kernel of MODEL, or why there is none that applies (exit code 5 if any is missing)."""
    target = target_of(target_name, threads)
    graph = load(model, shapes, values)
    rows: list[dict[str, Any]] = []
    with store_to_read(store_path) as store:
        for task in extract(graph, target):
            w = task.workload
            found = store.best(
                w.hash,
                target.fingerprint(),
                Policy(cache=cache, algorithms=algorithms).identity(),
                family=w.family,
                workload=w.text,
            )
            row: dict[str, Any] = {
                "workload": w.hash,
                "describe": w.describe(),
                "origin": task.origin,
                "weight": task.weight,
            }
            why = why_stale(w, found.record.schedule) if isinstance(found, Hit) else ""
            if why:
                row |= {"missing": [why]}
            elif isinstance(found, Hit):
                row |= {"time_ns": found.time_ns, "sketch": found.record.sketch, "schedule": found.record.schedule}
            else:
                row |= {"missing": list(found.reasons)}
            rows.append(row)
    if as_json:
        say(json.dumps(rows))
    else:
        print_table(
            "best records",
            ("workload", "what", "runs", "best", "sketch"),
            [
                (
                    r["workload"],
                    r["describe"],
                    str(r["weight"]),
                    time_text(r["time_ns"]) if "time_ns" in r else "-",
                    r.get("sketch") or "missing: " + "; ".join(r["missing"]),
                )
                for r in rows
            ],
        )
    if any("missing" in r for r in rows):
        sys.exit(EXIT_MISS)


@click.group("records")
def records_group() -> None:
    """List, export and import tuning records."""


@records_group.command("list")
@STORE
@JSON
@reported
def records_list(store_path: str | None, as_json: bool) -> None:
    """One line for each workload in the store."""
    with Store(store_path, read_only=True, missing_ok=store_path is None) as store:
        summary, path = store.summary(), store.path_text
    if as_json:
        say(
            json.dumps(
                [
                    {
                        "workload": s.key.workload_hash,
                        "target": s.key.target_hash,
                        "counts": dict(s.counts),
                        "best_ns": s.best_ns,
                        "default_ns": s.default_ns,
                    }
                    for s in summary
                ]
            )
        )
        return
    rows = [
        (
            s.key.workload_hash,
            s.key.target_hash[:8],
            ", ".join(f"{n} {k}" for k, n in s.counts.items()),
            time_text(s.default_ns),
            time_text(s.best_ns),
        )
        for s in summary
    ]
    print_table(path, ("workload", "target", "measurements", "default", "best"), rows)


@records_group.command("path")
@STORE
@reported
def records_path(store_path: str | None) -> None:
    """Where the records are kept."""
    with Store(store_path, read_only=True, missing_ok=True) as store:
        say(store.path_text)


@records_group.command("export")
@click.argument("file", type=click.Path(dir_okay=False))
@STORE
@reported
def records_export(file: str, store_path: str | None) -> None:
    """Write all records to FILE as JSON Lines."""
    refuse_unwritable(file)
    with Store(store_path, read_only=True) as store:
        say(f"{export_jsonl(store, file)} records to {file}")


@records_group.command("import")
@click.argument("file", type=click.Path(dir_okay=False))
@STORE
@reported
def records_import(file: str, store_path: str | None) -> None:
    """Add the records of FILE (JSON Lines). Bad lines are set aside and counted; they are an error only if no line is good."""
    try:
        Path(file).open("rb").close()  # before a store is made for what cannot be read
        with Store(store_path) as store:
            report = import_jsonl(store, file)
    except OSError as error:
        raise StoreError(f"cannot read {file}: {error.strerror or error}") from error
    say(f"{report.added} added, {report.duplicates} known already, {report.quarantined} set aside")
    if report.quarantined:
        tell(f"bad lines are in {report.quarantine_path}" if report.quarantine_path else "bad lines:")
        for text in report.first_errors:
            tell(f"  {text}")
    if report.quarantined and not report.added + report.duplicates:
        raise StoreError(f"no line of {file} is a record: expected a file that 'tilewright records export' wrote")


@click.command("device")
@TARGET
@THREADS
@click.option(
    "--ceilings/--no-ceilings", default=True, show_default=True, help="Measure peak rates (a few seconds; host only)."
)
@JSON
@reported
def device_command(target_name: str, threads: int | None, ceilings: bool, as_json: bool) -> None:
    """Describe a target, and measure what this machine can do at most."""
    target = target_of(target_name, threads)
    measured = measure_ceilings(target) if ceilings and target_name == "host" else None
    if as_json:
        data: dict[str, Any] = {
            "target": json.loads(target.to_json()),
            "known": list(Target.names()),
            "llvm": llvm_version(),
        }
        if measured is not None:
            data["ceilings"] = measured.to_dict()
        say(json.dumps(data))
        return
    rows = [
        ("model", target.model),
        ("code for", f"{target.triple} {target.cpu}, LLVM {llvm_version()}"),
        ("vectors", f"{target.vector_bits} bits, {target.vector_registers} registers"),
        ("caches", f"L1 {target.l1d_bytes >> 10} KiB, L2 {target.l2_bytes >> 10} KiB, L3 {target.l3_bytes >> 20} MiB"),
        ("cores, threads", f"{target.cores}, {target.threads}"),
        ("fingerprint", target.fingerprint_hash()),
        ("known targets", ", ".join(Target.names())),
    ]
    if measured is not None:
        rows += [(f"peak {k}", v) for k, v in measured.rows()]
    print_table(f"target {target.name}", ("", ""), rows)
    if measured is not None and (slow := measured.disturbed()):
        tell(
            f"note: {target.threads} threads together were slower than one thread ({', '.join(slow)}): another program used a "
            "core. Measure again when the machine is idle."
        )
