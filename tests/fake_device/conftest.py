"""The fake device is there before torch is imported, so only where nothing but its tests is asked for."""

from __future__ import annotations

import sys

import fake_cuda
import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Register the device."""
    if config.getoption("markexpr", "") == "fakedevice" and "torch" not in sys.modules and not fake_cuda.missing():
        fake_cuda.register()


@pytest.fixture
def ledger():
    """What is asked of the device while a test runs."""
    if reason := fake_cuda.missing():
        pytest.skip(reason)
    with fake_cuda.fake_cuda() as found:
        yield found
