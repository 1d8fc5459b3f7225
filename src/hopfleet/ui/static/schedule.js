// The schedule of workers: units, flotillas, hops, evaluations and faults, with the predicted schedule below.

import { html, useEffect, useMemo, useState } from "./vendor/htm-preact-3.1.1.js";
import { Chart, bubble } from "./chart.js";
import { duration, number } from "./format.js";
import { FONT, LEADERS, SMALL, clockText, scale, timeTicks, trialColor } from "./pen.js";
import { get } from "./session.js";

const [EVALUATES, HOPPED, FAILED, UNDONE] = [1, 2, 4, 8];
const LEFT = 84;
const natural = (a, b) => a.localeCompare(b, undefined, { numeric: true });

// Rows of bars, one per worker: members of a flotilla, which share their times, share the height of the row.
function arranged(count, read) {
  const rows = new Map();
  const together = new Map();
  for (let place = 0; place < count; place++) {
    const span = read(place);
    const key = `${span.worker}|${span.started}|${span.ended}`;
    let group = together.get(key);
    if (!group) together.set(key, (group = { size: 0 }));
    const bar = { ...span, slot: group.size++, group };
    if (!rows.has(span.worker)) rows.set(span.worker, []);
    rows.get(span.worker).push(bar);
  }
  const names = [...rows.keys()].sort(natural);
  for (const name of names) rows.get(name).sort((a, b) => a.started - b.started);
  return names.map((name) => ({ name, bars: rows.get(name) }));
}

