"""A lock for coroutines that costs nothing while only one of them wants it."""

import asyncio
from collections import deque

__all__ = ["FairLock"]


class FairLock:
    """Held by one coroutine at a time, in the order in which they asked for it."""

    __slots__ = ("_is_held", "_waiting")

    def __init__(self) -> None:
        self._is_held = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def is_held(self) -> bool:
        """Whether a coroutine holds the lock."""
        return self._is_held

    def take_now(self) -> bool:
        """Take the lock if it is free, and return whether it was."""
        if self._is_held:
            return False
        self._is_held = True
        return True

    async def take(self) -> None:
        """Wait for the lock, and take it."""
        if self.take_now():
            return
        mine = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if not mine.cancelled():  # It was passed on to this coroutine just before.
                self.release()
            raise

    def release(self) -> None:
        """Release the lock, or pass it on to the next coroutine that was not cancelled."""
        while self._waiting:
            following = self._waiting.popleft()
            if not following.done():
                following.set_result(None)
                return
        self._is_held = False

    async def __aenter__(self) -> None:
        """Wait for the lock."""
        await self.take()

    async def __aexit__(self, *exc: object) -> None:
        """Release the lock."""
        self.release()
