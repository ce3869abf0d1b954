"""Real parts that tests start by themselves."""

import os
import shutil
from typing import NoReturn

import pytest

__all__ = ["lack", "need"]


def need(program: str) -> str:
    """Where a program of the system is; without it the test is skipped, loudly, and fails where CI must have it."""
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
    if found is None:
        lack(f"{program} is not installed: apt-get install -y {program}")
    return found


def lack(what: str) -> NoReturn:
    """Skip a test for want of a real part; where CI must have it, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)
