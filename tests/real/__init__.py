"""Real parts that tests start by themselves."""

import os
import shutil

import pytest

__all__ = ["need"]


def need(program: str) -> str:
    """Where a program of the system is; without it the test is skipped, loudly, and fails where CI must have it."""
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
    if found is not None:
        return found
    missing = f"{program} is not installed: apt-get install -y {program}"
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    pytest.skip(missing)
