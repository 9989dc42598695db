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

function curl(method, url, headers, body) {
  const parts = [method === "GET" ? "curl -i" : `curl -i -X ${method}`];
  for (const [name, value] of Object.entries(headers)) {
    parts.push(name === "Authorization" ? '-H "Authorization: Bearer $TOKEN"' : `-H ${quoted(`${name}: ${value}`)}`);
  }
  if (body !== undefined) {
    parts.push(`--data-raw ${quoted(body)}`);
  }
  return [...parts, quoted(url.href)].join(" \\\n     ");
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

async function ask(method, path, headers, body) {
  const url = new URL(path, root);
  const all = { ...headers, ...authorization() };
  const began = performance.now();
  let status, text, isRight = false;
  try {
    const response = await fetch(url, {
      method, headers: all, body, cache: "no-store", credentials: "same-origin", redirect: "error",
    });
    text = readable(await response.text(), response.headers.get("Content-Type"));
    status = `${response.status} ${response.statusText}`;
    isRight = response.ok;
  } catch (error) {
    status = "No answer";
    text = String(error);
  }
  element("answer").hidden = false;
  element("answer").dataset.outcome = isRight ? "right" : "wrong";
  element("status").textContent = status;
  element("time").textContent = `after ${Math.max(1, Math.round(performance.now() - began))} ms`;
  element("body").textContent = text || "(no body)";
  element("curl").textContent = curl(method, url, all, body);
}

element("no-key").addEventListener("change", () => {
  element("key").disabled = element("no-key").checked;
});

element("message").addEventListener("submit", (event) => {
  event.preventDefault();
  const message = { topic: element("topic").value, content: element("content").value };
  if (!element("no-key").checked) {
    message.key = element("key").value;
  }
  ask("POST", "messages", { "Content-Type": "application/json" }, JSON.stringify(message));
});

element("read").addEventListener("click", () => {
  ask("GET", "./", { Accept: "application/vnd.sampleApp.v2+json" });
});

async function showReference() {
  const response = await fetch(new URL("openapi.json", root), { redirect: "error" });
  const spec = await response.json();
  element("version").textContent = spec.info.version;
  document.title = `${spec.info.title} ${spec.info.version}: the HTTP interface`;
  spec.servers = [{ url: root.pathname.replace(/\/$/, "") || "/" }];
  // OPTIONS and HEAD are omitted: every path has OPTIONS, and every path with GET has HEAD.
  for (const item of Object.values(spec.paths)) {
    delete item.options;
    delete item.head;
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
    layout: "BaseLayout",
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
