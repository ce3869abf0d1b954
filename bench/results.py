"""The figures of one bench: every value that was measured, their medians and spread, and the environment."""

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["Measured", "Results", "Row"]

FORMAT = 1


class Row(NamedTuple):
    """A measurement: a workload, by a system (or a variant of it), on a database."""

    workload: str
    who: str
    on: str


class Measured(NamedTuple):
    """The values of one figure, one for each round."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)


@dataclass
class Results:
    """All figures of one bench."""

    environment: dict[str, str] = field(default_factory=dict)
    """Facts about the machine and the versions, by title."""
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    """How durable the commits of each system are, by system and database."""
    sizes: dict[str, Any] = field(default_factory=dict)
    """The sizes of the workloads."""
    counts: dict[str, dict[str, float]] = field(default_factory=dict)
    """Counts of a plain read and a plain effect, which do not depend on the machine."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why a measurement is missing."""
    minutes: float = 0.0
    """How long the bench took."""
    figures: dict[Row, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, row: Row, found: Mapping[str, float]) -> None:
        """Add the figures of one round."""
        kept = self.figures.setdefault(row, {})
        for name, value in found.items():
            kept.setdefault(name, []).append(value)

    def measured(self, row: Row, figure: str) -> Measured | None:
        """Return the values of a figure, or None if it was not measured."""
        values = self.figures.get(row, {}).get(figure)
        return Measured(tuple(values)) if values else None

    def median(self, workload: str, who: str, on: str, figure: str) -> float | None:
        """Return the median of a figure, or None if it was not measured."""
        found = self.measured(Row(workload, who, on), figure)
        return None if found is None else found.median

    def rows(self, workload: str) -> Iterable[Row]:
        """Return what was measured in a workload, in the order of measuring."""
        return [row for row in self.figures if row.workload == workload]

    def to_json(self, aims: Iterable[Mapping[str, Any]] = ()) -> str:
        """Return everything as JSON, with the medians and the aims for readers that do not compute."""
        figures = [
            {
                "workload": row.workload,
                "who": row.who,
                "on": row.on,
                "figures": {
                    name: {"median": _rounded(statistics.median(values)), "values": [_rounded(each) for each in values]}
                    for name, values in found.items()
                },
            }
            for row, found in self.figures.items()
        ]
        shown = {
            "format": FORMAT,
            "environment": self.environment,
            "settings": self.settings,
            "sizes": self.sizes,
            "minutes": round(self.minutes, 1),
            "aims": list(aims),
            "counts": self.counts,
            "failures": self.failures,
            "figures": figures,
        }
        return json.dumps(shown, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Results":
        """Return the results that `to_json` wrote."""
        stored = json.loads(text)
        if stored["format"] != FORMAT:
            raise ValueError(f"results of format {stored['format']}, not {FORMAT}")
        names = ("environment", "settings", "sizes", "counts", "failures", "minutes")
        results = cls(**{name: stored[name] for name in names})
        for each in stored["figures"]:
            row = Row(each["workload"], each["who"], each["on"])
            results.figures[row] = {name: found["values"] for name, found in each["figures"].items()}
        return results


def _rounded(value: float) -> float:
    """Return a value with four digits, which is more than it is worth."""
    return float(f"{value:.4g}")
