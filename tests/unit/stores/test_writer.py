"""Group commit: operations submitted during a commit are committed together next."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from limpet.errors import StoreBusy, StoreReplaced, StoreUnavailable
from limpet.stores import Inline, Threads
from limpet.stores.backend import Outcome
from limpet.stores.writer import Writer
from limpet.stores.writes import Extension, Op


class Recorder:
    """Commits that can be held, and the sizes of the batches."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.entered = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.raises: list[Exception | None] = []

    def commit(self, ops: Sequence[Op[Any]]) -> list[Outcome]:
        """Record the batch, and wait to be released."""
        self.batches.append(len(ops))
        self.entered.release()
        self.go_on.acquire()
        error = self.raises.pop(0) if self.raises else None
        if error is not None:
            raise error
        return [len(ops)] * len(ops)


class NoListeners:
    """A notifier without listeners."""

    has_listeners = False

    def changed(self) -> None:
        """Fail, since it is never called."""
        raise AssertionError("there is no listener")


def nothing() -> None:
    """Do nothing."""


class Database:
    """A database to reopen and to tidy."""

    is_untidy = True

    def __init__(self, reopen: Callable[[], object] = nothing, tidy: Callable[[], object] = nothing) -> None:
        self._reopen, self._tidy = reopen, tidy

    def reopen(self) -> None:
        """Reopen it."""
        self._reopen()

    def tidy(self) -> None:
        """Tidy it."""
        self._tidy()


def never_now(_: Extension) -> None:
    """Commit nothing on the event loop."""


class Write(Op[int], frozen=True):
    """An operation whose result is the size of its batch."""


def op() -> Write:
    """Return an operation."""
    return Write()


async def test_requests_during_a_commit_share_the_next_one() -> None:
    """One operation is being committed, and five are submitted meanwhile: the batches have one and five."""
    recorder, threads = Recorder(), Threads()
    writer = Writer(threads.lane("test"), recorder.commit, never_now, Database(), NoListeners())
    first = asyncio.create_task(writer.submit(op()))
    await threads.call(recorder.entered.acquire)
    rest = [asyncio.create_task(writer.submit(op())) for _ in range(5)]
    await threads.call(lambda: None)
    recorder.go_on.release(2)
    assert await asyncio.gather(first, *rest) == [1, 5, 5, 5, 5, 5]
    assert recorder.batches == [1, 5]
    writer.close()
    threads.close()


async def test_a_full_batch_is_committed_while_the_loop_goes_on() -> None:
    """Of seven operations in one iteration of the loop, the first three are committed before the iteration ends."""
    recorder, threads = Recorder(), Threads()
    writer = Writer(threads.lane("test"), recorder.commit, never_now, Database(), NoListeners(), enough=3)
    coroutines = [writer.submit(op()) for _ in range(7)]
    for each in coroutines[:3]:
        each.send(None)  # up to its reply, without leaving this iteration
    assert recorder.entered.acquire(timeout=60)
    assert recorder.batches == [3]
    for each in coroutines[3:]:
        each.send(None)
    recorder.go_on.release(2)
    assert await threads.call(recorder.entered.acquire)
    assert recorder.batches == [3, 4]
    for each in coroutines:
        each.close()
    writer.close()
    threads.close()


async def test_without_a_full_batch_all_of_an_iteration_are_committed_together() -> None:
    """A writer in the loop's own process gathers everything that the loop submits in one iteration."""
    recorder, threads = Recorder(), Threads()
    writer = Writer(threads.lane("test"), recorder.commit, never_now, Database(), NoListeners())
    recorder.go_on.release()
    assert await asyncio.gather(*(writer.submit(op()) for _ in range(70))) == [70] * 70
    assert recorder.batches == [70]
    writer.close()
    threads.close()


