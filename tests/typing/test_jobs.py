"""The example jobs of users run as written. Job 7 is a test file, and is collected directly."""

import asyncio
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import job1_support
import job2_deploy
import job3_llm
import job4_pipeline
import job5_chat
import job6_debug
import pytest

import limpet
from limpet import sync, testing
from limpet.adapters import models
from limpet.clock import SystemClock
from limpet.testing import ScriptedModel, calls
from tests.servers import preloaded

JOBS = Path(__file__).parent / "jobs"


class Shop:
    """A shop whose bank does not answer the first request."""

    def __init__(self) -> None:
        self.refunds: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/orders/o1":
            return httpx.Response(200, json={"id": "o1", "total": 900, "email": "a@b"})
        self.refunds.append(request.headers["Idempotency-Key"])
        if len(self.refunds) == 1:
            raise httpx.ConnectTimeout("the bank does not answer")
        return httpx.Response(200, json={"receipt": "R-1"})


async def approve(url: str) -> None:
    """Approve a request as finance, through another app."""
    async with limpet.open(url) as app:
        while not (requests := await app.inbox(to="finance")):
            await SystemClock().sleep(10_000)
        await app.approve(requests[0], by="finance")


async def test_job_1_retries_and_waits_for_approval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The refund is retried with the same key and approved by finance; a second call finds the same run."""
    url, shop = f"sqlite:///{tmp_path}/limpet.db", Shop()
    monkeypatch.setenv("LIMPET_URL", url)
    client = httpx.AsyncClient(base_url="https://shop.example", transport=httpx.MockTransport(shop))
    monkeypatch.setattr(job1_support, "shop", client)
    async with asyncio.timeout(60):
        await asyncio.gather(job1_support.main(), approve(url))
        await job1_support.main()
    assert capsys.readouterr().out == "R-1\nR-1\n"
    first, second = shop.refunds
    assert first == second
    assert first.startswith("ticket-42:step_2:refund:")


def deploying(
    monkeypatch: pytest.MonkeyPatch, folder: str, build: Callable[..., str], sleep: Callable[[int], None]
) -> None:
    """Set up job 2 with the test's own store, and a build and sleeps that take no time."""
    opened = sync.open

    def elsewhere(_: str, **how: Any) -> sync.App:
        return opened(f"sqlite:///{folder}/limpet.db", **how)

    monkeypatch.setattr(limpet.sync, "open", elsewhere)
    monkeypatch.setattr(job2_deploy, "subprocess", SimpleNamespace(check_output=build))
    monkeypatch.setattr(job2_deploy, "time", SimpleNamespace(sleep=sleep))


def rebooted(folder: str) -> None:
    """Run job 2 in a process that is killed in the eighth minute."""
    minutes: list[int] = []

    def sleep(minute: int) -> None:
        minutes.append(minute)
        if len(minutes) == 8:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patching:
        deploying(patching, folder, lambda *_, **__: "image-1\n", sleep)
        job2_deploy.script()


def test_job_2_resumes_after_a_reboot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a reboot in the eighth minute, the image is not built again, and the roll-out is repeated with its key."""
    code = f"from tests.typing.test_jobs import rebooted; rebooted({str(tmp_path)!r})"
    path = os.pathsep.join([str(JOBS), str(JOBS.parents[2])])
    killed = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, check=False)
    assert killed.returncode == -signal.SIGKILL

    minutes: list[int] = []
    deploying(monkeypatch, str(tmp_path), lambda *_, **__: pytest.fail("built again"), minutes.append)
    assert job2_deploy.script() == "image-1"
    assert minutes == [60] * 10
    assert job2_deploy.script() == "image-1"
    assert minutes == [60] * 10
    with limpet.sync.open("", worker=False) as app:
        log = app.log("deploy-x-abc")
    begun = [each.body for each in log if each.kind == "step.started"]
    assert [each["name"] for each in begun] == ["build#1", "roll_out#1", "roll_out#1"]
    assert begun[1]["key"] == begun[2]["key"]
    assert any(each.kind == "step.progressed" for each in log)


async def test_job_3_runs_an_llm_agent_with_an_approval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model checks the disk, cleans it with other arguments than it asked for, and reports; a second run does
    nothing.
    """
    model = ScriptedModel(
        ("I look first.", calls("check_disk")),
        ("Too full.", calls("clean_logs", older_than_days=30)),
        job3_llm.Report(fixed=True, what="logs"),
    )
    asked: list[str | limpet.Model] = []

    def found(spec: str | limpet.Model) -> limpet.Model:
        asked.append(spec)
        return model

    url, cleaned = f"sqlite:///{tmp_path}/limpet.db", list[int]()

    def clean_logs(older_than_days: int) -> str:
        cleaned.append(older_than_days)
        return "freed 20 GB"

    monkeypatch.setenv("LIMPET_URL", url)
    monkeypatch.setattr(models, "model_of", found)
    monkeypatch.setattr(job3_llm.clean_logs, "fn", clean_logs)
    async with asyncio.timeout(60):
        await job3_llm.main()
        await job3_llm.main()
    [request, *rest] = capsys.readouterr().out.splitlines()
    assert request.endswith("clean_logs {'older_than_days': 30}")
    assert rest == ["True", "True"]
    assert (asked, cleaned, len(model.prompts)) == (["openai:gpt-4o-mini"], [7], 3)
    async with limpet.open(url) as app:
        state = await app.state("disk-1")
        assert [each.chosen for each in state.decisions] == ['"check_disk"', '"clean_logs"', '"answer"']
        assert state.whole.spent.tokens > 0


