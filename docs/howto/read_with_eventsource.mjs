// Follow a topic with EventSource: a stream that goes on after each interruption.

// In a browser, EventSource is there. In Node.js: npm install eventsource
import { EventSource } from "eventsource";

const [url = "http://127.0.0.1:8080/", topic = "orders", count = "0"] =
  process.argv.slice(2);

let left = Number(count) || Infinity;
const source = new EventSource(
  new URL(`topics/${topic}/records?from=earliest`, url),
);
source.addEventListener("message", (event) => {
  const record = JSON.parse(event.data);
  console.log(record.offset, record.content);
  if (--left === 0) source.close();
});
// Records that were removed before they were read.
source.addEventListener("gap", (event) => console.error("gap", event.data));
// The topic was made again: from here on, its records from the first one.
source.addEventListener("reset", (event) => console.error("reset", event.data));
source.addEventListener("error", () => {
  // CONNECTING: it comes back by itself. CLOSED: the service has refused it.
  if (source.readyState === EventSource.CLOSED) console.error("refused");
});
