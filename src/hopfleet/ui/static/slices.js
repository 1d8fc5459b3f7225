// Charts of values over trials: how the best value was found, and how it depends on one or two parameters.

import { html, useMemo } from "./vendor/htm-preact-3.1.1.js";
import { Chart, bubble } from "./chart.js";
import { number, short } from "./format.js";
import { FONT, LEADERS, SMALL, axes, scale, shade, ticks, trialColor } from "./pen.js";
import { parameterAxis, varyingKeys } from "./plots.js";

const HEIGHT = 400;
const CELLS = 28; // of a contour, across and up

const boxOf = (width) => ({ left: 70, right: width - 24, top: 26, bottom: HEIGHT - 44 });

// The places of an axis's values between two pixels, with its ticks and their texts.
function along(axis, from, to) {
  if (axis.numeric) {
    const flat = axis.low === axis.high;
    const space = axis.log ? (axis.high / axis.low) ** 0.05 : (axis.high - axis.low) * 0.05;
    const [low, high] = flat ? [axis.low - 1, axis.high + 1] : axis.log ? [axis.low / space, axis.high * space] : [axis.low - space, axis.high + space];
    return { at: scale(low, high, from, to, axis.log), ticks: axis.choices ?? ticks(low, high, 6, axis.log), text: number };
  }
  const at = (value) => from + ((axis.kinds.indexOf(value) + 0.5) / axis.kinds.length) * (to - from);
  return { at, ticks: axis.kinds, text: (kind) => short(kind, 12) };
}

const valueOn = (axis, value) => (axis.numeric ? value : value === undefined ? "–" : short(value, 40));

function empty(pen, look, width, text) {
  pen.font = FONT;
  pen.fillStyle = look.muted;
  pen.textAlign = "center";
  pen.fillText(text, width / 2, HEIGHT / 2);
}

// What all charts of points share: the nearest one under the pointer, its texts, the points for the keyboard, and a click.
function pointed(place, describe, onOpen) {
  const nearest = (point, width) => {
    let best = null;
    for (const each of point ? place(width) : []) {
      const away = Math.hypot(each.x - point.x, each.y - point.y);
      if (away < 16 && (!best || away < best.away)) best = { away, trial: each.trial };
    }
    return best?.trial ?? null;
  };
  return {
    stops: place,
    over: (pen, look, width, high, point) => {
      const trial = nearest(point, width);
      if (trial) bubble(pen, look, width, high, point, describe(trial), SMALL);
    },
    onPick: (point, width) => {
      const trial = nearest(point, width);
      if (trial) onOpen(trial.id);
    },
  };
}

function dot(pen, x, y, size) {
  pen.beginPath();
  pen.arc(x, y, size, 0, 7);
  pen.fill();
}

export function History({ feed, onOpen }) {
  const { metric, mode } = feed.header;
  const trials = feed.leaders().filter((trial) => Number.isFinite(trial.value)).sort((a, b) => a.number - b.number);
  const sign = mode === "min" ? 1 : -1;
  const place = (trial) => trial.number + 1; // as in its id
  const bests = [];
  for (const trial of trials) {
    const last = bests[bests.length - 1];
    if (trial.feasible && (!last || sign * trial.value < sign * last.value)) bests.push(trial);
  }
  const scales = (width) => {
    const box = boxOf(width);
    const x = along({ ...parameterAxis("trial", trials.map(place)), log: false }, box.left, box.right);
    const y = along({ ...parameterAxis(metric, trials.map((trial) => trial.value)), choices: null, log: false }, box.bottom, box.top);
    return { box, x: { ...x, ticks: ticks(x.at.low, x.at.high, 8).filter((value) => Number.isInteger(value) && value > 0) }, y };
  };
  const draw = (pen, look, width) => {
    if (!trials.length) return empty(pen, look, width, `no trial has a value of ${short(metric, 40)} yet`);
    const { box, x, y } = scales(width);
    axes(pen, look, box, x.at, y.at, { xTicks: x.ticks, yTicks: y.ticks, xText: number, yText: number, xName: "trial", yName: metric });
    pen.fillStyle = look.faint;
    for (const trial of trials) dot(pen, x.at(place(trial)), y.at(trial.value), 3);
    pen.strokeStyle = look.strong[1];
    pen.lineWidth = 2;
    pen.beginPath();
    bests.forEach((trial, count) => {
      if (count) pen.lineTo(x.at(place(trial)), y.at(bests[count - 1].value));
      if (count) pen.lineTo(x.at(place(trial)), y.at(trial.value));
      else pen.moveTo(x.at(place(trial)), y.at(trial.value));
    });
    if (bests.length) pen.lineTo(box.right, y.at(bests[bests.length - 1].value));
    pen.stroke();
    pen.fillStyle = look.strong[1];
    for (const trial of bests) dot(pen, x.at(place(trial)), y.at(trial.value), 4);
    pen.font = SMALL;
    pen.textAlign = "left";
    pen.textBaseline = "bottom";
    if (bests.length) pen.fillText(bests[bests.length - 1].id, x.at(place(bests[bests.length - 1])) + 6, y.at(bests[bests.length - 1].value) - 5);
    return undefined;
  };
  const points = (width) => {
    if (!trials.length) return [];
    const { x, y } = scales(width);
    return trials.map((trial) => ({ trial, x: x.at(place(trial)), y: y.at(trial.value) }));
  };
  const describe = (trial) => [trial.id, `${short(metric, 30)} = ${number(trial.value)}`];
  return html`<div><${Chart} name=${`${feed.key}-history`} label=${`${metric} of ${trials.length} trials in their order, and the best so far`} height=${HEIGHT} stamp=${feed.version} draw=${draw} ...${pointed(points, describe, onOpen)}
      rows=${() => [["trial", metric, "best so far"], ...trials.map((trial) => [trial.id, trial.value, Number(bests.includes(trial))])]} />
    <p class="legend muted">A point is a trial. The line is the best value so far.</p></div>`;
}

