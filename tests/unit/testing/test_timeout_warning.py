"""In tests, a timeout around a wait raises a warning, since the wait outlives it in production."""

import asyncio
import warnings

import pytest

import limpet
from limpet import testing


@limpet.agent(name="patient")
async def patient(run: limpet.Run, how: str) -> bool:
    match how:
        case "timeout":
            async with asyncio.timeout(3600):
                return await run.ask("now?")
        case "wait_for":
            return await asyncio.wait_for(run.ask("now?"), 3600)
        case _:
            return await run.ask("now?", expires="1h", default=False)


@pytest.mark.parametrize("how", ["timeout", "wait_for"])
async def test_a_timeout_around_a_wait_warns(how: str) -> None:
    """The warning has a hint, and appears once."""
    async with testing.app(patient) as app:
        await app.start(patient, how)
        with pytest.warns(testing.TimeoutAroundWait, match="pass expires= to ask") as warned:
            await app.settle()
        assert len(warned) == 1


async def test_a_wait_with_expires_does_not_warn() -> None:
    """This holds inside a test that has its own timeout, too."""
    async with asyncio.timeout(60), testing.app(patient) as app:
        await app.start(patient, "expires")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            await app.settle()
