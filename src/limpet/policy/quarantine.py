"""Runs that may kill their workers, or that no worker can drive: how carefully, how often and when each is tried again.

A run is a suspect after two deaths in a row. Suspects are claimed in ever smaller groups; only a death that a suspect
met alone counts against it. Three of those quarantine it. It is then tried again, alone, on parole.
"""

from limpet.clock import SECOND

__all__ = ["MAX_FRUITLESS", "PAROLE", "SUSPECT", "group_size", "is_poison", "pause_before_retry"]

# A run is a suspect, a possible cause of its workers' deaths, from this many deaths in a row on.
SUSPECT = 2
# A run is quarantined after this many deaths alone.
SOLO_DEATHS = 3
# How long a run stays in quarantine, the first time and after each further death; then an operator decides.
PAROLE = (60 * SECOND, 600 * SECOND, 3600 * SECOND)
# A run that workers could not drive this often, with nothing settled in between, waits for an operator.
MAX_FRUITLESS = 8
LONGEST_PAUSE = 300 * SECOND


def group_size(suspects: int, deaths: int) -> int:
    """Return how many of all suspects a worker may hold, if the worst of them has died so often."""
    return max(suspects >> 2 * (deaths - 1), 1)


def is_poison(solo: int, quarantines: int) -> bool:
    """Tell whether a run must be quarantined: after three deaths alone, and after each one more on parole."""
    return solo >= SOLO_DEATHS + quarantines


def pause_before_retry(fruitless: int) -> int:
    """Return how long a run rests that workers could not drive so often: 1 s, doubling to 5 min."""
    return int(min(SECOND << min(max(fruitless - 1, 0), 16), LONGEST_PAUSE))
