"""Artifacts: content that is too large for the state, stored as a blob. The state keeps its type and a summary."""

from collections.abc import AsyncIterator
from pathlib import Path

from msgspec import UnsetType

from limpet.engine.definitions.call_context import is_in_tool
from limpet.engine.execution.execution import Execution
from limpet.engine.execution.user_code import ThreadPool
from limpet.engine.replay.history import Record
from limpet.errors import FileFailed, InvalidArgument, NotFound
from limpet.events import Artifact, Payload
from limpet.events.bodies import ArtifactStored
from limpet.stores import Store
from limpet.stores.blobs import CHUNK

__all__ = ["Artifacts", "read_whole"]

_threads = ThreadPool("limpet-file")


class Artifacts:
    """The artifacts of one execution."""

    def __init__(self, execution: Execution) -> None:
        self._x = execution

    async def put(self, name: str, record: Record | None, data: bytes | str | Path, what: tuple[str, str]) -> Artifact:
        """Store content as an artifact; `what` is its type and summary. On replay, the content is not read again."""
        x = self._x
        await x.gate.wait_until_open()
        if record is not None:
            stored = await x.recorder.recall(record, ArtifactStored)
        else:
            number = x.last_step()
            with x.gate.work():
                stored = await self._store(name, data, what, number)
                ticket = x.recorder.settle(stored)
                x.memory.artifacts[stored.artifact_id] = stored.content
            await x.recorder.finish(ticket, "patch_returns")
        return x.state.learn(lambda working: working.put_stored(stored), None if record is None else record.end)

    async def content(self, artifact: str) -> bytes:
        """Return the content of an artifact of this run; it never changes."""
        x = self._x
        if not x.gate.running_tools:  # A tool may read it, and a held gate waits for running tools.
            await x.gate.wait_until_open()
        payload = x.memory.artifacts.get(artifact)
        if payload is None or isinstance(payload.blob, UnsetType):
            raise NotFound(what="artifact", id=artifact)
        # In a tool, a store that fails is an error of the attempt.
        ask = x.recorder.retry_store if is_in_tool() else x.recorder.load
        return await ask(lambda: read_whole(x.kit.store, payload))

    async def _store(
        self, name: str, data: bytes | str | Path, what: tuple[str, str], number: int | None
    ) -> ArtifactStored:
        x = self._x
        content = await x.recorder.ask_store(lambda: x.kit.store.put_blob(_content(data)))
        return ArtifactStored(
            name=name,
            artifact_id=x.kit.ids.new(),
            type=what[0],
            summary=x.kit.store.redaction.text(what[1]),
            bytes=content.bytes,
            content=content,
            number=number,
        )


async def read_whole(store: Store, payload: Payload) -> bytes:
    """Return the content of a blob."""
    assert not isinstance(payload.blob, UnsetType)
    return b"".join([part async for part in store.read_blob(payload.blob)])


def _content(data: bytes | str | Path) -> bytes | AsyncIterator[bytes]:
    match data:
        case bytes():
            return data
        case str():
            return data.encode()
        case Path():
            return _read(data)
        case _:
            raise InvalidArgument(path="data", reason=f"must be bytes, str or Path, not {type(data).__name__}")


async def _read(path: Path) -> AsyncIterator[bytes]:
    """Read a file in chunks, on a thread."""
    try:
        with await _threads.run(lambda: path.open("rb")) as file:
            while piece := await _threads.run(lambda: file.read(CHUNK)):
                yield piece
    except OSError as error:
        raise FileFailed(path=str(path), reason=error.strerror or str(error)) from error
