// Follow a topic with fetch: one page after the other.

const [url = "http://127.0.0.1:8080/", topic = "orders", count = "0"] =
  process.argv.slice(2);

const pause = (seconds) => new Promise((go) => setTimeout(go, seconds * 1000));

/** Fetch a page; ask again while the service is away or busy. */
async function fetchPage(position) {
  const page = new URL(`topics/${topic}/records`, url);
  page.searchParams.set("from", position);
  page.searchParams.set("wait", "30");
  for (;;) {
    let answer;
    try {
      answer = await fetch(page, { signal: AbortSignal.timeout(60_000) });
      // The body, too: the connection may be lost in the middle.
      const text = await answer.text();
      if (![429, 502, 503, 504].includes(answer.status)) return { answer, text };
    } catch (error) {
      if (!["TypeError", "TimeoutError"].includes(error.name)) throw error;
    }
    await pause(Math.min(Number(answer?.headers.get("Retry-After") ?? 1), 30));
  }
}

let position = "earliest";
let left = Number(count) || Infinity;
while (left > 0) {
  const { answer, text } = await fetchPage(position);
  if (answer.status === 410) {
    // Not read in time: the problem names the missing records.
    const problem = JSON.parse(text);
    console.error(problem.detail);
    position = problem.resume ?? "earliest";
    continue;
  }
  if (!answer.ok) throw new Error(text);
  for (const line of text.split("\n").filter(Boolean)) {
    const record = JSON.parse(line);
    console.log(record.offset, record.content);
    left--;
  }
  position = answer.headers.get("Position");
}
