// Answers one JSON line for each JSON line {provider, action, now, body, …}: what a sender's own package says.
// `body` is base64. `now`, in seconds since 1970, is what the package takes for the present. See ../conftest.py.
import { createRequire } from "node:module";
import https from "node:https";
import { PassThrough } from "node:stream";
import { createInterface } from "node:readline";

const require = createRequire(import.meta.url);
const realNow = Date.now;

const judges = {
  async github() {
    const octokit = await import("@octokit/webhooks-methods");
    return {
      sign: ({ secret, body }) => octokit.sign(secret, body.toString()),
      verify: ({ secret, body, signature }) => octokit.verify(secret, body.toString(), signature),
    };
  },

  async notion() {
    const notion = require("@notionhq/client");
    return {
      sign: ({ secret, body }) => notion.signWebhookPayload({ body, verificationToken: secret }),
      verify: ({ secret, body, signature }) =>
        notion.verifyWebhookSignature({ body, signature, verificationToken: secret }),
    };
  },

  async linear() {
    const { LinearWebhookClient } = await import("@linear/sdk/webhooks");
    return {
      verify: ({ secret, body, signature }) => {
        new LinearWebhookClient(secret).parseVerifiedPayload(body, signature);
        return true;
      },
    };
  },

  async shopify() {
    await import("@shopify/shopify-api/adapters/node");
    const { shopifyApi, LogSeverity } = await import("@shopify/shopify-api");
    const client = (secret) =>
      shopifyApi({
        apiKey: "key",
        apiSecretKey: secret,
        apiVersion: "2026-10",
        hostName: "hooks.example.com",
        isEmbeddedApp: false,
        logger: { level: LogSeverity.Error, log: () => {} },
      });
    return {
      // Answers the package's own findings: {valid, reason, topic, webhookId, eventId, …}.
      verify: ({ secret, body, headers }) =>
        client(secret).webhooks.validate({
          rawBody: body.toString(),
          rawRequest: { method: "POST", url: "/", headers },
          rawResponse: {},
        }),
    };
  },

  async jira() {
    const atlassian = require("atlassian-jwt");
    const request = ({ method, url }) => atlassian.fromMethodAndUrl(method, url);
    return {
      hash: (question) => atlassian.createQueryStringHash(request(question), false, question.base_url),
      sign: ({ secret, claims }) => atlassian.encodeSymmetric(claims, secret),
      decode: ({ secret, token }) => atlassian.decodeSymmetric(token, secret, atlassian.SymmetricAlgorithm.HS256),
    };
  },

  async cloudpayments() {
    const { ClientService } = require("cloudpayments");
    const { signString } = require("cloudpayments/dist/utils.js");
    return {
      sign: ({ secret, body }) => signString(secret, body.toString()),
      verify: async ({ secret, body, signature, method = "POST", url = "/", content_type: type = "" }) => {
        const request = new PassThrough();
        request.end(body);
        Object.assign(request, { method, url, headers: { "content-hmac": signature, "content-type": type } });
        const service = new ClientService({ publicId: "id", privateKey: secret });
        await service.getNotificationHandlers().handlePayRequest(request);
        return true;
      },
    };
  },

  async sns() {
    const Validator = require("sns-validator");
    return {
      verify: ({ body, certificate }) => {
        serve(certificate);
        const validator = new Validator();
        return new Promise((resolve, reject) =>
          validator.validate(body.toString(), (error) => (error ? reject(error) : resolve(true))),
        );
      },
    };
  },
};

// What the package would fetch from the sender's host stands in the question instead.
function serve(content) {
  https.get = (_url, answer) => {
    const response = Object.assign(new PassThrough(), { statusCode: 200 });
    answer(response);
    response.end(content);
    return new PassThrough();
  };
}

const loaded = new Map();

async function judge({ provider, action, now, body, ...rest }) {
  if (!loaded.has(provider)) loaded.set(provider, await judges[provider]());
  Date.now = now === undefined ? realNow : () => now * 1000;
  try {
    return await loaded.get(provider)[action]({ ...rest, body: body && Buffer.from(body, "base64") });
  } finally {
    Date.now = realNow;
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  try {
    console.log(JSON.stringify({ answer: await judge(JSON.parse(line)) }));
  } catch (error) {
    console.log(JSON.stringify({ refusal: String(error.message) }));
  }
}
