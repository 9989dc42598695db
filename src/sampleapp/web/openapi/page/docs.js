"use strict";

// Relative to the page, which may be below a path prefix of a proxy.
const root = new URL(".", document.baseURI);
const element = (id) => document.getElementById(id);

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const followColourScheme = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", followColourScheme);
followColourScheme();

// The token is only in its field, which is emptied when the page is left.
window.addEventListener("pagehide", () => {
  element("token").value = "";
});

function authorization() {
  const token = element("token").value.trim();
  return token ? { Authorization: `Bearer ${token}` } : {};
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

// Linux takes at most 128 KiB, with a zero at the end, as one argument of a command.
const longestArgument = 128 * 1024 - 1;

function curl(method, url, headers, body) {
  const parts = [method === "GET" ? "curl -i" : `curl -i -X ${method}`];
  for (const [name, value] of Object.entries(headers)) {
    parts.push(name === "Authorization" ? '-H "Authorization: Bearer $TOKEN"' : `-H ${quoted(`${name}: ${value}`)}`);
  }
  const long = body !== undefined && new Blob([body]).size > longestArgument;
  if (long) {
    parts.push("--data-binary @-");
  } else if (body !== undefined) {
    parts.push(`--data-raw ${quoted(body)}`);
  }
  const command = [...parts, quoted(url.href)].join(" \\\n     ");
  return long ? `${command} <<'END_OF_BODY'\n${body}\nEND_OF_BODY` : command;
}

function readable(text, contentType) {
  if (!/[/+]json\b/.test(contentType ?? "")) {
    return text;
  }
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

let asked = 0;

// Returns the headers of the answer, or nothing if there is none or a later request has been made.
async function ask(method, path, headers, body) {
  const url = new URL(path, root);
  const all = { ...headers, ...authorization() };
  const number = ++asked;
  const began = performance.now();
  show({ outcome: "waiting", status: "Waiting for the answer…", curl: curl(method, url, all, body) });
  let status, text, outcome = "wrong", fields;
  try {
    const response = await fetch(url, {
      method, headers: all, body, cache: "no-store", credentials: "same-origin", redirect: "error",
    });
    text = readable(await response.text(), response.headers.get("Content-Type"));
    status = `${response.status} ${response.statusText}`;
    outcome = response.ok ? "right" : "wrong";
    fields = response.headers;
  } catch (error) {
    status = "No answer";
    text = String(error);
  }
  if (number !== asked) {
    return undefined;
  }
  const time = `after ${Math.max(1, Math.round(performance.now() - began))} ms`;
  show({ outcome, status, time, text: text || "(no body)", curl: curl(method, url, all, body) });
  return fields;
}

function show({ outcome, status, time = "", text = "", curl = "" }) {
  element("answer").hidden = false;
  element("answer").dataset.outcome = outcome;
  element("status").textContent = status;
  element("time").textContent = time;
  element("body").textContent = text;
  element("curl").textContent = curl;
  element("curl").parentElement.hidden = !curl;
  // On a phone, it is below the window.
  if (outcome !== "waiting") {
    element("answer").scrollIntoView({ block: "nearest" });
  }
}

// What a field is refused for must not stand beside the answer to an earlier request.
document.addEventListener("invalid", () => {
  asked += 1;
  element("answer").hidden = true;
}, true);

// The values of these two are the names of members of the message, except for the empty key and a file.
element("key-as").addEventListener("change", () => {
  element("key").disabled = element("key-as").value === "";
});

element("content-as").addEventListener("change", () => {
  const fromFile = element("content-as").value === "file";
  element("content").parentElement.hidden = fromFile;
  element("file").parentElement.hidden = !fromFile;
  // A field that is not shown must not be required.
  element("file").disabled = !fromFile;
});

// The service takes fewer bytes, and says so. More would only fill the memory of the browser.
const largestFile = 16 * 1024 * 1024;

element("file").addEventListener("change", () => {
  const tooLarge = element("file").files[0]?.size > largestFile;
  element("file").setCustomValidity(tooLarge ? "This page reads files of up to 16 MiB." : "");
});

// Returns a promise of the bytes of a file, in base64.
function base64Of(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result.slice(reader.result.indexOf(",") + 1)));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}

