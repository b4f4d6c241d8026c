"""A headless Chromium that looks at a page: what it shows, as markup or as a picture, and what it complains of.

Called by tests of pages; skips them, and says so, where no Chromium is installed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["Seen", "look"]

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_TIMEOUT_SECONDS = 120.0
_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"),
    *("--hide-scrollbars", "--enable-logging=stderr", "--virtual-time-budget=3000"),
)


@dataclass(frozen=True)
class Seen:
    """What a browser made of a page.

    Attributes:
        markup: The document after its scripts have run.
        complaints: Messages of the page's console.
    """

    markup: str
    complaints: list[str]

    @property
    def text(self) -> str:
        """The words of the body, markup and scripts left out."""
        body = re.sub(r"<(script|style)>.*?</\1>", "", self.markup, flags=re.DOTALL)
        return " ".join(re.sub(r"<[^>]*>", " ", body).split())


def look(url: str, folder: Path, *, picture: Path | None = None, width: int = 1240, height: int = 1500) -> Seen:
    """Open a page in a browser of its own profile in `folder`; with `picture`, take it as a PNG instead of markup."""
    program = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no Chromium is installed ({', '.join(_NAMES)})")
    wanted = ["--dump-dom"] if picture is None else [f"--screenshot={picture}"]
    ran = subprocess.run(
        [program, *_OPTIONS, *wanted, f"--user-data-dir={folder}", f"--window-size={width},{height}", url],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=True,
    )
    return Seen(ran.stdout, re.findall(r'CONSOLE[^"]*"(.*)"', ran.stderr))
