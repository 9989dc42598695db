// Keep a copy of the readings in a page.

const readings = new Map();
const source = new EventSource("/changes");

source.addEventListener("readings", (event) => {
  readings.clear();
  for (const { id, value } of JSON.parse(event.data)) readings.set(id, value);
  show();
});
source.addEventListener("reading", (event) => {
  const { id, value } = JSON.parse(event.data);
  readings.set(id, value);
  show();
});
source.addEventListener("removed", (event) => {
  readings.delete(JSON.parse(event.data).id);
  show();
});

function show() {
  const lines = [...readings].map(([id, value]) => `${id}: ${value}`);
  document.body.textContent = lines.join(", ");
}
