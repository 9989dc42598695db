// Publish a message once with fetch, however often it must be sent.

const url = process.argv[2] ?? "http://127.0.0.1:8080/";
const key = process.argv[3] ?? crypto.randomUUID();

/** Send a request with Idempotency-Key until its outcome is known. */
async function publish(path, request) {
  for (let attempt = 1; ; attempt++) {
    // A new deadline for each attempt, longer than the service waits for its broker.
    const answer = await fetch(new URL(path, url), {
      ...request,
      signal: AbortSignal.timeout(60_000),
    }).catch((error) => error);
    const mayPass = [408, 429, 500, 502, 503, 504].includes(answer.status);
    const isFinal = answer.status && !mayPass;
    if (isFinal || attempt === 8) return answer;
    const pause = Math.random() * 2 ** (attempt - 1);
    const seconds = Number(answer.headers?.get("Retry-After") ?? pause);
    await new Promise((resume) => setTimeout(resume, Math.min(seconds, 60) * 1000));
  }
}

const answer = await publish("messages", {
  method: "POST",
  headers: { "Content-Type": "application/json", "Idempotency-Key": key },
  body: JSON.stringify({ topic: "orders", key: "17", content: "paid" }),
});
if (!answer.status) throw answer;
const again = answer.headers.has("Idempotent-Replayed") ? ", published before" : "";
console.log(`${answer.status}${again}: ${(await answer.text()).trim()}`);
