"""The program `limpet`: registers the functions that one interface needs from another, and runs the command line."""

import gc
import sys
from collections.abc import Callable, Mapping
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from limpet.engine.execution.principal import Principal
    from limpet.service.app import App

__all__ = ["main"]


def main() -> None:
    """Run the command line; characters that the terminal cannot show become question marks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    if sys.argv[1:2] == ["mcp"]:  # clients wait for its start
        gc.disable()  # imports make many objects that all stay: looking for garbage takes a tenth of the start
        from limpet.cli import dev, serve  # noqa: F401, PLC0415 - no other command is needed
        from limpet.cli.command_group import command  # noqa: PLC0415

        dev.starters.update(mcp=_mcp)
    elif sys.argv[1:] in (["--help"], ["--version"]):
        from limpet.cli.command_group import command  # noqa: PLC0415 - they need no command
    else:
        from limpet.cli.commands import command, dev  # noqa: PLC0415

        dev.starters.update(demo=_demo, demo_dashboard=_demo_dashboard, serve=_serve, mcp=_mcp)
    command(prog_name="limpet")


def _demo(**options: Any) -> int:
    from limpet.demo.story import DemoOptions, play  # noqa: PLC0415 - only those who watch it need it

    return play(DemoOptions(**options))


def _demo_dashboard(*, folder: "Path", token: str, told: Callable[[str, str], None]) -> int:
    from limpet.demo.dashboard_store import prepared  # noqa: PLC0415 - only those who watch it need it
    from limpet.service.tokens import TENANT  # noqa: PLC0415

    _agents({})  # raises ExtraMissing before runs are prepared
    with prepared(folder) as (app, code):
        return _serve(
            apps={TENANT: app}, told=lambda address: told(address, code), token=token, host="127.0.0.1", port=0
        )


def _serve(
    *, apps: Mapping[str, "App"], told: Callable[[str], None], oidc: "Path | None" = None, **options: Any
) -> int:
    import asyncio  # noqa: PLC0415 - only servers need it

    from limpet.web.oidc import Oidc  # noqa: PLC0415
    from limpet.web.server import ServerOptions, serve  # noqa: PLC0415 - only servers need it

    provider = None if oidc is None else Oidc.from_file(oidc)
    also = _agents(apps, options.get("public_url") or "")
    asyncio.run(serve(apps, ServerOptions(**options, ui=True, oidc=provider, also=also), told))
    return 0


def _agents(apps: Mapping[str, "App"], public_url: str = "") -> Any:
    """Return the applications to mount beside the HTTP API. MCP is imported when a client needs it."""
    import os  # noqa: PLC0415 - only servers need it
    from importlib.util import find_spec  # noqa: PLC0415

    from limpet.errors import ExtraMissing  # noqa: PLC0415
    from limpet.web.lazy_mount import LazyMount  # noqa: PLC0415

    if find_spec("mcp") is None:
        raise ExtraMissing(extra="mcp")
    text = os.environ.get("LIMPET_LINK_KEY", "").strip()

    def load() -> Any:
        from limpet.mcp import over_http  # noqa: PLC0415 - this takes a second
        from limpet.service.decision_links import LinkKeys  # noqa: PLC0415

        return over_http(apps, public_url=public_url, link_keys=LinkKeys.from_text(text) if text else None)

    lazy = LazyMount(load)
    return {"/mcp": (lazy, lazy.run)}


def _mcp(*, app: "App", local: "Principal") -> int:
    import asyncio  # noqa: PLC0415 - only servers need it
    import signal  # noqa: PLC0415 - only servers need it

    from limpet import lean_sdk  # noqa: PLC0415 - only servers need it

    lean_sdk.prepare()
    from limpet.mcp import over_pipes  # noqa: PLC0415 - only servers need it

    gc.freeze()
    gc.enable()  # see `main`
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a blocking read of stdin cannot be cancelled
    try:
        asyncio.run(over_pipes(app, local))
    except BaseExceptionGroup as group:
        if group.split(BrokenPipeError)[1] is not None:
            raise
        return 141  # the client is gone
    return 0


if __name__ == "__main__":
    main()
