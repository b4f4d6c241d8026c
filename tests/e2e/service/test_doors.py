"""The TCP doors of a service whose files an operator got wrong: each is named, and none blamed on the address."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.service.authority import LOCAL, Authority
from tests.payload import SMALL
from tierstore.config import StoreConfig
from tierstore.errors import ConfigError
from tierstore.sections import ServiceConfig
from tierstore.service.doors import open_doors
from tierstore.service.server import Server
from tierstore.store import Store
from tierstore.testing.sim_disk import SimDisk


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def settings(tmp_path: Path, authority: Authority) -> ServiceConfig:
    certificate, key = authority.sign("server")
    credentials = tmp_path / "credentials.toml"
    credentials.write_text(f"[[credential]]\nname = 'a'\ntoken_sha256 = '{'0' * 64}'\n", "utf-8")
    return ServiceConfig(tls_certificate=certificate, tls_key=key, credentials=str(credentials))


async def doors(settings: ServiceConfig) -> list[str]:
    """What the banner says of them."""
    with Store(StoreConfig.load(overrides=SMALL), disk=SimDisk()) as store:
        server = Server(store)
        try:
            return await open_doors(server, [f"{LOCAL}:0"], settings)
        finally:
            await server.close()


async def test_a_certificate_that_no_client_accepts_is_said(settings: ServiceConfig, authority: Authority) -> None:
    assert len(await doors(settings)) == 1
    certificate, key = authority.sign("old", hours=-1)
    lines = await doors(replace(settings, tls_certificate=certificate, tls_key=key))
    assert lines[1:] == [f"tierstore: no client will accept {certificate}: certificate has expired; renew it"]


@pytest.mark.parametrize("setting", ["tls_certificate", "tls_key", "tls_client_ca"])
async def test_files_that_are_no_pem_are_named(settings: ServiceConfig, setting: str) -> None:
    with pytest.raises(ConfigError, match=rf"service\.{setting} {settings.credentials} .*PEM"):
        await doors(replace(settings, **{setting: settings.credentials}))  # type: ignore[arg-type]


async def test_a_key_of_another_certificate_is_refused(settings: ServiceConfig, authority: Authority) -> None:
    with pytest.raises(ConfigError, match="key values mismatch"):
        await doors(replace(settings, tls_key=authority.sign("other")[1]))
