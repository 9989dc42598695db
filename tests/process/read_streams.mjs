// Read two topics with clients for event streams: node read_streams.mjs URL COUNT
// Each prints its name with the contents of the first topic, and with the event for the second, which does not exist.
import { createRequire } from "node:module";
import { EventSource } from "eventsource";

// What these find in a browser.
globalThis.window = globalThis;
globalThis.EventSource = EventSource;
const require = createRequire(import.meta.url);
const { EventSourcePolyfill } = require("event-source-polyfill");
const { default: ReconnectingEventSource } = require("reconnecting-eventsource");

const [url, count] = process.argv.slice(2);
const clients = { EventSource, EventSourcePolyfill, ReconnectingEventSource };

for (const [name, Client] of Object.entries(clients)) {
  let left = Number(count);
  const source = new Client(`${url}topics/orders/records?from=earliest`);
  source.addEventListener("message", (event) => {
    console.log(name, JSON.parse(event.data).content);
    if (--left === 0) source.close();
  });
  source.addEventListener("error", () => {
    if (source.readyState === 2) console.log(name, "has given up");
  });
  const absent = new Client(`${url}topics/absent/records`);
  absent.addEventListener("unavailable", (event) => {
    console.log(name, JSON.parse(event.data).status);
    absent.close();
  });
}
