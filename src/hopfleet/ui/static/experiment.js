// One experiment: its header, its tabs, and one trial in full.

import { html, useState } from "./vendor/htm-preact-3.1.1.js";
import { Curves } from "./curves.js";
import { duration, moment, number, percent, short, size } from "./format.js";
import { Leaderboard } from "./leaderboard.js";
import { Notes } from "./notes.js";
import { Bar, Facts, State, useFeed, useLoaded, usePage, useTick } from "./parts.js";
import { Importance, Lineage, Pareto, Parallel, Rungs } from "./plots.js";
import { Schedule } from "./schedule.js";
import { History, Slices } from "./slices.js";
import { ExperimentButtons, TrialButtons } from "./steering.js";
import { Files } from "./files.js";
import { Loads } from "./load.js";
import { StepCurve } from "./steps.js";
import { get } from "./session.js";

export const TABS = ["overview", "curves", "schedule", "parallel", "history", "slices", "importance", "rungs", "lineage", "pareto", "workers", "requests", "data"];

const HEALTH = 2000; // milliseconds between two looks at the health of workers

const at = (key, ...rest) => `#/${["x", encodeURIComponent(key), ...rest.map(encodeURIComponent)].join("/")}`;

// The views that apply to an experiment.
export function tabsOf({ header, trials }) {
  const clones = [...trials.values()].some((trial) => trial.parent);
  const hidden = new Set([...(header.promoted ? [] : ["rungs"]), ...(clones ? [] : ["lineage"]), ...(header.objectives.length > 1 ? [] : ["pareto"])]);
  return TABS.filter((tab) => !hidden.has(tab));
}

export function Experiment({ name, tab, trial, query, setQuery }) {
  const feed = useFeed(name);
  const { go } = usePage();
  const [pinned, setPinned] = useState(new Set());
  if (feed.problem && !feed.ready) return html`<main><h1>${name}</h1><p class="bad" role="alert">${feed.problem}</p><p><a href="#/">All experiments</a></p></main>`;
  if (!feed.ready) return html`<main><h1>${name}</h1><p class="muted empty">reading the journal…</p></main>`;
  const pin = (id) => {
    const next = new Set(id === null ? [] : Array.isArray(id) ? id : pinned);
    if (typeof id === "string") next.has(id) ? next.delete(id) : next.add(id);
    setPinned(next);
  };
  const open = (id) => go(at(name, "t", id));
  const metric = feed.header.metrics.includes(query.metric) ? query.metric : feed.header.metric;
  const common = { feed, query, setQuery, onOpen: open };
  const pages = {
    overview: () => html`<div class="card"><${Curves} ...${common} metric=${metric} height=${300} pinned=${pinned} onPin=${pin} /></div>
      <div class="card"><${Leaderboard} feed=${feed} query=${query} setQuery=${setQuery} href=${(id) => at(name, "t", id)} pinned=${pinned} onPin=${pin} /></div>`,
    curves: () => html`<div class="card"><${Curves} ...${common} metric=${metric} height=${520} pinned=${pinned} onPin=${pin} /><p class="legend muted">Drag to zoom, double-click to show all, click a curve to pin it.</p></div>`,
    schedule: () => html`<div class="card"><${Schedule} ...${common} /></div>`,
    parallel: () => html`<div class="card"><${Parallel} ...${common} onFilter=${(trials) => (setPinned(new Set(trials.map((each) => each.id))), go(at(name)))} /></div>`,
    history: () => html`<div class="card"><${History} ...${common} /></div>`,
    slices: () => html`<div class="card"><${Slices} ...${common} /></div>`,
    importance: () => html`<div class="card"><${Importance} ...${common} /></div>`,
    rungs: () => html`<div class="card"><${Rungs} ...${common} /></div>`,
    lineage: () => html`<div class="card"><${Lineage} ...${common} /></div>`,
    pareto: () => html`<div class="card"><${Pareto} ...${common} /></div>`,
    workers: () => html`<${Workers} feed=${feed} />`,
    requests: () => html`<${Requests} feed=${feed} />`,
    data: () => html`<${Data} feed=${feed} />`,
  };
  return html`<main>
    <${Header} feed=${feed} />
    ${!trial && html`<${Notes} feed=${feed} />`}
    ${feed.problem && html`<p class="bad" role="alert">${feed.problem}</p>`}
    ${trial
      ? html`<${Trial} feed=${feed} id=${trial} query=${query} setQuery=${setQuery} />`
      : html`<nav class="tabs" aria-label="Views">${[...new Set([...tabsOf(feed), tab])].map((each) => html`<a href=${at(name, ...(each === "overview" ? [] : [each]))} aria-current=${each === tab ? "page" : undefined}>${each}</a>`)}</nav>
          ${(pages[tab] ?? pages.overview)()}`}
  </main>`;
}

function Header({ feed }) {
  const { header } = feed;
  const running = header.state === "running";
  const best = feed.trials.get(header.best);
  return html`<header class="experiment">
    <div class="title">
      <h1><a href=${at(feed.key)}>${header.name}</a></h1>
      <${State} state=${header.held ? "paused" : header.state} />
      ${feed.reading && html`<span class="muted" role="status">${number(feed.number)} messages of the journal so far</span>`}
      ${header.defined !== header.name && html`<span class="muted">made as ${short(header.defined, 40)}</span>`}
      <${ExperimentButtons} feed=${feed} />
    </div>
    <${Bar} fraction=${header.fraction} label="Progress of the experiment" />
    <${Facts} facts=${[
      ["units", header.units.replace(" units", "")],
      ["progress", percent(header.fraction)],
      running && header.remaining ? ["remaining", header.remaining.replace(/^eta /, "")] : null,
      ["time", html`<${Clock} header=${header} running=${running && !header.held} />`],
      ["utilisation", percent(header.utilisation)],
      ["hops", number(header.hops)],
      ["trials", Object.entries(header.counts).map(([state, count]) => `${count} ${state}`).join(", ") || "none yet"],
      ["best", best ? html`<a href=${at(feed.key, "t", best.id)}>${best.id}</a> ${short(header.metric, 24)} = <strong>${number(header.value)}</strong>` : "none yet"],
      header.runs > 1 ? ["runs", String(header.runs)] : null,
    ]} />
    ${header.waits && html`<p class="bad" role="status">waiting: ${header.waits}</p>`}
  </header>`;
}

function Clock({ header, running }) {
  const [seen] = useState({ header: null, at: 0 });
  if (seen.header !== header) {
    seen.header = header;
    seen.at = Date.now();
  }
  useTick(1000, running);
  return duration(Math.round(header.elapsed + (running ? (Date.now() - seen.at) / 1000 : 0)));
}

function Workers({ feed }) {
  const { value: notices } = useLoaded(() => get(`${feed.base}/notices`).then(([, found]) => found), [feed, Math.floor(feed.version / 4)]);
  const running = feed.header.state === "running";
  const tick = useTick(HEALTH, running);
  const { value } = useLoaded(() => get(`${feed.base}/workers`).then(([, found]) => found), [feed, tick, running]);
  const { value: loads } = useLoaded(() => get(`${feed.base}/load`).then(([, found]) => found), [feed, Math.floor(tick / 2), running]);
  const health = value ?? {};
  const workers = [...feed.workers].sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }));
  const any = (name) => workers.some((worker) => health[worker.name]?.[name]);
  const bytes = (worker, name) => any(name) && html`<td class="right">${health[worker.name]?.[name] ? size(health[worker.name][name]) : "–"}</td>`;
  const heard = (worker) => {
    const last = Math.max(worker.heard, health[worker.name]?.heard ?? 0);
    return running && worker.lost === null ? `${duration(Math.max(0, Math.round(Date.now() / 1000 - last)))} ago` : moment(last);
  };
  return html`<div class="card scroll" tabindex="0" role="region" aria-label="Workers"><table>
      <thead><tr><th scope="col">worker</th><th scope="col">device</th><th scope="col">now</th><th scope="col">next</th><th scope="col" class="right">units</th><th scope="col" class="right">busy</th>
        ${any("memory") && html`<th scope="col" class="right">memory</th>`}${any("device_memory") && html`<th scope="col" class="right">on its device</th>`}${any("host") && html`<th scope="col">machine</th>`}
        <th scope="col" class="right">faults</th><th scope="col">joined</th><th scope="col">last heard</th></tr></thead>
      <tbody>${workers.map(
        (worker) => html`<tr key=${worker.name} class=${worker.lost === null ? "" : "muted"}>
          <th scope="row">${worker.name}</th><td>${worker.device}</td>
          <td>${worker.lost !== null ? `gone since ${moment(worker.lost)}` : worker.trial ? html`<a href=${at(feed.key, "t", worker.trial)}>${worker.doing}</a>` : "idle"}</td>
          <td>${worker.next ?? ""}</td><td class="right">${worker.units}</td><td class="right">${percent(worker.busy)}</td>
          ${bytes(worker, "memory")}${bytes(worker, "device_memory")}${any("host") && html`<td>${health[worker.name]?.host ?? ""}</td>`}
          <td class=${`right ${worker.faults ? "bad" : ""}`}>${worker.faults}</td><td>${moment(worker.joined)}</td><td>${heard(worker)}</td></tr>`,
      )}</tbody></table>
      ${!workers.length && html`<p class="muted empty">No worker has joined yet.</p>`}</div>
    <${Loads} feed=${feed} loads=${loads} workers=${workers} />
    <div class="card"><h2>Faults and warnings</h2>${notices?.length ? html`<${Notices} feed=${feed} notices=${[...notices].reverse()} />` : html`<p class="muted">None.</p>`}</div>`;
}

const Notices = ({ feed, notices }) => html`<div class="scroll" tabindex="0" role="region" aria-label="Checkpoints"><table><thead><tr><th scope="col">time</th><th scope="col">worker</th><th scope="col">trial</th><th scope="col">what</th></tr></thead>
  <tbody>${notices.slice(0, 200).map((notice) => html`<tr><td class="muted">${moment(notice.time)}</td><td>${notice.worker}</td><td>${feed.trials.has(notice.trial) ? html`<a href=${at(feed.key, "t", notice.trial)}>${notice.trial}</a>` : notice.trial}</td><td class="wrap">${notice.text}</td></tr>`)}</tbody></table></div>`;

function Requests({ feed }) {
  const { value, error } = useLoaded(() => get(`${feed.base}/requests`).then(([, found]) => found), [feed, feed.asked]);
  if (!value) return html`<p class="muted empty">${error || "reading…"}</p>`;
  if (!value.length) return html`<p class="muted empty">Nothing was requested yet.</p>`;
  return html`<div class="card scroll" tabindex="0" role="region" aria-label="Requests"><table>
    <thead><tr><th scope="col" class="right">#</th><th scope="col">time</th><th scope="col">who</th><th scope="col">request</th><th scope="col">arguments</th><th scope="col">answer</th></tr></thead>
    <tbody>${value.map(
      (each) => html`<tr key=${each.number}><td class="right muted">${each.number}</td><td class="muted">${moment(each.time)}</td><td>${each.who}</td><td>${each.request}</td>
        <td class="wrap">${Object.entries(each.arguments).map(([key, given]) => `${key}=${short(given, 80)}`).join(" ")}</td>
        <td class=${`wrap ${each.granted === false ? "bad" : ""}`}>${each.granted === null ? "waits for a run" : each.granted ? each.text : `refused: ${each.text}`}</td></tr>`,
    )}</tbody></table></div>`;
}

function Data({ feed }) {
  const { value, error } = useLoaded(() => get(`${feed.base}/data`).then(([, found]) => found), [feed]);
  const { value: files } = useLoaded(() => get(`${feed.base}/files`).then(([, found]) => found), [feed, feed.header.state]);
  if (!value) return html`<p class="muted empty">${error || "reading…"}</p>`;
  const { definition } = feed;
  return html`<div class="sides">
    ${Object.entries(value).map(
      ([name, data]) => html`<section class="card"><h2>${name === "train" ? "Training data" : "Validation data"}</h2>
        <${Facts} facts=${[["rows", number(data.rows)], ["partitions", String(data.partitions)], ["place", data.url], ["fingerprint", html`<code>${short(data.fingerprint, 17)}</code>`]]} />
        ${data.problem && html`<p class="bad">${data.problem}</p>`}
        ${data.partition_rows && html`<table class="pairs"><thead><tr><th scope="col">partition</th><th scope="col" class="right">rows</th></tr></thead><tbody>${data.partition_rows.slice(0, 64).map((rows, place) => html`<tr><th scope="row">${place}</th><td class="right">${number(rows)}</td></tr>`)}</tbody></table>`}
        ${data.columns && html`<table class="pairs"><thead><tr><th scope="col">column</th><th scope="col">type</th><th scope="col">shape</th></tr></thead><tbody>${data.columns.slice(0, 100).map((column) => html`<tr><th scope="row">${column.name}</th><td>${column.type}</td><td>${column.shape.length ? column.shape.map((each) => (each < 0 ? "any" : each)).join(" × ") : "one value"}</td></tr>`)}</tbody></table>`}
      </section>`,
    )}
    <section class="card"><h2>Definition</h2>
      <${Facts} facts=${[["created", definition.created], ["task", `${definition.task.module}.${definition.task.name}`], ["seed", String(definition.seed)], ["batch size", String(definition.batch_size)], ["device", definition.device], ["run folder", feed.folder]]} />
      <h3>Search</h3><pre>${JSON.stringify(definition.search, null, 2)}</pre>
      <h3>Space</h3><pre>${typeof definition.space === "string" ? definition.space : JSON.stringify(definition.space, null, 2)}</pre></section>
  </div>
  <${Files} feed=${feed} files=${files ?? []} />`;
}

function Pairs({ values, before }) {
  return html`<table class="pairs"><tbody>${Object.entries(values).map(([key, value]) => {
    const changed = before && JSON.stringify(before[key]) !== JSON.stringify(value);
    return html`<tr class=${changed ? "changed" : ""}><th scope="row">${key}</th><td class="wrap">${typeof value === "string" ? value : JSON.stringify(value)}${changed && html` <span class="muted">was ${short(before[key], 40)}</span>`}</td></tr>`;
  })}</tbody></table>`;
}

