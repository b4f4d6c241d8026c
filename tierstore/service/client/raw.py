"""Single calls of the service, without the verbs around them. For benchmarks of a call's cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tierstore.service._pb import tierstore_pb2 as pb

if TYPE_CHECKING:
    from tierstore.keys import Namespace
    from tierstore.service.client.client import Client

__all__ = ["RawCalls"]


class RawCalls:
    """Calls of one client about one namespace. Each blocks, and raises the error that the server answers.

    Attributes:
        request_nbytes: Length of the last request.
        response_nbytes: Length of its answer.
    """

    def __init__(self, client: Client, namespace: Namespace) -> None:
        self._calling = client.calling
        self._namespace = namespace
        self.request_nbytes = 0
        self.response_nbytes = 0

    def acquire(self, hashes: bytes) -> tuple[int, int]:
        """Lease the longest prefix of packed hashes: the lease's id, and how many blocks it has."""
        request = pb.AcquireRequest(hashes=hashes)
        answer = self._calling.demand(request, pb.AcquireResponse, self._namespace)
        self._count(request.ByteSize(), answer.ByteSize())
        return answer.lease_id, len(answer.offsets)

    def release(self, lease_id: int) -> None:
        """End a lease."""
        request = pb.ReleaseRequest(lease_ids=[lease_id])
        self._calling.demand(request, pb.ReleaseResponse, None)

    def lookup(self, hashes: bytes) -> int:
        """How many blocks from the first are usable."""
        request = pb.LookupRequest(hashes=hashes)
        answer = self._calling.demand(request, pb.LookupResponse, self._namespace)
        self._count(request.ByteSize(), answer.ByteSize())
        return answer.leading

    def _count(self, request_nbytes: int, response_nbytes: int) -> None:
        self.request_nbytes, self.response_nbytes = request_nbytes, response_nbytes