async def test_job_3_with_a_custom_loop_counts_tokens() -> None:
    """The budget includes the usage of the call."""

    @limpet.agent(name="job3_own", budget=limpet.Budget(max_llm_tokens=1_000))
    async def own(run: limpet.Run) -> str:
        await run.step(job3_llm.think, "once")
        return await run.step(job3_llm.think, "twice")

    async with testing.app(own) as app:
        assert await app.run(own, id="r") == "…"
        assert (await app.state("r")).whole.spent.tokens == 1_624


async def test_job_4_calls_starts_and_hands_over(tmp_path: Path) -> None:
    """Three concurrent drafts, an independent audit, and a handoff whose outcome is that of the pipeline."""
    agents: list[limpet.Agent[Any, Any]] = [
        job4_pipeline.classify,
        job4_pipeline.draft,
        job4_pipeline.check,
        job4_pipeline.pipeline,
    ]
    async with asyncio.timeout(60), limpet.open(f"sqlite:///{tmp_path}/limpet.db", agents=agents) as app:
        handle = await app.start(job4_pipeline.pipeline, job4_pipeline.Mail(text="broken"), id="p1")
        assert await handle.result() == job4_pipeline.Checked(body="…", ok=True)
        audit = await app.get("audit-p1", job4_pipeline.classify)
        assert (await audit.result()).kind == "refund"
        runs = {info.id: info.status for info in await app.runs()}
        drafts = [f"p1.draft-{number}" for number in (2, 3, 4)]
        assert set(runs) == {"p1", "p1.classify-1", *drafts, "audit-p1", "p1.check-5"}
        assert set(runs.values()) == {"completed"}
        created = (await app.log("p1.draft-2"))[0].body["initial"]
        assert created["budget"]["max_llm_tokens"] == 20_000
        assert [fact["key"] for fact in created["facts"]] == ["customer"]


async def test_job_5_streams_a_conversation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The web process only sends commands; messages reach the run in the worker's process, and replies are streamed
    back.
    """
    url, reads, shown = f"sqlite:///{tmp_path}/limpet.db", list[str](), list[list[str]]()

    async def portfolio(user: str) -> dict[str, float]:
        reads.append(user)
        return {"ACME": 0.5}

    async def model(messages: list[str]) -> str:
        shown.append(messages)
        reply = "bye" if messages[-1] == "that is all" else f"about {messages[-1]}"
        limpet.current().partial(reply[:2])
        await SystemClock().sleep(1000)
        return reply

    monkeypatch.setattr(job5_chat.portfolio.tool, "fn", portfolio)
    monkeypatch.setattr(job5_chat.model, "fn", model)
    async with (
        asyncio.timeout(60),
        limpet.open(url, agents=[job5_chat.chat], worker=False) as web,
        limpet.open(url, agents=[job5_chat.chat]) as worker,
    ):
        monkeypatch.setattr(job5_chat, "app", web)
        run = await job5_chat.first_message("c1", "hello")
        for text in ("my shares", "that is all"):
            await job5_chat.next_message("c1", text)
        output = [piece async for piece in job5_chat.stream(run)]
        assert output == ["ab", "out hello", "ab", "out my shares", "by", "e"]
        assert await (await worker.get(run, job5_chat.chat)).result() == "bye"
        texts = ["hello", "about hello", "my shares", "about my shares", "that is all", "bye"]
        assert [(each.role, each.text) for each in await web.messages("c1")] == [
            ("user" if place % 2 == 0 else "assistant", text) for place, text in enumerate(texts)
        ]
        assert shown == [texts[:1], texts[:3], texts[:5]]
        assert reads == ["ann"]  # the read is fresh for five minutes
        assert (await web.state(run)).data == {"mood": "fine", "turns": 3}
        [session] = await web.sessions()
        assert (session.id, session.runs, session.conversations) == ("s-c1", 1, 1)
        assert [each.id for each in await web.conversations(session="s-c1")] == ["c1"]


async def test_job_5_does_not_sell_on_stale_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sale is refused if the portfolio was not read, was read before a sale, or is stale."""
    sold: list[str] = []

    async def portfolio(user: str) -> dict[str, float]:
        return {"ACME": 0.5}

    async def sell(symbol: str, share: float) -> str:
        sold.append(symbol)
        return "S-1"

    @limpet.agent(name="job5_seller")
    async def seller(run: limpet.Run) -> list[str]:
        done = []
        for wait in (None, "0s", None, "6m"):
            if wait is not None:
                await run.read(job5_chat.portfolio, "ann")
                await run.sleep(wait)
            try:
                done.append(await run.step(job5_chat.sell, "ACME", 0.1))
            except limpet.Stale as stale:
                done.append(stale.source)
        return done

    monkeypatch.setattr(job5_chat.portfolio.tool, "fn", portfolio)
    monkeypatch.setattr(job5_chat.sell, "fn", sell)
    async with testing.app(seller) as app:
        handle = await app.start(seller, id="r")
        await app.advance("6m")
        assert await handle.result() == ["portfolio", "S-1", "portfolio", "portfolio"]
        assert sold == ["ACME"]


