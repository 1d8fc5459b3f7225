// The entry: addresses, keys, the theme and messages.

import { html, render, useEffect, useState } from "./vendor/htm-preact-3.1.1.js";
import { Experiment, TABS, tabsOf } from "./experiment.js";
import { Compare, Home } from "./home.js";
import { moment } from "./format.js";
import { Dialog, Messages, Page, useServer } from "./parts.js";
import { arrive, enter, get, live, server } from "./session.js";
import { feedOf } from "./store.js";

// "#/x/NAME/curves?metric=loss" -> the parts of the path, and the query with repeated names as lists.
function parsed() {
  const [path, search = ""] = location.hash.replace(/^#/, "").split("?");
  const query = {};
  for (const [name, value] of new URLSearchParams(search)) query[name] = name in query ? [query[name], value].flat() : value;
  const parts = path.split("/").filter(Boolean).map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { path: path || "/", parts, query };
}

const KEYS = [
  ["/", "go to the filter of trials or experiments"],
  ["1 … 9, 0", "switch between views"],
  ["j, k", "go down and up the list of trials"],
  ["h", "all experiments"],
  ["t", "light or dark"],
  ["arrows, Enter, +, −", "explore a chart that has the focus"],
  ["?", "this list"],
  ["Esc", "close a dialog, leave a field"],
];

function Locked({ again }) {
  const [code, setCode] = useState("");
  const [problem, setProblem] = useState(server.reason);
  const submit = (event) => {
    event.preventDefault();
    enter(code).catch((error) => setProblem(error.message));
  };
  return html`<main class="locked"><h1>Hopfleet</h1>
    <p>${again ? "The server was started again, so this page needs a new code, once." : "This page needs a code."}
      <code>hopfleet ui</code> prints an address that has one. It works once; press Enter where the server runs for another.</p>
    <form onSubmit=${submit}>
      <label>Code, address or token <input type="password" autocomplete="off" autofocus value=${code} onInput=${(event) => setCode(event.target.value)} /></label>
      ${problem && html`<p class="bad" role="alert">${problem}</p>`}
      <button type="submit" class="main" disabled=${!code.trim()}>Open</button>
    </form></main>`;
}

function App() {
  const [place, setPlace] = useState(parsed());
  const [about, setAbout] = useState(null);
  const [problem, setProblem] = useState("");
  const [messages, setMessages] = useState([]);
  const [help, setHelp] = useState(false);

  const state = useServer();

  useEffect(() => {
    const moved = () => {
      if (/[?&]code=/.test(location.hash)) arrive();
      setPlace(parsed());
    };
    window.addEventListener("hashchange", moved);
    moved(); // the address may have changed since the first paint
    return () => window.removeEventListener("hashchange", moved);
  }, []);
  useEffect(() => {
    if (state !== "online") return;
    const { parts } = parsed();
    const close = parts[0] === "x" && parts[1] ? feedOf(parts[1]).open() : () => {}; // both are read at the same time
    get("api/about").then(([, found]) => {
      setAbout(found);
      setProblem("");
      if (parent !== window) parent.postMessage({ hopfleet: "ready" }, "*"); // a notebook shows its frame now
    }, (error) => error.status >= 400 && error.status !== 401 && setProblem(error.message)).finally(close);
  }, [state]);

  const go = (address) => (location.hash = address);
  const close = (id) => setMessages((before) => before.filter((message) => message.id !== id));
  const tell = (message) => {
    const id = crypto.randomUUID?.() ?? String(Math.random());
    setMessages((before) => [...before.slice(-3), { ...message, id }]);
    setTimeout(() => close(id), message.kind === "bad" ? 20000 : 10000);
  };
  const setQuery = (changes, quietly = false) => {
    const { path, query } = parsed();
    const next = new URLSearchParams();
    for (const [name, value] of Object.entries({ ...query, ...changes })) for (const each of [value].flat()) if (each) next.append(name, each);
    const text = next.toString();
    const address = `#${path}${text ? `?${text}` : ""}`;
    if (quietly) history.replaceState(null, "", address);
    else history.pushState(null, "", address);
    setPlace(parsed());
  };
  const flip = () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try {
      localStorage.setItem("hopfleet-theme", root.dataset.theme);
    } catch {
      // A browser may keep the storage from a page in a frame; the theme is then that of this view alone.
    }
    window.dispatchEvent(new Event("hopfleet-theme"));
  };

  const [first, name, second, third] = place.parts;
  useEffect(() => {
    document.title = first === "x" ? `${second === "t" ? `${third} · ` : ""}${name} · Hopfleet` : first === "compare" ? "Compare · Hopfleet" : "Hopfleet";
  }, [first, name, second, third]);

  useEffect(() => {
    const pressed = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const field = event.target.closest?.("input, select, textarea");
      if (event.key === "Escape" && field) field.blur();
      if (field || document.querySelector("dialog[open]")) return;
      if (event.key === "?") setHelp(true);
      else if (event.key === "t") flip();
      else if (event.key === "h") go("#/");
      else if (event.key === "/") {
        const filter = document.getElementById("filter");
        if (!filter) return;
        event.preventDefault();
        filter.focus();
      } else if (/^\d$/.test(event.key) && first === "x") {
        const feed = feedOf(name);
        const tab = feed.ready && tabsOf(feed)[(Number(event.key) + 9) % 10];
        if (tab) go(`#/x/${encodeURIComponent(name)}${tab === "overview" ? "" : `/${tab}`}`);
      } else if (event.key === "j" || event.key === "k") {
        const links = [...document.querySelectorAll(".board tbody a, .list tbody a")];
        const now = links.indexOf(document.activeElement);
        const next = links[Math.max(0, Math.min(links.length - 1, now + (event.key === "j" ? 1 : -1)))];
        next?.focus();
        next?.scrollIntoView({ block: "nearest" });
      }
    };
    window.addEventListener("keydown", pressed);
    return () => window.removeEventListener("keydown", pressed);
  }, [first, name]);

  if (problem) return html`<main><h1>Hopfleet</h1><p class="bad" role="alert">${problem}</p></main>`;
  if (state === "locked") return html`<${Locked} again=${about !== null} />`;
  if (!about) return html`<p class="muted empty">${state === "silent" ? "The server does not answer." : "connecting…"}</p>`;
  const page =
    first === "x" && name
      ? html`<${Experiment} key=${name} name=${name} tab=${TABS.includes(second) ? second : "overview"} trial=${second === "t" ? third : null} query=${place.query} setQuery=${setQuery} />`
      : first === "compare"
        ? html`<${Compare} query=${place.query} setQuery=${setQuery} />`
        : html`<${Home} query=${place.query} setQuery=${setQuery} />`;
  return html`<${Page.Provider} value=${{ about, readOnly: about.read_only, tell, go }}>
    <a class="skip" href="#content" onClick=${(event) => (event.preventDefault(), document.getElementById("content").focus())}>Skip to the content</a>
    <div class="top" role="banner"><a class="brand" href="#/"><img src="static/icon.svg" alt="" width="22" height="22" /> Hopfleet</a>
      <span class="muted">${about.version}${about.read_only ? " · read-only" : ""}</span>
      <span class="grow"></span>
      <button type="button" class="quiet" onClick=${() => setHelp(true)} aria-label="Keys">?</button>
      <button type="button" class="quiet" onClick=${flip} aria-label="Light or dark">◐</button></div>
    ${state === "silent" && html`<p class="banner" role="alert">The server does not answer. The page shows what was known at ${moment(server.since / 1000).slice(11)}, and its buttons rest until the server is back.</p>`}
    <div id="content" tabindex="-1">${page}</div>
    <${Messages} messages=${messages} onClose=${close} />
    ${help && html`<${Dialog} title="Keys" onClose=${() => setHelp(false)}><table class="pairs"><tbody>${KEYS.map(([key, text]) => html`<tr><th scope="row"><kbd>${key}</kbd></th><td>${text}</td></tr>`)}</tbody></table>
      <div class="actions"><button type="button" onClick=${() => setHelp(false)}>Close</button></div></${Dialog}>`}
  </${Page.Provider}>`;
}

live();
render(html`<${App} />`, document.getElementById("app"));