// Returns what is entered; of base64 without white space, since many programs break it into lines.
function entered(name) {
  const text = element(name).value;
  return element(`${name}-as`).value.endsWith("_base64") ? text.replace(/\s+/g, "") : text;
}

// Returns headers from lines of "name: value".
function headersOf(text) {
  const lines = text.split("\n").filter((line) => line.trim());
  const pairs = lines.map((line) => {
    const colon = line.indexOf(":");
    if (colon < 0) {
      throw new Error(`“${line}” has no colon between a name and a value.`);
    }
    return [line.slice(0, colon).trim(), line.slice(colon + 1).trim()];
  });
  const names = pairs.map(([name]) => name);
  const repeated = names.find((name, index) => names.indexOf(name) < index);
  if (repeated !== undefined) {
    throw new Error(`“${repeated}” is repeated.`);
  }
  return Object.fromEntries(pairs);
}

element("headers").addEventListener("input", () => {
  let fault = "";
  try {
    headersOf(element("headers").value);
  } catch (error) {
    fault = error.message;
  }
  element("headers").setCustomValidity(fault);
});

// Returns the message; without its content if that is in a file.
function message() {
  const made = { topic: element("topic").value };
  const keyAs = element("key-as").value;
  if (!keyAs) {
    made.key = "";
  } else if (entered("key")) {
    made[keyAs] = entered("key");
  }
  const contentAs = element("content-as").value;
  if (contentAs !== "file") {
    made[contentAs] = entered("content");
  }
  const headers = headersOf(element("headers").value);
  if (Object.keys(headers).length) {
    made.headers = headers;
  }
  const timestamp = element("timestamp").value.trim();
  if (timestamp) {
    made.timestamp = /^\d{1,15}$/.test(timestamp) ? Number(timestamp) : timestamp;
  }
  return made;
}

element("message").addEventListener("submit", async (event) => {
  event.preventDefault();
  const made = message();
  if (element("content-as").value === "file") {
    asked += 1;
    show({ outcome: "waiting", status: "Reading the file…" });
    try {
      made.content_base64 = await base64Of(element("file").files[0]);
    } catch (error) {
      const text = `The file could not be read: ${error.message}`;
      show({ outcome: "wrong", status: "Nothing was sent", text });
      return;
    }
  }
  ask("POST", "messages", { "Content-Type": "application/json" }, JSON.stringify(made));
});

element("batch").addEventListener("submit", (event) => {
  event.preventDefault();
  ask("POST", "messages", { "Content-Type": "application/x-ndjson" }, element("lines").value);
});

element("read").addEventListener("click", () => {
  ask("GET", "./", { Accept: "application/vnd.sampleApp.v2+json" });
});

let position = null;

async function readFrom(from) {
  const query = new URLSearchParams({ from, limit: element("limit").value });
  if (element("records-key").value) {
    query.set("key", element("records-key").value);
  }
  const topic = encodeURIComponent(element("records-topic").value);
  element("next").disabled = true;
  const fields = await ask("GET", `topics/${topic}/records?${query}`, {});
  position = fields?.get("Position") ?? null;
  element("next").disabled = position === null;
  if (fields?.get("Up-To-Date") === "true") {
    element("time").textContent += "; there are no more records";
  }
}

element("records").addEventListener("submit", (event) => {
  event.preventDefault();
  readFrom(element("from").value.trim());
});

element("next").addEventListener("click", () => {
  if (element("records").reportValidity()) {
    readFrom(position);
  }
});

// A position is of one topic, and a page of one key.
element("records").addEventListener("input", () => {
  element("next").disabled = true;
});

