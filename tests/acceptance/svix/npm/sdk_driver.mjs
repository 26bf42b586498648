// Take the steps of ../sdk_driver.py with the npm package, and print the same facts. One argument: the task as JSON.

import { Svix } from "svix";

const TASK = JSON.parse(process.argv[2]);
const RESOURCES = [
  "application", "authentication", "backgroundTask", "endpoint", "environment", "eventType", "health", "message",
  "messageAttempt", "operationalWebhookEndpoint", "statistics",
];
const SPEC = {
  openapi: "3.1.0",
  info: { title: "Shop", version: "1" },
  webhooks: {
    "parcel.sent": {
      post: {
        description: "A parcel left",
        requestBody: { content: { "application/json": { schema: { type: "object", title: "Parcel" } } } },
      },
    },
  },
};
const SCHEMA = {
  1: { title: "Invoice", type: "object", properties: { amount: { type: "integer" } }, examples: [{ amount: 5 }] },
};

const facts = {};
const called = new Set();
const secrets = {};

const fact = (name, value) => {
  facts[name] = value ?? null;
};
const snake = (name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
const idsOf = (page, attribute = "id") => page.data.map((row) => row[attribute]);
const some = (value) => value ?? null;
const ago = (days) => new Date(Date.now() - days * 86_400_000);

function find(inner, name) {
  return name === "operationalWebhookEndpoint" ? inner.operationalWebhook.endpoint : inner[name];
}

function methods(resource) {
  const found = Object.getOwnPropertyDescriptors(Object.getPrototypeOf(resource));
  return Object.keys(found).filter((name) => name !== "constructor" && typeof found[name].value === "function");
}

function connect(token) {
  const inner = new Svix(token, { serverUrl: TASK.base });
  const client = {};
  for (const name of RESOURCES) {
    const resource = find(inner, name);
    client[name] = {};
    for (const method of methods(resource)) {
      client[name][method] = async (...given) => {
        const answer = await resource[method](...given);
        called.add(`${snake(name)}.${snake(method)}`);
        return answer;
      };
    }
  }
  return client;
}

function offered() {
  const inner = new Svix("x", { serverUrl: TASK.base });
  return RESOURCES.flatMap((name) => methods(find(inner, name)).map((method) => `${snake(name)}.${snake(method)}`));
}

async function refusal(call, ...given) {
  try {
    await call(...given);
  } catch (error) {
    if (typeof error.code !== "number") throw error;
    const body = error.body ?? {};
    return [error.code, Array.isArray(body.detail) ? body.detail[0].loc : body.code];
  }
  return [200, "not refused"];
}

async function wait(call) {
  const deadline = Date.now() + 30_000;
  for (;;) {
    const value = await call();
    if (value) return value;
    if (Date.now() > deadline) throw new Error(`not within 30 s: ${call}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

function form(identifier) {
  const [, prefix] = /^([a-z]+)_[0-9A-Za-z]{27}$/.exec(identifier) ?? ["", identifier];
  return prefix;
}

function same(one, other) {
  return JSON.stringify(one) === JSON.stringify(other);
}

async function eventTypes({ eventType }) {
  const made = await eventType.create({ name: "invoice.paid", description: "Paid", schemas: SCHEMA });
  fact("type.created", [made.name, made.description, made.archived, made.deprecated, same(made.schemas, SCHEMA)]);
  fact("type.conflict", (await refusal(eventType.create, { name: "invoice.paid", description: "Paid" }))[0]);
  await eventType.create({ name: "invoice.voided", description: "Voided", groupName: "invoices" });
  await eventType.create({ name: "old.thing", description: "Old" });
  fact("type.listed", idsOf(await eventType.list(), "name"));
  const page = await eventType.list({ withContent: true, limit: 1 });
  fact("type.page", [idsOf(page, "name"), same(page.data[0].schemas, SCHEMA), page.done, page.iterator]);
  fact("type.got", (await eventType.get("invoice.voided")).groupName);
  fact("type.put", (await eventType.upsert("old.thing", { description: "Older" })).description);
  const patched = await eventType.patch("old.thing", { deprecated: true });
  fact("type.patched", [patched.description, patched.deprecated]);
  await eventType.delete("old.thing");
  fact("type.archived", (await eventType.get("old.thing")).archived);
  fact("type.listed without archived", idsOf(await eventType.list(), "name"));
  fact("type.listed with archived", idsOf(await eventType.list({ includeArchived: true }), "name"));
  await eventType.delete("old.thing", { expunge: true });
  fact("type.expunged", await refusal(eventType.get, "old.thing"));
  const imported = await eventType.importOpenapi({ spec: SPEC });
  fact("type.imported", [imported.data.modified, (await eventType.get("parcel.sent")).description]);
}

async function applications({ application }) {
  const made = await application.create({ name: "Shop", uid: "shop", throttleRate: 50, metadata: { plan: "gold" } });
  fact("app.created", [form(made.id), made.name, made.uid, made.throttleRate, made.metadata]);
  const again = await application.getOrCreate({ name: "Another name", uid: "shop" });
  fact("app.got or created", [again.id === made.id, again.name]);
  const fresh = await application.getOrCreate({ name: "Fresh", uid: "fresh" });
  fact("app.conflict", await refusal(application.create, { name: "Shop", uid: "shop" }));
  const found = [await application.get(made.id), await application.get("shop")];
  fact("app.got", found.map((row) => row.id === made.id));
  const page = await application.list({ limit: 1 });
  fact("app.page", [idsOf(page, "uid"), page.done, page.iterator === made.id]);
  const rest = await application.list({ limit: 1, iterator: page.iterator });
  fact("app.rest", [idsOf(rest, "uid"), rest.done]);
  fact("app.descending", idsOf(await application.list({ order: "descending" }), "uid"));
  fact("app.bad limit", (await refusal(application.list, { limit: 300 }))[0]);
  const put = await application.upsert("shop", { name: "Renamed", uid: "shop" });
  fact("app.put", [put.id === made.id, put.name, some(put.throttleRate), put.metadata]);
  const patched = await application.patch(made.id, { metadata: { plan: "silver" } });
  fact("app.patched", [patched.name, patched.uid, patched.metadata, patched.updatedAt >= made.updatedAt]);
  await application.delete(fresh.id);
  fact("app.deleted", await refusal(application.get, "fresh"));
  fact("app.empty name", await refusal(application.create, { name: "" }));
  return made.id;
}

async function endpoints({ endpoint }, app) {
  const made = await endpoint.create(app, {
    url: TASK.good, uid: "good", description: "All is well", eventTypes: ["invoice.paid"], channels: ["blue"],
    throttleRate: 100, metadata: { a: "b" }, headers: { "X-Shop": "one" },
  });
  fact("ep.created", [
    form(made.id), made.uid, made.url === TASK.good, made.description, made.eventTypes, made.channels,
    made.throttleRate, made.metadata, made.disabled ?? false,
  ]);
  fact("ep.headers on create", (await endpoint.getHeaders(app, made.id)).headers);
  const found = [await endpoint.get(app, made.id), await endpoint.get("shop", "good")];
  fact("ep.got", found.map((row) => row.id === made.id));
  const put = await endpoint.upsert(app, "good", { url: TASK.good, uid: "good" });
  fact("ep.put", [put.id === made.id, put.description, some(put.eventTypes), some(put.channels)]);
  const patched = await endpoint.patch(app, made.id, { description: "Still well", eventTypes: ["invoice.paid"] });
  fact("ep.patched", [patched.description, patched.eventTypes, some(patched.channels)]);
  const cleared = await endpoint.patch(app, made.id, { eventTypes: null });
  fact("ep.cleared", [cleared.description, some(cleared.eventTypes)]);
  await endpoint.setHeaders(app, made.id, { headers: { "X-Shop": "two", Authorization: "Bearer k" } });
  const headers = await endpoint.getHeaders(app, made.id);
  fact("ep.headers set", [headers.headers, headers.sensitive]);
  await endpoint.patchHeaders(app, made.id, { headers: { "X-More": "3" } });
  fact("ep.headers patched", (await endpoint.getHeaders(app, made.id)).headers);
  await endpoint.patchHeaders(app, made.id, { headers: {}, deleteHeaders: ["X-More"] });
  fact("ep.headers removed", (await endpoint.getHeaders(app, made.id)).headers);
  const forbidden = { headers: { "content-length": "3" } };
  fact("ep.forbidden header", (await refusal(endpoint.setHeaders, app, made.id, forbidden))[0]);
  const first = (await endpoint.getSecret(app, made.id)).key;
  await endpoint.rotateSecret(app, made.id, {});
  const second = (await endpoint.getSecret(app, made.id)).key;
  secrets.good = [first, second];
  fact("ep.rotated", [first.startsWith("whsec_"), second.startsWith("whsec_"), first !== second]);
  const bad = await endpoint.create(app, { url: TASK.bad, uid: "bad" });
  const page = await endpoint.list(app);
  fact("ep.listed", [idsOf(page, "uid"), page.done]);
  const gone = await endpoint.create(app, { url: TASK.good, uid: "gone" });
  await endpoint.delete(app, gone.id);
  fact("ep.deleted", await refusal(endpoint.get, app, "gone"));
  fact("ep.bad url", (await refusal(endpoint.create, app, { url: "ftp://example.com" }))[0]);
  return [made.id, bad.id];
}

async function messages({ message }, app) {
  const first = { eventType: "invoice.paid", payload: { amount: 7 }, eventId: "evt-1", channels: ["blue"], tags: ["vip"] };
  const made = await message.create(app, first, { withContent: true });
  fact("msg.created", [form(made.id), made.eventType, made.payload, made.eventId, made.channels]);
  const duplicate = { eventType: "invoice.paid", payload: { amount: 7 }, eventId: "evt-1" };
  fact("msg.conflict", (await refusal(message.create, app, duplicate))[0]);
  const keyed = { idempotencyKey: "key-1" };
  const plain = { eventType: "invoice.voided", payload: { amount: 8 } };
  const second = await message.create(app, plain, keyed);
  const again = await message.create(app, plain, keyed);
  const other = await refusal(message.create, app, { eventType: "invoice.voided", payload: { amount: 9 } }, keyed);
  fact("msg.idempotent", [second.id === again.id, [409, 422].includes(other[0])]);
  const silent = await message.create(app, { eventType: "parcel.sent", payload: { n: 1 } }, { withContent: false });
  fact("msg.without content", silent.payload);
  const listed = await message.list(app, { withContent: true });
  fact("msg.listed", listed.data.map((row) => [row.eventType, row.payload]));
  const blue = await message.list(app, { withContent: true, channel: "blue", eventTypes: ["invoice.paid", "x"] });
  fact("msg.filtered", idsOf(blue, "payload"));
  const got = await message.get(app, made.id, { withContent: true });
  fact("msg.got", [got.payload, (await message.get(app, "evt-1")).id === made.id]);
  fact("msg.unknown app", await refusal(message.create, "nobody", plain));
  fact("msg.precheck", (await message.precheck(app, { eventType: "invoice.paid" })).active);
  return [made.id, second.id];
}

async function attempts({ messageAttempt }, app, good, bad, message) {
  const failed = () => messageAttempt.listByEndpoint(app, bad, { status: 2, withContent: true });
  await wait(async () => (await failed()).data.length >= 9);
  const [loss] = (await failed()).data;
  fact("attempt.failed", [
    form(loss.id), loss.status, loss.responseStatusCode, loss.response, loss.triggerType, loss.endpointId === bad,
    loss.url === TASK.bad, loss.responseDurationMs >= 0,
  ]);
  const ours = () => messageAttempt.listByMsg(app, message, { withContent: true, status: 0 });
  await wait(async () => (await ours()).data.length);
  const [win] = (await ours()).data;
  fact("attempt.succeeded", [win.responseStatusCode, win.response, win.msgId === message, win.endpointId === good]);
  const codes = await messageAttempt.listByMsg(app, message, { statusCodeClass: 500, endpointId: "bad" });
  fact("attempt.by code class", codes.data.length);
  const got = await messageAttempt.get(app, "evt-1", win.id);
  fact("attempt.got", [got.id === win.id, got.status]);
  const states = async (endpoint) => idsOf(await messageAttempt.listAttemptedMessages(app, endpoint), "status");
  await wait(async () => (await states(bad)).every((status) => status === 2));
  fact("attempt.messages", [await states(good), await states(bad)]);
  const places = await messageAttempt.listAttemptedDestinations(app, message);
  fact("attempt.destinations", places.data.map((row) => [row.uid, row.status]));
  fact("attempt.destinations done", places.done);
  await messageAttempt.expungeContent(app, message, win.id);
  fact("attempt.expunged", (await messageAttempt.get(app, message, win.id)).response);
  const before = (await messageAttempt.listByEndpoint(app, good)).data.length;
  await messageAttempt.resend(app, message, "good");
  await wait(async () => (await messageAttempt.listByEndpoint(app, good)).data.length > before);
  fact("attempt.resent", (await messageAttempt.listByEndpoint(app, good)).data[0].triggerType);
}

async function endpointWork(client, app, good, bad) {
  const { endpoint, message, messageAttempt } = client;
  let stats = await endpoint.getStats(app, good);
  fact("ep.stats", [stats.success, stats.fail, stats.pending, stats.sending]);
  stats = await endpoint.getStats(app, bad, { since: ago(1) });
  fact("ep.stats of failures", [stats.success, stats.fail, stats.pending, stats.sending]);
  const example = await endpoint.sendExample(app, good, { eventType: "invoice.paid" });
  fact("ep.example", [example.eventType, (await message.get(app, example.id, { withContent: true })).payload]);
  await endpoint.patch(app, bad, { url: TASK.good });
  const since = ago(1 / 24);
  const recovered = await endpoint.recover(app, bad, { since });
  fact("ep.recover", [form(recovered.id), recovered.task, await finished(client, recovered.id)]);
  const states = async () => idsOf(await messageAttempt.listAttemptedMessages(app, bad), "status");
  await wait(async () => (await states()).every((status) => status === 0));
  fact("ep.recovered", await states());
  const late = await endpoint.create(app, { url: TASK.good, uid: "late" });
  const missing = await endpoint.replayMissing(app, late.id, { since });
  fact("ep.replay missing", [missing.task, await finished(client, missing.id)]);
  await wait(async () => (await messageAttempt.listByEndpoint(app, late.id)).data.length >= 3);
  const bulk = await endpoint.bulkReplay(app, late.id, { since, eventTypes: ["invoice.paid"] });
  fact("ep.bulk replay", [bulk.task, await finished(client, bulk.id)]);
  fact("ep.recover too old", (await refusal(endpoint.recover, app, bad, { since: ago(20) }))[0]);
}

async function finished({ backgroundTask }, task) {
  await wait(async () => (await backgroundTask.get(task)).status !== "running");
  return (await backgroundTask.get(task)).status;
}

async function tasks({ backgroundTask }) {
  const kinds = new Set(idsOf(await backgroundTask.list(), "task"));
  kinds.delete("endpoint.bulk-replay");
  fact("task.listed", [...kinds].sort());
  fact("task.filtered", idsOf(await backgroundTask.list({ task: "endpoint.recover" }), "task"));
  fact("task.unknown", await refusal(backgroundTask.get, `qtask_${"0".repeat(27)}`));
}

async function authentication({ application, authentication: room }, app) {
  const portal = await room.appPortalAccess(app, { expiry: 3600 });
  fact("auth.portal", portal.url.startsWith("http"));
  let guest = connect(portal.token);
  const stranger = await application.create({ name: "Stranger", uid: "stranger" });
  fact("auth.guest", [
    (await guest.application.get(app)).id === app,
    await refusal(guest.application.get, stranger.id),
    (await refusal(guest.application.delete, app))[0],
    (await refusal(guest.application.list))[0],
  ]);
  await guest.authentication.logout();
  fact("auth.logged out", await refusal(guest.application.get, app));
  guest = connect((await room.appPortalAccess("shop", {})).token);
  fact("auth.again", (await guest.application.get("shop")).id === app);
  await room.expireAll(app, { expiry: 0 });
  fact("auth.expired", (await refusal(guest.application.get, app))[0]);
  fact("auth.nonsense", await refusal(connect("nonsense").application.list));
}

async function operational({ endpoint, operationalWebhookEndpoint: room }, app) {
  const made = await room.create({ url: TASK.ops, uid: "ops", eventTypes: ["endpoint.created"], description: "Ops" });
  fact("ops.created", [made.uid, made.description, made.eventTypes]);
  const put = await room.upsert(made.id, { url: TASK.ops, uid: "ops", eventTypes: ["endpoint.created"] });
  fact("ops.put", [put.id === made.id, put.description]);
  fact("ops.got", [(await room.get("ops")).id === made.id, idsOf(await room.list(), "uid")]);
  await room.setHeaders(made.id, { headers: { "X-Ops": "1" } });
  fact("ops.headers", (await room.getHeaders(made.id)).headers);
  await room.rotateSecret(made.id, {});
  secrets.ops = [(await room.getSecret(made.id)).key];
  const gone = await room.create({ url: TASK.ops, uid: "gone", disabled: true });
  await room.delete(gone.id);
  fact("ops.deleted", await refusal(room.get, "gone"));
  await endpoint.create(app, { url: TASK.good, uid: "announced", disabled: true });
}

async function statistics(client, app) {
  const types = await client.statistics.aggregateEventTypes();
  fact("stats.types", [types.task, await finished(client, types.id)]);
  const until = new Date(Date.now() + 5_000);
  const usage = await client.statistics.aggregateAppStats({ since: ago(1), until, appIds: [app, "nobody"] });
  fact("stats.usage", [usage.task, usage.unresolvedAppIds, await finished(client, usage.id)]);
}

async function environment({ environment: room, eventType }) {
  fact("env.exported", idsOf({ data: (await room.export()).eventTypes }, "name").sort());
  await room.import({ eventTypes: [{ name: "came.along", description: "Imported" }] });
  fact("env.imported", (await eventType.get("came.along")).description);
}

async function expunging(client, app, first, second) {
  const { message, messageAttempt } = client;
  await message.expungeContent(app, first);
  fact("msg.expunged", (await message.get(app, first, { withContent: true })).payload);
  fact("msg.resend expunged", (await refusal(messageAttempt.resend, app, first, "good"))[0]);
  const bulk = await message.bulkExpungeContent(app, { ids: [second, "nothing"] });
  const results = Object.entries(bulk.results).map(([key, value]) => [key === second ? "second" : key, value]);
  fact("msg.bulk expunged", Object.fromEntries(results));
  const purge = await message.expungeAllContents(app);
  const left = async () => (await message.get(app, second, { withContent: true })).payload;
  fact("msg.all expunged", [purge.task, await finished(client, purge.id), await left()]);
}

async function main() {
  const client = connect(TASK.token);
  fact("health", await client.health.get());
  await eventTypes(client);
  const app = await applications(client);
  const [good, bad] = await endpoints(client, app);
  const [first, second] = await messages(client, app);
  await attempts(client, app, good, bad, first);
  await endpointWork(client, app, good, bad);
  await operational(client, app);
  await statistics(client, app);
  await tasks(client);
  await environment(client);
  await authentication(client, app);
  await expunging(client, app, first, second);
}

let trouble = "";
try {
  await main();
} catch (error) {
  trouble = `${error.stack}\n${JSON.stringify(error.body)}`;
}
console.log(JSON.stringify({ facts, called: [...called], offered: offered(), secrets, trouble }));