export function Schedule({ feed, onOpen }) {
  feed.needSpans();
  const [predicted, setPredicted] = useState([]);
  const [zoom, setZoom] = useState(null);
  const [both, setBoth] = useState(true);
  useEffect(() => {
    get(`${feed.base}/predicted`).then(([, found]) => setPredicted(found), () => setPredicted([]));
  }, [feed]);
  const spans = feed.spans;
  const count = spans ? spans.started.length : 0;
  const rows = useMemo(
    () =>
      arranged(count, (place) => ({
        worker: spans.workers[spans.worker.get(place)],
        trial: spans.trials[spans.trial.get(place)],
        epoch: spans.epoch.get(place),
        partition: spans.partition.get(place),
        marks: spans.marks.get(place),
        started: spans.started.get(place),
        ended: spans.ended.get(place),
      })),
    [spans, count],
  );
  const foreseen = useMemo(
    () =>
      arranged(both ? predicted.length : 0, (place) => {
        const [worker, trial, epoch, partition, work, started, ended] = predicted[place];
        return { worker, trial, epoch, partition, marks: work === "train" ? 0 : EVALUATES, started, ended };
      }),
    [predicted, both],
  );
  const last = Math.max(1e-3, ...rows.map(({ bars }) => bars.reduce((end, bar) => Math.max(end, bar.ended), 0)), ...foreseen.map(({ bars }) => bars.reduce((end, bar) => Math.max(end, bar.ended), 0)));
  const view = zoom ?? { from: 0, to: last };
  const total = rows.length + (foreseen.length ? foreseen.length + 1 : 0);
  const high = Math.max(16, Math.min(34, 640 / Math.max(1, total)));
  const height = Math.round(Math.max(140, total * high + 60));
  const ranks = new Map(feed.leaders().slice(0, LEADERS).map((trial, place) => [trial.id, place]));
  const colors = useMemo(() => new Map(), [feed.version, ranks.size]);
  const across = (width) => scale(view.from, view.to, LEFT, width - 10);

  const lay = (group, top) => group.map((row, place) => ({ ...row, top: top + place * high }));
  const shown = [...lay(rows, 18), ...lay(foreseen, 18 + (rows.length + 1) * high)];

  const draw = (pen, look, width) => {
    pen.font = SMALL;
    if (!spans || !count) {
      pen.fillStyle = look.muted;
      pen.textAlign = "center";
      pen.font = FONT;
      pen.fillText(spans ? "no unit has finished yet" : "reading the schedule…", width / 2, height / 2);
      if (!foreseen.length) return;
    }
    const x = across(width);
    const bottom = 18 + total * high;
    pen.strokeStyle = look.rule;
    pen.lineWidth = 1;
    pen.fillStyle = look.muted;
    pen.textAlign = "center";
    pen.textBaseline = "top";
    for (const tick of timeTicks(view.from, view.to)) {
      const place = Math.round(x(tick)) + 0.5;
      pen.beginPath();
      pen.moveTo(place, 18);
      pen.lineTo(place, bottom);
      pen.stroke();
      pen.fillText(clockText(tick), place, bottom + 6);
    }
    pen.font = FONT;
    pen.fillStyle = look.ink;
    pen.fillText("time since the start", (LEFT + width) / 2, bottom + 21);
    pen.textAlign = "left";
    if (foreseen.length) {
      pen.fillStyle = look.muted;
      pen.textBaseline = "middle";
      pen.fillText("predicted before the first unit", LEFT, 18 + (rows.length + 0.55) * high);
    }
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, 16, width - LEFT - 8, bottom - 14);
    pen.clip();
    for (const row of shown) {
      let edge = -1; // the last pixel that is filled: bars that would lie under it are left out
      for (const bar of row.bars) {
        if (bar.ended < view.from || bar.started > view.to) continue;
        const from = x(bar.started);
        const to = x(bar.ended);
        if (to < edge && to - from < 0.5) continue;
        const wide = Math.max(0.6, to - from - (to - from > 4 ? 1 : 0));
        if (wide < 1.5) edge = Math.max(edge, from + 0.6);
        const part = (high - 4) / bar.group.size;
        const top = row.top + 2 + bar.slot * part;
        let color = colors.get(bar.trial);
        if (!color) {
          color = trialColor(feed.trials.get(bar.trial)?.number ?? (Number(bar.trial.slice(1)) || 0), look);
          colors.set(bar.trial, color);
        }
        pen.fillStyle = bar.marks & UNDONE ? look.rule : color;
        pen.globalAlpha = ranks.has(bar.trial) || bar.marks & UNDONE ? 1 : 0.45;
        const thin = bar.marks & EVALUATES ? part * 0.3 : 0;
        pen.fillRect(from, top + thin, wide, Math.max(1, part - 2 * thin - (bar.group.size > 1 ? 0.5 : 0)));
        pen.globalAlpha = 1;
        if (wide < 3) continue;
        if (bar.marks & HOPPED) {
          pen.fillStyle = look.ink;
          pen.fillRect(from, top, 1.5, Math.max(2, part));
        }
        if (bar.marks & (FAILED | UNDONE)) {
          pen.strokeStyle = bar.marks & FAILED ? look.failure : look.muted;
          pen.lineWidth = 1.5;
          pen.beginPath();
          pen.moveTo(from, top + part);
          pen.lineTo(from + wide, top);
          pen.stroke();
        }
        if (wide > 42 && part > 11 && !(bar.marks & EVALUATES)) {
          pen.font = SMALL;
          pen.textAlign = "center";
          pen.textBaseline = "middle";
          pen.fillStyle = ranks.has(bar.trial) && !(bar.marks & UNDONE) ? look.back : look.ink;
          pen.fillText(wide > 70 ? `${bar.trial}/${bar.partition}` : bar.trial, from + wide / 2, top + part / 2);
        }
      }
    }
    pen.restore();
    pen.fillStyle = look.ink;
    pen.font = SMALL;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const row of shown) pen.fillText(row.name.length > 12 ? `${row.name.slice(0, 11)}…` : row.name, LEFT - 8, row.top + high / 2);
  };

  const under = (point, width) => {
    if (!point) return null;
    const x = across(width);
    const row = shown.find((each) => point.y >= each.top && point.y < each.top + high);
    if (!row) return null;
    const time = x.back(point.x);
    const near = (2 * (view.to - view.from)) / width;
    const slot = (bar) => Math.floor((point.y - row.top - 2) / ((high - 4) / bar.group.size));
    return row.bars.find((bar) => bar.started - near <= time && bar.ended + near >= time && (bar.group.size === 1 || bar.slot === slot(bar))) ?? null;
  };
  const over = (pen, look, width, tall, point) => {
    const bar = under(point, width);
    if (!bar) return;
    const what = bar.marks & EVALUATES ? "evaluated on" : "trained on";
    const more = [[HOPPED, "came from another worker"], [FAILED, "failed"], [UNDONE, "does not count"]].filter(([bit]) => bar.marks & bit).map(([, text]) => text);
    const lines = [`${bar.trial}  epoch ${bar.epoch}`, `${what} partition ${bar.partition} by ${bar.worker}`, `${clockText(bar.started)} – ${clockText(bar.ended)}  (${duration(bar.ended - bar.started)})`];
    if (bar.group.size > 1) lines.push(`with ${bar.group.size - 1} others in a flotilla`);
    bubble(pen, look, width, tall, point, [...lines, ...more], SMALL);
  };
  const table = () => [
    ["worker", "trial", "epoch", "partition", "work", "started", "ended", "hopped", "failed", "undone"],
    ...rows.flatMap(({ bars }) => bars.map((bar) => [bar.worker, bar.trial, bar.epoch, bar.partition, bar.marks & EVALUATES ? "evaluate" : "train", bar.started, bar.ended, Number(!!(bar.marks & HOPPED)), Number(!!(bar.marks & FAILED)), Number(!!(bar.marks & UNDONE))])),
  ];
  const wheel = (at, way, width) => {
    const x = across(width);
    const middle = x.back(at);
    const factor = way > 0 ? 1.25 : 0.8;
    const from = Math.max(0, middle - (middle - view.from) * factor);
    const to = Math.min(last, middle + (view.to - middle) * factor);
    setZoom(to - from >= last * 0.999 ? null : { from, to });
  };
  const pan = (way) => {
    const step = (view.to - view.from) * 0.5 * way;
    const from = Math.min(Math.max(0, view.from + step), last - (view.to - view.from));
    setZoom({ from, to: from + (view.to - view.from) });
  };
  const tools = html`<span class="muted">${number(count)} units and evaluations; drag or shift-scroll to zoom</span>
    ${predicted.length > 0 && html`<label><input type="checkbox" checked=${both} onChange=${(event) => setBoth(event.target.checked)} /> predicted</label>`}
    ${zoom && html`<button type="button" class="small" aria-label="Earlier" onClick=${() => pan(-1)}>◀</button>
      <button type="button" class="small" aria-label="Later" onClick=${() => pan(1)}>▶</button>
      <button type="button" class="small" onClick=${() => setZoom(null)}>show all</button>`}`;
  return html`<div>
    <${Chart}
      name=${`${feed.key}-schedule`}
      label=${`Schedule: ${count} units on ${rows.length} workers`}
      height=${height}
      stamp=${[feed.version, count, predicted.length, both, view.from, view.to, total].join("|")}
      draw=${draw}
      over=${over}
      rows=${table}
      tools=${tools}
      onWheel=${wheel}
      onSelect=${({ from, to, width }) => {
        const x = across(width);
        const [a, b] = [Math.min(from.x, to.x), Math.max(from.x, to.x)].map((place) => Math.min(last, Math.max(0, x.back(place))));
        if (b > a) setZoom({ from: a, to: b });
      }}
      onPick=${(point, width) => {
        const bar = under(point, width);
        if (bar && feed.trials.has(bar.trial)) onOpen(bar.trial);
      }}
      onReset=${() => setZoom(null)}
    />
    <p class="legend muted">Thin bars are evaluations. A dark edge on the left marks a model that came from another worker. Members of a flotilla share a row. A stroke marks units that failed (red) or do not count (grey).</p>
  </div>`;
}
