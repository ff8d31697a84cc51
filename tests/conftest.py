"""Fixtures of all tests."""

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def unflushed():
    """Replace `os.fsync` by nothing: tests kill processes, never the machine, and each flush takes milliseconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield
