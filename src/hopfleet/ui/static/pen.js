// Scales, ticks and colours, and a pen that writes SVG with the calls of a canvas.

// Six colours that people who see fewer can tell apart (style.css), times four dashes: enough for 24 trials.
const COLORS = 6;
const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3]];

export function theme() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  const dark = read("--dark") === "1";
  return {
    dark,
    ink: read("--ink"),
    muted: read("--muted"),
    rule: read("--rule"),
    back: read("--card"),
    faint: read("--curve"),
    failure: read("--bad"),
    forced: matchMedia("(forced-colors: active)").matches,
    strong: Array.from({ length: COLORS }, (_, place) => read(`--s${place}`)),
  };
}

export const LEADERS = 5; // trials that stand out

// A trial keeps its colour and its dashes for good, in all charts: they follow from its number, not from its rank.
export const style = (number) => ({ color: number % COLORS, dash: DASHES[Math.floor(number / COLORS) % DASHES.length] });
export const trialColor = (number, look) => look.strong[style(number).color];

export function shade(merit, look) {
  if (look.forced) return look.ink;
  const from = look.dark ? [58, 62, 70] : [222, 216, 204];
  const to = look.dark ? [122, 176, 240] : [31, 95, 168];
  return `rgb(${from.map((value, place) => Math.round(value + (to[place] - value) * merit)).join(" ")})`;
}

export function scale(low, high, from, to, log = false) {
  const turn = log ? Math.log10 : (value) => value;
  const [a, b] = [turn(low), turn(high)];
  const span = b - a || 1;
  const place = (value) => from + ((turn(value) - a) / span) * (to - from);
  place.back = (pixel) => {
    const value = a + ((pixel - from) / (to - from)) * span;
    return log ? 10 ** value : value;
  };
  place.low = low;
  place.high = high;
  place.log = log;
  return place;
}

export function ticks(low, high, count = 6, log = false) {
  if (log && high / low >= 8) {
    const found = [];
    const first = Math.floor(Math.log10(low));
    const last = Math.ceil(Math.log10(high));
    const step = Math.max(1, Math.ceil((last - first) / count));
    for (let power = first; power <= last; power += step) {
      const value = 10 ** power;
      if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
      if (last - first <= 2) for (const more of [2, 5]) if (value * more >= low && value * more <= high) found.push(value * more);
    }
    if (found.length > 1) return found;
  }
  const span = high - low;
  if (!(span > 0)) return [low];
  const rough = span / count;
  const base = 10 ** Math.floor(Math.log10(rough));
  const step = base * [1, 2, 5, 10].find((each) => base * each >= rough);
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-9; value += step) found.push(Math.abs(value) < step / 1e6 ? 0 : value);
  return found;
}

export function timeTicks(low, high, count = 7) {
  const steps = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400, 604800];
  const step = steps.find((each) => (high - low) / each <= count) ?? 604800;
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high; value += step) found.push(value);
  return found;
}

export function clockText(seconds) {
  if (Math.abs(seconds) < 60) return `${Number(seconds.toFixed(3))}s`;
  const two = (count) => String(Math.floor(count)).padStart(2, "0");
  const sign = seconds < 0 ? "-" : "";
  const whole = Math.abs(Math.round(seconds));
  if (whole < 3600) return `${sign}${Math.floor(whole / 60)}:${two(whole % 60)}`;
  return `${sign}${Math.floor(whole / 3600)}:${two((whole % 3600) / 60)}:${two(whole % 60)}`;
}

const escaped = (text) =>
  String(text).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, "�").replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);

