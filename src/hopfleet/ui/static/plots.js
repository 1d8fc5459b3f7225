// Charts of whole searches: parallel coordinates, importance, rungs, lineage and Pareto front.

import { html, useEffect, useMemo, useState } from "./vendor/htm-preact-3.1.1.js";
import { Chart, bubble } from "./chart.js";
import { number, percent, plural, short } from "./format.js";
import { FONT, LEADERS, SMALL, axes, scale, shade, style, ticks, trialColor } from "./pen.js";
import { get } from "./session.js";

const CHOICES = 8; // values of a number that an axis shows as they are

// A parameter's axis: numbers, logarithmic if they span decades, or the different values in order.
export function parameterAxis(name, values) {
  const numbers = values.filter((value) => typeof value === "number" && Number.isFinite(value));
  if (numbers.length === values.filter((value) => value !== undefined && value !== null).length && numbers.length) {
    let [low, high] = [Infinity, -Infinity];
    for (const value of numbers) [low, high] = [Math.min(low, value), Math.max(high, value)];
    const values = [...new Set(numbers)].sort((a, b) => a - b);
    return { name, low, high, log: low > 0 && high / low > 30, numeric: true, choices: values.length <= CHOICES ? values : null };
  }
  const kinds = [...new Set(values.map((value) => (value === undefined ? "–" : short(value, 40))))].sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
  return { name, kinds, numeric: false };
}

export function varyingKeys(trials) {
  const seen = new Map();
  for (const trial of trials) {
    for (const [key, value] of Object.entries(trial.chosen)) {
      if (!seen.has(key)) seen.set(key, { values: new Set(), count: 0 });
      seen.get(key).values.add(JSON.stringify(value));
      seen.get(key).count++;
    }
  }
  // A name that some trials lack varies, too.
  return [...seen].filter(([, { values, count }]) => values.size > 1 || count < trials.length).map(([key]) => key);
}

