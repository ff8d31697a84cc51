"""Fixtures of all tests."""

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def no_proxy():
    """Servers of tests are asked directly where a proxy is set."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("no_proxy", "NO_PROXY"):
            patch.setenv(name, "127.0.0.1,localhost")
        yield


@pytest.fixture(scope="session", autouse=True)
def unflushed():
    """Replace `os.fsync` by nothing: tests kill processes, never the machine, and each flush takes milliseconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield
