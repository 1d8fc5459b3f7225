// All experiments, and several side by side.

import { html, useEffect, useState } from "./vendor/htm-preact-3.1.1.js";
import { Chart } from "./chart.js";
import { moment, number, percent, plural, short, size } from "./format.js";
import { Tags } from "./notes.js";
import { Bar, Facts, Spark, State, useFeed, usePage } from "./parts.js";
import { extent, lines } from "./curves.js";
import { SMALL, axes, clockText, scale, style, ticks, timeTicks, trialColor } from "./pen.js";
import { get } from "./session.js";

export function Home({ query, setQuery }) {
  const { about } = usePage();
  const [found, setFound] = useState(null);
  const [error, setError] = useState("");
  const [chosen, setChosen] = useState([]);
  const wanted = (query.q ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (each) => {
    const text = [each.name, each.defined, each.task, each.search, each.held ? "paused" : each.state, each.metric, each.note, ...(each.tags ?? [])].join(" ").toLowerCase();
    return wanted.every((word) => text.includes(word));
  };
  useEffect(() => {
    let timer = 0;
    let current = true;
    const load = async () => {
      let pause = 2000;
      try {
        const [, list] = await get("api/experiments");
        if (!current) return;
        setFound(list);
        setError("");
        if (list.some((each) => each.reading)) pause = 500;
      } catch (problem) {
        if (current && problem.status >= 400 && problem.status !== 401) setError(problem.message);
      }
      if (current) timer = setTimeout(load, pause);
    };
    load();
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, []);
  const choose = (key) => setChosen(chosen.includes(key) ? chosen.filter((each) => each !== key) : [...chosen, key]);
  if (!found) return html`<p class="muted empty">${error || "looking for experiments…"}</p>`;
  const shown = found.filter(matches);
  const reading = found.filter((each) => each.reading).length;
  return html`<main>
    <div class="title"><h1>Experiments</h1><span class="muted">in ${about.place}</span></div>
    ${error && html`<p class="bad" role="alert">${error}</p>`}
    ${!found.length && html`<p class="empty">No experiments here yet. To create one, run <code>hopfleet demo</code>.</p>`}
    ${chosen.length > 1 && html`<p><a class="button main" href=${`#/compare?${chosen.map((key) => `x=${encodeURIComponent(key)}`).join("&")}`}>Compare ${chosen.length} experiments</a></p>`}
    ${found.length > 0 &&
    html`<div class="tools"><div class="choices">
      <input id="filter" type="search" class="filter" placeholder="search: name, task, state, tag" aria-label="Search experiments" value=${query.q ?? ""} onInput=${(event) => setQuery({ q: event.target.value }, true)} />
      <span class="muted" role="status">${shown.length < found.length ? `${shown.length} of ` : ""}${plural(found.length, "experiment")}${reading ? `, reading ${reading}` : ""}</span></div></div>
    <div class="scroll card" tabindex="0" role="region" aria-label="Experiments"><table class="list">
      <thead><tr><th scope="col"><span class="hidden">Compare</span></th><th scope="col">experiment</th><th scope="col">state</th><th scope="col">progress</th><th scope="col">trials</th><th scope="col">best</th><th scope="col">curve</th><th scope="col">updated</th><th scope="col" class="right">size</th></tr></thead>
      <tbody>${shown.map(
        (each) => html`<tr key=${each.key}>
          <td>${!each.problem && !each.reading && html`<input type="checkbox" aria-label=${`Compare ${each.key}`} checked=${chosen.includes(each.key)} onChange=${() => choose(each.key)} />`}</td>
          <td><a href=${`#/x/${encodeURIComponent(each.key)}`}>${each.name}</a><div class="muted">${each.problem ? short(each.problem, 160) : [each.task, each.search, each.defined && each.defined !== each.name ? `made as ${each.defined}` : ""].filter(Boolean).join(" · ")}</div><${Tags} tags=${each.tags} /></td>
          <td><${State} state=${each.held ? "paused" : each.state} /></td>
          <td>${each.units && html`<${Bar} fraction=${each.fraction} label=${`Progress of ${each.name}`} /><div class="muted">${each.units}${each.state === "running" && each.remaining ? ` · ${each.remaining}` : ""}</div>`}</td>
          <td>${Object.entries(each.counts ?? {}).map(([state, count]) => `${count} ${state}`).join(", ")}</td>
          <td>${each.best && html`<span class="strong">${number(each.value)}</span> <span class="muted">${short(each.metric, 20)}, ${each.best}</span>`}</td>
          <td><${Spark} values=${each.curve ?? []} /></td>
          <td class="muted">${moment(each.updated)}</td>
          <td class="right">${each.bytes === null ? "…" : size(each.bytes)}</td>
        </tr>`,
      )}</tbody>
    </table></div>`}
  </main>`;
}

function Side({ name, onReady }) {
  const feed = useFeed(name);
  useEffect(() => onReady(name, feed), [feed.version, feed.ready]);
  if (feed.problem) return html`<section class="card"><h2>${name}</h2><p class="bad">${feed.problem}</p></section>`;
  if (!feed.ready) return html`<section class="card"><h2>${name}</h2><p class="muted">reading…</p></section>`;
  const { header } = feed;
  const best = feed.trials.get(header.best);
  return html`<section class="card">
    <h2><a href=${`#/x/${encodeURIComponent(name)}`}>${header.name}</a> <${State} state=${header.state} /></h2>
    <${Facts} facts=${[
      ["best", best ? `${number(header.value)} (${best.id})` : "none"],
      ["metric", `${header.metric} (${header.mode})`],
      ["trials", String(feed.trials.size)],
      ["units", header.units.replace(" units", "")],
      ["time", header.elapsed_text],
      ["utilisation", percent(header.utilisation)],
      ["search", short(feed.definition.search?.search ?? "", 30)],
      ["rows", String(feed.definition.train?.rows ?? "–")],
    ]} />
    ${best && html`<table class="pairs"><tbody>${Object.entries(best.chosen).map(([key, value]) => html`<tr><th scope="row">${key}</th><td>${short(value, 40)}</td></tr>`)}</tbody></table>`}
  </section>`;
}

export function Compare({ query, setQuery }) {
  const names = [query.x].flat().filter(Boolean);
  const [feeds, setFeeds] = useState({});
  const [, again] = useState(0);
  const ready = (name, feed) => {
    setFeeds((before) => (before[name] === feed ? before : { ...before, [name]: feed }));
    again((count) => count + 1);
  };
  const shown = names.map((name) => feeds[name]).filter((feed) => feed?.ready);
  const metrics = [...new Set(shown.flatMap((feed) => feed.header.metrics))];
  const metric = query.metric ?? shown[0]?.header.metric ?? "";
  const axis = query.by ?? "epoch";
  for (const feed of shown) if (feed.header.metrics.includes(metric)) feed.needCurves(metric);
  // The best value so far among all trials of each experiment.
  const found = shown.flatMap((feed) => {
    const curves = feed.curves.get(metric);
    if (!curves) return [];
    const sign = /loss|error/i.test(metric) || (metric === feed.header.metric && feed.header.mode === "min") ? 1 : -1;
    const points = lines(feed, curves, { axis, smooth: 0 }).flatMap(({ xs, ys }) => Array.from(xs, (x, place) => [x, ys[place]])).filter(([, y]) => Number.isFinite(y)).sort((a, b) => a[0] - b[0]);
    const [xs, ys] = [[], []];
    let best = Infinity;
    for (const [x, y] of points) {
      best = Math.min(best, sign * y);
      if (xs[xs.length - 1] === x) ys[ys.length - 1] = sign * best;
      else xs.push(x), ys.push(sign * best);
    }
    return [{ trial: feed.key, xs, ys }];
  });
  const view = extent(found, false);
  const height = 340;
  const scales = (width) => {
    const box = { left: 62, right: width - 120, top: 22, bottom: height - 44 };
    return { box, x: scale(view.x0, view.x1, box.left, box.right), y: scale(view.y0, view.y1, box.bottom, box.top) };
  };
  const draw = (pen, look, width) => {
    if (!view) return;
    const { box, x, y } = scales(width);
    axes(pen, look, box, x, y, { xTicks: axis === "time" ? timeTicks(view.x0, view.x1) : ticks(view.x0, view.x1, 8), yTicks: ticks(view.y0, view.y1, 6), xText: axis === "time" ? clockText : number, yText: number, xName: axis === "time" ? "time since the start" : axis, yName: `best ${metric} so far` });
    const labels = found
      .map((line, index) => ({ index, text: short(line.trial, 16), y: y(line.ys[line.ys.length - 1]) }))
      .sort((a, b) => a.y - b.y);
    labels.forEach((label, place) => (label.y = Math.max(label.y, place ? labels[place - 1].y + 14 : box.top)));
    found.forEach((line, index) => {
      pen.strokeStyle = trialColor(index, look);
      pen.setLineDash(style(index).dash);
      pen.lineWidth = 2;
      pen.beginPath();
      line.xs.forEach((value, place) => (place ? pen.lineTo(x(value), y(line.ys[place])) : pen.moveTo(x(value), y(line.ys[place]))));
      if (line.xs.length === 1) pen.arc(x(line.xs[0]), y(line.ys[0]), 2, 0, 7);
      pen.stroke();
    });
    pen.setLineDash([]);
    pen.font = SMALL;
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    for (const label of labels) {
      pen.fillStyle = trialColor(label.index, look);
      pen.fillText(label.text, box.right + 6, label.y);
    }
  };
  const tools = html`<label>metric <select value=${metric} onChange=${(event) => setQuery({ metric: event.target.value })}>${metrics.map((each) => html`<option value=${each}>${each}</option>`)}</select></label>
    <label>by <select value=${axis} onChange=${(event) => setQuery({ by: event.target.value })}><option value="epoch">epoch</option><option value="time">time</option><option value="rows">rows</option></select></label>`;
  return html`<main>
    <div class="title"><h1>Compare</h1></div>
    <div class="card"><${Chart} name="compare" label=${`Best ${metric} so far of ${found.length} experiments`} height=${height} stamp=${found.map((line) => `${line.trial}${line.xs.length}`).join() + metric + axis} draw=${draw} tools=${tools}
      rows=${() => [["experiment", axis, `best ${metric} so far`], ...found.flatMap((line) => line.xs.map((x, place) => [line.trial, x, line.ys[place]]))]} /></div>
    <div class="sides">${names.map((name) => html`<${Side} key=${name} name=${name} onReady=${ready} />`)}</div>
  </main>`;
}
