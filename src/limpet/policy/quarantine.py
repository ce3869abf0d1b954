"""Runs that may kill their workers, or that no worker can drive: when and how carefully each is retried.

A run is a suspect after two deaths in a row. Suspects are claimed in ever smaller groups, and only a death in which the
suspect was alone counts against it. Three of those quarantine the run. It is then retried alone, on parole.
"""

from limpet.clock import SECOND

__all__ = ["MAX_FRUITLESS", "PAROLE", "SUSPECT", "group_size", "is_poison", "pause_before_retry"]

# Consecutive deaths that make a run a suspect, that is a possible cause of its workers' deaths.
SUSPECT = 2
# Deaths alone after which a run is quarantined.
SOLO_DEATHS = 3
# Length of a quarantine, the first time and after each further death; after that, an operator decides.
PAROLE = (60 * SECOND, 600 * SECOND, 3600 * SECOND)
# Number of fruitless claims, with nothing settled in between, after which a run waits for an operator.
MAX_FRUITLESS = 8
LONGEST_PAUSE = 300 * SECOND


def group_size(suspects: int, deaths: int) -> int:
    """Return how many of all suspects a worker may hold, if the worst of them has had this many deaths."""
    return max(suspects >> 2 * (deaths - 1), 1)


def is_poison(solo: int, quarantines: int) -> bool:
    """Return whether a run must be quarantined: after three deaths alone, and after each further one on parole."""
    return solo >= SOLO_DEATHS + quarantines


def pause_before_retry(fruitless: int) -> int:
    """Return the pause, in microseconds, after this many fruitless claims: 1 s, doubling up to 5 min."""
    return int(min(SECOND << min(max(fruitless - 1, 0), 16), LONGEST_PAUSE))
