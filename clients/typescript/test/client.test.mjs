// With a real server at DIFFUSERVE_SERVER, whose worker fails the prompt "fail" and leaves "wait" running, and
// a proxy before it at DIFFUSERVE_PROXY, which injects the faults that are posted to DIFFUSERVE_FAULTS.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, DiffuserveError } from "../dist/index.js";

const client = new Client();
const throughProxy = new Client({ server: process.env.DIFFUSERVE_PROXY });
const inject = (...faults) => fetch(`${process.env.DIFFUSERVE_FAULTS}/${faults.join(",")}`, { method: "POST" });
const star = { input: { prompt: "a star", seed: 7 } };

async function collect(values) {
  const collected = [];
  for await (const value of values) collected.push(value);
  return collected;
}

test("generate returns the images", async () => {
  const images = await client.generate({ input: { ...star.input, num_images: 2 }, metadata: { order: "1" } });
  assert.deepEqual(images.map(({ artifact }) => artifact.seed), [7, 8]);
  assert.deepEqual(images.map(({ artifact }) => artifact.size_bytes), images.map(({ content }) => content.size));
  assert.equal(images[0].job.metadata.order, "1");
});

test("subscribe yields the events until the last", async () => {
  const events = await collect(client.subscribe(star));
  assert.equal(events[0].type, "queued");
  assert.equal(events.at(-1).type, "succeeded");
  assert.equal((await client.get(events[0].job_id)).status, "succeeded");
});

test("a job that fails is an error with its code", async () => {
  await assert.rejects(client.generate({ input: { prompt: "fail" } }), { code: "broken" });
});

test("a refusal says what is wrong, and is not tried again", async () => {
  await assert.rejects(client.submit({ input: { prompt: "a star", nix: 7 } }), (error) => {
    assert.ok(error instanceof DiffuserveError);
    assert.deepEqual([error.code, error.status, error.retryAfter], ["invalid_params", 422, undefined]);
    assert.match(error.message, /^input.nix: /);
    assert.equal(error.errors[0].field, "input.nix");
    assert.match(error.errors[0].remedy, /not a field/);
    assert.match(error.requestId, /^\w+$/);
    return true;
  });
});

test("a job is canceled, and listed so", async () => {
  const { id } = await client.submit({ input: { prompt: "wait" } });
  await client.cancel(id);
  assert.equal((await client.wait(id)).status, "canceled");
  const { data } = await client.list({ status: ["canceled"], limit: 1 });
  assert.equal(data[0].id, id);
});

test("a call that is aborted cancels its job, and throws the signal's reason", async () => {
  const job = { input: { prompt: "wait" }, metadata: { call: "aborted" } };
  await assert.rejects(client.generate(job, { signal: AbortSignal.timeout(300) }), { name: "TimeoutError" });
  const { data } = await client.list({ limit: 100 });
  const statuses = data.filter(({ metadata }) => metadata.call === "aborted").map(({ status }) => status);
  assert.equal(statuses.length, 1);
  assert.match(statuses[0], /^cancel/);
});

test("a job is estimated, also at a URL as OpenAI's clients have it", async () => {
  const { model, cost_seconds } = await new Client({ server: `${process.env.DIFFUSERVE_SERVER}/v1/` }).estimate(star);
  assert.equal(model, "hand");
  assert.ok(cost_seconds > 0);
});

test("a batch of prompts has results", async () => {
  const { id } = await client.submitBatch(["a star", "a circle"]);
  assert.equal((await client.waitForBatch(id)).num_items, 2);
  const results = await client.batchResults(id);
  assert.deepEqual(results.map(({ custom_id, status }) => [custom_id, status]), [
    ["item-0", "succeeded"],
    ["item-1", "succeeded"],
  ]);
});

test("an uploaded image has an id, and models are listed", async () => {
  const [{ content }] = await client.generate(star);
  assert.match((await client.upload(content, { filename: "star.png" })).id, /^file/);
  assert.deepEqual((await client.models()).map(({ id }) => id), ["hand"]);
});

test("any other operation is called by its id", async () => {
  const { id } = await client.wait((await client.submit(star)).id);
  assert.equal((await client.request("getModel", { path: { model: "hand" } })).id, "hand");
  assert.equal(await client.request("deleteJob", { path: { job_id: id } }), undefined);
  await assert.rejects(client.get(id), { code: "job_not_found", status: 404 });
});

test("an id leads to no other resource", async () => {
  for (const id of ["", "..", "../models", "a/result", "a?b"])
    await assert.rejects(client.get(id), { code: "invalid_params", message: /job_id=/ });
  await assert.rejects(client.request("getModel", { path: { model: ".." } }), { code: "invalid_params" });
});

test("a server that is no URL is refused at once", () => {
  for (const server of ["127.0.0.1:8000", "localhost:8000", "ftp://host", "http://"])
    assert.throws(() => new Client({ server }), { code: "invalid_params", message: /http:\/\/127/ });
});

test("a stream that is always closed is given up", async () => {
  const fetch = async () => new Response(new ReadableStream({ start: (stream) => stream.close() }));
  const closing = new Client({ fetch, patienceSeconds: 0.5 });
  await assert.rejects(collect(closing.stream("job_1")), { code: "server_unavailable", message: /closed the stream/ });
});

for (const fault of ["cut-request", "cut-response", "503"])
  test(`a submission after ${fault} makes one job`, async () => {
    await inject(fault);
    const { id } = await throughProxy.submit({ ...star, metadata: { fault } });
    const { data } = await client.list({ limit: 100 });
    assert.deepEqual(data.filter(({ metadata }) => metadata.fault === fault).map((job) => job.id), [id]);
  });

test("a stream that is cut off goes on where it was", async () => {
  const { id } = await client.wait((await client.submit(star)).id);
  await inject("cut-response", "503");
  const seqs = (await collect(throughProxy.stream(id))).map(({ seq }) => seq).filter((seq) => seq !== null);
  assert.deepEqual(seqs, seqs.map((_, place) => place + 1));
});

test("an image that is cut off is fetched again", async () => {
  const job = await client.wait((await client.submit(star)).id);
  await inject("cut-response");
  const [{ artifact, content }] = await throughProxy.fetch(job);
  assert.equal(content.size, artifact.size_bytes);
});

test("a server that is away is named, and a signal ends the wait for it", async () => {
  const away = new Client({ server: "http://127.0.0.1:1", patienceSeconds: 0.2 });
  await assert.rejects(away.models(), { code: "server_unavailable", message: /127.0.0.1:1/ });
  await assert.rejects(client.models({ signal: AbortSignal.abort() }), { name: "AbortError" });
});
