// Small parts that all pages share: hooks, badges, facts, dialogs and messages.

import { createContext, html, useContext, useEffect, useReducer, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { server } from "./session.js";
import { feedOf } from "./store.js";

// What every page can use: the address, messages, whether the server is read-only.
export const Page = createContext(null);
export const usePage = () => useContext(Page);

export function useFeed(key) {
  const [, again] = useReducer((count) => count + 1, 0);
  const feed = feedOf(key);
  useEffect(() => {
    const unsubscribe = feed.subscribe(again);
    const close = feed.open();
    again();
    return () => {
      unsubscribe();
      close();
    };
  }, [feed]);
  return feed;
}

// The state of the server: "online", "silent", "locked" or "connecting".
export function useServer() {
  const [state, setState] = useState(server.state);
  useEffect(() => {
    const changed = () => setState(server.state);
    server.listeners.add(changed);
    changed();
    return () => server.listeners.delete(changed);
  }, []);
  return state;
}

export function useTick(milliseconds, on = true) {
  const [ticks, again] = useReducer((count) => count + 1, 0);
  useEffect(() => {
    if (!on) return undefined;
    const timer = setInterval(again, milliseconds);
    return () => clearInterval(timer);
  }, [milliseconds, on]);
  return ticks;
}

// A value that the server computes; again when one of `when` changes.
export function useLoaded(load, when) {
  const [found, setFound] = useState({ value: null, error: "" });
  useEffect(() => {
    let current = true;
    load().then(
      (value) => current && setFound({ value, error: "" }),
      (error) => current && setFound((before) => ({ value: before.value, error: error.message })),
    );
    return () => (current = false);
  }, when);
  return found;
}

const SIGNS = { running: "●", completed: "✓", finished: "✓", stopped: "■", paused: "‖", failed: "✗", pending: "○", interrupted: "!", damaged: "✗", reading: "…" };

export const State = ({ state }) => html`<span class=${`state ${state}`}><span aria-hidden="true">${SIGNS[state] ?? "•"}</span> ${state}</span>`;

export const Facts = ({ facts }) =>
  html`<dl class="facts">${facts.filter(Boolean).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;

export function Bar({ fraction, label }) {
  const width = Math.round(Math.max(0, Math.min(1, fraction)) * 1000) / 10;
  return html`<div class="bar" role="progressbar" aria-label=${label} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.round(width)}><div style=${{ width: `${width}%` }}></div></div>`;
}

export function Dialog({ title, onClose, children }) {
  const element = useRef(null);
  useEffect(() => {
    const dialog = element.current;
    dialog.showModal();
    return () => dialog.close();
  }, []);
  return html`<dialog ref=${element} aria-label=${title} onCancel=${(event) => (event.preventDefault(), onClose())} onClick=${(event) => event.target === element.current && onClose()}>
    <div class="inside"><h2>${title}</h2>${children}</div>
  </dialog>`;
}

export function Messages({ messages, onClose }) {
  return html`<div class="messages" role="status" aria-live="polite">
    ${messages.map(
      (message) => html`<div key=${message.id} class=${`message ${message.kind}`}>
        <span>${message.text}</span>
        ${message.undo && html`<button type="button" class="small" onClick=${(event) => event.detail < 2 && (onClose(message.id), message.undo())}>Undo</button>`}
        <button type="button" class="small quiet" aria-label="Close this message" onClick=${(event) => event.detail < 2 && onClose(message.id)}>✕</button>
      </div>`,
    )}
  </div>`;
}

export function Spark({ values }) {
  const finite = values.filter(Number.isFinite);
  if (finite.length < 2) return null;
  const [low, high] = [Math.min(...finite), Math.max(...finite)];
  const points = finite.map((value, place) => `${((place / (finite.length - 1)) * 96 + 2).toFixed(1)},${(22 - ((value - low) / (high - low || 1)) * 20).toFixed(1)}`);
  return html`<svg class="spark" viewBox="0 0 100 24" role="img" aria-label="The best trial's curve"><polyline points=${points.join(" ")} /></svg>`;
}
