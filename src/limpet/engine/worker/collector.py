"""Settings of Python's garbage collector for a process that does nothing but drive runs.

A run's objects are freed when it ends, without the collector. With Python's own settings, the collector looks at them
hundreds of times, and sometimes at every module too.
"""

import gc

__all__ = ["RelaxedCollector"]

THRESHOLDS = (20_000, 20, 50)


class RelaxedCollector:
    """Relaxes the collector of this process while it is entered."""

    def __enter__(self) -> None:
        self._before = gc.get_threshold()
        gc.collect()
        gc.freeze()  # what exists now is never looked at again
        gc.set_threshold(*THRESHOLDS)

    def __exit__(self, *exc: object) -> None:
        gc.set_threshold(*self._before)
        gc.unfreeze()
