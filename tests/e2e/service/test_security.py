"""Who may come in over TCP, and what that allows: certificates, tokens, tenants and administrators."""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.e2e.service.authority import LOCAL, Authority
from tests.e2e.service.stranger import Stranger
from tests.e2e.service.world import patient
from tests.payload import SMALL, TIMEOUT_SECONDS, block_hash, namespace, rows
from tierstore.client import Client
from tierstore.config import StoreConfig
from tierstore.errors import AccessError, ConfigError, CredentialError
from tierstore.keys import Namespace
from tierstore.sections import ServiceConfig
from tierstore.service.doors import open_doors
from tierstore.service.security import Tokens
from tierstore.service.server import Server
from tierstore.service.wire import METHODS
from tierstore.store import Store
from tierstore.testing.sim_disk import SimDisk
from tierstore.types import Outcome
from tierstore.worker import Worker

BLOCKS = [block_hash(number) for number in range(3)]
BYTES = rows(range(3), 8192)


def of_tenant(tenant: str | None) -> Namespace:
    return replace(namespace(), tenant=tenant)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


CREDENTIALS: dict[str, dict[str, object]] = {
    "token-a": {"name": "a", "tenants": ["a"]},
    "token-b": {"name": "b", "tenants": ["b", "c"]},
    "token-admin": {"name": "admin", "admin": True},
    "token-old": {"name": "old", "expires": datetime(2020, 1, 1, tzinfo=UTC)},
}


def write_credentials(path: Path, credentials: Mapping[str, Mapping[str, object]] = CREDENTIALS) -> str:
    lines = []
    for token, fields in credentials.items():
        lines += ["[[credential]]", f'token_sha256 = "{hashlib.sha256(token.encode()).hexdigest()}"']
        lines += [f"{name} = {as_toml(value)}" for name, value in fields.items()]
    path.write_text("\n".join(lines), "utf-8")
    return str(path)


