"""Group commit: what is asked for while a commit is under way goes out in the next."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from limpet.errors import StoreBusy, StoreUnavailable
from limpet.stores import Inline, Threads
from limpet.stores.backend import Outcome
from limpet.stores.ops import Op
from limpet.stores.writer import Writer


class Recorder:
    """Commits that can be held up, and a list of the batches that came."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.entered = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.raises: list[Exception | None] = []

    def commit(self, ops: Sequence[Op[Any]]) -> list[Outcome]:
        """Note the batch, and wait to be let on."""
        self.batches.append(len(ops))
        self.entered.release()
        self.go_on.acquire()
        error = self.raises.pop(0) if self.raises else None
        if error is not None:
            raise error
        return [len(ops)] * len(ops)


class Nobody:
    """Nobody listens."""

    is_there = False

    def changed(self) -> None:
        """Never called."""
        raise AssertionError("nobody listens")


class Write(Op[int], frozen=True):
    """Something to write; what comes back is the size of its batch."""


def op() -> Write:
    """Something to write."""
    return Write()


async def test_requests_during_a_commit_share_the_next_one() -> None:
    """One is being committed, five come meanwhile: two batches, of one and of five."""
    recorder, threads = Recorder(), Threads()
    writer = Writer(threads.lane("test"), recorder.commit, Nobody())
    first = asyncio.create_task(writer.submit(op()))
    await threads.call(recorder.entered.acquire)
    rest = [asyncio.create_task(writer.submit(op())) for _ in range(5)]
    await threads.call(lambda: None)
    recorder.go_on.release(2)
    assert await asyncio.gather(first, *rest) == [1, 5, 5, 5, 5, 5]
    assert recorder.batches == [1, 5]
    writer.close()
    threads.close()


async def test_nothing_is_acknowledged_before_its_commit_returned() -> None:
    """While the commit is held up, the caller waits."""
    recorder, threads = Recorder(), Threads()
    writer = Writer(threads.lane("test"), recorder.commit, Nobody())
    waiting = asyncio.create_task(writer.submit(op()))
    await threads.call(recorder.entered.acquire)
    assert not waiting.done()
    recorder.go_on.release()
    await waiting
    writer.close()
    threads.close()


async def test_a_busy_store_can_be_tried_again() -> None:
    """Nothing was written, and the next request is taken."""
    recorder = Recorder()
    recorder.raises = [StoreBusy(reason="locked")]
    recorder.go_on.release(2)
    writer = Writer(Inline().lane("test"), recorder.commit, Nobody())
    with pytest.raises(StoreBusy):
        await writer.submit(op())
    assert await writer.submit(op()) == 1


@pytest.mark.parametrize("error", [StoreUnavailable(reason="disk"), RuntimeError("a bug")])
async def test_an_unknown_outcome_stops_the_writer(error: Exception) -> None:
    """Whatever it was, everybody hears, and nothing more is taken until it was mended."""
    recorder = Recorder()
    recorder.raises = [error]
    recorder.go_on.release(5)
    writer = Writer(Inline().lane("test"), recorder.commit, Nobody())
    done = await asyncio.gather(writer.submit(op()), writer.submit(op()), return_exceptions=True)
    assert [type(each) for each in done] == [StoreUnavailable, StoreUnavailable]
    assert isinstance(done[0], StoreUnavailable)
    assert done[0].__cause__ is error
    with pytest.raises(StoreUnavailable):
        await writer.submit(op())
    assert recorder.batches == [2]
    await writer.mend(lambda: None)
    assert await writer.submit(op()) == 1


async def test_what_gathered_during_a_failure_is_refused_too() -> None:
    """The commit under way fails; whoever asked meanwhile must not hear of success."""
    recorder, threads = Recorder(), Threads()
    recorder.raises = [StoreUnavailable(reason="fsync failed")]
    writer = Writer(threads.lane("test"), recorder.commit, Nobody())
    first = asyncio.create_task(writer.submit(op()))
    await threads.call(recorder.entered.acquire)
    second = asyncio.create_task(writer.submit(op()))
    await threads.call(lambda: None)
    recorder.go_on.release(2)
    done = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(each) for each in done] == [StoreUnavailable, StoreUnavailable]
    assert recorder.batches == [1]
    writer.close()
    threads.close()


async def test_mending_that_fails_is_told_and_changes_nothing() -> None:
    """The writer stays as it was."""
    recorder = Recorder()
    recorder.raises = [StoreUnavailable(reason="disk")]
    recorder.go_on.release(5)
    writer = Writer(Inline().lane("test"), recorder.commit, Nobody())
    with pytest.raises(StoreUnavailable, match="disk"):
        await writer.submit(op())

    def fails() -> None:
        raise OSError("still broken")

    with pytest.raises(StoreUnavailable, match="still broken"):
        await writer.mend(fails)
    with pytest.raises(StoreUnavailable, match="disk"):
        await writer.submit(op())


async def test_a_closed_writer_finishes_and_then_refuses() -> None:
    """What was asked for is done; what comes later is refused."""
    recorder, threads = Recorder(), Threads()
    writer = Writer(threads.lane("test"), recorder.commit, Nobody())
    waiting = asyncio.create_task(writer.submit(op()))
    await threads.call(recorder.entered.acquire)
    recorder.go_on.release()
    await threads.call(writer.close)
    assert await waiting == 1
    with pytest.raises(StoreUnavailable, match="closed"):
        await writer.submit(op())
    threads.close()


def test_a_caller_whose_loop_is_gone_harms_nobody() -> None:
    """Its loop was closed before the reply came; the writer goes on for others."""
    recorder, threads = Recorder(), Threads()
    writer = Writer(threads.lane("test"), recorder.commit, Nobody())
    loop = asyncio.new_event_loop()
    task = loop.create_task(writer.submit(op()))
    loop.run_until_complete(threads.call(recorder.entered.acquire))
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
    recorder.go_on.release(2)
    assert asyncio.run(writer.submit(op())) == 1
    writer.close()
    threads.close()
