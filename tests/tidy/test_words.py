"""What the repository's own text may say: no machine's own paths, no link to a host that is not listed.

Links go to places that a reader can check; where packages come from is the reader's affair.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUFFIXES = {"", ".c", ".cpp", ".cu", ".cuh", ".h", ".html", ".json", ".md", ".proto", ".py", ".sh", ".toml", ".txt"}
LINK = re.compile(r"https?://([\w.-]+)")
MACHINE_PATH = re.compile(r"(?<![\w.*>-])/(?:home|root|Users|work)/\w")
HOSTS = {
    *("127.0.0.1", "localhost"),
    *("arxiv.org", "doi.org", "github.com", "www.apache.org"),
    *("docs.kernel.org", "docs.nvidia.com", "docs.python.org", "man7.org", "zarr-specs.readthedocs.io"),
    "www.w3.org",  # the name of SVG's namespace; nothing is fetched from there
}


def texts() -> dict[str, str]:
    """Every text file of the repository, by its path from the root."""
    folders = ("tierstore", "tests", "docs", "bench", "kernels", "proto", ".ci")
    paths = [*ROOT.glob("*.*"), *(path for folder in folders for path in (ROOT / folder).rglob("*"))]
    return {
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
        for path in paths
        if path.is_file() and path.suffix in SUFFIXES and "__pycache__" not in path.parts
    }


def test_every_link_goes_to_a_listed_host() -> None:
    found = {(path, host) for path, text in texts().items() for host in LINK.findall(text) if host not in HOSTS}
    assert not found


def test_no_text_holds_a_path_of_one_machine() -> None:
    found = {(path, match.group()) for path, text in texts().items() for match in MACHINE_PATH.finditer(text)}
    assert not found


def test_a_path_of_one_machine_would_be_found() -> None:
    assert MACHINE_PATH.search("see " + "/".join(("", "home", "someone")))
