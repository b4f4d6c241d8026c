"""The status page as a browser shows it: every figure, curves, hostile text as text, and nothing that was not ours."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from tests.chromium import look
from tests.made_up_status import made_up
from tests.payload import TIMEOUT_SECONDS, block_hash, get, namespace, rows, small_store
from tierstore.monitor.http_server import HttpServer, Page, own_names
from tierstore.monitor.page import html_page
from tierstore.monitor.status import Status
from tierstore.worker import Worker

pytestmark = pytest.mark.slow  # a browser takes seconds to start

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


@contextmanager
def serving(status: Status, page: Page | None = None) -> Iterator[str]:
    """The page, or a forgery of it, over a status; its address."""
    pages = {
        "/": html_page() if page is None else page,
        "/status.json": Page("application/json", lambda: json.dumps(status).encode()),
    }
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    loop, stop, worker = asyncio.new_event_loop(), asyncio.Event(), Worker("pages", capacity=1)
    server = HttpServer(pages, own_names("127.0.0.1"))
    worker.submit(lambda: loop.run_until_complete(server.serve(listener, stop)))
    try:
        yield address
    finally:
        loop.call_soon_threadsafe(stop.set)
        worker.close()
        loop.close()


def test_every_figure_is_shown(tmp_path: Path) -> None:
    with serving(made_up("node7", "No space left on device")) as address:
        seen = look(address, tmp_path)
    assert seen.complaints == []
    assert seen.markup.count("<path") == 3 * 2 + 1 + 11 + 1  # three areas with their edges, and the other curves
    for words in (
        *("1.2.3 on node7, process 42, up 2 h 1 min", "writes off", "81.3 % of looked-up blocks were held"),
        *("10.5 GB/s to and from engines", "6.00 GB/s to and from SSD", "9 open requests, 9 waiting"),
        *("1.25 s get, 99th percentile", "1.50 × write amplification", "10 min ago"),
        *("host serving 48.0 GiB of 64.0 GiB, 75.0 % 24,576 blocks, 17 pinned", "No space left on device"),
        *("ssd writes off 512 GiB of 1.00 TiB, 50.0 % 262,144 blocks for 5 min:", "ssd.dir node7"),
        *("load 1.50 GB/s 5.00 TiB 1.50 ms 3 2", "get 12.5 3 2.30 ms 1.25 s 1,234,567 3", "pool full 3"),
        *(
            "sessions of the service 4",
            "lent to who copies by itself 3.00 GiB in the device pool 5.00 GiB",
            "evicted from host memory 77",
            "read and found corrupt 5",
            "outages of the SSD 1",
        ),
    ):
        assert words in seen.text, words


def test_text_of_a_store_is_never_markup(tmp_path: Path) -> None:
    with serving(made_up(HOSTILE, HOSTILE)) as address:
        seen = look(address, tmp_path)
    assert "<title>tierstore</title>" in seen.markup
    assert "<img" not in seen.markup
    assert "&lt;img src=x" in seen.markup
    assert seen.complaints == []


def test_a_script_that_is_not_the_pages_own_does_not_run(tmp_path: Path) -> None:
    page = html_page()
    forged = page.body().replace(b"</main>", HOSTILE.encode() + b"</main>")
    with serving(made_up("node7", ""), Page(page.content_type, lambda: forged, page.policy)) as address:
        seen = look(address, tmp_path)
    assert "<title>tierstore</title>" in seen.markup
    assert "node7" in seen.text  # the page's own has run
    assert any("Content Security Policy" in complaint for complaint in seen.complaints)


def test_a_store_that_has_gone_is_told(tmp_path: Path) -> None:
    broken = cast("Status", {"format": 1})
    with serving(broken) as address:
        seen = look(address, tmp_path)
    assert "no answer" in seen.text


def test_the_page_of_a_store_in_use_is_a_picture_with_curves(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    hashes = [block_hash(number) for number in range(4)]
    with small_store(ssd_dir=tmp_path / "kv", monitor_address="127.0.0.1:0") as store:
        handle = store.namespace(namespace())
        assert handle.put(hashes, rows(range(4), 8192), durable=True).result(TIMEOUT_SECONDS).ok
        assert get(handle, hashes, rows(range(4), 8192)).ok
        picture = tmp_path / "page.png"
        look(f"http://{store.monitor_address}/", tmp_path / "profile", picture=picture)
    with image.open(picture) as shown:
        colours = {colour for _count, colour in shown.convert("RGB").getcolors(1 << 24)}
        assert shown.size == (1240, 1500)
    assert {(18, 135, 111), (27, 35, 48), (255, 255, 255)} <= colours  # serving, words, cards
