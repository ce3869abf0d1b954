"""The benchmark baseline on SQLite."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw

from limpet.stores.baseline import DATA, DIGEST, RUNS, Baseline
from limpet.stores.sql_files import load

__all__ = ["bare"]


@contextmanager
def bare(path: Path) -> Iterator[Baseline]:
    """Use a new file at `path`."""
    sql = load(__package__, "bare.sql")
    with closing(apsw.Connection(str(path))) as db:
        db.execute(sql["layout"]).fetchall()
        cursor = db.cursor()

        def commit(seq: int, runs: range) -> None:
            cursor.execute(sql["begin"])
            cursor.executemany(sql["insert"], [(run, seq, seq, "step.completed", DATA, DIGEST) for run in runs])
            cursor.execute(sql["commit"])

        yield Baseline(lambda seq: commit(seq, range(RUNS, RUNS + 1)), lambda seq: commit(seq, range(RUNS)))
