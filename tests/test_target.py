"""Targets: the shipped files, the detected host, fingerprints, and what is refused."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import pytest

from tilewright.schedules import target_host
from tilewright.schedules.target import Target, TargetError, vector_shape

SHIPPED = [name for name in Target.names() if name != "host"]


def test_names_are_the_host_and_the_files() -> None:
    assert Target.names()[0] == "host"
    assert {"x86-64-v3", "zen3", "skylake-avx512", "cortex-a76", "generic-rv64gcv"} <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_target_loads_and_round_trips(name: str) -> None:
    target = Target.load(name)
    assert target.name == name
    assert target.threads <= target.cores
    assert target.l1d_bytes < target.l2_bytes
    assert Target.from_json(target.to_json()) == target


@pytest.mark.parametrize("name", SHIPPED)
def test_llvm_knows_the_processor_and_the_features(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = Target.load(name)
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=",".join(target.features)
    )
    text = f"define <{target.lanes('float32')} x float> @f(<{target.lanes('float32')} x float> %x) {{ ret"
    module = llvm.parse_assembly(f"{text} <{target.lanes('float32')} x float> %x }}")
    module.triple = target.triple
    assert machine.emit_assembly(module)
    assert "not a recognized" not in capfd.readouterr().err  # LLVM only warns, on stderr


@pytest.mark.parametrize(
    ("name", "bits", "registers", "lanes"),
    [
        ("zen3", 256, 16, 8),
        ("x86-64-v3", 256, 16, 8),
        ("skylake-avx512", 512, 32, 16),
        ("cortex-a76", 128, 32, 4),
        ("generic-rv64gcv", 128, 32, 4),
    ],
)
def test_vector_shape_follows_from_the_features(name: str, bits: int, registers: int, lanes: int) -> None:
    target = Target.load(name)
    assert (target.vector_bits, target.vector_registers, target.lanes("float32")) == (bits, registers, lanes)
    assert target.lanes("float64") == lanes // 2
    assert target.lanes("int8") == lanes * 4


def test_a_field_overrides_what_the_features_say() -> None:
    fields = {**mapping("skylake-avx512"), "vector_bits": 256}
    assert Target.from_mapping(fields).vector_bits == 256
    assert vector_shape("riscv64-unknown-linux-gnu", frozenset({"+v", "+zvl256b"})) == (256, 32)
    assert vector_shape("x86_64-pc-windows-msvc", frozenset({"+sse2"})) == (128, 16)
    assert vector_shape("x86_64-pc-linux-gnu", frozenset({"-avx512f", "+avx"})) == (256, 16)


def mapping(name: str) -> dict[str, Any]:
    target = Target.load(name)
    return {field: getattr(target, field) for field in Target.__dataclass_fields__}


@pytest.mark.parametrize(
    ("change", "hard"),
    [
        ({"cpu": "znver2"}, True),
        ({"features": ("+avx",)}, True),
        ({"threads": 3}, True),
        ({"vector_bits": 128}, True),
        ({"triple": "aarch64-unknown-linux-gnu"}, True),
        ({"triple": "x86_64-pc-linux-gnu"}, False),
        ({"model": "another"}, False),
        ({"l3_bytes": 1}, False),
        ({"cores": 64}, False),
        ({"name": "mine"}, False),
    ],
)
def test_the_hash_follows_the_hard_fields_only(change: dict[str, Any], hard: bool) -> None:
    target = Target.load("zen3")
    assert (replace(target, **change).fingerprint_hash() != target.fingerprint_hash()) is hard


def test_the_order_of_features_and_absent_ones_do_not_change_the_hash() -> None:
    target = Target.load("zen3")
    other = replace(target, features=("-avx512f", *reversed(target.features)))
    assert other.fingerprint_hash() == target.fingerprint_hash()


@pytest.mark.workers
def test_the_hash_is_the_same_in_another_process() -> None:
    code = "from tilewright.schedules.target import Target; print(Target.load('zen3').fingerprint_hash())"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == Target.load("zen3").fingerprint_hash()


def test_the_host_is_detected() -> None:
    host = Target.host()
    assert host == Target.load("host")
    found = inspect.unwrap(target_host.detect)()  # also where the tests run as on another processor
    assert found["cpu"] == llvm.get_host_cpu_name()
    assert host.cores == found["cores"]
    assert 1 <= host.threads <= host.cores
    assert Target.host(threads=1) == host.with_threads(1)
    assert Target.from_json(host.to_json()) == host
    assert set(host.fingerprint()) == {"hard", "soft"}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_caches_are_read_from_the_kernel_folder(tmp_path: Path) -> None:
    data, unified = "Data", "Unified"
    rows = [("1", data, "48K"), ("1", "Instruction", "32K"), ("2", unified, "2M"), ("3", unified, "30M")]
    for number, (level, kind, size) in enumerate(rows):
        for file, text in (("level", level), ("type", kind), ("size", size), ("coherency_line_size", "128")):
            write(tmp_path / f"index{number}" / file, text)
    assert target_host.caches(tmp_path) == {
        "l1d_bytes": 49152, "l2_bytes": 2097152, "l3_bytes": 31457280, "line_bytes": 128,
    }  # fmt: skip
    assert target_host.caches(tmp_path / "none") == target_host.FALLBACK


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"cgroup": "0::/a/b", "root/a/b/cpu.max": "max 100000"}, None),
        ({"cgroup": "0::/a/b", "root/a/b/cpu.max": "150000 100000"}, 1.5),
        ({"cgroup": "0::/a/b", "root/a/b/cpu.max": "max 100000", "root/a/cpu.max": "400000 100000"}, 4.0),
        ({"cgroup": "0::/", "root/cpu.max": "50000 100000"}, 0.5),
        (
            {
                "cgroup": "3:cpuset:/\n1:cpu,cpuacct:/x",
                "root/cpu,cpuacct/x/cpu.cfs_quota_us": "200000",
                "root/cpu,cpuacct/x/cpu.cfs_period_us": "100000",
            },
            2.0,
        ),
        ({"cgroup": "1:cpu:/", "root/cpu/cpu.cfs_quota_us": "-1", "root/cpu/cpu.cfs_period_us": "9"}, None),
    ],
)
def test_control_group_quota(tmp_path: Path, files: dict[str, str], expected: float | None) -> None:
    for name, text in files.items():
        write(tmp_path / ("proc/self/cgroup" if name == "cgroup" else name), text)
    assert target_host.cgroup_quota(tmp_path / "proc", tmp_path / "root") == expected


def test_mistakes_are_refused_with_what_was_expected() -> None:
    zen3 = mapping("zen3")
    with pytest.raises(TargetError, match=r"target: expected one of host, .*zen3; got 'zen9'"):
        Target.load("zen9")
    with pytest.raises(TargetError, match=r"dtype of a lane count: expected .*float64.*; got 'complex64'"):
        Target.load("zen3").lanes("complex64")
    with pytest.raises(TargetError, match=r"threads of target 'zen3': expected an integer of at least 1; got 0"):
        Target.load("zen3").with_threads(0)
    with pytest.raises(TargetError, match=r"family of target 'zen3': expected .*cpu, cuda, rocm; got 'fpga'"):
        Target.from_mapping({**zen3, "family": "fpga"})
    with pytest.raises(TargetError, match=r"features of target 'zen3': expected a tuple .* got \('avx2'"):
        Target.from_mapping({**zen3, "features": ["avx2"]})
    with pytest.raises(TargetError, match=r"missing: cpu; unknown: speed"):
        Target.from_mapping({**{k: v for k, v in zen3.items() if k != "cpu"}, "speed": 1})
    with pytest.raises(TargetError, match=r"expected one JSON object; got '\[1\]'"):
        Target.from_json("[1]")
