"""The README and the manual do what they say: every example runs, every setting and command exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tierstore.config import SETTINGS, StoreConfig

ROOT = Path(__file__).parents[2]
PAGES = {path.relative_to(ROOT).as_posix(): path for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]}


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of one language in a page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGES[page].read_text("utf-8"), re.DOTALL | re.MULTILINE)


EXAMPLES = [(page, number) for page in PAGES for number in range(len(blocks(page, "python")))]


@pytest.mark.parametrize(("page", "number"), EXAMPLES)
def test_every_example_runs_as_it_stands(tmp_path: Path, page: str, number: int) -> None:
    example = blocks(page, "python")[number]
    ran = subprocess.run([sys.executable, "-W", "error", "-c", example], cwd=tmp_path, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_settings_file_holds_every_setting_at_its_default(tmp_path: Path) -> None:
    (text,) = blocks("README.md", "toml")
    path = tmp_path / "tierstore.toml"
    path.write_text(text, "utf-8")
    config = StoreConfig.load(path, env={})
    assert config == StoreConfig()
    assert list(config.sources) == [setting.key for setting in SETTINGS]


def test_every_command_that_a_page_names_exists() -> None:
    text = "\n".join(path.read_text("utf-8") for path in PAGES.values())
    named = sorted(set(re.findall(r"(?:`|bin/)tierstore (inspect [a-z]+|[a-z]+)", text)))
    assert {"bench", "inspect ls"} <= set(named)
    for command in named:
        ran = subprocess.run([sys.executable, "-m", "tierstore", *command.split(), "--help"], capture_output=True)
        assert ran.returncode == 0, f"tierstore {command}: {ran.stderr.decode()}"


@pytest.mark.parametrize("page", PAGES)
def test_every_link_within_the_repository_leads_somewhere(page: str) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", PAGES[page].read_text("utf-8"))
    assert [target for target in targets if not (PAGES[page].parent / target).exists()] == []