def as_toml(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else json.dumps(value)


@contextmanager
def listening(settings: ServiceConfig) -> Iterator[str]:
    """A service on a free port of this machine; its address."""
    ready, end = threading.Event(), threading.Event()
    addresses: list[str] = []

    async def live(store: Store) -> None:
        server = Server(store)
        try:
            (line,) = await open_doors(server, [f"{LOCAL}:0"], settings)
            addresses.append(line.split()[1].rstrip(","))
            ready.set()
            await asyncio.get_running_loop().run_in_executor(None, end.wait)
        finally:
            await server.close()
            ready.set()

    with Store(StoreConfig.load(overrides=SMALL), disk=SimDisk()) as store:
        worker = Worker("test-service", capacity=1)
        worker.submit(lambda: asyncio.run(live(store)))
        assert ready.wait(TIMEOUT_SECONDS)
        try:
            yield addresses[0]
        finally:
            end.set()
            worker.close()
            assert worker.failure is None


@pytest.fixture
def settings(tmp_path: Path, authority: Authority) -> ServiceConfig:
    certificate, key = authority.sign("server")
    return ServiceConfig(
        tls_certificate=certificate, tls_key=key, credentials=write_credentials(tmp_path / "credentials.toml")
    )


@pytest.fixture
def address(settings: ServiceConfig) -> Iterator[str]:
    with listening(settings) as address:
        yield address


def test_a_bearer_puts_and_gets_over_tls_and_maps_no_pool(address: str, authority: Authority) -> None:
    with patient(address, token="token-a", tls_ca=authority.path) as client:
        assert client.connected
        assert not client.attached
        handle = client.namespace(of_tenant("a"))
        assert handle.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
        found = np.zeros_like(BYTES)
        assert handle.get(BLOCKS, found).result(TIMEOUT_SECONDS).ok
        assert np.array_equal(found, BYTES)


@pytest.mark.parametrize("token", [None, "wrong", "token-old", "token-a.", "Token-a"])
def test_who_has_no_valid_token_is_turned_away(address: str, authority: Authority, token: str | None) -> None:
    with patient(address, token=token, tls_ca=authority.path) as client:
        assert not client.connected
        with pytest.raises(CredentialError):
            client.namespace(of_tenant("a"))


def test_without_encryption_nobody_gets_in(address: str) -> None:
    with Client(address, token="token-a", connect_seconds=1.0) as client:
        assert not client.connected


def test_a_client_trusts_no_other_authority(address: str, tmp_path: Path) -> None:
    with Client(address, token="token-a", tls_ca=Authority(tmp_path).path, connect_seconds=1.0) as client:
        assert not client.connected


def test_one_tenants_blocks_are_not_there_for_another(address: str, authority: Authority) -> None:
    with patient(address, token="token-a", tls_ca=authority.path) as one:
        assert one.namespace(of_tenant("a")).put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
    with patient(address, token="token-b", tls_ca=authority.path) as other:
        with pytest.raises(AccessError):
            other.namespace(of_tenant("a"))
        with pytest.raises(AccessError):
            other.namespace(of_tenant(None))
        assert other.namespace(of_tenant("b")).lookup(BLOCKS) == 0


def test_a_namespace_without_a_tenant_is_the_only_tenants(address: str, authority: Authority) -> None:
    with patient(address, token="token-a", tls_ca=authority.path) as client:
        assert client.namespace(of_tenant(None)).put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
        assert client.namespace(of_tenant("a")).lookup(BLOCKS) == 3


def test_only_administrators_delete_clear_flush_and_see_figures(address: str, authority: Authority) -> None:
    with patient(address, token="token-a", tls_ca=authority.path) as client:
        handle = client.namespace(of_tenant("a"))
        assert handle.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
        assert handle.delete(BLOCKS).result(TIMEOUT_SECONDS).outcomes == [Outcome.IO_ERROR] * 3
        assert client.flush().result(TIMEOUT_SECONDS).outcomes == [Outcome.IO_ERROR]
        assert client.metrics() == {}
        with pytest.raises(AccessError):
            handle.clear()
        assert handle.lookup(BLOCKS) == 3
    with patient(address, token="token-admin", tls_ca=authority.path) as client:
        handle = client.namespace(of_tenant("a"))
        assert handle.delete(BLOCKS).result(TIMEOUT_SECONDS).ok
        assert client.flush().result(TIMEOUT_SECONDS).ok
        assert client.metrics()
        handle.clear()


def test_without_a_token_only_health_answers(address: str, authority: Authority) -> None:
    secure = grpc.ssl_channel_credentials(Path(authority.path).read_bytes())
    with grpc.secure_channel(address, secure) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check", bytes, bytes)
        assert check(b"", timeout=TIMEOUT_SECONDS) == b"\x08\x01"
        paths = [method.path for method in METHODS.values()]
        for path in [*paths, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"]:
            call = channel.stream_stream(path, bytes, bytes)(iter([b""]), timeout=TIMEOUT_SECONDS)
            with pytest.raises(grpc.RpcError) as refused:
                next(iter(call))
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_session_belongs_to_its_bearer(address: str, authority: Authority) -> None:
    secure = grpc.ssl_channel_credentials(Path(authority.path).read_bytes())
    with grpc.secure_channel(address, secure) as channel:
        one, other = Stranger(channel, token="token-a"), Stranger(channel, token="token-b")
        other.opened = one.opened
        with pytest.raises(grpc.RpcError) as refused:
            other.scope(of_tenant("b"))
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("tls", "advice"),
    [({}, "may want TLS: pass tls_ca"), ({"tls": True}, "nobody whom this client trusts has signed")],
    ids=["in the clear", "another authority"],
)
def test_a_client_that_does_not_get_in_over_tls_is_told_what_may_help(
    address: str, tls: dict[str, bool], advice: str
) -> None:
    with patient(address, token="token-a", **tls) as client:
        assert advice in str(client.calling.connection.failure)


def test_a_client_that_speaks_tls_to_a_service_that_does_not_is_told_so(authority: Authority) -> None:
    with listening(ServiceConfig(insecure=True)) as address, patient(address, tls_ca=authority.path) as client:
        assert "leave out tls" in str(client.calling.connection.failure)


def test_a_client_that_finds_nobody_is_given_no_advice() -> None:
    with patient("127.0.0.1:1") as client:
        assert str(client.calling.connection.failure).endswith("Connection refused")


def test_mutual_tls_demands_a_certificate_of_the_client(settings: ServiceConfig, authority: Authority) -> None:
    certificate, key = authority.sign("client")
    with listening(replace(settings, tls_client_ca=authority.path)) as address:
        with patient(address, token="token-a", tls_ca=authority.path) as client:
            assert not client.connected
            assert "pass tls_certificate" in str(client.calling.connection.failure)
        with patient(
            address, token="token-a", tls_ca=authority.path, tls_certificate=certificate, tls_key=key
        ) as client:
            assert client.connected


def test_an_insecure_service_lets_everybody_in_but_into_the_pool() -> None:
    with listening(ServiceConfig(insecure=True)) as address, patient(address) as client:
        assert client.connected
        assert not client.attached


@pytest.mark.parametrize("missing", ["tls_certificate", "tls_key", "credentials"])
async def test_tcp_is_shut_by_default(settings: ServiceConfig, missing: str) -> None:
    with Store(StoreConfig.load(overrides=SMALL), disk=SimDisk()) as store:
        server = Server(store)
        with pytest.raises(ConfigError, match=f"service.{missing}"):
            await open_doors(server, [f"{LOCAL}:0"], replace(settings, **{missing: None}))  # type: ignore[arg-type]
        await server.close()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x = 1",
        "[[credential]]\nname = 'a'",
        "[[credential]]\nname = 'a'\ntoken_sha256 = 'xyz'",
        f"[[credential]]\nname = 1\ntoken_sha256 = '{'0' * 64}'",
        f"[[credential]]\nname = 'a'\ntoken_sha256 = '{'0' * 64}'\ntenant = 'a'",
        f"[[credential]]\nname = 'a'\ntoken_sha256 = '{'0' * 64}'\ninflight = '1 GB of'",
        f"[[credential]]\nname = 'a'\ntoken_sha256 = '{'0' * 64}'\nrequests = 0",
        f"[[credential]]\nname = 'a'\ntoken_sha256 = '{'0' * 64}'\ntenants = []",
        f"[[credential]]\nname = 'a'\ntoken_sha256 = '{'0' * 64}'\nexpires = 2027-01-01T00:00:00",
        f"[[credential]]\nname = 'a'\ntoken_sha256 = '{'0' * 64}'\n" * 2,
    ],
)
def test_a_file_of_credentials_that_makes_no_sense_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "credentials.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=r"credentials\.toml"):
        Tokens.load(path)


def test_certificates_are_those_of_this_machine(address: str, authority: Authority) -> None:
    host, port = address.split(":")
    context = ssl.create_default_context(cafile=authority.path)
    assert ssl.get_server_certificate((host, int(port)))
    assert context.verify_mode is ssl.CERT_REQUIRED