export class SvgPen {
  constructor(width, height, measure) {
    Object.assign(this, { width, height, parts: [], path: "", dash: "", turn: "", stack: [], clips: 0, clipped: "" });
    Object.assign(this, { fillStyle: "#000", strokeStyle: "#000", lineWidth: 1, globalAlpha: 1 });
    Object.assign(this, { font: "12px sans-serif", textAlign: "left", textBaseline: "alphabetic" });
    this.measure = measure;
  }
  save() {
    const { fillStyle, strokeStyle, lineWidth, globalAlpha, font, textAlign, textBaseline, dash, turn, clipped } = this;
    this.stack.push({ fillStyle, strokeStyle, lineWidth, globalAlpha, font, textAlign, textBaseline, dash, turn, clipped });
  }
  restore() {
    Object.assign(this, this.stack.pop());
  }
  translate(x, y) {
    this.turn += `translate(${x} ${y})`;
  }
  rotate(angle) {
    this.turn += `rotate(${(angle * 180) / Math.PI})`;
  }
  setLineDash(list) {
    this.dash = list.join(" ");
  }
  beginPath() {
    this.path = "";
  }
  moveTo(x, y) {
    this.path += `M${x.toFixed(2)} ${y.toFixed(2)}`;
  }
  lineTo(x, y) {
    this.path += `${this.path ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`;
  }
  bezierCurveTo(a, b, c, d, e, f) {
    this.path += `C${[a, b, c, d, e, f].map((value) => value.toFixed(2)).join(" ")}`;
  }
  closePath() {
    this.path += "Z";
  }
  rect(x, y, w, h) {
    this.path += `M${x} ${y}h${w}v${h}h${-w}Z`;
  }
  arc(x, y, r) {
    this.path += `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`;
  }
  clip() {
    const name = `c${++this.clips}`;
    this.parts.push(`<clipPath id="${name}"><path d="${this.path}"/></clipPath>`);
    this.clipped = ` clip-path="url(#${name})"`;
  }
  common() {
    const turn = this.turn ? ` transform="${this.turn}"` : "";
    return `${this.globalAlpha < 1 ? ` opacity="${this.globalAlpha}"` : ""}${turn}${this.clipped}`;
  }
  stroke() {
    const dash = this.dash ? ` stroke-dasharray="${this.dash}"` : "";
    const line = `stroke="${escaped(this.strokeStyle)}" stroke-width="${this.lineWidth}"${dash}`;
    this.parts.push(`<path d="${this.path}" fill="none" ${line}${this.common()}/>`);
  }
  fill() {
    this.parts.push(`<path d="${this.path}" fill="${escaped(this.fillStyle)}"${this.common()}/>`);
  }
  fillRect(x, y, w, h) {
    const place = `x="${x.toFixed(2)}" y="${y.toFixed(2)}" width="${w.toFixed(2)}" height="${h.toFixed(2)}"`;
    this.parts.push(`<rect ${place} fill="${escaped(this.fillStyle)}"${this.common()}/>`);
  }
  strokeRect(x, y, w, h) {
    this.beginPath();
    this.rect(x, y, w, h);
    this.stroke();
  }
  measureText(text) {
    this.measure.font = this.font;
    return this.measure.measureText(text);
  }
  fillText(text, x, y) {
    const anchor = { left: "start", start: "start", center: "middle", right: "end", end: "end" }[this.textAlign];
    const base = { middle: "central", top: "hanging", alphabetic: "alphabetic", bottom: "text-after-edge" }[this.textBaseline];
    const how = `x="${x.toFixed(2)}" y="${y.toFixed(2)}" text-anchor="${anchor}" dominant-baseline="${base}"`;
    this.parts.push(`<text ${how} fill="${escaped(this.fillStyle)}" style="font:${escaped(this.font)}"${this.common()}>${escaped(text)}</text>`);
  }
  text(back) {
    const size = `width="${this.width}" height="${this.height}" viewBox="0 0 ${this.width} ${this.height}"`;
    const paper = `<rect width="100%" height="100%" fill="${escaped(back)}"/>`;
    return `<svg xmlns="http://www.w3.org/2000/svg" ${size}>${paper}${this.parts.join("")}</svg>\n`;
  }
}

export const FONT = "12px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
export const SMALL = "11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";

// Axes with ticks, labels and a light grid. Returns nothing; `box` has left, top, right, bottom.
export function axes(pen, look, box, x, y, { xTicks, yTicks, xText, yText, xName = "", yName = "" }) {
  pen.font = SMALL;
  pen.lineWidth = 1;
  pen.strokeStyle = look.rule;
  pen.beginPath();
  for (const value of yTicks) {
    const place = Math.round(y(value)) + 0.5;
    pen.moveTo(box.left, place);
    pen.lineTo(box.right, place);
  }
  pen.stroke();
  pen.fillStyle = look.muted;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (const value of yTicks) pen.fillText(yText(value), box.left - 6, y(value));
  pen.textAlign = "center";
  pen.textBaseline = "top";
  let free = -Infinity;
  for (const value of xTicks) {
    const [text, place] = [xText(value), x(value)];
    const half = pen.measureText(text).width / 2;
    if (place - half < free) continue;
    free = place + half + 8;
    pen.fillText(text, place, box.bottom + 6);
  }
  pen.fillStyle = look.ink;
  pen.font = FONT;
  if (xName) pen.fillText(xName, (box.left + box.right) / 2, box.bottom + 21);
  if (yName) {
    pen.textAlign = "left";
    pen.textBaseline = "top";
    pen.fillText(yName, 4, 2);
  }
}
