// Learning curves: any metric by epoch, time or rows, with smoothing, a logarithmic axis, zoom, hover and pins.

import { html, useMemo, useState } from "./vendor/htm-preact-3.1.1.js";
import { Chart, bubble } from "./chart.js";
import { number, short } from "./format.js";
import { FONT, LEADERS, SMALL, axes, clockText, scale, style, ticks, timeTicks, trialColor } from "./pen.js";

const FEW = 24; // lines that all have their colours; among more, only the leaders stand out
const PAD = { left: 62, right: 84, top: 22, bottom: 44 };

function smoothed(values, weight) {
  if (!weight) return values;
  const out = new Float64Array(values.length);
  let [mean, norm] = [0, 0];
  for (let place = 0; place < values.length; place++) {
    const value = values[place];
    if (Number.isFinite(value)) {
      mean = mean * weight + value * (1 - weight);
      norm = norm * weight + (1 - weight);
    }
    out[place] = norm ? mean / norm : NaN;
  }
  return out;
}

// The lines to draw: x and y of each trial, finite values only where an axis is logarithmic.
export function lines(feed, curves, { axis, smooth, only }) {
  const rows = feed.definition?.train?.rows ?? 1;
  const found = [];
  for (const [trial, curve] of curves) {
    if (!feed.trials.has(trial) || (only && !only.has(trial))) continue;
    const count = curve.epochs.length;
    const epochs = curve.epochs.room.subarray(0, count);
    const xs = axis === "time" ? curve.times.room.subarray(0, count) : axis === "rows" ? epochs.map((epoch) => epoch * rows) : epochs;
    found.push({ trial, xs, ys: smoothed(curve.values.room.subarray(0, count), smooth) });
  }
  return found;
}

export function extent(found, log) {
  let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const { xs, ys } of found) {
    for (let place = 0; place < xs.length; place++) {
      const y = ys[place];
      if (!Number.isFinite(y) || (log && y <= 0)) continue;
      if (xs[place] < x0) x0 = xs[place];
      if (xs[place] > x1) x1 = xs[place];
      if (y < y0) y0 = y;
      if (y > y1) y1 = y;
    }
  }
  if (x0 > x1) return null;
  if (x0 === x1) x0 -= 1, x1 += 1;
  if (y0 === y1) y0 -= Math.abs(y0) * 0.1 || 0.1, y1 += Math.abs(y1) * 0.1 || 0.1;
  if (log) return { x0, x1, y0: Math.max(y0, y1 / 1e12) * 0.9, y1: y1 * 1.1 };
  const space = (y1 - y0) * 0.04;
  return { x0, x1, y0: y0 - space, y1: y1 + space };
}

