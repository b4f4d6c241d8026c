"""What a session holds, and that nothing of it outlives it, however it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.e2e.service.stranger import Stranger, stranger
from tests.e2e.service.world import Serving, served
from tests.payload import TIMEOUT_SECONDS, block_hash, namespace, rows
from tests.processes import program
from tierstore.service._pb import tierstore_pb2 as pb
from tierstore.service.sessions import SessionLimits

BLOCKS = [block_hash(number) for number in range(6)]
HASHES = b"".join(BLOCKS)
BYTES = rows(range(6), 8192)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with served(tmp_path, limits=SessionLimits(lease_seconds=0.2)) as serving:
        yield serving


def test_a_session_is_of_no_use_to_another_one_of_its_ids(serving: Serving) -> None:
    with stranger(serving.address) as visitor:
        scope = visitor.scope()
        scope.session_id = bytes(16)
        with pytest.raises(grpc.RpcError) as refused:
            visitor.call(pb.LookupRequest(scope=scope, hashes=HASHES))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def test_sessions_beyond_the_most_are_refused(tmp_path: Path) -> None:
    with served(tmp_path, limits=SessionLimits(sessions=1)) as serving, stranger(serving.address) as _first:
        with pytest.raises(grpc.RpcError) as refused, stranger(serving.address):
            pass
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_what_a_session_holds_is_bounded(tmp_path: Path) -> None:
    with served(tmp_path, limits=SessionLimits(held=2, queues=1)) as serving, stranger(serving.address) as visitor:
        scope = visitor.scope()
        for _ in range(2):
            visitor.call(pb.PrefetchRequest(scope=scope, hashes=HASHES))
        visitor.call(pb.HintRequest(scope=scope, queue=7))
        for request in (pb.PrefetchRequest(scope=scope, hashes=HASHES), pb.HintRequest(scope=scope, queue=8)):
            with pytest.raises(grpc.RpcError) as refused:
                visitor.call(request)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


CLIENT = """
from tierstore.client import Client
client = Client({address!r}, attach={attach})
handle = client.namespace(namespace())
"""


def test_a_program_that_forgets_to_close_its_client_ends_all_the_same(serving: Serving, tmp_path: Path) -> None:
    script = (
        CLIENT.format(address=serving.address, attach=True) + "handle.put([block_hash(1)], rows([1], 8192)).result()"
    )
    for ending in ("", "\nraise ValueError('mistake')"):
        with program(script + ending, tmp_path) as (process, _output):
            assert process.wait(TIMEOUT_SECONDS) == (1 if ending else 0)


def test_a_fork_of_a_client_is_told_so(serving: Serving, tmp_path: Path) -> None:
    script = CLIENT.format(address=serving.address, attach=True) + (
        "assert handle.put([block_hash(1)], rows([1], 8192)).result().ok\n"
        "import subprocess\n"
        "assert subprocess.run(['true']).returncode == 0\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    from tierstore.errors import ForkError\n"
        "    try:\n"
        "        handle.lookup([block_hash(1)])\n"
        "    except ForkError:\n"
        "        os._exit(7)\n"
        "    os._exit(1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7\n"
        "assert handle.lookup([block_hash(1)]) == 1\n"
        "print('well', flush=True)\n"
    )
    with program(script, tmp_path) as (process, output):
        assert output.readline() == "well\n"
        assert process.wait(TIMEOUT_SECONDS) == 0


def test_two_hundred_clients_get_what_one_has_put(tmp_path: Path) -> None:
    pool = {"host_size": "32 MiB", "host_slab_size": "2 MiB"}  # half of it is lent at most
    with served(tmp_path, settings=pool) as serving, ExitStack() as stack:
        own = serving.store.namespace(namespace())
        assert own.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
        first = [stack.enter_context(stranger(serving.address)) for _ in range(10)]
        visitors = [*first, *(Stranger(visitor.channel) for visitor in first for _ in range(19))]
        scopes = [visitor.scope() for visitor in visitors]
        gets = [
            visitor.get(pb.GetRequest(scope=scope, hashes=HASHES), seconds=10 * TIMEOUT_SECONDS)
            for visitor, scope in zip(visitors, scopes, strict=True)
        ]
        for get in gets:
            data = b"".join(part.data for part in get)
            assert np.array_equal(np.frombuffer(data, np.uint8).reshape(6, -1), BYTES)
