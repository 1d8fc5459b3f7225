// The table of trials: sortable, filterable, a hundred rows at a time.

import { html, useState } from "./vendor/htm-preact-3.1.1.js";
import { csv, number, save, short } from "./format.js";
import { LEADERS, style } from "./pen.js";
import { varyingKeys } from "./plots.js";
import { Tags } from "./notes.js";
import { State } from "./parts.js";
import { BulkButtons } from "./steering.js";
import { Views, chosenColumns } from "./views.js";

const ROWS = 100;

export function columnsOf(feed) {
  const { metric, objectives, metrics, limits } = feed.header;
  const trials = [...feed.trials.values()];
  const first = objectives.map(([name]) => name);
  const others = metrics.filter((name) => !first.includes(name));
  const keys = feed.keys?.version === feed.trials.size ? feed.keys.found : varyingKeys(trials);
  feed.keys = { version: feed.trials.size, found: keys };
  const metricColumn = (name) => ({ name, kind: "metric", main: name === metric, read: (trial) => trial.metrics[name] });
  return [
    { name: "trial", read: (trial) => trial.number, show: (trial) => trial.id },
    { name: "state", read: (trial) => trial.state },
    { name: "epochs", right: true, read: (trial) => trial.trained, show: (trial) => `${trial.trained}/${trial.epochs}` },
    ...first.map(metricColumn),
    ...(limits.length ? [{ name: "feasible", read: (trial) => (trial.feasible ? "yes" : "no") }] : []),
    ...(trials.some((trial) => feed.notes[trial.id]) ? [{ name: "tags", read: (trial) => feed.notes[trial.id]?.tags.join(", ") || undefined }] : []),
    ...(trials.some((trial) => trial.parent) ? [{ name: "from", read: (trial) => trial.source }] : []),
    ...keys.map((key) => ({ name: key, kind: "config", read: (trial) => trial.chosen[key] })),
    ...others.map(metricColumn),
  ];
}

const compare = (a, b) => {
  const [x, y] = [a === undefined || a === null, b === undefined || b === null];
  if (x || y) return x - y;
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), undefined, { numeric: true });
};

// "state=running lr<0.01 relu": comparisons with columns, and words that occur anywhere in the row.
export function filterOf(text, columns, notes = {}) {
  const names = new Map(columns.flatMap((column) => [[column.name.split(".").pop(), column], [column.name, column]]));
  const tests = text.split(/\s+/).filter(Boolean).map((term) => {
    const found = /^(.+?)(<=|>=|!=|=|<|>)(.+)$/.exec(term);
    const column = found && names.get(found[1]);
    if (!column) return (trial) => `${trial.id} ${trial.state} ${trial.source} ${JSON.stringify(trial.chosen)} ${JSON.stringify(notes[trial.id] ?? "")}`.toLowerCase().includes(term.toLowerCase());
    const [, , sign, wanted] = found;
    if (column.name === "tags") return (trial) => (notes[trial.id]?.tags ?? []).includes(wanted) !== (sign === "!=");
    return (trial) => {
      const value = column.name === "trial" ? trial.id : column.read(trial);
      const both = typeof value === "number" && wanted.trim() !== "" && Number.isFinite(Number(wanted));
      const order = both ? value - Number(wanted) : compare(value ?? "", wanted);
      const equal = both ? value === Number(wanted) : String(value) === wanted;
      if (value === undefined || value === null) return sign === "!=";
      return { "<": order < 0, ">": order > 0, "<=": order <= 0, ">=": order >= 0, "=": equal, "!=": !equal }[sign];
    };
  });
  return (trial) => tests.every((test) => test(trial));
}

// The line of a trial, as charts draw it.
const Swatch = ({ number: count }) => html`<svg class="swatch" viewBox="0 0 22 6" aria-hidden="true"><line x1="0" y1="3" x2="22" y2="3" class=${`s${style(count).color}`} stroke-dasharray=${style(count).dash.join(" ")} /></svg>`;

