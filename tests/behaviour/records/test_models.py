"""LLM agents that share a record."""

from typing import Any

import limpet
from limpet import testing
from limpet.testing import ScriptedModel, calls


async def test_a_model_reads_and_patches_the_records_that_it_may_use() -> None:
    def reply(request: Any) -> Any:
        match len([each for each in request.messages if each.role == "tool"]):
            case 0:
                return calls("read_record", record="board")
            case 1:
                return calls("patch_record", record="board", read=2, facts={"owner": "me"}, revise={"call": "done"})
            case 2:
                return calls("patch_record", record="board", read=3, facts={"owner": "me"}, answered={"q1": "now"})
            case 3:
                return calls("read_record", record="secret")
            case _:
                pass
        return " | ".join(each.text for each in request.messages if each.role == "tool")

    model = ScriptedModel(reply)
    agent = limpet.llm_agent("records_model", model=model, instructions="Work.", records=["board"], builtin=False)
    async with testing.app(agent) as app:
        await app.patch_record("board", read=0, facts={"owner": "ann"}, plan=["call"], questions={"q1": "When?"})
        await app.patch_record("board", read=2, facts={"owner": "ben"}, by="ben")
        told = await app.run(agent, "go", id="m1")
        read, conflict, patched, refused = told.split(" | ")
        assert '"version":3' in read
        assert '"owner":{"by":"ben","value":"ben"}' in read
        assert "has changed since version 2: fact owner in version 3 by ben" in conflict
        assert patched.startswith("done")
        assert "arguments" in refused
        board = await app.record("board")
        assert (board.facts["owner"], board.plan_status, board.questions[0].answer) == ("me", ("pending",), "now")
        assert (board.known_facts[0].by, board.known_facts[0].source) == ("m1", "model")
        await app.verify()
