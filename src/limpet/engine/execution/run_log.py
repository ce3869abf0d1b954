"""Lines of the logger "limpet" about one run."""

import logging
from typing import NamedTuple

__all__ = ["RunLog"]

log = logging.getLogger("limpet")


class RunLog(NamedTuple):
    """Writes log lines about a run. Each record has the attributes `run`, `agent`, `version` and `step`."""

    run: str
    agent: str
    version: str

    def info(self, text: str, *args: object, step: int | None = None) -> None:
        """Log what happened to the run."""
        self.write(logging.INFO, text, *args, step=step)

    def warning(self, text: str, *args: object, step: int | None = None) -> None:
        """Log that the run may need attention."""
        self.write(logging.WARNING, text, *args, step=step)

    def error(self, text: str, *args: object, step: int | None = None) -> None:
        """Log that something is wrong."""
        self.write(logging.ERROR, text, *args, step=step)

    def write(
        self, level: int, text: str, *args: object, step: int | None = None, error: BaseException | None = None
    ) -> None:
        """Log a line, with the traceback of an error."""
        if log.isEnabledFor(level):
            extra = {**self._asdict(), "step": step or None}
            log.log(level, f"run %s: {text}", self.run, *args, extra=extra, exc_info=error)
