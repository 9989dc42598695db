// Sign webhooks with the libraries of Svix and of Standard Webhooks: node sign_webhooks.mjs URL SECRET
import { Webhook as StandardWebhook } from "standardwebhooks";
import { Webhook as SvixWebhook } from "svix";

const [url, secret] = process.argv.slice(2);
const body = JSON.stringify({ type: "invoice.paid", note: "caf\u00e9" });

async function post(prefix, webhook, id, time, sent = body) {
  const headers = {
    "content-type": "application/json",
    [`${prefix}-id`]: id,
    [`${prefix}-timestamp`]: String(Math.floor(time.getTime() / 1000)),
    [`${prefix}-signature`]: webhook.sign(id, time, body),
  };
  const answer = await fetch(`${url}hooks/invoices`, { method: "POST", headers, body: sent });
  console.log(prefix, answer.status);
}

const webhooks = { webhook: new StandardWebhook(secret), svix: new SvixWebhook(secret) };
for (const [prefix, webhook] of Object.entries(webhooks)) {
  await post(prefix, webhook, `msg_${prefix}`, new Date());
  await post(prefix, webhook, `msg_${prefix}`, new Date());
  await post(prefix, webhook, "msg_late", new Date(Date.now() - 3600_000));
  await post(prefix, webhook, "msg_changed", new Date(), `${body} `);
}
