"""The calls as bytes: one table of methods, made from the protocol's own description. Called by server and client.

Messages with block bytes are encoded and decoded here by hand, since the classes of Protocol Buffers would copy the
bytes once more on each side. On the wire they are ordinary messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NewType

from tierstore.service._pb import tierstore_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = [
    "CHOSEN_FIRST",
    "CHUNK_NBYTES",
    "HASHES_MAX",
    "MESSAGE_NBYTES_MAX",
    "METHODS",
    "PROTOCOL",
    "SERVICE_NAME",
    "Data",
    "Method",
    "encode_data",
]

PROTOCOL = 1
"""Changes where an older peer could not follow."""

SERVICE_NAME: str = pb.DESCRIPTOR.services_by_name["StoreService"].full_name

CHUNK_NBYTES = 512 << 10
"""Bytes of blocks in one message of a stream: below every usual limit, and from here on larger ones are no faster."""

MESSAGE_NBYTES_MAX = 4 << 20
"""The limit that gRPC has by itself: nobody need be told of another one."""

HASHES_MAX = 65_536
"""Hashes in one call: 2 MiB of them."""

CHOSEN_FIRST = 1 << 32
"""From here on clients number leases and reservations for themselves; below, the server does."""

Data = NewType("Data", memoryview)
"""Bytes of blocks that a message carried; they live as long as this does."""

_LENGTH_DELIMITED = 2
_GET_TAG = bytes([pb.GetResponse.DATA_FIELD_NUMBER << 3 | _LENGTH_DELIMITED])
_PUT_TAG = bytes([pb.PutRequest.DATA_FIELD_NUMBER << 3 | _LENGTH_DELIMITED])


@dataclass(frozen=True, slots=True)
class Method:
    """One call.

    Attributes:
        name: Such as ``"Lookup"``.
        path: As HTTP/2 has it.
        takes_stream: Whether requests are many.
        gives_stream: Whether responses are many.
        decode_request: bytes → message; raises what Protocol Buffers raise.
        encode_request: message → bytes; bytes pass as they are.
        decode_response: As for requests.
        encode_response: As for requests.
    """

    name: str
    path: str
    takes_stream: bool
    gives_stream: bool
    decode_request: Callable[[bytes], Message | Data]
    encode_request: Callable[[Message | bytes], bytes]
    decode_response: Callable[[bytes], Message | Data]
    encode_response: Callable[[Message | bytes], bytes]


def encode_data(parts: Sequence[memoryview], *, put: bool) -> bytes:
    """A message of a put, or else of a get, that carries these bytes, joined. The only copy made of them."""
    return b"".join((_PUT_TAG if put else _GET_TAG, _varint(sum(map(len, parts))), *parts))


def _encode(message: Message | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()


def _data_or(tag: bytes, parse: Callable[[bytes], Message]) -> Callable[[bytes], Message | Data]:
    """A decoder of messages that carry block bytes and nothing else, or else are parsed."""

    def decode(message: bytes) -> Message | Data:
        if message[:1] == tag:
            nbytes, start = _read_varint(message)
            if nbytes == len(message) - start:
                return Data(memoryview(message)[start:])
        parsed = parse(message)
        name = parsed.WhichOneof("part")
        return Data(memoryview(parsed.data)) if name == "data" else parsed  # type: ignore[attr-defined]

    return decode


def _varint(number: int) -> bytes:
    """A length as Protocol Buffers write it: seven bits a byte, the lowest first."""
    groups = bytearray()
    while number >= 0x80:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def _read_varint(message: bytes) -> tuple[int, int]:
    """The length behind a one-byte tag, and where it ends; (-1, 0) where there is none of a sane size."""
    number = 0
    for index, byte in enumerate(message[1:6]):
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return number, index + 2
    return -1, 0


def _methods() -> Mapping[str, Method]:
    methods = {}
    for described in pb.DESCRIPTOR.services_by_name["StoreService"].methods:
        request, response = getattr(pb, described.input_type.name), getattr(pb, described.output_type.name)
        methods[described.name] = Method(
            name=described.name,
            path=f"/{SERVICE_NAME}/{described.name}",
            takes_stream=described.client_streaming,
            gives_stream=described.server_streaming,
            decode_request=_data_or(_PUT_TAG, request.FromString) if described.name == "Put" else request.FromString,
            encode_request=_encode,
            decode_response=_data_or(_GET_TAG, response.FromString) if described.name == "Get" else response.FromString,
            encode_response=_encode,
        )
    return MappingProxyType(methods)


METHODS: Mapping[str, Method] = _methods()
"""Every call by its name."""
