"""A quick import of the MCP SDK, for a process in which nothing else uses it or pydantic."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec
from threading import RLock
from types import ModuleType
from typing import Any, Generic, TypeVar

__all__ = ["import_lazily", "prepare"]

_T = TypeVar("_T")
_lock = RLock()
_running: set[str] = set()
"""Packages whose code runs at the moment."""


def prepare() -> None:
    """Import of the SDK what a server over stdio needs, and build its pydantic models when they are first used.

    The packages `mcp` and `mcp.server` import clients, OAuth and a framework, and its streams a web server; a third of
    the start.
    """
    from pydantic import BaseModel  # noqa: PLC0415 - only this needs it

    import_lazily("mcp", "mcp.server")
    BaseModel.model_config["defer_build"] = True
    with _adapters_built_later():
        import mcp_types  # noqa: F401, PLC0415
    with _missing("uvicorn.main"):
        import sse_starlette  # noqa: F401, PLC0415 - imports the web server only to learn of its end


@contextmanager
def _adapters_built_later() -> Iterator[None]:
    """Let adapters of types that have no configuration be built when they are first used, as models are."""
    import pydantic  # noqa: PLC0415 - only `prepare` needs it

    eager = pydantic.TypeAdapter

    class Later(eager[_T], Generic[_T]):  # type: ignore[misc, valid-type]
        def __init__(self, adapted: Any) -> None:
            super().__init__(adapted, config={"defer_build": True}, _parent_depth=3)

    pydantic.TypeAdapter = Later  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        pydantic.TypeAdapter = eager  # type: ignore[misc]


@contextmanager
def _missing(module: str) -> Iterator[None]:
    """Let a module that was not imported yet not be found."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]


def import_lazily(*packages: str) -> None:
    """Let these packages, outer ones first, run their own code when a name that it defines is first used."""
    for package in packages:
        spec = None if package in sys.modules else find_spec(package)
        if spec is None:
            continue
        module = module_from_spec(spec)
        module.__class__ = _LazyPackage
        sys.modules[package] = module
        outer, _, name = package.rpartition(".")
        if outer:
            setattr(sys.modules[outer], name, module)


class _LazyPackage(ModuleType):
    def __getattr__(self, name: str) -> Any:
        with _lock:
            if self.__name__ in _running:  # Its own code asks for a name that it does not have yet.
                raise AttributeError(name=name, obj=self)
            if type(self) is _LazyPackage:
                self._run()
        return getattr(self, name)

    def _run(self) -> None:
        assert self.__spec__ is not None
        assert self.__spec__.loader is not None
        _running.add(self.__name__)
        try:
            self.__spec__.loader.exec_module(self)
        finally:
            _running.remove(self.__name__)
        self.__class__ = ModuleType  # type: ignore[assignment]
