"""The status page: one HTML file with its style and script, and a content security policy that lets nothing else run.

The policy lists the hashes of style and script, so that a browser runs only these, whatever text a store shows. The
script sets text only, never markup.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources

from tierstore.monitor.http_server import Page

__all__ = ["html_page"]


def html_page() -> Page:
    """The page, read once."""
    text = (resources.files("tierstore.monitor") / "page.html").read_text("utf-8")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"style-src {_hashes(text, 'style')}",
            f"script-src {_hashes(text, 'script')}",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
    body = text.encode()
    return Page("text/html; charset=utf-8", lambda: body, policy)


def _hashes(text: str, tag: str) -> str:
    """The hash of each element of this name, as a policy writes it."""
    bodies = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    assert bodies, f"the page has no {tag}"
    digests = (base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() for body in bodies)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
