"""Commands `replay` and `fork`, and the debugger prompt of `replay --pdb`."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from types import FrameType
from typing import Annotated, Any, Literal

import typer

from limpet.cli.command_group import command, example
from limpet.cli.load_app import idle_app, named_app, run_in_app, run_with_app
from limpet.cli.options import (
    By,
    Code,
    Json,
    OwnUrl,
    RunId,
    complete_agent,
    complete_run,
    input_of,
    json_or_text,
    number_of,
    pair_of,
    sender,
)
from limpet.cli.output import print_json, print_text
from limpet.service.app import App
from limpet.service.replay import Replay, ReplayCheck
from limpet.service.views import LIVE

__all__ = ["prompt_at"]


@command.command(epilog=example("limpet replay ticket-42 --to 6 --pdb --app support:app"))
def replay(  # noqa: PLR0913 - all by name, and few at a time
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN|FILE]",
            help="Run id, or a file written by `limpet export`.",
            autocompletion=complete_run,
        ),
    ] = None,
    *,
    to: Annotated[int | None, typer.Option(min=1, help="Stop after this step.")] = None,
    pdb: Annotated[bool, typer.Option("--pdb", help="Open a debugger when the code reaches the --to step.")] = False,
    allow: Annotated[
        list[str] | None, typer.Option(help="Tool that may be called for real if the log has no result. Repeatable.")
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(help="Check the newest runs of this agent.", autocompletion=complete_agent),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Check all runs that have not ended.")] = False,
    last: Annotated[int, typer.Option(min=1, help="Number of runs to check.")] = 100,
    code: Code = None,
    url: OwnUrl = None,
    json: Json = False,
) -> None:
    """Re-run today's code against a recorded run, without side effects.

    Recorded calls return their recorded results. With --agent or --live, checks many runs before a deploy, lists those
    that today's code cannot replay, and exits with 1 if there are any.
    """
    if (run is None) == (agent is None and not live):
        raise typer.BadParameter("pass a run or a file, or --agent, or --live")
    if run is None:
        _replay_all(idle_app(code, url), agent, LIVE if live else (), last if not live else 10**9, json=json)
        return
    path = Path(run) if run.endswith(".zip") and Path(run).is_file() else None
    app = idle_app(code, "memory:" if path is not None else url)

    async def go(app: App) -> Replay:
        found = (await app.load(path)).id if path is not None else await app.find("run", run)
        state = (await app.state(found)).whole
        step = to or state.error_step or state.position.step
        return await app.replay(found, to=to, allow=allow or (), on_step=prompt_at(step) if pdb else None)

    found = run_in_app(app, go)
    print_json(found) if json else print_text(str(found))


def _replay_all(app: App, agent: str | None, status: tuple[str, ...], last: int, *, json: bool) -> None:
    async def go(app: App) -> list[ReplayCheck]:
        return [each async for each in app.replay_all(agent=agent, last=last, status=status)]

    found = run_in_app(app, go)
    bad = [each for each in found if each.problem is not None]
    if json:
        print_json(found)
    else:
        for each in bad:
            print_text(str(each))
        print_text(f"{len(found) - len(bad)} of {len(found)} runs replay.")
    raise typer.Exit(bool(bad))


@command.command(epilog=example("limpet fork ticket-42 --at 6 --set facts.cents=900 --effects ask"))
def fork(  # noqa: PLR0913 - all by name, and few at a time
    run: RunId,
    *,
    at: Annotated[int | None, typer.Option(min=1, help="First step that the fork executes itself.")] = None,
    seq: Annotated[int | None, typer.Option(min=1, help="Last event to share, instead of --at.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=JSON", help="Change the fork's state, such as facts.total=1200 or goal=… Repeatable."
        ),
    ] = None,
    result: Annotated[
        list[str] | None, typer.Option(metavar="STEP=JSON", help="Replace the result of a shared step. Repeatable.")
    ] = None,
    input: Annotated[str | None, typer.Option(help="Use another input: JSON, or @FILE.")] = None,
    version: Annotated[str | None, typer.Option(help="Use another version of the agent.")] = None,
    effects: Annotated[
        Literal["ask", "stub", "live"],
        typer.Option(help="ask: request approval for each effect. stub: generate results. live: execute effects."),
    ] = "ask",
    reads: Annotated[
        Literal["live"] | None, typer.Option(help="With --effects stub, still call tools without effects.")
    ] = None,
    model: Annotated[Literal["live"] | None, typer.Option(help="With --effects stub, still call models.")] = None,
    id: Annotated[str | None, typer.Option(help="Id of the fork. Default: the run's id with the next number.")] = None,
    by: By,
    code: Code = None,
    url: OwnUrl = None,
    json: Json = False,
) -> None:
    """Start a new run from any step of another run.

    The fork shares everything before that step, and a worker executes the rest. The original run does not change.
    """
    results = {number_of(number): json_or_text(value) for number, value in map(pair_of, result or ())}
    more: dict[str, Any] = {} if input is None else {"input": input_of(input)}
    more |= {"effects": effects, "reads": reads, "model": model}

    async def make(app: App) -> tuple[str, str]:
        found, who, patch = await app.find("run", run), await sender(app, by), _patch(set_ or [])
        more["by"] = who
        made = await app.fork(found, at=at, seq=seq, patch=patch, results=results, version=version, id=id, **more)
        return made.id, found

    app = named_app(code, url)
    made, origin = run_in_app(app, make) if app is not None else run_with_app(url, make)
    if json:
        print_json({"id": made, "fork_of": origin})
    else:
        print_text(f"Forked {origin} as {made}; it starts when a worker serves it.")


def _patch(given: list[str]) -> dict[str, Any]:
    """Return assignments such as `facts.total=1200` and `goal=refund` as a patch."""
    patch: dict[str, Any] = {}
    for name, value in map(pair_of, given):
        part, dot, key = name.partition(".")
        if dot and part in ("facts", "answered"):
            if not isinstance(patch.setdefault(part, {}), dict):
                raise typer.BadParameter(f"set either {part} or {name}, not both")
            patch[part][key] = json_or_text(value)
        elif dot:
            raise typer.BadParameter(f"{name!r}: only facts and answered take a key, such as facts.total")
        else:
            patch[part] = value if part == "goal" else json_or_text(value)
    return patch


# Modules whose frames are not the user's code.
OURS = ("limpet.", "asyncio.", "concurrent.")


def prompt_at(step: int) -> Callable[[int], None]:
    """Return a function that opens a debugger prompt when the code reaches the step."""

    def on_step(number: int) -> None:
        if number == step:
            _prompt(_frame())

    return on_step


def _prompt(frame: FrameType) -> None:
    """Open a debugger: `c` continues, `n` and `s` step through the user's code, `q` exits the program."""
    from pdb import Pdb  # noqa: PLC0415 - slow to import

    debugger = Pdb(skip=[f"{each}*" for each in OURS])
    debugger.reset()
    debugger.interaction(frame, None)
    if debugger.quitting:
        sys.stdout.flush()
        os._exit(0)  # the user asked to quit; nothing needs cleaning up
    if debugger.stoplineno != -1:
        each: FrameType | None = frame
        while each is not None:
            each.f_trace = debugger.trace_dispatch
            each = each.f_back
        sys.settrace(debugger.trace_dispatch)


def _frame() -> FrameType:
    """Return the frame of the agent's code: up from here, or in the thread of a blocking agent."""
    here = sys._getframe()
    others = [frame for thread, frame in sys._current_frames().items() if thread != get_ident()]
    found = (_users(frame) for frame in (here, *others))
    return next((frame for frame in found if frame is not None), here)


def _users(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of user code that called Limpet, or None if an event loop called it."""
    is_called = False
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith(("asyncio", "concurrent")) and is_called:
            return None
        if name.startswith("limpet.engine."):
            is_called = True
        elif is_called and not name.startswith(OURS):
            return frame
        frame = frame.f_back
    return None
