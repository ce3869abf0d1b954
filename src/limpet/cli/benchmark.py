"""`limpet bench`: measure Limpet on this machine, in a temporary store of the same kind as yours."""

import importlib
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer

import limpet
from limpet.cli.command_group import command, example
from limpet.cli.load_app import run_in_app
from limpet.cli.options import Json, OwnUrl
from limpet.cli.output import TableLayout, bar, print_json, print_table, print_text
from limpet.clock import SystemClock
from limpet.compose import DEFAULT_URL
from limpet.engine.worker.worker_settings import Worker
from limpet.errors import ExtraMissing
from limpet.ids import RandomIds
from limpet.service.benchmark import BenchLoad, Measurement, agents, measure
from limpet.stores.baseline import Baseline
from limpet.stores.sqlite.baseline import bare

__all__: list[str] = []

FIGURES = TableLayout(narrow={}, left_out=())


@command.command(epilog=example("limpet bench", "limpet bench --url postgresql://user@host/database --runs 50"))
def bench(
    *,
    runs: Annotated[int, typer.Option(min=1, max=10_000, help="Number of concurrent runs.")] = 200,
    steps: Annotated[int, typer.Option(min=1, max=100_000, help="Number of steps of the single run.")] = 300,
    url: OwnUrl = None,
    json: Json = False,
) -> None:
    """Measure steps, compared with bare durable commits, on a store of the same kind as yours.

    SQLite: in a temporary folder beside the file, or in the current folder. PostgreSQL: in a temporary schema.
    """
    load = BenchLoad(steps=steps, runs=runs)
    with _quiet_log(), bar("bench"), _temporary_store(url) as (address, loop):
        found = _measured(address, loop, load)
    if json:
        print_json(found)
        return
    print_table([_line(each) for each in found], FIGURES, none="")
    print_text("\nCompare ratios, not figures: figures vary between machines and moments. Each is a median of three.")


@contextmanager
def _quiet_log() -> Iterator[None]:
    """Keep the worker's log out of the table, except for errors."""
    log = logging.getLogger("limpet")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _measured(address: str, loop: Baseline, load: BenchLoad) -> list[Measurement]:
    app = limpet.open(address, agents=agents(), worker=Worker(concurrency=load.runs))

    return run_in_app(app, lambda opened: measure(opened, loop, load), creates_store=True)


@contextmanager
def _temporary_store(url: str | None) -> Iterator[tuple[str, Baseline]]:
    """Create a temporary store; yield its URL and a bare loop in the same place."""
    parts = urlsplit(url or DEFAULT_URL)
    if parts.scheme in ("postgresql", "postgres"):
        with _postgres(url or "") as found:
            yield found
    elif parts.scheme == "sqlite":
        beside = Path(unquote(parts.path[1:])).absolute().parent
        with (
            tempfile.TemporaryDirectory(prefix=".limpet-bench-", dir=beside) as folder,
            bare(Path(folder) / "bare.db") as loop,
        ):
            yield f"sqlite:///{folder}/limpet.db", loop
    else:
        raise typer.BadParameter(f"{parts.scheme or url}: only SQLite and PostgreSQL can be measured")


@contextmanager
def _postgres(url: str) -> Iterator[tuple[str, Baseline]]:
    try:
        found = importlib.import_module("limpet.stores.postgres.baseline")
    except ImportError as error:
        raise ExtraMissing(extra="postgres") from error
    address = found.in_schema(url, f"limpet_bench_{RandomIds(SystemClock()).new()}")
    with found.bare(address) as loop:
        yield address, loop


def _line(found: Measurement) -> dict[str, str]:
    if found.ratio is None:
        ratio = ""
    elif found.unit == "µs each":
        ratio = f"{found.ratio:.1f}×"
    else:
        ratio = f"1/{1 / found.ratio:.1f}"
    return {
        "measured": found.what,
        "": f"{found.figure:,.0f} {found.unit}",
        "of bare": ratio,
        "aim": found.aim,
    }
