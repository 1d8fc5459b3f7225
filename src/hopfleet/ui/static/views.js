// What a table of trials shows: its columns in their order, and views that are kept under a name.
//
// A view is the query of an address, so it can be sent, too. Names are kept in the storage of this browser.

import { html, useState } from "./vendor/htm-preact-3.1.1.js";
import { short } from "./format.js";
import { Dialog } from "./parts.js";

const PLACE = "hopfleet-views";
const KEPT = ["q", "sort", "dir", "cols", "metric", "x", "log", "smooth"]; // what a view consists of

// "cols=trial|lr|accuracy": the columns to show, in that order; those of another experiment are left out.
export function chosenColumns(columns, query) {
  const names = (query.cols ?? "").split("|").filter(Boolean);
  const found = names.map((name) => columns.find((column) => column.name === name)).filter(Boolean);
  return found.length ? found : columns;
}

function kept(change) {
  try {
    const views = JSON.parse(localStorage.getItem(PLACE) ?? "{}");
    if (change) localStorage.setItem(PLACE, JSON.stringify(change(views)));
    return change ? change(views) : views;
  } catch {
    return {}; // A browser may keep the storage from a page in a frame.
  }
}

export function Views({ columns, query, setQuery }) {
  const [open, setOpen] = useState("");
  const [views, setViews] = useState(() => kept());
  const now = Object.fromEntries(KEPT.map((name) => [name, query[name] ?? ""]));
  const same = Object.entries(views).find(([, view]) => KEPT.every((name) => (view[name] ?? "") === now[name]))?.[0] ?? "";
  const changed = KEPT.some((name) => now[name]);
  const show = (name) => setQuery(Object.fromEntries(KEPT.map((each) => [each, views[name]?.[each] ?? ""])));
  return html`<button type="button" class="small" onClick=${() => setOpen("columns")}>Columns…</button>
    ${(Object.keys(views).length > 0 || changed) &&
    html`<label>view <select value=${same} onChange=${(event) => show(event.target.value)}>
      <option value="">${changed && !same ? "not saved" : "all columns"}</option>
      ${Object.keys(views).map((name) => html`<option value=${name}>${short(name, 30)}</option>`)}</select></label>`}
    ${changed && !same && html`<button type="button" class="small" onClick=${() => setOpen("save")}>Save view…</button>`}
    ${same && html`<button type="button" class="small" onClick=${() => setViews(kept(({ [same]: _, ...rest }) => rest))}>Forget view</button>`}
    ${open === "columns" && html`<${Columns} columns=${columns} query=${query} setQuery=${setQuery} onClose=${() => setOpen("")} />`}
    ${open === "save" && html`<${Save} onClose=${() => setOpen("")} onSave=${(name) => (setViews(kept((before) => ({ ...before, [name]: now }))), setOpen(""))} />`}`;
}

function Save({ onSave, onClose }) {
  const [name, setName] = useState("");
  return html`<${Dialog} title="Save this view" onClose=${onClose}>
    <form onSubmit=${(event) => (event.preventDefault(), name.trim() && onSave(name.trim()))}>
      <p class="muted">The filter, the order and the columns, and the axes of the curves. This browser keeps them.</p>
      <label>Name <input maxlength="60" value=${name} onInput=${(event) => setName(event.target.value)} /></label>
      <div class="actions"><button type="button" onClick=${onClose}>Cancel</button><button type="submit" class="main" disabled=${!name.trim()}>Save</button></div>
    </form>
  </${Dialog}>`;
}

function Columns({ columns, query, setQuery, onClose }) {
  const shown = chosenColumns(columns, query);
  const order = [...shown, ...columns.filter((column) => !shown.includes(column))];
  const put = (next) => setQuery({ cols: next.length === columns.length && next.every((column, place) => column === columns[place]) ? "" : next.map((column) => column.name).join("|") }, true);
  const flip = (column) => put(shown.includes(column) ? shown.filter((each) => each !== column) : [...shown, column]);
  const move = (column, way) => {
    const next = [...shown];
    const place = next.indexOf(column);
    [next[place], next[place + way]] = [next[place + way], next[place]];
    put(next);
  };
  return html`<${Dialog} title="Columns" onClose=${onClose}>
    <ul class="columns">${order.map((column) => {
      const place = shown.indexOf(column);
      return html`<li key=${column.name}><label><input type="checkbox" checked=${place >= 0} disabled=${shown.length === 1 && place === 0} onChange=${() => flip(column)} /> ${short(column.name, 40)}</label>
        <button type="button" class="small" aria-label=${`Move ${column.name} to the left`} disabled=${place < 1} onClick=${() => move(column, -1)}>↑</button>
        <button type="button" class="small" aria-label=${`Move ${column.name} to the right`} disabled=${place < 0 || place === shown.length - 1} onClick=${() => move(column, 1)}>↓</button></li>`;
    })}</ul>
    <div class="actions"><button type="button" onClick=${() => put(columns)}>Show all</button><button type="button" class="main" onClick=${onClose}>Close</button></div>
  </${Dialog}>`;
}
