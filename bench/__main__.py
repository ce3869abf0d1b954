"""`make bench`: measure Limpet and its peers in one run, print the tables, and write JSON, Markdown and a plot."""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from bench import counts
from bench.aims import verdicts
from bench.databases import Ground, grounds
from bench.environment import environment
from bench.plan import DATABASES, FULL, QUICK, Sizes, Task, plan
from bench.plot import plot
from bench.processes import ENVIRONMENTS, PEERS, ROOT, Failed
from bench.report import markdown, page
from bench.results import Results

# Minutes after which no further round starts, so that the whole takes at most an hour.
ENOUGH = 50


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that servers and folders are removed
    options = _options(arguments)
    sizes = _sizes(options)
    results = measure(sizes)
    print(markdown(results))
    folder = ROOT / "docs" if options.publish else ENVIRONMENTS / "results"
    write(results, folder, published=options.publish)
    print(f"Written to {folder.relative_to(ROOT)}/bench.json, bench.md and bench.svg.")


def measure(sizes: Sizes) -> Results:
    """Run all measurements in turn."""
    results = Results(sizes=asdict(sizes))
    begun = time.monotonic()
    with grounds() as found:
        with found["PostgreSQL"]() as url:
            results.environment = environment(url) | {"Load before": f"{os.getloadavg()[0]:.2f}"}
        results.settings = _settings(sizes, found, results)
        if "one" in sizes.workloads:
            with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as folder:
                results.counts = counts.both(Path(folder))
        tasks = plan(sizes)
        for number in range(max(task.rounds for task in tasks)):
            if number and time.monotonic() - begun > ENOUGH * 60:
                results.failures[f"round {number + 1} and later"] = f"{ENOUGH} minutes had passed"
                break
            for task in tasks:
                if number < task.rounds:
                    _measure(task, found, results, number)
    results.minutes = (time.monotonic() - begun) / 60
    return results


def _measure(task: Task, found: Mapping[str, Ground], results: Results, number: int) -> None:
    title = " · ".join(task.row)
    if title in results.failures:
        return
    print(f"round {number + 1}: {title}", file=sys.stderr, flush=True)
    if not task.program.is_installed:
        results.failures[title] = "not installed; `make bench` installs it"
        return
    try:
        with found[task.row.on]() as url:
            results.add(task.row, task.measure(url))
    except Failed as error:
        results.failures[title] = str(error)


def _settings(sizes: Sizes, found: Mapping[str, Ground], results: Results) -> dict[str, dict[str, str]]:
    """Ask each peer how durable its commits are."""
    settings = {}
    for peer in sizes.peers:
        for on in DATABASES[peer]:
            try:
                with found[on]() as url:
                    settings[f"{peer}, {on}"] = PEERS[peer].measure("settings", url=url)
            except (Failed, OSError) as error:
                results.failures[f"settings of {peer}, {on}"] = str(error)
    return settings


def write(results: Results, folder: Path, *, published: bool = False) -> None:
    """Write JSON, Markdown and the plot; the published page also explains them."""
    folder.mkdir(parents=True, exist_ok=True)
    text = results.to_json([verdict.as_json() for verdict in verdicts(results)])
    (folder / "bench.json").write_text(text, encoding="utf-8")
    stored = Results.from_json(text)
    (folder / "bench.md").write_text(page(stored) if published else markdown(stored), encoding="utf-8")
    (folder / "bench.svg").write_text(plot(stored), encoding="utf-8")


def _sizes(options: argparse.Namespace) -> Sizes:
    sizes = QUICK if options.quick else FULL
    if options.only:
        unknown = set(options.only) - set(FULL.workloads)
        if unknown:
            sys.exit(f"Unknown workloads: {', '.join(sorted(unknown))}. There are: {', '.join(FULL.workloads)}.")
        sizes = replace(sizes, workloads=tuple(options.only))
    return sizes


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only Limpet, bare loops and LangGraph, with fewer rounds")
    parser.add_argument("--only", type=lambda text: text.split(","), help="workloads, separated by commas")
    parser.add_argument("--publish", action="store_true", help="write the results to docs/, as bench.md, .svg, .json")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
