"""One session with a server, reopened whenever it ends. Calls go through it, and fail at once without one.

Called by the client's verbs. A separate thread keeps the session open. Making a client waits for a connection; calls
never do.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar, cast

import grpc
import grpc.experimental

import tierstore
from tierstore.errors import ClosedError, ServiceError, TierstoreError, UnavailableError
from tierstore.forks import check_owner
from tierstore.service._pb import tierstore_pb2 as pb
from tierstore.service.client.breaker import Backoff, Breaker
from tierstore.service.client.session import LiveSession, result_of
from tierstore.service.status import error_of
from tierstore.service.wire import MESSAGE_NBYTES_MAX, METHODS, PROTOCOL
from tierstore.worker import Worker

if TYPE_CHECKING:
    from tierstore.monitor.spans import Propagation
    from tierstore.service.client.door import Door
    from tierstore.service.client.session import Answer, Cancellable

__all__ = ["Connection"]

_logger = logging.getLogger(__name__)

_OPTIONS = (
    (grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1),  # who takes a get's messages receives them too
    ("grpc.max_receive_message_length", MESSAGE_NBYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_NBYTES_MAX),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 15_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

_CREDENTIAL = "authorization"
_LEAVE_SECONDS = 1.0
_RECONNECT_SECONDS = 1.0
"""Between two attempts to connect at most: they cost little, and nothing else tells that a server has come back."""

_PROBE_SECONDS = 60.0
_SOON_SECONDS = 0.1
"""See `Connection._await_life`."""
_UNANSWERED = "the server does not answer; it is asked again soon"

T = TypeVar("T")


class Connection:
    """Keeps a session open.

    Args:
        door: Where the server is.
        name: What the client calls itself.
        token: Its credential; None where none is needed.
        propagation: Of traces; None where nothing is traced.
        at_begin: Called with each session before it is used.
        at_end: Called with each session that has ended.
    """

    def __init__(
        self,
        door: Door,
        *,
        name: str,
        token: str | None,
        propagation: Propagation | None,
        at_begin: Callable[[LiveSession], None],
        at_end: Callable[[LiveSession], None],
    ) -> None:
        self._door = door
        self._name = name
        self._metadata: tuple[tuple[str, str | bytes], ...] = (
            () if token is None else ((_CREDENTIAL, f"Bearer {token}"),)
        )
        self._propagation = propagation
        self._at_begin = at_begin
        self._at_end = at_end
        self._breaker = Breaker()
        self._backoff = Backoff(_RECONNECT_SECONDS)
        self._probe: Answer[pb.ReleaseResponse] | None = None
        self._session: LiveSession | None = None
        self._failure: TierstoreError = UnavailableError("the service has not answered yet")
        self._call: Cancellable | None = None
        self._leaving = threading.Event()
        self._attempted = threading.Event()
        self._connected = threading.Event()
        self._closing = threading.Event()
        self._owner_pid = os.getpid()
        self._worker = Worker("service-session", capacity=1)
        atexit.register(self.close)
        self._worker.submit(self._keep)

    def wait(self, seconds: float, *, until_connected: bool = False) -> bool:
        """Wait until the first attempt has ended, or until one has succeeded; whether there is a session. Blocks."""
        (self._connected if until_connected else self._attempted).wait(seconds)
        return self._session is not None

    @property
    def connected(self) -> bool:
        """Whether there is a session."""
        return self._session is not None

    @property
    def probing(self) -> bool:
        """Whether the client is waiting for a server that did not answer: see `judged`."""
        return self._probe is not None

    @property
    def failure(self) -> TierstoreError:
        """Why there is no session."""
        return self._failure

    def session(self) -> LiveSession:
        """The open session; `judged` asks the breaker again before it makes a call. Does not block.

        Raises:
            ServiceError: There is no session, its calls are not answered, or the server is shutting down.
            ClosedError: `close` has been called.
            ForkError: Called in a fork of the process that made this.
        """
        check_owner(self._owner_pid)
        if self._closing.is_set():
            raise ClosedError("the client is closed; open a new one")
        session = self._session
        if session is None:
            raise type(self._failure)(str(self._failure))
        if session.draining:
            raise UnavailableError("the server is ending")
        if self._breaker.refuses:
            raise UnavailableError(_UNANSWERED)
        return session

    def judged(self, work: Callable[[LiveSession], T]) -> T:
        """Do some work with the session, and tell the breaker how it ended. Blocks as long as the work does.

        Raises:
            TierstoreError: As `session` and the work do.
        """
        session, breaker = self.session(), self._breaker
        if not breaker.enters():
            raise UnavailableError(_UNANSWERED)
        ended = breaker.withdrawn
        try:
            value = work(session)
            ended = breaker.succeeded
        except UnavailableError:
            ended = breaker.failed
            self._await_life(session, breaker)
            raise
        except TierstoreError:
            ended = breaker.succeeded
            raise
        finally:
            ended()
        return value

    def _await_life(self, session: LiveSession, breaker: Breaker) -> None:
        """Send an empty call; a late answer shows that a stopped server runs again. Does not block.

        A server that answers soon had not stopped; it was slow with the call before, and the breaker's pause stays.
        """
        if self._probe is not None:
            return
        begun, request = time.monotonic(), pb.ReleaseRequest()

        def ended(_call: object) -> None:
            with suppress(ServiceError):
                result_of(probe)
                if time.monotonic() - begun > _SOON_SECONDS:
                    breaker.revived()
            self._probe = None

        with suppress(ServiceError):
            session.address(request, None, _PROBE_SECONDS)
            self._probe = probe = session.begin(request, pb.ReleaseResponse, _PROBE_SECONDS)
            probe.add_done_callback(ended)

    def close(self) -> None:
        """End the session and all its calls; the server has then freed all that it held. Blocks; may be called twice.

        Waits only briefly for a server that does not answer.
        """
        atexit.unregister(self.close)
        if os.getpid() != self._owner_pid:
            return
        self._closing.set()
        self._leaving.set()
        if not self._worker.close(_LEAVE_SECONDS) and self._call is not None:
            self._call.cancel()
        self._worker.close()

    def _keep(self) -> None:
        """The thread: one session after another."""
        while not self._closing.is_set():
            channel = self._door.open(_OPTIONS)
            try:
                self._live(channel)
            except grpc.RpcError as failed:
                self._failure = self._explained(error_of(failed))
            finally:
                channel.close()
            self._attempted.set()
            self._closing.wait(self._backoff.failed())

    def _explained(self, error: TierstoreError) -> TierstoreError:
        """The error, with what may help against it."""
        advice = self._door.advice(str(error))
        return type(error)(f"{error}; {advice}") if advice else error

    def _live(self, channel: grpc.Channel) -> None:
        """Open a session and hear its notices until it ends."""
        self._leaving = leaving = threading.Event()
        if self._closing.is_set():
            return
        method = METHODS["OpenSession"]
        start = channel.stream_stream(method.path, method.encode_request, method.decode_response)
        call = start(self._hello(leaving), metadata=self._metadata)
        withdrawable = cast("Cancellable", call)
        self._call = withdrawable
        session: LiveSession | None = None
        try:
            for response in call:
                if session is None:
                    session = LiveSession(response.opened, channel, self._metadata, self._propagation)
                    self._opened(session)
                elif response.notice.kind == pb.Notice.KIND_DRAINING:
                    session.draining = True
                _logger.debug("the service says: %s", response)
        finally:
            leaving.set()
            self._connected.clear()
            self._session = None
            if session is not None:
                self._failure = UnavailableError("the session with the service has ended; another one is being opened")
                self._at_end(session)

    def _opened(self, session: LiveSession) -> None:
        self._at_begin(session)
        self._breaker = Breaker()
        self._backoff.succeeded()
        self._session = session
        self._attempted.set()
        self._connected.set()

    def _hello(self, leaving: threading.Event) -> Iterator[pb.OpenSessionRequest]:
        yield pb.OpenSessionRequest(protocol=PROTOCOL, client_version=tierstore.__version__, client_name=self._name)
        leaving.wait()
