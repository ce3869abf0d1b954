"""`limpet mcp` imports a part of the SDK; all of it is there for code that asks for it."""

import subprocess
import sys

LEAN = """
import sys
from limpet import lean_sdk

lean_sdk.prepare()
import limpet.mcp.server

needless = {"mcp.client", "mcp.server.mcpserver", "httpx2", "jsonschema", "uvicorn"} & set(sys.modules)
assert not needless, needless
assert not any(each.pydantic_complete for each in vars(sys.modules["mcp_types._types"]).values()
               if hasattr(each, "pydantic_complete"))
"""
WHOLE = """
import mcp
from mcp.server import MCPServer

assert mcp.Client.__module__ in sys.modules
assert mcp.server.MCPServer is MCPServer
assert type(mcp) is type(sys)
from uvicorn.main import Server

assert Server
from mcp_types import PingRequest, client_request_adapter

assert client_request_adapter.validate_python({"method": "ping"}) == PingRequest()
from pydantic import BaseModel

class Own(BaseModel):
    at: "Later"

class Later(BaseModel):
    n: int

assert Own(at={"n": 1}).at == Later(n=1)
from pydantic import TypeAdapter

assert TypeAdapter(Own).pydantic_complete is False
assert TypeAdapter(list[int]).pydantic_complete
"""
THREADS = """
from concurrent.futures import ThreadPoolExecutor

with ThreadPoolExecutor(8) as pool:
    assert len(set(pool.map(lambda _: __import__("mcp").Client, range(8)))) == 1
"""


def _run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_clients_and_frameworks_are_not_imported() -> None:
    _run(LEAN)


def test_code_that_uses_the_sdk_gets_all_of_it() -> None:
    _run(LEAN + WHOLE)


def test_several_threads_may_use_it_first() -> None:
    _run(LEAN + THREADS)


def test_an_unknown_name_is_an_attribute_error() -> None:
    _run(LEAN + "import mcp\nassert getattr(mcp, 'nothing', None) is None\nassert mcp.Client\n")
