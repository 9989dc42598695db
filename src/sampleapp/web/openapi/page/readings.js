"use strict";

// The page is /docs/readings, perhaps below a path prefix of a proxy.
const root = new URL("..", document.baseURI);
const element = (id) => document.getElementById(id);

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const followColourScheme = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", followColourScheme);
followColourScheme();

// The values of a line, and the cards on the page. More of either would only be slow.
const MOST_VALUES = 60;
const MOST_CARDS = 200;
// An id comes every 15 seconds; without one, the connection is dead, though nobody has said so.
const SILENCE_MS = 40_000;
const LONGEST_WAIT_MS = 30_000;

// Of each reading: its values, the latest one last, and the time of its last change.
let readings = new Map();
let lastEventId = "";
let retryMs = 2000;
let failures = 0;
let connection = null;
let waiting = null;
// The sentence of the event `unavailable`, the last one of its stream.
let unavailable = "";

// The stream. EventSource has no way to send a token, so its part is done with fetch.

class Events {
  // The algorithm of HTML, section 9.2.6.
  constructor(dispatch) {
    this.dispatch = dispatch;
    this.rest = "";
    this.id = lastEventId;
    this.begin();
  }

  begin() {
    this.event = "";
    this.data = [];
  }

  read(text) {
    const lines = (this.rest + text).split("\n");
    this.rest = lines.pop();
    for (const line of lines) {
      this.readLine(line.endsWith("\r") ? line.slice(0, -1) : line);
    }
  }

  readLine(line) {
    if (line === "") {
      lastEventId = this.id;
      if (this.data.length > 0) {
        this.dispatch(this.event, this.data.join("\n"));
      }
      this.begin();
      return;
    }
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "event") {
      this.event = value;
    } else if (name === "data") {
      this.data.push(value);
    } else if (name === "id") {
      this.id = value;
    } else if (name === "retry" && /^[0-9]+$/.test(value)) {
      retryMs = Number(value);
    }
  }
}

class Refused extends Error {}

async function sentenceOf(response) {
  try {
    const problem = await response.json();
    return problem.detail ?? problem.title;
  } catch {
    return `The service answered ${response.status}.`;
  }
}

async function follow(controller) {
  const headers = { Accept: "text/event-stream" };
  const token = element("token").value.trim();
  if (token) {
    headers.Authorization = `Bearer ${token}`;
  }
  if (lastEventId) {
    headers["Last-Event-ID"] = lastEventId;
  }
  let silence = setTimeout(() => controller.abort(), SILENCE_MS);
  try {
    const response = await fetch(new URL("changes", root), {
      headers, cache: "no-store", credentials: "same-origin", redirect: "error", signal: controller.signal,
    });
    if (!response.ok) {
      const sentence = await sentenceOf(response);
      throw response.status === 429 || response.status >= 500 ? new Error(sentence) : new Refused(sentence);
    }
    const events = new Events(apply);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) {
        return;
      }
      clearTimeout(silence);
      silence = setTimeout(() => controller.abort(), SILENCE_MS);
      events.read(value);
      if (!unavailable) {
        // Who comes back to the same readings gets no event.
        failures = 0;
        say("live", "Live", "");
        element("access").hidden = true;
      }
    }
  } finally {
    clearTimeout(silence);
  }
}

async function connect() {
  clearTimeout(waiting);
  connection?.abort();
  const controller = new AbortController();
  connection = controller;
  if (readings.size === 0) {
    say("connecting", "Connecting", "");
  }
  let sentence = "";
  try {
    await follow(controller);
  } catch (error) {
    if (error instanceof Refused) {
      if (connection === controller) {
        connection = null;
        say("refused", "Not connected:", error.message);
        element("access").hidden = false;
      }
      return;
    }
    failures += 1;
    sentence = error instanceof TypeError || error.name === "AbortError" ? "" : error.message;
  }
  if (connection === controller) {
    connection = null;
    wait(unavailable || sentence);
  }
}

function wait(sentence) {
  // The service chooses a time for each client, so that not all of them come back together.
  const delayMs = unavailable ? retryMs : Math.min(retryMs * 2 ** Math.max(0, failures - 1), LONGEST_WAIT_MS);
  unavailable = "";
  const seconds = Math.max(1, Math.round(delayMs / 1000));
  const again = `Trying again in ${seconds} ${seconds === 1 ? "second" : "seconds"}.`;
  say("lost", "Connection lost.", sentence ? `${sentence} ${again}` : again);
  waiting = setTimeout(connect, delayMs);
}

function say(state, word, detail) {
  if (state === "live" && element("state").dataset.state === "live") {
    return;
  }
  element("state").dataset.state = state;
  element("word").textContent = word;
  element("detail").textContent = detail;
  element("again").hidden = state !== "lost";
  element("readings").classList.toggle("old", state === "lost" || state === "refused");
}

// The readings.

function record(id, value, time) {
  const known = readings.get(id);
  if (known === undefined) {
    readings.set(id, { values: [value], time });
  } else if (!Object.is(known.values.at(-1), value)) {
    known.values.push(value);
    known.values.splice(0, known.values.length - MOST_VALUES);
    known.time = time;
  } else {
    return;
  }
  dirty.add(id);
}