async def test_nothing_is_acknowledged_before_its_commit_returns() -> None:
    """While the commit is held, the caller waits."""
    recorder, threads = Recorder(), Threads()
    writer = Writer(threads.lane("test"), recorder.commit, never_now, Database(), NoListeners())
    waiting = asyncio.create_task(writer.submit(op()))
    await threads.call(recorder.entered.acquire)
    assert not waiting.done()
    recorder.go_on.release()
    await waiting
    writer.close()
    threads.close()


async def test_a_busy_store_accepts_the_next_operation() -> None:
    """Nothing was written, and the next operation is accepted."""
    recorder = Recorder()
    recorder.raises = [StoreBusy(reason="locked")]
    recorder.go_on.release(2)
    writer = Writer(Inline().lane("test"), recorder.commit, never_now, Database(), NoListeners())
    with pytest.raises(StoreBusy):
        await writer.submit(op())
    assert await writer.submit(op()) == 1


@pytest.mark.parametrize("error", [StoreUnavailable(reason="disk"), RuntimeError("a bug")])
async def test_after_an_unknown_outcome_the_store_is_reopened(error: Exception) -> None:
    """Every caller of the batch gets the error, and the store is reopened before the next batch."""
    recorder, reopened = Recorder(), list[int]()
    recorder.raises = [error]
    recorder.go_on.release(5)
    lane = Inline().lane("test")
    writer = Writer(
        lane, recorder.commit, never_now, Database(lambda: reopened.append(len(recorder.batches))), NoListeners()
    )
    done = await asyncio.gather(writer.submit(op()), writer.submit(op()), return_exceptions=True)
    assert [type(each) for each in done] == [StoreUnavailable, StoreUnavailable]
    assert isinstance(done[0], StoreUnavailable)
    assert done[0].__cause__ is error
    assert writer.failure is (error if isinstance(error, StoreUnavailable) else None)
    assert await writer.submit(op()) == 1
    assert await writer.submit(op()) == 1
    assert (recorder.batches, reopened) == ([2, 1, 1], [1])
    assert writer.failure is None


async def test_a_failed_reopening_is_retried_with_the_next_batch() -> None:
    """Nothing is committed meanwhile, and callers get the reason."""
    recorder, failing = Recorder(), [True]
    recorder.raises = [StoreUnavailable(reason="disk")]
    recorder.go_on.release(5)

    def reopen() -> None:
        if failing:
            raise OSError("still broken")

    writer = Writer(Inline().lane("test"), recorder.commit, never_now, Database(reopen), NoListeners())
    for reason in ("disk", "still broken", "still broken"):
        with pytest.raises(StoreUnavailable, match=reason):
            await writer.submit(op())
    failing.clear()
    assert await writer.submit(op()) == 1
    assert recorder.batches == [1, 1]


async def test_a_replaced_file_stops_the_writer_permanently() -> None:
    """The file is not reopened."""
    recorder = Recorder()
    recorder.raises = [StoreReplaced(reason="deleted")]
    recorder.go_on.release(5)
    writer = Writer(Inline().lane("test"), recorder.commit, never_now, Database(), NoListeners())
    for _ in range(3):
        with pytest.raises(StoreReplaced):
            await writer.submit(op())
    assert recorder.batches == [1]


async def test_a_batch_is_tidied_up_after_its_replies() -> None:
    """Its callers do not wait for a checkpoint; the next batch does."""
    recorder, threads, tidying, tidy = Recorder(), Threads(), threading.Semaphore(0), threading.Semaphore(0)

    def held() -> None:
        tidying.release()
        tidy.acquire()

    writer = Writer(threads.lane("test"), recorder.commit, never_now, Database(tidy=held), NoListeners())
    recorder.go_on.release(2)
    assert await writer.submit(op()) == 1
    assert await threads.call(lambda: tidying.acquire(timeout=60))
    second = asyncio.create_task(writer.submit(op()))
    await threads.call(lambda: None)
    assert recorder.batches == [1]
    tidy.release(2)
    assert await second == 1
    writer.close()
    threads.close()