export function Parallel({ feed, onOpen, onFilter }) {
  const [brushes, setBrushes] = useState({});
  const trials = feed.leaders().filter((trial) => trial.value !== null);
  const metric = feed.header.metric;
  const axesOf = useMemo(() => {
    const found = varyingKeys(trials).slice(0, 14).map((key) => parameterAxis(key, trials.map((trial) => trial.chosen[key])));
    return [...found, { ...parameterAxis(metric, trials.map((trial) => trial.value)), metric: true }];
  }, [feed.version]);
  const height = 380;
  const unset = height - 9; // where lines of trials that lack a parameter pass below its axis
  const box = (width) => ({ left: 54, right: width - 74, top: 34, bottom: height - 24 });
  const across = (width) => scale(0, Math.max(1, axesOf.length - 1), box(width).left, box(width).right);
  const up = (axis, width) => {
    const { top, bottom } = box(width);
    if (axis.numeric) return scale(axis.low, axis.high === axis.low ? axis.low + 1 : axis.high, bottom, top, axis.log);
    const places = new Map(axis.kinds.map((kind, place) => [kind, bottom - ((place + 0.5) / axis.kinds.length) * (bottom - top)]));
    const find = (kind) => places.get(kind);
    find.back = (pixel) => pixel;
    return find;
  };
  const valueOf = (trial, axis) => (axis.metric ? trial.value : trial.chosen[axis.name]);
  const place = (trial, axis, to) => {
    const value = valueOf(trial, axis);
    if (axis.numeric) return typeof value === "number" ? to(value) : unset;
    return to(value === undefined ? "–" : short(value, 40));
  };
  const inside = (trial, width) =>
    axesOf.every((axis) => {
      const brush = brushes[axis.name];
      if (!brush) return true;
      const y = place(trial, axis, up(axis, width));
      return y >= brush[0] && y <= brush[1];
    });
  const merit = (index) => (trials.length < 2 ? 1 : 1 - index / (trials.length - 1));
  const [width, setWidth] = useState(800);
  const chosen = trials.filter((trial) => inside(trial, width));
  const brushed = Object.keys(brushes).length > 0;

  const draw = (pen, look, wide) => {
    if (wide !== width) setTimeout(() => setWidth(wide));
    if (!trials.length) {
      pen.font = FONT;
      pen.fillStyle = look.muted;
      pen.textAlign = "center";
      pen.fillText(`no trial has a value of ${short(metric, 40)} yet`, wide / 2, height / 2);
      return;
    }
    const x = across(wide);
    const { top, bottom } = box(wide);
    const ups = axesOf.map((axis) => up(axis, wide));
    const line = (trial) => {
      pen.beginPath();
      axesOf.forEach((axis, index) => {
        const y = place(trial, axis, ups[index]);
        if (index === 0) pen.moveTo(x(0), y);
        else {
          const middle = (x(index - 1) + x(index)) / 2;
          pen.bezierCurveTo(middle, place(trial, axesOf[index - 1], ups[index - 1]), middle, y, x(index), y);
        }
      });
      pen.stroke();
    };
    for (let index = trials.length - 1; index >= 0; index--) {
      const kept = inside(trials[index], wide);
      const leads = kept && index < LEADERS;
      pen.strokeStyle = leads ? trialColor(trials[index].number, look) : kept ? shade(merit(index), look) : look.rule;
      pen.globalAlpha = leads ? 1 : kept ? 0.6 : 0.35;
      pen.lineWidth = leads ? 2.2 : 1;
      pen.setLineDash(leads ? style(trials[index].number).dash : []);
      line(trials[index]);
    }
    pen.globalAlpha = 1;
    pen.setLineDash([]);
    axesOf.forEach((axis, index) => {
      const at = Math.round(x(index)) + 0.5;
      pen.strokeStyle = look.muted;
      pen.lineWidth = 1;
      pen.beginPath();
      pen.moveTo(at, top);
      pen.lineTo(at, bottom);
      pen.stroke();
      pen.font = axis.metric ? `600 ${FONT}` : FONT;
      pen.fillStyle = look.ink;
      pen.textAlign = "center";
      pen.textBaseline = "top";
      pen.fillText(short(axis.name.split(".").pop(), Math.max(6, Math.floor((x(1) - x(0)) / 8))), at, 8);
      pen.font = SMALL;
      pen.fillStyle = look.muted;
      pen.textAlign = "left";
      pen.textBaseline = "middle";
      const marks = axis.numeric ? (axis.choices ?? ticks(axis.low, axis.high, 5, axis.log)).map((value) => [value, number(value)]) : axis.kinds.slice(0, 30).map((kind) => [kind, short(kind, 14)]);
      const spots = marks.map(([value, text]) => [ups[index](value), text]);
      if (trials.some((trial) => place(trial, axis, ups[index]) === unset)) spots.unshift([unset, "not set"]);
      let free = Infinity; // choices may lie close to each other
      for (const [y, text] of spots) {
        if (axis.numeric && y > free) continue;
        free = y - 13;
        pen.fillStyle = look.back;
        pen.globalAlpha = 0.8;
        pen.fillRect(at + 3, y - 7, pen.measureText(text).width + 4, 14);
        pen.globalAlpha = 1;
        pen.fillStyle = look.muted;
        pen.fillText(text, at + 5, y);
      }
      const brush = brushes[axis.name];
      if (brush) {
        pen.strokeStyle = look.ink;
        pen.strokeRect(at - 7, brush[0], 14, brush[1] - brush[0]);
      }
    });
  };
  const nearest = (point, wide) => {
    if (!point) return null;
    const x = across(wide);
    const index = Math.min(axesOf.length - 2, Math.max(0, Math.floor(x.back(point.x))));
    if (axesOf.length < 2) return null;
    const part = Math.min(1, Math.max(0, x.back(point.x) - index));
    const ease = part * part * (3 - 2 * part);
    let best = null;
    for (const trial of trials) {
      if (!inside(trial, wide)) continue;
      const [a, b] = [index, index + 1].map((each) => place(trial, axesOf[each], up(axesOf[each], wide)));
      const away = Math.abs(a + (b - a) * ease - point.y);
      if (!best || away < best.away) best = { trial, away };
    }
    return best && best.away < 12 ? best.trial : null;
  };
  const over = (pen, look, wide, high, point) => {
    const trial = nearest(point, wide);
    if (!trial) return;
    const config = axesOf.slice(0, -1).slice(0, 9).map((axis) => `${short(axis.name, 24)} = ${short(trial.chosen[axis.name], 20)}`);
    bubble(pen, look, wide, high, point, [`${trial.id}  ${short(metric, 20)} = ${number(trial.value)}`, ...config], SMALL);
  };
  const select = ({ from, to, width: wide }) => {
    const x = across(wide);
    const index = Math.round(x.back((from.x + to.x) / 2));
    const axis = axesOf[Math.min(axesOf.length - 1, Math.max(0, index))];
    setBrushes({ ...brushes, [axis.name]: [Math.min(from.y, to.y), Math.max(from.y, to.y)] });
  };
  const rows = () => [["trial", ...axesOf.map((axis) => axis.name)], ...chosen.map((trial) => [trial.id, ...axesOf.map((axis) => valueOf(trial, axis))])];
  const tools = html`<span class="muted">${brushed ? `${chosen.length} of ${plural(trials.length, "trial")}` : "drag along an axis to select"}</span>
    ${brushed && html`<button type="button" class="small" onClick=${() => setBrushes({})}>show all</button>
      <button type="button" class="small" onClick=${() => onFilter(chosen)}>list them</button>`}`;
  return html`<${Chart} name=${`${feed.key}-parallel`} label=${`Parallel coordinates of ${trials.length} trials`} height=${height}
    stamp=${[feed.version, JSON.stringify(brushes), width].join("|")} draw=${draw} over=${over} rows=${rows} tools=${tools}
    onSelect=${select} onReset=${() => setBrushes({})} onPick=${(point, wide) => {
      const trial = nearest(point, wide);
      if (trial) onOpen(trial.id);
    }} />`;
}

