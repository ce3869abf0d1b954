"""Fresh processes: how long Python, an import of Limpet, its command, and a script's first step take."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from bench.script import path_of

__all__ = ["cold"]

IMPORT = """\
import time
begun, cpu = time.monotonic(), time.process_time()
import limpet
print(time.monotonic() - begun, time.process_time() - cpu)
"""
SCRIPT = """\
import asyncio, time
import limpet

@limpet.tool(effect="none")
async def first_read() -> str:
    print(time.monotonic(), time.process_time(), flush=True)
    return "done"

@limpet.agent()
async def first(run: limpet.Run, n: int) -> str:
    return await run.step(first_read)

async def main() -> None:
    async with limpet.open({url!r}, agents=[first]) as app:
        await app.run(first, 1)

asyncio.run(main())
"""


def cold(url: str, what: str, times: int) -> dict[str, float]:
    """Return the milliseconds of time and CPU of a fresh process, the smallest of some tries after a first one."""
    measure = {"python": _python, "import": _import, "help": _help, "first step": _first_step}[what]
    measure(url)  # Warm up: compile the modules, and read them from the disk.
    taken = [measure(url) for _ in range(times)]
    return {"time": min(each[0] for each in taken) * 1e3, "cpu": min(each[1] for each in taken) * 1e3}


def _python(_: str) -> tuple[float, float]:
    return _spent(sys.executable, "-c", "pass")


def _import(_: str) -> tuple[float, float]:
    """Return what the import adds inside the process."""
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
    seconds, cpu = map(float, done.stdout.split())
    return seconds, cpu


def _help(_: str) -> tuple[float, float]:
    return _spent(str(Path(sys.executable).with_name("limpet")), "--help")


def _first_step(url: str) -> tuple[float, float]:
    """Return the time from the start of the process until its first step runs, on a new store."""
    file = Path(path_of(url))
    for old in file.parent.glob(f"{file.name}*"):
        old.unlink()
    script = file.with_suffix(".py")
    script.write_text(SCRIPT.format(url=url))
    begun = time.monotonic()
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    at, cpu = map(float, done.stdout.split())
    return at - begun, cpu


def _spent(*command: str) -> tuple[float, float]:
    begun = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(json.dumps(command))
    return time.monotonic() - begun, usage.ru_utime + usage.ru_stime
