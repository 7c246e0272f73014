"""Object code looked at before LLVM is let near it.

LLVM ends the process where an object file is not what it expects: another format or architecture, a table that points outside the
file, a function that nobody has. So the parts that decide this are read here first: the headers of an ELF file and its symbols.
What the machine code itself does cannot be judged; that it is intact and fits its model is for the caller to know.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_MACHINES = {"x86_64": 62, "aarch64": 183, "riscv64": 243}
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATABLE, _SYMBOLS, _NO_BITS, _UNDEFINED = 1, 2, 8, 0
_RELOCATIONS = {4: 24, 9: 16}
"""Sections that list relocations, and the bytes of an entry."""
_LINKERS = frozenset({"_GLOBAL_OFFSET_TABLE_"})
"""Names that whoever links the file defines."""


class ObjectError(ValueError):
    """Bytes that are no object code of the kind expected; the text says what was expected and what came."""


@dataclass(frozen=True, slots=True)
class Symbols:
    """The names that object code gives to others, and those that it needs from others."""

    defined: frozenset[str]
    needed: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int
    info: int


def symbols(data: bytes, arch: str) -> Symbols:
    """The global names of a relocatable 64-bit little-endian ELF file for ``arch`` (``x86_64``, ``aarch64`` or ``riscv64``). Raises
    ObjectError for anything else, also if a part of it lies outside ``data``."""
    sections = list(_sections(data, arch))
    tables = [s for s in sections if s.kind == _SYMBOLS]
    if len(tables) != 1:
        raise ObjectError(f"object code: expected one table of symbols; got {len(tables)}")
    count = tables[0].size // _SYMBOL.size
    for s in sections:
        if s.kind in _RELOCATIONS:
            _check_relocations(data, s, _RELOCATIONS[s.kind], sections, count)
    return _names(data, tables[0], sections)


def _sections(data: bytes, arch: str) -> Iterator[_Section]:
    if len(data) < _HEADER.size or data[:7] != b"\x7fELF\x02\x01\x01":
        raise ObjectError(
            f"object code: expected a 64-bit little-endian ELF file; got {len(data)} bytes: {data[:7]!r}…"
        )
    _, kind, machine, *_, start, _flags, _size, _, _, entry, count, names = _HEADER.unpack_from(data)
    if kind != _RELOCATABLE or machine != _MACHINES.get(arch):
        raise ObjectError(
            f"object code: expected relocatable code for {arch} (machine {_MACHINES.get(arch)}); got type {kind}, machine {machine}"
        )
    if entry != _SECTION.size or not 0 < count < 0xFF00 or start + count * entry > len(data) or names >= count:
        raise ObjectError(f"object code: expected a table of sections inside the file; got {count} at byte {start}")
    for k in range(count):
        _, kind, _, _, offset, size, link, info, _, _ = _SECTION.unpack_from(data, start + k * entry)
        if (kind != _NO_BITS and offset + size > len(data)) or link >= count:
            raise ObjectError(f"object code: expected section {k} inside the file; got {size} bytes at byte {offset}")
        yield _Section(kind, offset, size, link, info)


def _check_relocations(data: bytes, s: _Section, entry: int, sections: list[_Section], count: int) -> None:
    if s.info >= len(sections) or s.size % entry or sections[s.link].kind != _SYMBOLS:
        raise ObjectError("object code: expected relocations of a section of the file, by its table of symbols")
    for at in range(s.offset, s.offset + s.size, entry):
        place, info = struct.unpack_from("<QQ", data, at)
        if place >= sections[s.info].size or info >> 32 >= count:
            raise ObjectError(f"object code: expected a relocation inside its section; got one at byte {place}")


def _names(data: bytes, table: _Section, sections: list[_Section]) -> Symbols:
    texts = sections[table.link]
    defined: set[str] = set()
    needed: set[str] = set()
    for at in range(table.offset, table.offset + table.size - _SYMBOL.size + 1, _SYMBOL.size):
        text, info, _, section, value, _size = _SYMBOL.unpack_from(data, at)
        if text >= texts.size or (
            0 < section < 0xFF00 and (section >= len(sections) or value > sections[section].size)
        ):
            raise ObjectError("object code: expected symbols inside its sections; got one outside")
        if not info >> 4 or not text:  # local, or without a name
            continue
        end = data.find(b"\0", texts.offset + text, texts.offset + texts.size)
        name = data[texts.offset + text : end if end >= 0 else texts.offset + texts.size].decode("ascii", "replace")
        (needed if section == _UNDEFINED else defined).add(name)
    return Symbols(frozenset(defined), frozenset(needed) - _LINKERS)