TICKET = """
import limpet

@limpet.tool(effect="none", name="job6_look")
async def look(n: int) -> dict[str, str]:
    return {"id": f"o{n}"}

@limpet.tool(effect="idempotent", name="job6_pay", retry=limpet.Retry(2, first="1ms"))
async def pay(cents: int, order: str) -> str:
    if cents < 1000:
        raise limpet.NotApplied("the bank is down")
    return f"paid {cents} for {order}"

@limpet.agent(name="support", version="1", steps=12)
async def support(run: limpet.Run) -> str:
    await run.patch(goal="settle", plan=["look", "pay"])
    for n in range(1, 6):
        found = await run.step(look, n)
        await run.patch(facts={"total": n * 180})
    paid = await run.step(pay, run.state.facts["total"], found["id"])
    for n in range(7, 13):
        await run.step(look, n)
    return paid

app = limpet.open(agents=[support])
"""


async def failed(url: str, agent: limpet.Agent[Any, Any]) -> None:
    """Create a run of twelve steps that fails at the sixth."""
    async with limpet.open(url, agents=[agent]) as app:
        with pytest.raises(limpet.RunFailed):
            await app.run(agent, id="ticket-42")


async def test_job_6_debugs_in_a_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The notebook finds the run, its state, the change of step 6 and its error, forks it and resumes it."""
    url, opened, scope = f"sqlite:///{tmp_path}/limpet.db", limpet.open, dict[str, Any]()
    exec(TICKET, scope)
    await failed(url, scope["support"])

    def elsewhere(_: str, **how: Any) -> limpet.App:
        return opened(url, **how)

    monkeypatch.setattr(limpet, "open", elsewhere)
    monkeypatch.setattr(job6_debug, "support", scope["support"])
    async with asyncio.timeout(60):
        await job6_debug.notebook()
    output = capsys.readouterr().out.splitlines()
    assert output[:2] == ["ticket-42 step 6 of 12", "900 ['look', 'pay']"]
    assert output[2].startswith("step 6 called job6_pay(")
    assert "job6_pay 2" in output
    assert any("fact total: 900 / 1200" in line for line in output)
    async with opened(url) as app:
        assert (await app.info("ticket-42")).status == "pending"
        assert (await app.info("ticket-42.1")).fork_of == "ticket-42"


async def test_job_6_debugs_on_the_command_line(tmp_path: Path) -> None:
    """Each line runs as written; the debugger gets its commands."""
    (tmp_path / "support.py").write_text(TICKET, encoding="utf-8")
    scope: dict[str, Any] = {}
    exec(TICKET, scope)
    await failed(f"sqlite:///{tmp_path}/limpet.db", scope["support"])
    lines = [line.partition(" #")[0].strip() for line in job6_debug.CLI.strip().splitlines()]
    output = []
    for line in lines:
        words = [preloaded.LIMPET, *shlex.split(line)[1:]]
        done = preloaded.run(words, cwd=tmp_path, input="p found\nc\n" if "--pdb" in line else "")
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        output.append(done.stdout)
    runs, show, state, diff, replay, fork, compare, resume = output
    assert "ticket-42" in runs
    assert "limpet resume ticket-42" in show
    assert "fact      total = 900" in state
    assert diff.startswith("step 6 called job6_pay(")
    assert "{'id': 'o5'}" in replay
    assert "Step 6 (job6_pay) failed after 2 attempts" in replay
    assert fork.startswith("Forked ticket-42 as ticket-42.1")
    assert "fact total: 900 / 1200" in compare
    assert resume.startswith("Resumed ticket-42.")
