"""What all tests share."""

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def unflushed():
    """Files are not forced onto the disk: a test kills processes, never the machine, and each flush takes milliseconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield
