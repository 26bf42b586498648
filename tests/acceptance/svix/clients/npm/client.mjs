// Calls methods of the official npm client, as the test asks on standard input.
//
// One argument: the server's address. Prints the names of all methods, then one JSON line for each line that it reads.

import { createInterface } from "node:readline";

import { Svix } from "svix";

const DATES = new Set(["since", "until", "before", "after", "deliverAt"]);

const snake = (name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
const connect = (token) => new Svix(token, { serverUrl: process.argv[2] });

// All methods of a client and of the resources that it holds, by name.
function methods(resource, prefix = "") {
  const found = {};
  for (const [name, { value, get }] of Object.entries(Object.getOwnPropertyDescriptors(Object.getPrototypeOf(resource)))) {
    if (name === "constructor") continue;
    if (get) Object.assign(found, methods(resource[name], `${prefix}${snake(name)}.`));
    else if (typeof value === "function") found[prefix + snake(name)] = value.bind(resource);
  }
  for (const [name, value] of Object.entries(resource)) {
    if (name !== "requestCtx") Object.assign(found, methods(value, `${prefix}${snake(name)}.`));
  }
  return found;
}

async function answer({ token, method, path, body, options }) {
  const given = [...path, ...(body === null ? [] : [body]), ...(Object.keys(options).length ? [options] : [])];
  try {
    return { value: (await methods(connect(token))[method](...given)) ?? null };
  } catch (error) {
    if (typeof error.code === "number") return { status: error.code, error: error.body };
    return { failure: error.stack };
  }
}

const print = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);

print(Object.keys(methods(connect(""))));
for await (const line of createInterface({ input: process.stdin })) {
  print(await answer(JSON.parse(line, (name, value) => (DATES.has(name) ? new Date(value) : value))));
}