// A reference names the problems that its operation can have. The component for the status describes them.
function describeProblems(reference, components) {
  if (reference.$ref && reference.description) {
    const names = Array.from(reference.description.matchAll(/`(.+?)`/g), (match) => match[1]);
    const all = components[reference.$ref.split("/").pop()].description.split("\n");
    const isNamed = (line) => names.includes(line.match(/`(?:urn:sampleapp:problem:)?(.+?)`/)[1]);
    reference.description = all.filter(isNamed).join("\n");
  }
}

// Changes to Swagger UI. A link in a button cannot be used without a mouse: the button alone also sets the address.
// Swagger UI's own layout has a second landmark `main`.
const changes = ({ React: { createElement } }) => ({
  components: {
    DeepLink: ({ text }) => createElement("span", { className: "nostyle" }, text),
    Layout: ({ getComponent }) => createElement("div", { className: "swagger-ui" },
      createElement(getComponent("SvgAssets")),
      ...["InfoContainer", "operations", "Models"].map((name) =>
        createElement("div", { className: "wrapper", key: name }, createElement(getComponent(name, true))))),
  },
});

// Names for the fields of Swagger UI that have none. A table that is a region would need a name, too.
new MutationObserver(() => {
  for (const [selector, name] of [[".examples-select-element", "Example"], [".body-param__text", "Body"]]) {
    document.querySelectorAll(selector).forEach((field) => field.setAttribute("aria-label", name));
  }
  document.querySelectorAll("[data-param-name] td > :is(input, select, textarea)").forEach((field) => {
    field.setAttribute("aria-label", field.closest("[data-param-name]").dataset.paramName);
  });
  document.querySelectorAll("table[role=region]").forEach((table) => table.removeAttribute("role"));
}).observe(element("reference"), { childList: true, subtree: true });

async function showReference() {
  const response = await fetch(new URL("openapi.json", root), { redirect: "error" });
  const spec = await response.json();
  element("version").textContent = spec.info.version;
  document.title = `${spec.info.title} ${spec.info.version}: the HTTP interface`;
  if (spec.externalDocs) {
    const link = document.createElement("a");
    link.href = spec.externalDocs.url;
    link.textContent = "The manual";
    element("manual").replaceChildren(link);
  }
  spec.servers = [{ url: root.pathname.replace(/\/$/, "") || "/" }];
  // OPTIONS and HEAD are omitted: every path has OPTIONS, and every path with GET has HEAD.
  for (const item of Object.values(spec.paths)) {
    delete item.options;
    delete item.head;
    for (const { parameters = [], responses } of Object.values(item)) {
      Object.values(responses).forEach((response) => describeProblems(response, spec.components.responses));
      // An empty field sends no key, and a box beside it the empty key.
      parameters.filter(({ name }) => name === "key").forEach((key) => { key.allowEmptyValue = true; });
    }
  }
  // All errors have the same form, which is shown once, under Schemas.
  for (const refusal of Object.values(spec.components.responses)) {
    delete refusal.content;
    delete refusal.headers;
  }
  window.SwaggerUIBundle({
    spec,
    domNode: element("reference"),
    presets: [window.SwaggerUIBundle.presets.apis],
    plugins: [changes],
    layout: "Layout",
    deepLinking: true,
    defaultModelsExpandDepth: 0,
    displayRequestDuration: true,
    // Read no settings from the address of the page, send nothing to another server, store nothing.
    queryConfigEnabled: false,
    validatorUrl: null,
    persistAuthorization: false,
    withCredentials: false,
    requestInterceptor: (request) => {
      if (new URL(request.url, root).origin === root.origin) {
        Object.assign(request.headers, authorization());
      }
      return request;
    },
  });
}

showReference().catch((error) => {
  const sentence = document.createElement("p");
  sentence.className = "card";
  sentence.textContent = `openapi.json could not be loaded: ${error.message}`;
  element("reference").replaceChildren(sentence);
});
