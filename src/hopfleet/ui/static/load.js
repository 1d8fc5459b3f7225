// The load of workers over the time of a run: for each worker, how busy it was, and its memory.

import { html, useState } from "./vendor/htm-preact-3.1.1.js";
import { Chart, bubble } from "./chart.js";
import { duration, percent, size } from "./format.js";
import { SMALL, axes, clockText, scale, style, ticks, timeTicks, trialColor } from "./pen.js";

const HEIGHT = 190;
const FIRST = 16; // workers that are shown at once
const GAP = 3; // times the usual time between two samples, after which a line is broken: nothing ran meanwhile

const BUSY = [["processor", "processor", 0], ["device", "GPU", 7]];
const MEMORY = [["memory", "memory", 0], ["device_memory", "on its device", 7]];

export function Loads({ feed, loads, workers }) {
  const [all, setAll] = useState(false);
  const shown = workers.filter(({ name }) => loads?.[name]?.time?.length > 1);
  if (!shown.length) return null;
  const first = all ? shown : shown.slice(0, FIRST);
  const hidden = shown.length - first.length;
  return html`<section aria-label="Load of workers"><h2>Load</h2>
    <div class="sides">${first.map(
      (worker) => html`<section class="card" key=${worker.name}><h3>${worker.name} <span class="muted">${worker.device}${worker.lost === null ? "" : ", gone"}</span></h3>
        <${Load} feed=${feed} worker=${worker} load=${loads[worker.name]} what="busy" lines=${BUSY} text=${percent} />
        <${Load} feed=${feed} worker=${worker} load=${loads[worker.name]} what="memory" lines=${MEMORY} text=${size} binary=${true} /></section>`,
    )}</div>
    ${hidden > 0 && html`<p><button type="button" onClick=${() => setAll(true)}>show ${hidden} more</button></p>`}</section>`;
}

function Load({ feed, worker, load, what, lines, text, binary = false }) {
  const times = load.time;
  const found = lines.filter(([name]) => load[name]).map(([name, label, number]) => ({ label, number, values: load[name] }));
  const pauses = times.slice(1).map((time, place) => time - times[place]).sort((a, b) => a - b);
  const longest = GAP * pauses[pauses.length >> 1];
  const most = Math.max(binary ? 1 : 1e-3, ...found.flatMap(({ values }) => values.filter(Number.isFinite)));
  // Bytes have round ticks in the unit that they are shown in.
  const unit = binary ? 1024 ** Math.min(4, Math.floor(Math.log2(most) / 10)) : 1;
  const top = binary ? most * 1.08 : Math.max(1, most * 1.05);
  const scales = (width) => {
    const box = { left: 64, right: width - 12, top: 24, bottom: HEIGHT - 26 };
    return { box, x: scale(times[0], times.at(-1), box.left, box.right), y: scale(0, top, box.bottom, box.top) };
  };
  const points = (width) => {
    const { x, y } = scales(width);
    return found.flatMap(({ values }) => values.map((value, place) => ({ place, x: x(times[place]), y: y(value) })).filter(({ place }) => Number.isFinite(values[place])));
  };
  const draw = (pen, look, width) => {
    const { box, x, y } = scales(width);
    const marks = { xTicks: timeTicks(times[0], times.at(-1), 6), yTicks: ticks(0, top / unit, 4).map((value) => value * unit) };
    axes(pen, look, box, x, y, { ...marks, xText: clockText, yText: text, yName: what === "busy" ? "busy (100% is one core)" : what });
    let right = box.right;
    for (const { label, number, values } of [...found].reverse()) {
      pen.strokeStyle = trialColor(number, look);
      pen.setLineDash(style(number).dash);
      pen.lineWidth = 1.6;
      pen.beginPath();
      values.forEach((value, place) => {
        if (!Number.isFinite(value)) return;
        const joined = Number.isFinite(values[place - 1]) && times[place] - times[place - 1] <= longest;
        if (joined) pen.lineTo(x(times[place]), y(value));
        else pen.moveTo(x(times[place]), y(value));
      });
      pen.stroke();
      pen.font = SMALL;
      pen.textAlign = "right";
      pen.textBaseline = "middle";
      pen.fillStyle = look.ink;
      pen.fillText(label, right, 10);
      right -= pen.measureText(label).width + 6;
      pen.beginPath();
      pen.moveTo(right - 20, 10);
      pen.lineTo(right, 10);
      pen.stroke();
      right -= 32;
    }
    pen.setLineDash([]);
  };
  const over = (pen, look, width, high, point) => {
    let near = null;
    for (const each of point ? points(width) : []) if (!near || Math.abs(each.x - point.x) < Math.abs(near.x - point.x)) near = each;
    if (!near) return;
    const { y } = scales(width);
    pen.fillStyle = look.ink;
    const known = found.filter(({ values }) => Number.isFinite(values[near.place]));
    for (const { values } of known) {
      pen.beginPath();
      pen.arc(near.x, y(values[near.place]), 3, 0, 7);
      pen.fill();
    }
    bubble(pen, look, width, high, near, [`after ${duration(times[near.place])}`, ...known.map(({ label, values }) => `${label} ${text(values[near.place])}`)], SMALL);
  };
  const rows = () => [["seconds", ...found.map(({ label }) => label)], ...times.map((time, place) => [time, ...found.map(({ values }) => values[place])])];
  return html`<${Chart} name=${`${feed.key}-${worker.name}-${what}`} label=${`${what === "busy" ? "How busy" : "Memory of"} ${worker.name}${what === "busy" ? " was" : ""} by time`} height=${HEIGHT}
    stamp=${`${times.length}|${times.at(-1)}|${most}`} draw=${draw} over=${over} stops=${points} rows=${rows} />`;
}