export function Curves({ feed, metric, query, setQuery, height = 360, only, pinned, onPin, onOpen, compact }) {
  feed.needCurves(metric);
  const curves = feed.curves.get(metric);
  const axis = query.x ?? "epoch";
  const log = query.log === "1";
  const smooth = Number(query.smooth ?? 0);
  const [zoom, setZoom] = useState(null);
  const found = useMemo(() => (curves ? lines(feed, curves, { axis, smooth, only }) : []), [curves, feed.version, axis, smooth, only]);
  const whole = useMemo(() => extent(found, log), [found, log]);
  const view = zoom ?? whole;
  const leaders = feed.leaders();
  const ranks = new Map(leaders.slice(0, LEADERS).map((trial, place) => [trial.id, place]));
  const numberOf = (line) => feed.trials.get(line.trial)?.number ?? 0;

  const scales = (width) => {
    const box = { left: PAD.left, right: width - (compact ? 12 : PAD.right), top: PAD.top, bottom: height - PAD.bottom };
    return { box, x: scale(view.x0, view.x1, box.left, box.right), y: scale(view.y0, view.y1, box.bottom, box.top, log) };
  };
  const trace = (pen, { xs, ys }, x, y) => {
    let drawn = false;
    for (let place = 0; place < xs.length; place++) {
      const value = ys[place];
      if (!Number.isFinite(value) || (log && value <= 0)) {
        drawn = false;
        continue;
      }
      if (drawn) pen.lineTo(x(xs[place]), y(value));
      else pen.moveTo(x(xs[place]), y(value));
      drawn = true;
    }
    if (xs.length === 1 && drawn) pen.arc(x(xs[0]), y(ys[0]), 2, 0, 7);
  };

  const draw = (pen, look, width) => {
    if (!view) {
      pen.fillStyle = look.muted;
      pen.font = FONT;
      pen.textAlign = "center";
      pen.fillText(curves ? `no trial has a value of ${short(metric, 40)} yet` : "reading the curves…", width / 2, height / 2);
      return;
    }
    const { box, x, y } = scales(width);
    axes(pen, look, box, x, y, {
      xTicks: axis === "time" ? timeTicks(view.x0, view.x1) : ticks(view.x0, view.x1, 8).filter((value) => axis !== "epoch" || Number.isInteger(value)),
      yTicks: ticks(view.y0, view.y1, 6, log),
      xText: axis === "time" ? clockText : number,
      yText: number,
      xName: axis === "time" ? "time since the start" : axis,
      yName: metric,
    });
    pen.save();
    pen.beginPath();
    pen.rect(box.left, box.top, box.right - box.left, box.bottom - box.top);
    pen.clip();
    pen.strokeStyle = look.faint;
    pen.lineWidth = 1;
    pen.globalAlpha = found.length > 200 ? 0.35 : found.length > 40 ? 0.6 : 0.9;
    const bold = [];
    pen.beginPath();
    let points = 0;
    for (const line of found) {
      if (ranks.has(line.trial) || pinned?.has(line.trial)) bold.push(line);
      else if (found.length <= FEW) {
        pen.stroke();
        pen.beginPath();
        pen.globalAlpha = 0.55;
        pen.strokeStyle = trialColor(numberOf(line), look);
        pen.setLineDash(style(numberOf(line)).dash);
        trace(pen, line, x, y);
      } else {
        trace(pen, line, x, y);
        points += line.xs.length;
        if (points > 4000) {
          pen.stroke();
          pen.beginPath();
          points = 0;
        }
      }
    }
    pen.stroke();
    pen.globalAlpha = 1;
    bold.sort((a, b) => (ranks.get(b.trial) ?? -1) - (ranks.get(a.trial) ?? -1));
    for (const line of bold) {
      pen.strokeStyle = trialColor(numberOf(line), look);
      pen.setLineDash(style(numberOf(line)).dash);
      pen.lineWidth = pinned?.has(line.trial) ? 3 : 1.8;
      pen.beginPath();
      trace(pen, line, x, y);
      pen.stroke();
    }
    pen.setLineDash([]);
    pen.restore();
    if (compact) return;
    const labels = bold
      .map((line) => ({ line, y: y(line.ys[line.ys.length - 1]), x: x(line.xs[line.xs.length - 1]) }))
      .filter((each) => each.y >= box.top - 4 && each.y <= box.bottom + 4)
      .sort((a, b) => a.y - b.y);
    labels.forEach((label, place) => (label.at = Math.max(label.y, place ? labels[place - 1].at + 14 : box.top)));
    pen.font = SMALL;
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    for (const label of labels) {
      pen.strokeStyle = trialColor(numberOf(label.line), look);
      pen.setLineDash(style(numberOf(label.line)).dash);
      pen.lineWidth = 2;
      pen.beginPath();
      pen.moveTo(box.right + 6, label.at);
      pen.lineTo(box.right + 24, label.at);
      pen.stroke();
      pen.fillStyle = look.ink;
      pen.fillText(label.line.trial, box.right + 28, label.at);
    }
    pen.setLineDash([]);
  };

  const nearest = (point, width) => {
    if (!view || !point) return null;
    const { box, x, y } = scales(width);
    if (point.x < box.left - 8 || point.x > box.right + 8) return null;
    const wanted = x.back(point.x);
    let best = null;
    for (const line of found) {
      let [low, high] = [0, line.xs.length - 1];
      while (low < high) {
        const middle = (low + high) >> 1;
        if (line.xs[middle] < wanted) low = middle + 1;
        else high = middle;
      }
      for (const place of [low - 1, low]) {
        if (place < 0 || place >= line.xs.length || !Number.isFinite(line.ys[place])) continue;
        const away = Math.hypot(x(line.xs[place]) - point.x, y(line.ys[place]) - point.y);
        if (!best || away < best.away) best = { line, place, away, x: x(line.xs[place]), y: y(line.ys[place]) };
      }
    }
    return best && best.away < 40 ? best : null;
  };
  const over = (pen, look, width, high, point) => {
    const near = nearest(point, width);
    if (!near) return;
    const { x, y } = scales(width);
    pen.strokeStyle = look.ink;
    pen.lineWidth = 2;
    pen.beginPath();
    trace(pen, near.line, x, y);
    pen.stroke();
    pen.fillStyle = look.ink;
    pen.beginPath();
    pen.arc(near.x, near.y, 3.5, 0, 7);
    pen.fill();
    const trial = feed.trials.get(near.line.trial);
    const where = axis === "time" ? clockText(near.line.xs[near.place]) : `${axis} ${number(near.line.xs[near.place])}`;
    const config = Object.entries(trial?.chosen ?? {}).slice(0, 6).map(([key, value]) => `${short(key, 24)} = ${short(value, 20)}`);
    bubble(pen, look, width, high, point, [`${near.line.trial}  ${trial?.state ?? ""}`, `${short(metric, 30)} = ${number(near.line.ys[near.place])} at ${where}`, ...config], SMALL);
  };
  const select = ({ from, to, width }) => {
    if (!view) return;
    const { x, y } = scales(width);
    const [a, b] = [Math.min(from.x, to.x), Math.max(from.x, to.x)].map(x.back);
    const [c, d] = [Math.max(from.y, to.y), Math.min(from.y, to.y)].map(y.back);
    setZoom(Math.abs(to.y - from.y) < 12 ? { ...view, x0: a, x1: b } : { x0: a, x1: b, y0: c, y1: d });
  };
  const rows = () => [
    ["trial", axis, metric],
    ...found.flatMap(({ trial, xs, ys }) => Array.from(xs, (value, place) => [trial, value, ys[place]])),
  ];
  const choose = (name) => (event) => setQuery({ [name]: event.target.value });
  const tools = html`
    <label>metric <select value=${metric} onChange=${choose("metric")}>${feed.header.metrics.map((each) => html`<option value=${each}>${each}</option>`)}</select></label>
    <label>by <select value=${axis} onChange=${(event) => (setZoom(null), choose("x")(event))}>
      <option value="epoch">epoch</option><option value="time">time</option><option value="rows">rows</option></select></label>
    ${!compact && html`<label>smoothing <input type="range" min="0" max="0.95" step="0.05" value=${smooth} onInput=${choose("smooth")} /></label>`}
    <label><input type="checkbox" checked=${log} onChange=${(event) => (setZoom(null), setQuery({ log: event.target.checked ? "1" : "" }))} /> log</label>
    ${zoom && html`<button type="button" class="small" onClick=${() => setZoom(null)}>show all</button>`}
    ${pinned?.size > 0 && onPin && html`<button type="button" class="small" onClick=${() => onPin(null)}>unpin ${pinned.size}</button>`}`;
  const stamp = [feed.version, metric, axis, smooth, log, zoom && Object.values(zoom), curves?.size, pinned && [...pinned].join(), only?.size].join("|");
  return html`<${Chart}
    name=${`${feed.key}-${metric}`}
    label=${`Learning curves: ${metric} by ${axis} of ${found.length} trials`}
    height=${height}
    stamp=${stamp}
    draw=${draw}
    over=${over}
    rows=${rows}
    tools=${tools}
    stops=${(width) => {
      if (!view) return [];
      const { box, x, y } = scales(width);
      const points = found.flatMap(({ xs, ys }) => Array.from(xs, (value, place) => ({ x: x(value), y: y(ys[place]) })));
      return points.filter((point) => point.x >= box.left - 1 && point.x <= box.right + 1 && point.y >= box.top && point.y <= box.bottom);
    }}
    onSelect=${select}
    onPick=${(point, width) => {
      const near = nearest(point, width);
      if (near) (onPin ?? onOpen)?.(near.line.trial);
    }}
    onReset=${() => setZoom(null)}
  />`;
}
