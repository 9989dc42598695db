// Send CloudEvents with the official SDK for JavaScript, in all three modes: node send_events.mjs URL
import { CloudEvent, HTTP } from "cloudevents";

const attributes = { id: "1", source: "/doors/7", type: "com.example.opened", subject: "a b" };
const events = [
  new CloudEvent({ ...attributes, partitionkey: "k", data: { by: "key" } }),
  new CloudEvent({ ...attributes, datacontenttype: "image/jpeg", data: new Uint8Array([255, 216]) }),
];

async function post(topic, { headers, body }) {
  const answer = await fetch(`${process.argv[2]}topics/${topic}`, { method: "POST", headers, body });
  console.log(answer.status, (await answer.text()).trim().split("\n").length);
}

for (const event of events) {
  await post("binary", HTTP.binary(event));
  await post("structured", HTTP.structured(event));
}
await post("batched", {
  headers: { "content-type": "application/cloudevents-batch+json" },
  body: JSON.stringify(events),
});
await post("binary", { headers: { "ce-id": "1", "ce-type": "t", "ce-source": "/s" }, body: "" });