export function Slices({ feed, query, setQuery, onOpen }) {
  const { metric, mode } = feed.header;
  const trials = feed.leaders().filter((trial) => Number.isFinite(trial.value));
  const keys = useMemo(() => varyingKeys(trials), [feed.version]);
  const first = keys.includes(query.sx) ? query.sx : keys[0];
  const second = keys.includes(query.sy) && query.sy !== first ? query.sy : "";
  if (!keys.length) return html`<p class="muted empty">No parameter varies among the trials that have a value of ${metric}.</p>`;
  const merit = new Map(trials.map((trial, rank) => [trial.id, trials.length < 2 ? 1 : 1 - rank / (trials.length - 1)]));
  const read = (trial, name) => (name ? trial.chosen[name] : trial.value);
  const shown = trials.filter((trial) => [first, second].every((name) => read(trial, name) !== undefined && read(trial, name) !== null));
  const axisOf = (name) => (name ? parameterAxis(name, shown.map((trial) => trial.chosen[name])) : { ...parameterAxis(metric, shown.map((trial) => trial.value)), choices: null, log: false });
  const [across, up] = [axisOf(first), axisOf(second)];
  const scales = (width) => {
    const box = boxOf(width);
    return { box, x: along(across, box.left, box.right), y: along(up, box.bottom, box.top) };
  };
  const place = (width) => {
    const { x, y } = scales(width);
    return shown.map((trial) => ({ trial, x: x.at(valueOn(across, read(trial, first))), y: y.at(valueOn(up, read(trial, second))) }));
  };
  // Between trials, the mean of their ranks, by the inverse square of the distance.
  const contour = (pen, look, box, points) => {
    const [wide, high] = [(box.right - box.left) / CELLS, (box.bottom - box.top) / CELLS];
    const edge = (from, step, count) => Math.round(from + step * count); // whole pixels, so that cells leave no seams
    pen.globalAlpha = 0.55;
    for (let row = 0; row < CELLS; row++) {
      for (let column = 0; column < CELLS; column++) {
        const [x, y] = [box.left + (column + 0.5) * wide, box.top + (row + 0.5) * high];
        let [sum, weights] = [0, 0];
        for (const point of points) {
          const weight = 1 / ((point.x - x) ** 2 + (point.y - y) ** 2 + 60) ** 1.5;
          sum += weight * merit.get(point.trial.id);
          weights += weight;
        }
        pen.fillStyle = shade(sum / weights, look);
        const [left, top] = [edge(box.left, wide, column), edge(box.top, high, row)];
        pen.fillRect(left, top, edge(box.left, wide, column + 1) - left, edge(box.top, high, row + 1) - top);
      }
    }
    pen.globalAlpha = 1;
  };
  const draw = (pen, look, width) => {
    if (!shown.length) return empty(pen, look, width, `no trial has a value of ${short(metric, 40)} yet`);
    const { box, x, y } = scales(width);
    const points = place(width);
    if (second && !look.forced) contour(pen, look, box, points.slice(0, 400));
    axes(pen, look, box, x.at, y.at, { xTicks: x.ticks, yTicks: y.ticks, xText: x.text, yText: y.text, xName: first, yName: second || metric });
    for (let rank = points.length - 1; rank >= 0; rank--) {
      const point = points[rank];
      pen.fillStyle = look.back;
      dot(pen, point.x, point.y, rank < LEADERS ? 6.5 : 4.5);
      pen.fillStyle = rank < LEADERS ? trialColor(point.trial.number, look) : shade(merit.get(point.trial.id), look);
      dot(pen, point.x, point.y, rank < LEADERS ? 5 : 3.5);
    }
    return undefined;
  };
  const describe = (trial) => [trial.id, `${short(metric, 30)} = ${number(trial.value)}`, ...[first, second].filter(Boolean).map((name) => `${short(name, 24)} = ${short(trial.chosen[name], 20)}`)];
  const pick = (name, value, more) => html`<select value=${value} onChange=${(event) => setQuery({ [name]: event.target.value })}>${more}${keys.filter((key) => name === "sx" || key !== first).map((key) => html`<option value=${key}>${key}</option>`)}</select>`;
  const tools = html`<label>across ${pick("sx", first, null)}</label><label>up ${pick("sy", second, html`<option value="">${metric}</option>`)}</label>`;
  return html`<div><${Chart} name=${`${feed.key}-slice`} label=${`${metric} by ${first}${second ? ` and ${second}` : ""}, ${shown.length} trials`} height=${HEIGHT} stamp=${[feed.version, first, second].join("|")} draw=${draw} tools=${tools} ...${pointed(place, describe, onOpen)}
      rows=${() => [["trial", first, ...(second ? [second] : []), metric], ...shown.map((trial) => [trial.id, trial.chosen[first], ...(second ? [trial.chosen[second]] : []), trial.value])]} />
    <p class="legend muted">The ${LEADERS} best trials have their colours${second ? `; the shade between trials is the mean of their ranks by distance, ${mode === "min" ? "lowest" : "highest"} values strongest` : ""}. Choose a parameter for the axis up to see two at once.</p></div>`;
}
