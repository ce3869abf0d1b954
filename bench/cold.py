"""CPU time of a fresh process: importing Limpet, its first step, and `limpet --help`.

Each figure is the user and system time of a child process, less that of an empty one for the import. Bytecode is
compiled before, as installing the package does.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

REPEATS = 7
FIRST_STEP = """
import asyncio, sys, limpet
@limpet.tool(effect="none")
async def greet(name: str) -> str:
    return f"hello {name}"
@limpet.agent()
async def hello(run: limpet.Run, name: str) -> str:
    return await run.step(greet, name)
async def main() -> None:
    async with limpet.open(f"sqlite:////{sys.argv[1]}", agents=[hello]) as app:
        assert await app.run(hello, "Ada") == "hello Ada"
asyncio.run(main())
"""
BLOCKING = FIRST_STEP[: FIRST_STEP.index("async def main")] + (
    """
with limpet.sync.open(f"sqlite:////{sys.argv[1]}", agents=[hello]) as app:
    assert app.run(hello, "Ada") == "hello Ada"
"""
)
HELP = "import sys; sys.argv[1:] = ['--help']; from limpet.main import main; main()"


def cold_figures(repeats: int = REPEATS) -> dict[str, float]:
    """Return milliseconds of CPU time, the median of some processes each, interleaved."""
    programs = {
        "empty process": "pass",
        "import limpet": "import limpet",
        "first step": FIRST_STEP,
        "first step, blocking": BLOCKING,
        "limpet --help": HELP,
    }
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as folder:
        found: dict[str, list[float]] = {name: [] for name in programs}
        for number in range(-1, repeats):  # The first round compiles the bytecode.
            for name, program in programs.items():
                store = Path(folder).absolute() / f"{number}-{name.replace(' ', '-')}.db"
                took = cpu([sys.executable, "-c", program, str(store)], environ)
                if number >= 0:
                    found[name].append(took)
    figures = {name: statistics.median(each) for name, each in found.items()}
    figures["import limpet"] -= figures["empty process"]
    return figures


def cpu(command: Sequence[str], environ: Mapping[str, str]) -> float:
    """Run a command, and return milliseconds of its CPU time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3


def report() -> None:
    """Print all figures."""
    aims = {"import limpet": 200, "first step": 500, "first step, blocking": 500, "limpet --help": 300}
    print("\nCPU time of a fresh process")
    for name, took in cold_figures().items():
        aim = f"(aim: {aims[name]} ms)" if name in aims else ""
        print(f"  {name:44} {took:>10.0f} ms   {aim}")


if __name__ == "__main__":
    report()
