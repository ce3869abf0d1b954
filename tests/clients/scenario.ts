// A scenario with the generated TypeScript types and openapi-fetch: start, poll, inbox, answer, signal, fork, an error.
// tsc checks it against the types; then `node scenario.js URL TOKEN` runs it.

import assert from "node:assert/strict";
import { setTimeout as pause } from "node:timers/promises";
import createClient from "openapi-fetch";
import type { components, paths } from "./api.js";

const [url, token] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl: url, headers: { authorization: `Bearer ${token}` } });

async function poll(run: string, status: components["schemas"]["RunInfo"]["status"]) {
  for (let tries = 0; tries < 600; tries++) {
    const { data } = await client.GET("/v1/runs/{run}/info", { params: { path: { run } } });
    assert(data);
    if (data.status === status) return data;
    await pause(100);
  }
  throw new Error(`${run} is not ${status}`);
}

const started = await client.POST("/v1/runs", {
  params: { header: { "Idempotency-Key": "typescript-1" } },
  body: { agent: "letter", input: "bob", labels: { team: "legal" } },
});
assert.equal(started.response.status, 201);
assert(started.data);
const run = started.data.id;

await poll(run, "waiting");
const inbox = await client.GET("/v1/inbox", { params: { query: { run } } });
const asked = inbox.data?.items[0];
assert(asked);
const decided = await client.POST("/v1/requests/{request}/answer", {
  params: { path: { request: asked.id } },
  body: { answer: "blue" },
});
assert.equal(decided.data?.decision, "answered");
const record = await client.GET("/v1/requests/{request}", { params: { path: { request: asked.id } } });
assert.deepEqual([record.data?.decision.by, record.data?.decision.answer], ["ann", "blue"]);
await client.POST("/v1/runs/{run}/signals/{name}", { params: { path: { run, name: "go" } }, body: { value: "now" } });
assert.equal((await poll(run, "completed")).output, "blue now");

const listed = await client.GET("/v1/runs", { params: { query: { labels: ["team=legal"], status: ["completed"] } } });
assert(listed.data?.items.some((each) => each.id === run));
const forked = await client.POST("/v1/runs/{run}/fork", {
  params: { path: { run: "ticket-42" } },
  body: { at: 1, effects: "stub" },
});
assert.equal(forked.data?.fork_of, "ticket-42");

const missing = await client.GET("/v1/runs/{run}/info", { params: { path: { run: "none" } } });
assert.deepEqual([missing.error?.status, missing.error?.code], [404, "not_found"]);