// Data that the server computes, again after each change, but at most every few seconds.
function useChart(feed, kind, query = "") {
  const [found, setFound] = useState({ data: null, error: "" });
  const when = feed.header.state === "running" ? Math.floor(feed.version / 6) : feed.version;
  useEffect(() => {
    let current = true;
    get(`${feed.base}/charts/${kind}${query}`).then(
      ([, data]) => current && setFound({ data, error: "" }),
      (error) => current && setFound({ data: null, error: error.message }),
    );
    return () => (current = false);
  }, [feed, kind, query, when]);
  return found;
}

const Waiting = ({ error }) => html`<p class="muted empty">${error || "computing…"}</p>`;

export function Importance({ feed, query, setQuery }) {
  const metric = query.metric ?? feed.header.metric;
  const { data, error } = useChart(feed, "importance", `?metric=${encodeURIComponent(metric)}`);
  if (!data) return html`<${Waiting} error=${error} />`;
  const bars = data.parameters;
  const height = Math.max(120, bars.length * 30 + 56);
  const most = Math.max(0.05, ...bars.map((bar) => bar.importance + bar.error));
  const draw = (pen, look, width) => {
    const left = Math.min(190, width * 0.35);
    const x = scale(0, most, left, width - 60);
    pen.textBaseline = "middle";
    bars.forEach((bar, place) => {
      const y = 16 + place * 30;
      const clear = bar.importance > 2 * bar.error;
      pen.fillStyle = clear ? look.strong[0] : look.faint;
      pen.fillRect(left, y, Math.max(1, x(Math.max(0, bar.importance)) - left), 18);
      pen.strokeStyle = look.muted;
      pen.lineWidth = 1;
      pen.beginPath();
      pen.moveTo(x(Math.max(0, bar.importance - bar.error)), y + 9);
      pen.lineTo(x(bar.importance + bar.error), y + 9);
      pen.stroke();
      pen.fillStyle = look.ink;
      pen.font = FONT;
      pen.textAlign = "right";
      pen.fillText(short(bar.name, Math.floor(left / 7)), left - 8, y + 9);
      pen.textAlign = "left";
      pen.fillStyle = look.muted;
      pen.font = SMALL;
      pen.fillText(percent(bar.importance), x(bar.importance + bar.error) + 6, y + 9);
    });
    pen.font = FONT;
    pen.fillStyle = look.ink;
    pen.textAlign = "center";
    pen.fillText(`fraction of the variance of ${short(metric, 30)}`, (left + width) / 2, height - 14);
  };
  const tools = html`<label>metric <select value=${metric} onChange=${(event) => setQuery({ metric: event.target.value })}>
    ${feed.header.metrics.map((each) => html`<option value=${each}>${each}</option>`)}</select></label>`;
  return html`<div>
    ${bars.length
      ? html`<${Chart} name=${`${feed.key}-importance`} label=${`Importance of ${bars.length} parameters`} height=${height} stamp=${JSON.stringify(data)} draw=${draw}
          rows=${() => [["parameter", "importance", "standard error"], ...bars.map((bar) => [bar.name, bar.importance, bar.error])]} tools=${tools} />`
      : html`<p class="muted empty">No importances yet.</p>`}
    ${data.notes.map((note) => html`<p class="muted">${note}</p>`)}
  </div>`;
}

