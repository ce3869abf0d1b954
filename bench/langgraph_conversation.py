"""Measure the bytes that LangGraph's SqliteSaver stores for a conversation: FILE TURNS."""

import importlib
import os
import sys
from hashlib import sha256
from typing import Any

MESSAGE_BYTES = 1024


def text(what: str) -> str:
    """Return 1 KB that does not compress."""
    return "".join(sha256(f"{what} {n}".encode()).hexdigest() for n in range(MESSAGE_BYTES // 64))


def main(file: str, turns: int) -> int:
    """Invoke a graph of one replying node once per turn, as its documentation shows."""
    graph: Any = importlib.import_module("langgraph.graph")
    saver: Any = importlib.import_module("langgraph.checkpoint.sqlite").SqliteSaver
    spoken: Any = importlib.import_module("langchain_core.messages")

    def reply(state: Any) -> Any:
        return {"messages": [spoken.AIMessage(text(f"reply {len(state['messages'])}"))]}

    building = graph.StateGraph(graph.MessagesState)
    building.add_node("model", reply)
    building.add_edge(graph.START, "model")
    building.add_edge("model", graph.END)
    with saver.from_conn_string(file) as kept:
        talk = building.compile(checkpointer=kept)
        for number in range(turns):
            message = spoken.HumanMessage(text(f"message {number}"))
            talk.invoke({"messages": [message]}, {"configurable": {"thread_id": "c"}})
    return os.path.getsize(file)


if __name__ == "__main__":
    print(main(sys.argv[1], int(sys.argv[2])))