async def test_the_writer_survives_a_failure_to_tidy_up(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and the next batch is committed."""

    def fail() -> None:
        raise OSError("no space")

    recorder, threads = Recorder(), Threads()
    writer = Writer(threads.lane("test"), recorder.commit, never_now, Database(tidy=fail), NoListeners())
    recorder.go_on.release(2)
    assert [await writer.submit(op()), await writer.submit(op())] == [1, 1]
    writer.close()
    threads.close()
    assert caplog.text.count("tidying up a store failed") == 2


async def test_operations_submitted_during_a_failure_wait_for_reopening() -> None:
    """The commit in progress fails; operations submitted meanwhile are committed after the store was reopened."""
    recorder, threads, reopened = Recorder(), Threads(), list[int]()
    recorder.raises = [StoreUnavailable(reason="fsync failed")]
    database = Database(lambda: reopened.append(len(recorder.batches)))
    writer = Writer(threads.lane("test"), recorder.commit, never_now, database, NoListeners())
    first = asyncio.create_task(writer.submit(op()))
    await threads.call(recorder.entered.acquire)
    second = asyncio.create_task(writer.submit(op()))
    await threads.call(lambda: None)
    recorder.go_on.release(2)
    with pytest.raises(StoreUnavailable):
        await first
    assert await second == 1
    assert (recorder.batches, reopened) == ([1, 1], [1])
    writer.close()
    threads.close()


async def test_a_closed_writer_finishes_its_work_and_refuses_more() -> None:
    recorder, threads = Recorder(), Threads()
    writer = Writer(threads.lane("test"), recorder.commit, never_now, Database(), NoListeners())
    waiting = asyncio.create_task(writer.submit(op()))
    await threads.call(recorder.entered.acquire)
    recorder.go_on.release()
    await threads.call(writer.close)
    assert await waiting == 1
    with pytest.raises(StoreUnavailable, match="closed"):
        await writer.submit(op())
    threads.close()


def test_a_closed_event_loop_does_not_stop_the_writer() -> None:
    """The loop was closed before the reply."""
    recorder, threads = Recorder(), Threads()
    writer = Writer(threads.lane("test"), recorder.commit, never_now, Database(), NoListeners())
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


async def test_operations_of_one_iteration_share_a_commit() -> None:
    """The writer is woken once for all of them."""
    recorder, threads = Recorder(), Threads()
    writer = Writer(threads.lane("test"), recorder.commit, never_now, Database(), NoListeners())
    recorder.go_on.release(1)
    assert await asyncio.gather(*(writer.submit(op()) for _ in range(5))) == [5] * 5
    assert recorder.batches == [5]
    writer.close()
    threads.close()


async def test_a_blocked_event_loop_does_not_delay_the_operations_of_another() -> None:
    """A lease is renewed on a loop of its own, whatever the agents' loop does."""
    recorder, threads = Recorder(), Threads()
    writer = Writer(threads.lane("test"), recorder.commit, never_now, Database(), NoListeners())
    recorder.go_on.release(2)
    first = asyncio.create_task(writer.submit(op()))
    await asyncio.sleep(0)  # noqa: TID251 - the task submits its operation
    other = threading.Thread(target=lambda: asyncio.run(writer.submit(op())), daemon=True)
    other.start()
    other.join(timeout=30)  # this loop is blocked meanwhile
    assert not other.is_alive()
    assert recorder.batches == [2]
    await first
    writer.close()
    threads.close()


async def test_closing_commits_what_was_submitted() -> None:
    recorder, threads = Recorder(), Threads()
    writer = Writer(threads.lane("test"), recorder.commit, never_now, Database(), NoListeners())
    recorder.go_on.release(1)
    submitted = asyncio.create_task(writer.submit(op()))
    await asyncio.sleep(0)  # noqa: TID251 - the task submits its operation
    writer.close()
    assert await submitted == 1
    threads.close()
