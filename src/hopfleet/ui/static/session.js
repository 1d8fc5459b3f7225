// Requests to the server: the session that they belong to, and whether the server answers.
//
// The code in an address works once. It is exchanged for a cookie that scripts cannot read, and a key that stays in the
// storage of this origin. A page in a frame has no cookie, and keeps its whole session in the storage of its tab.

const framed = location.pathname === "/frame";
const HEADER = framed ? "x-hopfleet-frame" : "x-hopfleet-page";
const PULSE = 1500; // milliseconds between two signs of life
const SILENCE = 2500; // milliseconds after which a server without one does not answer
const ANSWER = 15000; // milliseconds to wait for the answer of an experiment

export class Failure extends Error {
  constructor(text, status) {
    super(text);
    this.status = status;
  }
}

let key = "";
let place = "hopfleet-key";

function stored(value) {
  try {
    const storage = framed ? sessionStorage : localStorage;
    if (value) storage.setItem(place, value);
    return storage.getItem(place) ?? value ?? "";
  } catch {
    return value ?? ""; // A browser may keep the storage from a page in a frame.
  }
}

// The code of the address, which is taken out of it.
function taken() {
  const [path, search = ""] = location.hash.split("?");
  const query = new URLSearchParams(search);
  const code = query.get("code");
  if (!code) return "";
  query.delete("code");
  history.replaceState(null, "", `${location.pathname}${path}${query.size ? `?${query}` : ""}`);
  return code;
}

export async function enter(code) {
  const response = await fetch("api/session", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ code: /code=([\w-]+)/.exec(code)?.[1] ?? code.trim(), frame: framed }),
    signal: AbortSignal.timeout(ANSWER),
  });
  key = stored((await (await answered(response)).json()).key);
  await beat();
}

// Use the code of the address, if it has one; if it does not work, there may be a session from before.
export async function arrive() {
  const code = taken();
  if (framed && code) place = `hopfleet-${code}`;
  key = stored();
  if (framed && key) return;
  if (code) await enter(code).catch((error) => (server.reason = error.message));
}

async function answered(response) {
  if (response.ok) return response;
  let text = response.status >= 500 ? "the server failed to answer" : "the server refused to answer";
  try {
    text = (await response.json()).error ?? text;
  } catch {
    // not JSON: the status says enough
  }
  if (response.status === 401) become("locked");
  throw new Failure(text, response.status);
}

export async function call(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: { ...options.headers, [HEADER]: key } });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Failure("the server does not answer", 0);
  }
  return answered(response);
}

export async function get(path) {
  const response = await call(path);
  return [response.status, await response.json()];
}

const unique = () => crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;

// Make a request, once: the server answers a second one with the same id like the first.
export async function ask(experiment, request, args = {}) {
  try {
    const response = await call(`api/experiments/${encodeURIComponent(experiment)}/requests`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ id: unique(), request, arguments: args }),
      signal: AbortSignal.timeout(ANSWER),
    });
    return await response.json();
  } catch (error) {
    if (error instanceof Failure) return { granted: false, text: error.message, later: error.status === 429 };
    return { granted: false, text: "the server has not answered in time; the requests view tells whether it heard of this" };
  }
}

export async function note(experiment, trial, text, tags) {
  const response = await call(`api/experiments/${encodeURIComponent(experiment)}/notes`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ trial, note: text, tags }),
    signal: AbortSignal.timeout(ANSWER),
  });
  return response.json();
}

// A stream of events, until it is closed. `onEnd(failure)` is called if it ends by itself.
export function stream(path, onEvent, onEnd) {
  const stop = new AbortController();
  const read = async () => {
    const response = await call(path, { signal: stop.signal });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
        const fields = Object.fromEntries(text.slice(0, end).split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
        text = text.slice(end + 2);
        if (fields.event) onEvent(fields.event, JSON.parse(fields.data));
      }
    }
  };
  read().then(
    () => stop.signal.aborted || onEnd(null),
    (error) => stop.signal.aborted || onEnd(error),
  );
  return () => stop.abort();
}

// ------------------------------------------------------------------------------------------------- signs of life

// The state of the server: connecting, online, silent, or locked, if this page has no session.
export const server = { state: "connecting", id: "", reason: "", since: 0, listeners: new Set() };

function become(state) {
  if (state === "online") server.reason = "";
  if (server.state === state) return;
  server.state = state;
  server.since = Date.now();
  for (const listener of server.listeners) listener();
}

async function beat() {
  try {
    const response = await fetch("api/pulse", { headers: { [HEADER]: key }, signal: AbortSignal.timeout(SILENCE) });
    if (response.ok) {
      server.id = (await response.json()).server;
      become("online");
    } else become(response.status === 401 ? "locked" : "silent");
  } catch {
    become("silent");
  }
}

export async function live() {
  await arrive();
  for (;;) {
    if (!document.hidden || server.state === "connecting") await beat();
    await new Promise((resolve) => setTimeout(resolve, PULSE));
  }
}
