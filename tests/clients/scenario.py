"""A scenario with the generated Python client: start, poll, inbox, answer, signal, fork, and an error.

It runs in an environment that has the client and not Limpet: `python scenario.py URL TOKEN`.
"""

# The client is generated, so no type checker knows it here.
# mypy: ignore-errors

import sys
import time

from limpet_client import AuthenticatedClient
from limpet_client.api.control_runs import signal, start
from limpet_client.api.decide_requests import answer, inbox, request
from limpet_client.api.inspect_runs import info, runs, show, step
from limpet_client.api.replay_and_fork import fork
from limpet_client.models import (
    AnswerBody,
    Decided,
    ForkBody,
    ForkBodyEffects,
    Problem,
    Report,
    RequestRecord,
    RunInfo,
    RunsStatusItem,
    SignalBody,
    StartBody,
    StepDetail,
)
from limpet_client.models.start_body_labels_type_0 import StartBodyLabelsType0


def poll(client: AuthenticatedClient, run: str, status: str) -> RunInfo:
    """Return a run once it has this status."""
    for _ in range(600):
        found = info.sync(run, client=client)
        assert isinstance(found, RunInfo), found
        if found.status == status:
            return found
        time.sleep(0.1)  # noqa: TID251 - a client of another program polls
    raise AssertionError(f"{run} is not {status}")


def main(url: str, token: str) -> None:
    """Run the scenario."""
    client = AuthenticatedClient(base_url=url, token=token)
    labels = StartBodyLabelsType0.from_dict({"team": "sales"})
    body = StartBody(agent="letter", input_="bob", labels=labels)
    started = start.sync_detailed(client=client, body=body, idempotency_key="scenario-1")
    assert (started.status_code, isinstance(started.parsed, RunInfo)) == (201, True), started
    run = started.parsed.id
    assert start.sync(client=client, body=body, idempotency_key="scenario-1").id == run
    other = start.sync_detailed(
        client=client, body=StartBody(agent="letter", input_="eve"), idempotency_key="scenario-1"
    )
    assert (other.status_code, other.parsed.code) == (409, "id_conflict")

    poll(client, run, "waiting")
    [asked] = inbox.sync(client=client, run=run).items
    decided = answer.sync(asked.id, client=client, body=AnswerBody(answer="red"))
    assert isinstance(decided, Decided), decided
    record = request.sync(asked.id, client=client)
    assert isinstance(record, RequestRecord), record
    assert (record.decision.status, record.decision.by, record.decision.answer) == ("answered", "ann", "red")
    assert isinstance(signal.sync(run, "go", client=client, body=SignalBody(value="now")), RunInfo)
    assert poll(client, run, "completed").output == "red now"

    report = show.sync(run, client=client)
    assert isinstance(report, Report), report
    assert isinstance(step.sync("ticket-42", 1, client=client), StepDetail)
    listed = runs.sync(client=client, labels=["team=sales"], status=[RunsStatusItem.COMPLETED])
    assert run in [each.id for each in listed.items]
    forked = fork.sync("ticket-42", client=client, body=ForkBody(at=1, effects=ForkBodyEffects.STUB))
    assert isinstance(forked, RunInfo), forked
    assert forked.fork_of == "ticket-42"

    missing = info.sync("none", client=client)
    assert isinstance(missing, Problem), missing
    assert (missing.status, missing.code, missing.facts.to_dict()) == (404, "not_found", {"what": "run", "id": "none"})


main(*sys.argv[1:])
