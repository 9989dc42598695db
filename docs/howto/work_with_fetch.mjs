// Work through a topic with fetch: pull, do the work, acknowledge.

const [service = "http://127.0.0.1:8080/", group = "billing", count = "Infinity"] =
  process.argv.slice(2);

/** Send a request again while the service is away or busy. */
async function post(action, body) {
  for (;;) {
    const url = new URL(`topics/orders/groups/${group}/${action}`, service);
    const response = await fetch(url, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal: AbortSignal.timeout(60_000),
    }).catch((error) => error);
    const mayPass = [429, 502, 503, 504].includes(response.status);
    if (response.status && !mayPass) return response;
    const seconds = Number(response.headers?.get("Retry-After") ?? 1);
    await new Promise((go) => setTimeout(go, Math.min(seconds, 30) * 1000));
  }
}

/** Do the work of one message; return true when it is done. */
async function bill(message) {
  console.log(message.id, message.content);
  return true;
}

let left = Number(count);
while (left > 0) {
  const pulled = await post("pull", { wait: 20 });
  if (pulled.status === 204) continue;
  if (!pulled.ok) throw new Error(await pulled.text());
  const { lease, messages } = await pulled.json();
  const accept = [];
  for (const message of messages) {
    if (await bill(message)) accept.push(message.id);
  }
  const acknowledged = await post("ack", { lease, accept });
  if (acknowledged.status === 409) {
    // The lease has ended: the messages are given again.
    console.error((await acknowledged.json()).detail);
    continue;
  }
  if (!acknowledged.ok) throw new Error(await acknowledged.text());
  left -= accept.length;
}