function Trial({ feed, id, query, setQuery }) {
  const { go } = usePage();
  const row = feed.trials.get(id);
  const stamp = row ? `${row.units}|${row.state}|${row.trained}|${row.level}` : "gone";
  const { value: found, error } = useLoaded(() => get(`${feed.base}/trials/${encodeURIComponent(id)}`).then(([, value]) => value), [feed, id, stamp]);
  const back = html`<p><a href=${at(feed.key)}>← all trials of ${feed.header.name}</a></p>`;
  if (!row || (error && !found)) return html`${back}<p class="bad" role="alert">${error || `${id}: there is no such trial (any more)`}</p>`;
  if (!found) return html`${back}<p class="muted empty">reading…</p>`;
  const rank = feed.leaders().findIndex((trial) => trial.id === id) + 1;
  const parent = feed.trials.get(row.parent);
  const metrics = Object.keys(found.history.metrics);
  const only = new Set([id, ...(row.parent && feed.trials.has(row.parent) ? [row.parent] : [])]);
  const metric = metrics.includes(query.metric) ? query.metric : feed.header.metric;
  return html`${back}
    <div class="title"><h2>${id}</h2><${State} state=${row.state} /><${TrialButtons} feed=${feed} trial=${row} onDeleted=${() => go(at(feed.key))} /></div>
    <${Facts} facts=${[
      ["rank", row.value === null ? "–" : `${rank} of ${feed.trials.size}`],
      [short(feed.header.metric, 30), row.value === null ? "–" : `${number(row.value)} at epoch ${row.best}`],
      ["epochs", `${row.trained} of ${row.epochs}`],
      ["units", String(row.units)],
      ["origin", row.origin],
      row.parent ? ["from", feed.trials.has(row.parent) ? html`<a href=${at(feed.key, "t", row.parent)}>${row.source}</a>` : row.source] : null,
      ["seed", String(found.seed)],
      row.level ? ["priority", String(row.level)] : null,
    ]} />
    <${Notes} feed=${feed} trial=${id} />
    ${found.reason && html`<p class=${row.state === "failed" ? "bad" : "muted"}>${found.reason}</p>`}
    ${found.traceback && html`<details open><summary>Traceback</summary><pre class="log">${found.traceback}</pre></details>`}
    <div class="sides">
      ${row.config && html`<section class="card"><h3>Chosen values</h3><${Pairs} values=${row.chosen} before=${parent?.config && parent.chosen} /></section>`}
      <section class="card"><h3>Configuration</h3><${Pairs} values=${row.config ?? row.chosen} before=${parent && (parent.config ?? parent.chosen)} /></section>
      <section class="card wide"><${Curves} feed=${feed} metric=${metric} query=${query} setQuery=${setQuery} height=${260} only=${only} pinned=${new Set([id])} /></section>
    </div>
    ${Object.keys(found.steps).length > 0 && html`<div class="sides">${Object.entries(found.steps).map(([name, { steps, values }]) => html`<section class="card" key=${name}><h3 class="wrap">${short(name, 60)} by step</h3><${StepCurve} feed=${feed} trial=${row} name=${name} steps=${steps} values=${values} /></section>`)}</div>`}
    <div class="sides">
      <section class="card"><h3>Epochs</h3>${found.history.epoch.length
        ? html`<div class="scroll tall" tabindex="0" role="region" aria-label="Epochs"><table><thead><tr><th scope="col" class="right">epoch</th>${metrics.map((name) => html`<th scope="col" class="right">${name}</th>`)}<th scope="col">ended</th></tr></thead>
            <tbody>${found.history.epoch.map((epoch, place) => html`<tr class=${epoch === row.best ? "best" : ""}><td class="right">${epoch}</td>${metrics.map((name) => html`<td class="right">${number(found.history.metrics[name][place])}</td>`)}<td class="muted">${moment(found.history.time[place])}</td></tr>`)}</tbody></table></div>`
        : html`<p class="muted">No epoch has ended yet.</p>`}</section>
      <section class="card"><h3>Visits</h3><p class="muted">Partitions in the order visited, an epoch per line${found.visits_before ? `, without the first ${found.visits_before} epochs` : ""}.</p>
        <pre class="log short">${found.visits.map((visits, place) => `${String(place + 1 + found.visits_before + row.begins).padStart(4)}: ${visits.join(" ")}`).join("\n") || "none yet"}</pre>
        ${found.replay && html`<p class=${found.replay.equal ? "" : "bad"}>Replayed on ${moment(found.replay.time)}: ${found.replay.text}</p>`}
        <p class="muted">To train it again and compare the bits: <code>hopfleet replay ${feed.key} --trial ${id}</code></p></section>
      <section class="card"><h3>Checkpoints</h3>${found.checkpoints.length
        ? html`<div class="scroll" tabindex="0" role="region" aria-label="Checkpoints"><table><thead><tr><th scope="col" class="right">version</th><th scope="col">file</th><th scope="col" class="right">size</th><th scope="col">SHA-256</th></tr></thead>
            <tbody>${found.checkpoints.map((each) => html`<tr class=${each.best ? "best" : ""}><td class="right">${each.version}</td><td>${each.file}${each.best ? " (best)" : ""}</td><td class="right">${size(each.bytes)}</td><td><code>${short(each.digest, 13)}</code></td></tr>`)}</tbody></table></div>`
        : html`<p class="muted">None is saved.</p>`}</section>
    </div>
    <${Files} feed=${feed} files=${found.files} />
    ${found.notices.length > 0 && html`<section class="card"><h3>Faults and warnings</h3><${Notices} feed=${feed} notices=${[...found.notices].reverse()} /></section>`}
    <section class="card"><h3>Log</h3>${found.log.text ? html`<p class="muted">${found.log.bytes > found.log.text.length ? `the end of ${size(found.log.bytes)}` : size(found.log.bytes)}</p><pre class="log" tabindex="0">${found.log.text}</pre>` : html`<p class="muted">The trial's code has printed nothing.</p>`}</section>`;
}