function apply(event, data) {
  const message = JSON.parse(data);
  if (event === "unavailable") {
    unavailable = message.detail ?? message.title;
    return;
  }
  if (event === "readings") {
    const before = readings;
    readings = new Map();
    for (const { id, value } of message) {
      if (before.has(id)) {
        readings.set(id, before.get(id));
      }
      record(id, value, before.has(id) ? Date.now() : null);
    }
    isRearranged = true;
  } else if (event === "reading") {
    isRearranged ||= !readings.has(message.id);
    record(message.id, message.value, Date.now());
  } else if (event === "removed") {
    readings.delete(message.id);
    isRearranged = true;
  }
  drawSoon();
}

// The cards, drawn at most once for each frame.

const cards = new Map();
const dirty = new Set();
let isRearranged = false;
let isDrawing = false;

function drawSoon() {
  if (!isDrawing) {
    isDrawing = true;
    requestAnimationFrame(() => {
      isDrawing = false;
      draw();
    });
  }
}

function draw() {
  element("count").textContent = String(readings.size);
  if (isRearranged) {
    isRearranged = false;
    arrange();
  }
  for (const id of dirty) {
    if (cards.has(id) && readings.has(id)) {
      drawCard(cards.get(id), readings.get(id));
    }
  }
  dirty.clear();
}

function arrange() {
  const wanted = element("filter").value.toLowerCase();
  const shown = [];
  let found = 0;
  for (const id of readings.keys()) {
    if (id.toLowerCase().includes(wanted)) {
      found += 1;
      if (shown.length < MOST_CARDS) {
        shown.push(id);
      }
    }
  }
  const kept = new Set(shown);
  for (const [id, card] of cards) {
    if (!kept.has(id)) {
      card.item.remove();
      cards.delete(id);
    }
  }
  const list = element("readings");
  shown.forEach((id, place) => {
    let card = cards.get(id);
    if (card === undefined) {
      card = newCard(id);
      cards.set(id, card);
      dirty.add(id);
    }
    if (list.children[place] !== card.item) {
      list.insertBefore(card.item, list.children[place] ?? null);
    }
  });
  const more = element("more");
  more.hidden = found === shown.length && found > 0;
  if (found === 0) {
    more.textContent = readings.size === 0
      ? "There are no readings yet. The first one appears here as soon as it is published."
      : "No id has this text.";
  } else {
    more.textContent = `The first ${shown.length} of ${found} are shown.`;
  }
}

function newCard(id) {
  const item = document.createElement("li");
  item.addEventListener("animationend", () => item.classList.remove("changed"));
  const name = item.appendChild(document.createElement("h2"));
  name.textContent = id === "" ? "(empty id)" : id;
  name.title = id;
  const value = item.appendChild(document.createElement("p"));
  value.className = "value";
  const line = item.appendChild(picture("svg", { viewBox: "0 0 100 40", preserveAspectRatio: "none", role: "img" }));
  const area = line.appendChild(picture("polygon", {}));
  const stroke = line.appendChild(picture("polyline", {}));
  const range = item.appendChild(document.createElement("p"));
  range.className = "range";
  const [extent, time] = [0, 1].map(() => range.appendChild(document.createElement("span")));
  return { item, value, line, area, stroke, extent, time, drawn: false };
}

function picture(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) {
    made.setAttribute(key, value);
  }
  return made;
}

function readable(value) {
  return String(Number(value.toPrecision(9)));
}

function drawCard(card, { values, time }) {
  const value = readable(values.at(-1));
  card.value.textContent = value;
  card.value.title = String(values.at(-1));
  const least = Math.min(...values);
  const most = Math.max(...values);
  const height = (each) => {
    // Halves, since the difference of two finite numbers may be infinite.
    const part = most === least ? 0.5 : (each / 2 - least / 2) / (most / 2 - least / 2);
    return (37 - 34 * part).toFixed(2);
  };
  const step = 100 / Math.max(1, values.length - 1);
  const points = values.map((each, place) => `${(place * step).toFixed(2)},${height(each)}`);
  if (values.length === 1) {
    points.push(`100,${height(values[0])}`);
  }
  card.stroke.setAttribute("points", points.join(" "));
  card.area.setAttribute("points", `0,40 ${points.join(" ")} 100,40`);
  card.line.setAttribute(
    "aria-label",
    `The last ${values.length} ${values.length === 1 ? "value" : "values"}, from ${readable(least)} to ${readable(most)}`,
  );
  card.extent.textContent = least === most ? "" : `${readable(least)} … ${readable(most)}`;
  card.time.textContent = time === null ? "" : new Date(time).toLocaleTimeString();
  if (card.drawn) {
    card.item.classList.add("changed");
  }
  card.drawn = true;
}

// What a person does.

element("filter").addEventListener("input", () => {
  isRearranged = true;
  drawSoon();
});

element("again").addEventListener("click", connect);

element("access").addEventListener("submit", (event) => {
  event.preventDefault();
  connect();
});

window.addEventListener("online", () => {
  if (connection === null && element("state").dataset.state === "lost") {
    connect();
  }
});

// The token is only in its field, which is emptied when the page is left.
window.addEventListener("pagehide", () => {
  connection?.abort();
  element("token").value = "";
});

window.addEventListener("pageshow", (event) => {
  if (event.persisted) {
    connect();
  }
});

connect();
