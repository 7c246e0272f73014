"""Messages between a runner and its workers: JSON objects, each behind its length in four bytes.

A worker may be broken in any way, so the reader believes nothing: a frame that is too long or not a JSON
object is an error.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Final, final

Message = dict[str, Any]
LENGTH: Final = struct.Struct("<I")
LARGEST: Final = 64 << 20


class MessageError(ValueError):
    """Bytes that are no message."""


def encode(message: Message) -> bytes:
    """The frame of a message."""
    data = json.dumps(message, separators=(",", ":")).encode()
    return LENGTH.pack(len(data)) + data


@final
class Decoder:
    """Turns pieces of a stream into messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        """Take what was read."""
        self._data += data

    def next(self) -> Message | None:
        """The next message, or None if it is not complete. Raises MessageError."""
        if len(self._data) < LENGTH.size:
            return None
        (size,) = LENGTH.unpack_from(self._data)
        if size > LARGEST:
            raise MessageError(f"expected a message of at most {LARGEST} bytes; got a length of {size}")
        if len(self._data) < LENGTH.size + size:
            return None
        data = bytes(self._data[LENGTH.size : LENGTH.size + size])
        del self._data[: LENGTH.size + size]
        try:
            message = json.loads(data)
        except ValueError as error:
            raise MessageError(f"expected JSON; got {data[:60]!r} ({error})") from error
        if not isinstance(message, dict):
            raise MessageError(f"expected a JSON object; got {data[:60]!r}")
        return message
