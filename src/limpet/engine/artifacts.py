"""Artifacts: what is too big for the state, put away as a blob; the state keeps what it is, and a summary."""

from collections.abc import AsyncIterator
from pathlib import Path

from limpet.engine.execution import Execution
from limpet.engine.functions import Pool
from limpet.engine.history import Record
from limpet.errors import InvalidValue
from limpet.events import Artifact
from limpet.events import bodies as b
from limpet.stores.blobs import CHUNK

__all__ = ["Artifacts"]

_threads = Pool("limpet-file")


class Artifacts:
    """What one execution puts away."""

    def __init__(self, execution: Execution) -> None:
        self._x = execution

    async def put(self, name: str, record: Record | None, data: bytes | str | Path, what: tuple[str, str]) -> Artifact:
        """Put something away: what it is, and a summary; a recorded one is not read again."""
        x = self._x
        await x.admit()
        if record is not None:
            assert isinstance(record.opened, b.ArtifactStored)
            assert record.end is not None
            stored = record.opened
            await x.enter(record.end)
        else:
            with x.work():
                stored = await self._store(name, data, what)
                ticket = x.settle(stored)
                x.memory.artifacts[stored.artifact_id] = stored.content
            await x.finish(ticket, "patch_returns")
        x.patched += 1
        return x.working.put_stored(stored)

    async def _store(self, name: str, data: bytes | str | Path, what: tuple[str, str]) -> b.ArtifactStored:
        x = self._x
        content = await x.patiently(lambda: x.kit.store.put_blob(_content(data)))
        return b.ArtifactStored(
            name=name,
            artifact_id=x.kit.ids.new(),
            type=what[0],
            summary=what[1],
            bytes=content.bytes,
            content=content,
        )


def _content(data: bytes | str | Path) -> bytes | AsyncIterator[bytes]:
    match data:
        case bytes():
            return data
        case str():
            return data.encode()
        case Path():
            return _read(data)
        case _:
            raise InvalidValue(path="data", reason=f"{type(data).__name__} is neither bytes, text nor a path")


async def _read(path: Path) -> AsyncIterator[bytes]:
    """A file, piece by piece, beside the event loop."""
    with await _threads.run(lambda: path.open("rb")) as file:
        while piece := await _threads.run(lambda: file.read(CHUNK)):
            yield piece
