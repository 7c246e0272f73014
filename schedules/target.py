"""What a schedule may assume of a machine: a `Target` is data, from a file of `targets/` or from the host.

Why: a search or lowering rule that asks for a device by name has to be edited for the next device. They ask
for lanes, registers and cache sizes instead, so a new chip of a known family is one TOML file.

A fingerprint is split in two. Code tuned for equal *hard* fields runs, and means the same schedule space; the
*soft* fields only say how well a measured time carries over. A log keys on the hash of the hard ones.

Every error is a `TargetError` that says which field, what was expected and what came.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from importlib import resources
from typing import Any, Final, final

from tilewright.graph import strict_json

BITS: Final = {
    "float64": 64, "int64": 64, "float32": 32, "int32": 32, "float16": 16, "bfloat16": 16, "int16": 16,
    "int8": 8, "uint8": 8,
    "uint16": 16, "uint32": 32, "uint64": 64, "bool": 8,
}  # fmt: skip
FAMILIES: Final = ("cpu", "cuda", "rocm")
HOST: Final = "host"
MOST_THREADS: Final = 1024
"""Of a target: each has a stack, scratch of its own and a share of every loop."""
_FOLDER: Final = "tilewright.schedules.targets"
_RISCV_LENGTH: Final = re.compile(r"\+zvl([0-9]{1,5})b")
_MOST: Final = {
    "vector_bits": 1 << 16, "vector_registers": 1 << 10, "fma_per_cycle": 1 << 10, "line_bytes": 1 << 16, "cores": 1 << 16,
    "threads": MOST_THREADS,
}  # fmt: skip
"""More than any machine has. What is multiplied by such a number has to stay within memory."""
_MOST_BYTES: Final = 1 << 46


class TargetError(ValueError):
    """A target that is unknown, malformed, or asked for something it cannot say."""


@final
@dataclass(frozen=True, slots=True)
class Target:
    """One machine that code is generated for. Caches are those of one core, except `l3_bytes`, which its cores share (0: none).

    `Target.host()` is this machine, `Target.load(name)` a described one. Raises TargetError for a field that makes no sense.
    """

    name: str
    family: str
    triple: str
    cpu: str
    """LLVM's name for the processor."""
    features: tuple[str, ...]
    """LLVM feature strings, sorted: `+avx2` is there; `-avx2` is not, though `cpu` alone would promise it."""
    vector_bits: int
    vector_registers: int
    fma_per_cycle: int
    """Vector fused multiply-adds that one core can start in a cycle, each of `vector_bits`."""
    l1d_bytes: int
    l2_bytes: int
    l3_bytes: int
    line_bytes: int
    cores: int
    threads: int
    """Worker threads that kernels use."""
    model: str
    """What a person calls the machine."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "features":
                right = isinstance(value, tuple) and all(
                    isinstance(feature, str) and feature.startswith(("+", "-")) for feature in value
                )
                expected = "a tuple of strings that begin with + or -"
            elif field.type == "int":
                least = 0 if field.name in ("l2_bytes", "l3_bytes") else 1
                most = _MOST.get(field.name, _MOST_BYTES)
                right = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
                bound = f"at least {least}" if not isinstance(value, int) or value < least else f"at most {most}"
                expected = f"an integer of {bound}"
            else:
                right, expected = isinstance(value, str), "a string"
            if not right:
                raise TargetError(f"{field.name} of target {self.name!r}: expected {expected}; got {value!r}")
        if self.family not in FAMILIES:
            raise TargetError(
                f"family of target {self.name!r}: expected one of {', '.join(FAMILIES)}; got {self.family!r}"
            )
        object.__setattr__(self, "features", tuple(sorted(set(self.features))))

    @property
    def arch(self) -> str:
        """The first part of the triple: `x86_64`, `aarch64`, `riscv64`, ..."""
        return self.triple.split("-", 1)[0]

    def lanes(self, dtype: str) -> int:
        """Elements of `dtype` in one vector register (at least 1)."""
        if dtype not in BITS:
            raise TargetError(f"dtype of a lane count: expected one of {', '.join(BITS)}; got {dtype!r}")
        return max(1, self.vector_bits // BITS[dtype])

    def with_threads(self, threads: int) -> Target:
        """The same machine with another number of worker threads (which records are keyed by)."""
        return replace(self, threads=threads)

    def fingerprint(self) -> dict[str, object]:
        """`hard`: what the generated code depends on. `soft`: what its speed also depends on.

        Only the features that are there count: the list of absent ones grows with every LLVM release.
        """
        return {
            "hard": {
                "family": self.family,
                "arch": self.arch,
                "cpu": self.cpu,
                "features": [feature for feature in self.features if feature.startswith("+")],
                "threads": self.threads,
                "vector_bits": self.vector_bits,
            },
            "soft": {
                "model": self.model,
                "cores": self.cores,
                "l1d_bytes": self.l1d_bytes,
                "l2_bytes": self.l2_bytes,
                "l3_bytes": self.l3_bytes,
            },
        }

    def fingerprint_hash(self) -> str:
        """16 hexadecimal digits over the hard fields: the same in every process and on every platform."""
        text = json.dumps(self.fingerprint()["hard"], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """All fields as one JSON object."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Target:
        """The inverse of `to_json`. Raises TargetError."""
        try:
            data = strict_json.loads(text)
        except ValueError as error:
            raise TargetError(f"target as JSON: expected one JSON object; got {text[:60]!r}: {error}") from error
        if not isinstance(data, dict):
            raise TargetError(f"target as JSON: expected one JSON object; got {text[:60]!r}")
        return Target.from_mapping(data)

    @staticmethod
    def from_mapping(data: Mapping[str, Any]) -> Target:
        """From every field by name; `vector_bits` and `vector_registers` may follow from the features."""
        name = data.get("name")
        values = dict(data)
        features = values.get("features")
        if isinstance(features, list):
            values["features"] = tuple(features)
        if isinstance(features, list | tuple) and isinstance(values.get("triple"), str):
            bits, registers = vector_shape(values["triple"], frozenset(map(str, features)))
            values.setdefault("vector_bits", bits)
            values.setdefault("vector_registers", registers)
        known = [field.name for field in fields(Target)]
        missing = [field for field in known if field not in values]
        unknown = [field for field in values if field not in known]
        if missing or unknown:
            raise TargetError(
                f"fields of target {name!r}: expected {', '.join(known)}; "
                f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}"
            )
        return Target(**values)

    @staticmethod
    def names() -> tuple[str, ...]:
        """What `load` takes, `host` first."""
        files = (entry.name for entry in resources.files(_FOLDER).iterdir())
        return (HOST, *sorted(file.removesuffix(".toml") for file in files if file.endswith(".toml")))

    @staticmethod
    def load(name: str) -> Target:
        """The target of `targets/<name>.toml`; `host` is detected instead."""
        if name not in Target.names():
            raise TargetError(f"target: expected one of {', '.join(Target.names())}; got {name!r}")
        if name == HOST:
            return Target.host()
        return Target.from_toml(name, resources.files(_FOLDER).joinpath(f"{name}.toml").read_bytes())

    @staticmethod
    def from_toml(name: str, content: bytes) -> Target:
        """The target that a TOML file describes, under the file's name. Raises TargetError."""
        try:
            data = tomllib.loads(content.decode())
        except (ValueError, RecursionError) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
            raise TargetError(f"target {name!r}: expected TOML in targets/{name}.toml; got: {error}") from error
        return Target.from_mapping({"name": name, **data})

    @staticmethod
    def host(threads: int | None = None) -> Target:
        """The machine this runs on; `threads` defaults to the cores that this process may use."""
        from tilewright.schedules.target_host import detect  # that module needs `Target`

        found = Target.from_mapping({"name": HOST, **detect()})
        return found if threads is None else found.with_threads(threads)


def vector_shape(triple: str, features: frozenset[str]) -> tuple[int, int]:
    """(bits, number) of the vector registers that `features` give.

    The widest is taken, also where a processor prefers less (a field of the file overrides). RISC-V's vectors
    have no one length: this is the guaranteed one, of the `zvl<bits>b` features or the 128 that `v` implies.
    """
    arch = triple.split("-", 1)[0]
    if arch in ("x86_64", "i686", "i386"):
        if "+avx512f" in features:
            return 512, 32
        return (256 if "+avx" in features else 128), 16
    if arch.startswith("riscv"):
        lengths = [int(match[1]) for match in map(_RISCV_LENGTH.fullmatch, features) if match]
        return (max([128, *lengths]) if "+v" in features else 64), 32
    return 128, 32