export function Rungs({ feed }) {
  const { data, error } = useChart(feed, "rungs");
  if (!data) return html`<${Waiting} error=${error} />`;
  const rungs = data.rungs;
  const height = 260;
  const most = Math.max(1, ...rungs.map((rung) => rung.reached));
  const parts = [["went_on", "went on", 0], ["paused", "paused", 4], ["ended", "ended here", -1]];
  const draw = (pen, look, width) => {
    const box = { left: 46, right: width - 12, top: 30, bottom: height - 44 };
    const y = scale(0, most, box.bottom, box.top);
    const step = (box.right - box.left) / Math.max(1, rungs.length);
    axes(pen, look, box, (place) => box.left + (place + 0.5) * step, y, {
      xTicks: rungs.map((_, place) => place), yTicks: ticks(0, most, 5).filter(Number.isInteger), xText: (place) => String(rungs[place].epoch), yText: number, xName: "rung: epochs trained", yName: "",
    });
    rungs.forEach((rung, place) => {
      let from = 0;
      for (const [name, , color] of parts) {
        pen.fillStyle = color < 0 ? look.faint : look.strong[color];
        const wide = Math.min(70, step * 0.6);
        pen.fillRect(box.left + (place + 0.5) * step - wide / 2, y(from + rung[name]), wide, y(from) - y(from + rung[name]));
        from += rung[name];
      }
    });
    let x = box.left;
    pen.font = SMALL;
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    for (const [, text, color] of parts) {
      pen.fillStyle = color < 0 ? look.faint : look.strong[color];
      pen.fillRect(x, 8, 10, 10);
      pen.fillStyle = look.ink;
      pen.fillText(text, x + 15, 13);
      x += 30 + pen.measureText(text).width;
    }
  };
  const table = [["epoch", "reached", "went on", "paused", "ended", `best ${data.metric}`], ...rungs.map((rung) => [rung.epoch, rung.reached, rung.went_on, rung.paused, rung.ended, rung.best])];
  return html`<div>
    <${Chart} name=${`${feed.key}-rungs`} label=${`Trials at ${rungs.length} rungs`} height=${height} stamp=${JSON.stringify(rungs)} draw=${draw} rows=${() => table} />
    <div class="scroll" tabindex="0" role="region" aria-label="Rungs"><table><thead><tr>${table[0].map((name) => html`<th scope="col" class="right">${name}</th>`)}</tr></thead>
      <tbody>${table.slice(1).map((row) => html`<tr>${row.map((value) => html`<td class="right">${number(value)}</td>`)}</tr>`)}</tbody></table></div>
  </div>`;
}

