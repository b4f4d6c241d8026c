"""Messages over a plain stream, each behind its length. Called by both ends of the pool's socket; pure."""

from __future__ import annotations

from tierstore.errors import LimitError
from tierstore.service.wire import MESSAGE_NBYTES_MAX

__all__ = ["Frames", "framed"]

_LENGTH_NBYTES = 4


def framed(message: bytes) -> bytes:
    """A message as it is sent."""
    assert len(message) <= MESSAGE_NBYTES_MAX, f"a message of {len(message)} bytes is for nobody"
    return len(message).to_bytes(_LENGTH_NBYTES, "little") + message


class Frames:
    """Cuts what comes into messages."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._wanted = 0

    def feed(self, part: bytes) -> list[bytes]:
        """The messages that are whole with this part, in order.

        Raises:
            LimitError: A message is longer than allowed; the rest of the stream cannot be cut any more.
        """
        if self._rest:
            self._rest += part
            if len(self._rest) < self._wanted:
                return []
            part = bytes(self._rest)
        start, messages = 0, list[bytes]()
        self._wanted = _LENGTH_NBYTES
        while start + _LENGTH_NBYTES <= len(part):
            begin = start + _LENGTH_NBYTES
            nbytes = int.from_bytes(part[start:begin], "little")
            if nbytes > MESSAGE_NBYTES_MAX:
                raise LimitError(f"a message of {nbytes} bytes is announced; {MESSAGE_NBYTES_MAX} are the most")
            if begin + nbytes > len(part):
                self._wanted = _LENGTH_NBYTES + nbytes
                break
            messages.append(part[begin : begin + nbytes])
            start = begin + nbytes
        self._rest = bytearray(part[start:])
        return messages
