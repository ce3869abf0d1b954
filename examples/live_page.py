"""Show a run live on a page of your own FastAPI service.

python examples/live_page.py            # prints what a browser would get
uvicorn --app-dir examples live_page:service
"""

import asyncio

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse

import limpet
from limpet import web

PAGE = """<!doctype html>
<title>Order {run}</title>
<h1>Order {run}</h1>
<ol id="events"></ol>
<script>
  const stream = new EventSource("/agents/v1/streams/runs/{run}");   // it reconnects, and goes on where it was
  stream.onmessage = (message) => {{
    const line = document.createElement("li");
    line.textContent = JSON.parse(message.data).kind;
    document.getElementById("events").append(line);
  }};
  stream.addEventListener("end", () => stream.close());
</script>
"""


@limpet.tool(effect="none")
async def look_up(order: str) -> str:
    """Look an order up."""
    return f"{order} was delivered"


@limpet.agent()
async def follow(run: limpet.Run, order: str) -> str:
    """Follow an order."""
    return await run.step(look_up, order)


app = limpet.open("sqlite:///orders.db", agents=[follow])
service = FastAPI()


def caller(request: Request) -> limpet.Principal:
    """Return who sends a request; a real service looks at its session."""
    return limpet.Principal(name=request.cookies.get("session", "guest"), roles=("operator",))


web.install(service, app, prefix="/agents", principal=caller)


@service.get("/orders/{order}")
async def page(order: str) -> HTMLResponse:
    """Start to follow an order, and show it."""
    run = await app.start(follow, order, id=f"follow-{order}")
    return HTMLResponse(PAGE.format(run=run.id))


async def main() -> None:
    """Load the page and its stream, as a browser would."""
    client = httpx.AsyncClient(transport=httpx.ASGITransport(service), base_url="http://localhost")
    async with service.router.lifespan_context(service), client:
        print((await client.get("/orders/o-1")).status_code)
        stream = await client.get("/agents/v1/streams/runs/follow-o-1")
        print(stream.text.count("data: "), "messages, the last:", stream.text.split("event: ")[-1].split()[0])


if __name__ == "__main__":
    asyncio.run(main())