export function Lineage({ feed, onOpen }) {
  const { data, error } = useChart(feed, "lineage");
  if (!data) return html`<${Waiting} error=${error} />`;
  const members = data.members;
  const rows = 1 + Math.max(0, ...members.map((member) => member.row));
  const high = Math.max(7, Math.min(22, 560 / rows));
  const height = Math.round(rows * high + 60);
  const last = Math.max(1, ...members.map((member) => member.end));
  const across = (width) => scale(0, last, 24, width - 60);
  const top = (member) => 12 + member.row * high;
  const byName = new Map(members.map((member) => [member.trial, member]));
  const leaders = new Set(feed.leaders().slice(0, LEADERS).map((trial) => trial.id));
  const draw = (pen, look, width) => {
    const x = across(width);
    for (const member of members) {
      const parent = byName.get(member.parent);
      if (!parent) continue;
      pen.strokeStyle = member.ancestor ? look.ink : look.muted;
      pen.globalAlpha = member.ancestor ? 1 : 0.5;
      pen.lineWidth = member.ancestor ? 1.6 : 1;
      pen.beginPath();
      pen.moveTo(x(member.start), top(parent) + high / 2);
      pen.lineTo(x(member.start), top(member) + high / 2);
      pen.stroke();
    }
    pen.globalAlpha = 1;
    pen.textBaseline = "middle";
    for (const member of members) {
      const from = x(member.start);
      pen.fillStyle = trialColor(feed.trials.get(member.trial)?.number ?? 0, look);
      pen.globalAlpha = leaders.has(member.trial) ? 1 : 0.45;
      pen.fillRect(from, top(member) + high * 0.15, Math.max(2, x(member.end) - from), high * 0.7);
      pen.globalAlpha = 1;
      if (member.ancestor) {
        pen.strokeStyle = look.ink;
        pen.lineWidth = 1.2;
        pen.strokeRect(from, top(member) + high * 0.15, Math.max(2, x(member.end) - from), high * 0.7);
      }
      if (high >= 12) {
        pen.font = SMALL;
        pen.fillStyle = look.ink;
        pen.textAlign = "left";
        pen.fillText(member.trial, x(member.end) + 5, top(member) + high / 2);
      }
    }
    pen.font = SMALL;
    pen.fillStyle = look.muted;
    pen.textAlign = "center";
    pen.textBaseline = "top";
    for (const tick of ticks(0, last, 10).filter(Number.isInteger)) pen.fillText(number(tick), x(tick), height - 40);
    pen.font = FONT;
    pen.fillStyle = look.ink;
    pen.fillText("epoch", width / 2, height - 22);
  };
  const under = (point, width) => point && members.find((member) => point.y >= top(member) && point.y < top(member) + high && point.x >= across(width)(member.start) - 2 && point.x <= across(width)(member.end) + 40);
  const over = (pen, look, width, tall, point) => {
    const member = under(point, width);
    if (!member) return;
    const trial = feed.trials.get(member.trial);
    const config = Object.entries(trial?.chosen ?? {}).slice(0, 8).map(([key, value]) => `${short(key, 24)} = ${short(value, 20)}`);
    bubble(pen, look, width, tall, point, [`${member.trial}${member.parent ? ` from ${member.parent}` : ""}`, `${short(data.metric, 20)} = ${number(trial?.value)}`, ...config], SMALL);
  };
  return html`<div><${Chart} name=${`${feed.key}-lineage`} label=${`Lineage of ${members.length} trials`} height=${height} stamp=${JSON.stringify(members.length) + feed.version} draw=${draw} over=${over}
      rows=${() => [["trial", "parent", "start", "end", "ancestor of the best"], ...members.map((member) => [member.trial, member.parent, member.start, member.end, Number(member.ancestor)])]}
      onPick=${(point, width) => {
        const member = under(point, width);
        if (member && feed.trials.has(member.trial)) onOpen(member.trial);
      }} />
    <p class="legend muted">A bar is a trial from its first to its last epoch. A line leads from the parent of a clone. Outlines mark the best trial and its ancestors.</p></div>`;
}

