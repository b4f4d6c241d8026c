"""What every implementation of a seam must do, as test classes for those who write one.

Subclass the contract in a test module, give its fixture, and pytest runs it. Needs pytest.
"""

from __future__ import annotations

import pkgutil

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))
