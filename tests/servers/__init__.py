"""Real servers that tests start."""

import os
import shutil
from typing import NoReturn

import pytest

__all__ = ["lack", "need"]


def need(program: str) -> str:
    """Return the path of a system program. Without it, skip the test, or fail where CI must have it."""
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
    if found is None:
        lack(f"{program} is not installed: apt-get install -y {program}")
    return found


def lack(what: str) -> NoReturn:
    """Skip a test that lacks a dependency, or fail where CI must have it."""
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)