export function Leaderboard({ feed, query, setQuery, href, pinned, onPin, ids }) {
  const [more, setMore] = useState(ROWS);
  const all = columnsOf(feed);
  const columns = chosenColumns(all, query);
  const leaders = feed.leaders();
  const ranks = new Map(leaders.map((trial, place) => [trial.id, place]));
  const keep = filterOf(query.q ?? "", all, feed.notes);
  let trials = leaders.filter(keep);
  if (ids) trials = trials.filter((trial) => ids.has(trial.id));
  const sorted = all.find((column) => column.name === query.sort);
  if (sorted) {
    const way = query.dir === "down" ? -1 : 1;
    trials = [...trials].sort((a, b) => {
      const [x, y] = [sorted.read(a), sorted.read(b)];
      return (x === undefined || x === null) - (y === undefined || y === null) || way * compare(x, y);
    });
  }
  const sort = (name) => {
    if (query.sort !== name) setQuery({ sort: name, dir: "" });
    else if (query.dir !== "down") setQuery({ dir: "down" });
    else setQuery({ sort: "", dir: "" });
  };
  const download = () =>
    save(`${feed.key}-trials.csv`, csv([["rank", ...columns.map((column) => column.name)], ...trials.map((trial) => [ranks.get(trial.id) + 1, ...columns.map((column) => (column.name === "trial" ? trial.id : column.read(trial)))])]), "text/csv");
  const cell = (column, trial) => {
    if (column.name === "trial") return html`<td><a href=${href(trial.id)}>${trial.id}</a>${trial.level > 0 && html` <span class="tag" title="trains first">↑</span>`}</td>`;
    if (column.name === "state") return html`<td title=${trial.reason}><${State} state=${trial.state} /></td>`;
    if (column.name === "tags") return html`<td title=${feed.notes[trial.id]?.note}><${Tags} tags=${feed.notes[trial.id]?.tags} /></td>`;
    const value = column.read(trial);
    const text = column.show ? column.show(trial) : typeof value === "number" ? number(value) : value === undefined || value === "" ? "–" : short(value);
    return html`<td class=${`${typeof value === "number" || column.right || column.kind ? "right" : ""} ${column.main ? "strong" : ""}`} title=${typeof value === "string" && value.length > 24 ? value : undefined}>${text}</td>`;
  };
  const pareto = new Set(feed.header.pareto);
  return html`<section aria-label="Trials">
    <div class="tools">
      <div class="choices">
        <input id="filter" type="search" class="filter" placeholder="filter: state=running lr<0.01" aria-label="Filter trials" value=${query.q ?? ""} onInput=${(event) => setQuery({ q: event.target.value }, true)} />
        <span class="muted">${trials.length === leaders.length ? `${leaders.length} trials` : `${trials.length} of ${leaders.length} trials`}</span>
      </div>
      <div class="downloads"><${Views} columns=${all} query=${query} setQuery=${setQuery} /><button type="button" class="small" onClick=${download}>CSV</button></div>
    </div>
    ${onPin && pinned.size > 0 && html`<${BulkButtons} feed=${feed} trials=${leaders.filter((trial) => pinned.has(trial.id))} onDone=${() => onPin(null)} />`}
    <div class="scroll" tabindex="0" role="region" aria-label="Table of trials">
      <table class="board">
        <thead><tr>
          <th scope="col" class="right">#</th>
          ${onPin && html`<th scope="col"><input type="checkbox" aria-label="Pin all" title="Pin all" checked=${trials.length > 0 && trials.every((trial) => pinned.has(trial.id))} onChange=${(event) => onPin(event.target.checked ? trials.map((trial) => trial.id) : null)} /></th>`}
          ${columns.map(
            (column) => html`<th scope="col" class=${column.kind || column.right ? "right" : ""} aria-sort=${query.sort === column.name ? (query.dir === "down" ? "descending" : "ascending") : "none"}>
              <button type="button" class="head" title=${column.name} onClick=${() => sort(column.name)}>${short(column.name, 22)}${query.sort === column.name ? (query.dir === "down" ? " ▾" : " ▴") : ""}</button></th>`,
          )}
        </tr></thead>
        <tbody>
          ${trials.slice(0, more).map((trial) => {
            const rank = ranks.get(trial.id);
            return html`<tr key=${trial.id} class=${trial.id === feed.header.best ? "best" : ""} data-trial=${trial.id}>
              <td class="right muted">${((rank < LEADERS && trial.value !== null) || pinned?.has(trial.id)) && html`<${Swatch} number=${trial.number} />`}${rank + 1}${pareto.has(trial.id) ? " *" : ""}</td>
              ${onPin && html`<td><input type="checkbox" aria-label=${`Pin ${trial.id}`} checked=${pinned.has(trial.id)} onChange=${() => onPin(trial.id)} /></td>`}
              ${columns.map((column) => cell(column, trial))}
            </tr>`;
          })}
        </tbody>
      </table>
      ${!trials.length && html`<p class="muted empty">${leaders.length ? "No trial matches the filter." : "No trial has started yet."}</p>`}
    </div>
    ${trials.length > more && html`<button type="button" onClick=${() => setMore(more + 5 * ROWS)}>Show ${Math.min(trials.length - more, 5 * ROWS)} more</button>`}
  </section>`;
}