export function Pareto({ feed, query, setQuery, onOpen }) {
  const names = feed.header.metrics;
  const numeric = [...names, "units"];
  const first = query.px ?? feed.header.objectives[1]?.[0] ?? names.find((name) => name !== feed.header.metric) ?? "units";
  const second = query.py ?? feed.header.metric;
  const read = (trial, name) => (name === "units" ? trial.units : trial.metrics[name]);
  const modes = Object.fromEntries(feed.header.objectives);
  const modeOf = (name) => modes[name] ?? (/loss|error|time|latency|size|units|params/i.test(name) ? "min" : "max");
  const points = [...feed.trials.values()].map((trial) => ({ trial, x: read(trial, first), y: read(trial, second) })).filter(({ x, y }) => Number.isFinite(x) && Number.isFinite(y));
  const [sx, sy] = [first, second].map((name) => (modeOf(name) === "min" ? 1 : -1));
  const sorted = [...points].sort((a, b) => sx * (a.x - b.x) || sy * (a.y - b.y));
  const front = [];
  for (const point of sorted) if (!front.length || sy * point.y < sy * front[front.length - 1].y) front.push(point);
  const onFront = new Set(front.map((point) => point.trial.id));
  const height = 380;
  const scales = (width) => {
    const range = (name) => {
      const values = points.map((point) => point[name]);
      let [low, high] = [Math.min(...values), Math.max(...values)];
      const space = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
      return [low - space, high + space];
    };
    const box = { left: 64, right: width - 60, top: 24, bottom: height - 44 };
    const [x, y] = [range("x"), range("y")];
    return { box, x: scale(...x, box.left, box.right), y: scale(...y, box.bottom, box.top) };
  };
  const draw = (pen, look, width) => {
    if (!points.length) {
      pen.font = FONT;
      pen.fillStyle = look.muted;
      pen.textAlign = "center";
      pen.fillText("no trial has both values yet", width / 2, height / 2);
      return;
    }
    const { box, x, y } = scales(width);
    axes(pen, look, box, x, y, { xTicks: ticks(x.low, x.high, 7), yTicks: ticks(y.low, y.high, 6), xText: number, yText: number, xName: `${first} (${modeOf(first)})`, yName: `${second} (${modeOf(second)})` });
    pen.strokeStyle = look.strong[1];
    pen.lineWidth = 1.2;
    pen.setLineDash([4, 3]);
    pen.beginPath();
    front.forEach((point, place) => {
      if (place) pen.lineTo(x(point.x), y(front[place - 1].y));
      if (place) pen.lineTo(x(point.x), y(point.y));
      else pen.moveTo(x(point.x), y(point.y));
    });
    pen.stroke();
    pen.setLineDash([]);
    for (const point of points) {
      const best = onFront.has(point.trial.id);
      pen.fillStyle = best ? look.strong[1] : point.trial.feasible ? look.strong[0] : look.faint;
      pen.globalAlpha = best ? 1 : 0.55;
      pen.beginPath();
      pen.arc(x(point.x), y(point.y), best ? 5 : 3.5, 0, 7);
      pen.fill();
    }
    pen.globalAlpha = 1;
    pen.font = SMALL;
    pen.fillStyle = look.ink;
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    if (front.length <= 15) for (const point of front) pen.fillText(point.trial.id, x(point.x) + 8, y(point.y));
  };
  const nearest = (point, width) => {
    if (!point || !points.length) return null;
    const { x, y } = scales(width);
    let best = null;
    for (const each of points) {
      const away = Math.hypot(x(each.x) - point.x, y(each.y) - point.y);
      if (away < 16 && (!best || away < best.away)) best = { each, away };
    }
    return best?.each ?? null;
  };
  const over = (pen, look, width, tall, point) => {
    const near = nearest(point, width);
    if (near) bubble(pen, look, width, tall, point, [near.trial.id, `${short(first, 24)} = ${number(near.x)}`, `${short(second, 24)} = ${number(near.y)}`], SMALL);
  };
  const pick = (name, value) => html`<select value=${value} onChange=${(event) => setQuery({ [name]: event.target.value })}>${numeric.map((each) => html`<option value=${each}>${each}</option>`)}</select>`;
  const tools = html`<label>across ${pick("px", first)}</label><label>up ${pick("py", second)}</label><span class="muted">${front.length} on the front</span>`;
  return html`<${Chart} name=${`${feed.key}-pareto`} label=${`Pareto front of ${first} and ${second}: ${front.length} of ${points.length} trials`} height=${height}
    stamp=${[feed.version, first, second].join("|")} draw=${draw} over=${over} tools=${tools}
    stops=${(width) => (points.length ? points.map((point) => ({ x: scales(width).x(point.x), y: scales(width).y(point.y) })) : [])}
    rows=${() => [["trial", first, second, "on the front"], ...points.map((point) => [point.trial.id, point.x, point.y, Number(onFront.has(point.trial.id))])]}
    onPick=${(point, width) => {
      const near = nearest(point, width);
      if (near) onOpen(near.trial.id);
    }} />`;
}
