// Publish a batch, the body of a webhook and a tombstone with fetch.

const url = process.argv[2] ?? "http://127.0.0.1:8080/";

/** Send a request, and send it again if it has certainly published nothing. */
async function send(path, request) {
  for (let attempt = 1; ; attempt++) {
    const answer = await fetch(new URL(path, url), {
      ...request,
      // Longer than the service itself waits for its broker.
      signal: AbortSignal.timeout(60_000),
    });
    // 429, 503: nothing was published. After 500 and 504, something may have been.
    if (![429, 503].includes(answer.status) || attempt === 10) return answer;
    const seconds = Number(answer.headers.get("Retry-After") ?? 1);
    await new Promise((resume) => setTimeout(resume, Math.min(seconds, 60) * 1000));
  }
}

/** Publish messages in one request; return the result of each, in order. */
async function publishMany(messages) {
  const answer = await send("messages", {
    method: "POST",
    headers: { "Content-Type": "application/x-ndjson" },
    body: messages.map((message) => JSON.stringify(message) + "\n").join(""),
  });
  if (answer.ok) {
    const lines = (await answer.text()).trim().split("\n");
    return lines.map((line) => JSON.parse(line));
  }
  const problem = await answer.json();
  // Without results, none was published, unless the status is 500 or 504.
  return problem.results ?? messages.map(() => problem);
}

const results = await publishMany([
  { topic: "readings", key: "kitchen", content: "21.5" },
  { topic: "readings", key: "hall", content: "19" },
]);
console.log(results.map((result) => result.offset ?? result.detail));

const raw = await send("topics/webhooks?key=shop", {
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify({ order: 17, paid: true }),
});
console.log(raw.status, await raw.json());

const key = encodeURIComponent("hall");
const tombstone = await send(`topics/readings?key=${key}`, { method: "DELETE" });
console.log(tombstone.status, await tombstone.json());
