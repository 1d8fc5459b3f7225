// Values of single steps of one trial, e.g. its learning rate: a chart for each name.

import { html } from "./vendor/htm-preact-3.1.1.js";
import { Chart, bubble } from "./chart.js";
import { extent } from "./curves.js";
import { number, short } from "./format.js";
import { SMALL, axes, scale, style, ticks, trialColor } from "./pen.js";

const HEIGHT = 220;

export function StepCurve({ feed, trial, name, steps, values }) {
  const view = extent([{ xs: steps, ys: values }], false);
  const scales = (width) => {
    const box = { left: 70, right: width - 16, top: 22, bottom: HEIGHT - 44 };
    return { box, x: scale(view.x0, view.x1, box.left, box.right), y: scale(view.y0, view.y1, box.bottom, box.top) };
  };
  const points = (width) => {
    if (!view) return [];
    const { x, y } = scales(width);
    const places = values.map((value, place) => ({ place, x: x(steps[place]), y: y(value) }));
    return places.filter(({ place }) => Number.isFinite(values[place]));
  };
  const draw = (pen, look, width) => {
    if (!view) return;
    const { box, x, y } = scales(width);
    const whole = ticks(view.x0, view.x1, 8).filter(Number.isInteger);
    axes(pen, look, box, x, y, { xTicks: whole, yTicks: ticks(view.y0, view.y1, 5), xText: number, yText: number, xName: "step", yName: name });
    pen.strokeStyle = trialColor(trial.number, look);
    pen.setLineDash(style(trial.number).dash);
    pen.lineWidth = 1.8;
    pen.beginPath();
    // A value that is not finite leaves a gap, and a value between two gaps is a dot.
    for (const point of points(width)) {
      const [before, after] = [values[point.place - 1], values[point.place + 1]].map(Number.isFinite);
      if (before) pen.lineTo(point.x, point.y);
      else pen.moveTo(point.x + (after ? 0 : 1.5), point.y);
      if (!before && !after) pen.arc(point.x, point.y, 1.5, 0, 7);
    }
    pen.stroke();
    pen.setLineDash([]);
  };
  const over = (pen, look, width, high, point) => {
    let near = null;
    for (const each of point ? points(width) : []) if (!near || Math.abs(each.x - point.x) < Math.abs(near.x - point.x)) near = each;
    if (!near) return;
    pen.fillStyle = look.ink;
    pen.beginPath();
    pen.arc(near.x, near.y, 3.5, 0, 7);
    pen.fill();
    bubble(pen, look, width, high, near, [`${short(name, 30)} = ${number(values[near.place])} in step ${number(steps[near.place])}`], SMALL);
  };
  const rows = () => [["step", name], ...steps.map((step, place) => [step, values[place]])];
  return html`<${Chart} name=${`${feed.key}-${trial.id}-${name}`} label=${`${name} of ${trial.id} in ${number(steps.length)} steps`} height=${HEIGHT}
    stamp=${`${trial.id}|${steps.length}|${steps.at(-1)}|${values.at(-1)}`} draw=${draw} over=${over} stops=${points} rows=${rows} />`;
}
