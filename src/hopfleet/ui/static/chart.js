// A chart: two canvases, one for the data and one for the pointer above it, with downloads as PNG, SVG and CSV.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { csv, save } from "./format.js";
import { SvgPen, theme } from "./pen.js";

function fitted(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}

// `draw(pen, look, width, height)` draws the data when `stamp` changes; `over(pen, look, width, height, point)` draws
// what follows the pointer. `stops(width)` are the points between which the arrow keys go; without it, they go by steps. `onSelect(box)` gets a dragged box, `onPick(point)` a click, `onReset()` a double click.
export function Chart({ name, label, height = 320, stamp, draw, over, rows, stops, onSelect, onPick, onReset, onWheel, tools }) {
  const frame = useRef(null);
  const base = useRef(null);
  const top = useRef(null);
  const [width, setWidth] = useState(0);
  const [look, setLook] = useState(0);
  const drag = useRef(null);
  const point = useRef(null);
  const [said, setSaid] = useState(""); // what lies under the pointer, for those who do not see it
  const latest = useRef({});
  latest.current = { draw, over, onSelect, onPick, width, height };

  useLayoutEffect(() => {
    const watcher = new ResizeObserver((entries) => setWidth(Math.floor(entries[0].contentRect.width)));
    watcher.observe(frame.current);
    const again = () => setLook((count) => count + 1);
    window.addEventListener("hopfleet-theme", again);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const forced = matchMedia("(forced-colors: active)");
    dark.addEventListener("change", again);
    forced.addEventListener("change", again);
    return () => {
      watcher.disconnect();
      window.removeEventListener("hopfleet-theme", again);
      dark.removeEventListener("change", again);
      forced.removeEventListener("change", again);
    };
  }, []);

  const overlay = (keys = false) => {
    const { over, width, height } = latest.current;
    if (!top.current || width < 10) return;
    const pen = fitted(top.current, width, height);
    const colors = theme();
    delete top.current.dataset.said;
    over?.(pen, colors, width, height, point.current);
    if (keys === true && point.current && !top.current.dataset.said) cross(pen, colors, point.current);
    if (drag.current?.moved) {
      const { from, to } = drag.current;
      pen.fillStyle = colors.ink;
      pen.globalAlpha = 0.12;
      pen.fillRect(Math.min(from.x, to.x), Math.min(from.y, to.y), Math.abs(to.x - from.x), Math.abs(to.y - from.y));
      pen.globalAlpha = 1;
    }
  };

  useLayoutEffect(() => {
    if (width < 10) return;
    draw(fitted(base.current, width, height), theme(), width, height);
    frame.current.dataset.drawn = String(Number(frame.current.dataset.drawn ?? 0) + 1);
    overlay();
  }, [stamp, width, height, look]);

  useEffect(() => {
    const wheel = (event) => {
      if (!onWheel || !(event.ctrlKey || event.shiftKey || event.metaKey)) return;
      event.preventDefault();
      const box = top.current.getBoundingClientRect();
      onWheel(event.clientX - box.left, Math.sign(event.deltaY || event.deltaX), latest.current.width);
    };
    top.current.addEventListener("wheel", wheel, { passive: false });
    return () => top.current?.removeEventListener("wheel", wheel);
  }, [onWheel]);

  const at = (event) => {
    const box = top.current.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const move = (event) => {
    point.current = at(event);
    if (drag.current) {
      drag.current.to = point.current;
      drag.current.moved ||= Math.hypot(drag.current.to.x - drag.current.from.x, drag.current.to.y - drag.current.from.y) > 4;
    }
    requestAnimationFrame(overlay);
  };
  const down = (event) => {
    if (event.button === 0) {
      const from = at(event);
      drag.current = { from, to: from, moved: false };
    }
  };
  const up = (event) => {
    const done = drag.current;
    drag.current = null;
    if (!done) return;
    if (done.moved) latest.current.onSelect?.({ from: done.from, to: done.to, width: latest.current.width });
    else latest.current.onPick?.(at(event), latest.current.width);
    requestAnimationFrame(overlay);
  };
  const leave = () => {
    point.current = null;
    drag.current = null;
    requestAnimationFrame(overlay);
  };

  // Arrows move the pointer, Enter clicks, plus zooms in around it, and minus shows all; what lies under it is read out.
  const pressed = (event) => {
    const { width, height, onPick, onSelect } = latest.current;
    const step = event.shiftKey ? 2 : 12;
    const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
    const now = point.current ?? { x: width / 2, y: height / 2 };
    if (moves[event.key]) {
      const [x, y] = moves[event.key];
      const stop = nearestStop(stops?.(width) ?? [], point.current, now, Math.sign(x), Math.sign(y));
      point.current = stop ?? { x: Math.min(width, Math.max(0, now.x + x)), y: Math.min(height, Math.max(0, now.y + y)) };
    } else if (event.key === "Enter" || event.key === " ") onPick?.(now, width);
    else if (event.key === "+" || event.key === "=") onSelect?.({ from: { x: now.x - width / 4, y: now.y }, to: { x: now.x + width / 4, y: now.y }, width });
    else if (event.key === "-") onReset?.();
    else return;
    event.preventDefault();
    event.stopPropagation();
    overlay(true);
    setSaid(top.current.dataset.said ?? "");
  };

  const png = () => {
    const ratio = 2;
    const canvas = document.createElement("canvas");
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.fillStyle = theme().back;
    pen.fillRect(0, 0, width, height);
    draw(pen, theme(), width, height);
    // Not toBlob: browsers put that off while they are busy, and refuse a download that comes long after the click.
    const bytes = Uint8Array.from(atob(canvas.toDataURL().split(",")[1]), (letter) => letter.charCodeAt(0));
    save(`${name}.png`, bytes, "image/png");
  };
  const svg = () => {
    const pen = new SvgPen(width, height, document.createElement("canvas").getContext("2d"));
    draw(pen, theme(), width, height);
    save(`${name}.svg`, pen.text(theme().back), "image/svg+xml");
  };
  return html`<figure class="chart">
    <div class="tools">
      <div class="choices">${tools}</div>
      <div class="downloads" role="group" aria-label="Download the chart">
        <button type="button" class="small" title="Download as PNG" onClick=${png}>PNG</button>
        <button type="button" class="small" title="Download as SVG" onClick=${svg}>SVG</button>
        <button type="button" class="small" title="Download the data as CSV" onClick=${() => save(`${name}.csv`, csv(rows()), "text/csv")}>CSV</button>
      </div>
    </div>
    <div class="frame" ref=${frame} style=${{ height: `${height}px` }}>
      <canvas ref=${base} aria-hidden="true" style=${{ width: `${width}px`, height: `${height}px` }}></canvas>
      <canvas
        ref=${top}
        role="application"
        aria-roledescription="chart"
        aria-label=${`${label}. Arrow keys explore${onSelect ? ", plus zooms in, minus shows all" : ""}${onPick ? ", Enter chooses" : ""}.`}
        tabindex="0"
        class="over"
        onKeyDown=${pressed}
        onBlur=${leave}
        style=${{ width: `${width}px`, height: `${height}px` }}
        onPointerMove=${move}
        onPointerDown=${down}
        onPointerUp=${up}
        onPointerLeave=${leave}
        onDblClick=${() => onReset?.()}
      ></canvas>
      <span class="hidden" role="status">${said}</span>
    </div>
  </figure>`;
}

// The point that lies next in a direction; at first, the one nearest to the middle.
function nearestStop(stops, from, now, right, down) {
  let best = null;
  for (const stop of stops) {
    const [dx, dy] = [stop.x - now.x, stop.y - now.y];
    const along = dx * right + dy * down;
    const aside = Math.abs(dx * down) + Math.abs(dy * right);
    if (from && along < 0.5) continue;
    const cost = from ? along + 3 * aside : Math.hypot(dx, dy);
    if (!best || cost < best.cost) best = { cost, stop };
  }
  return best?.stop ?? (from && stops.length ? from : null);
}

function cross(pen, look, { x, y }) {
  pen.strokeStyle = look.ink;
  pen.lineWidth = 1.5;
  pen.beginPath();
  for (const [a, b] of [[7, 0], [0, 7]]) {
    pen.moveTo(x - a, y - b);
    pen.lineTo(x + a, y + b);
  }
  pen.stroke();
}

// A box with lines of text beside the pointer, inside the chart.
export function bubble(pen, look, width, height, point, lines, font) {
  if (pen.canvas) pen.canvas.dataset.said = lines.join(", ");
  pen.font = font;
  const wide = Math.max(...lines.map((line) => pen.measureText(line).width)) + 16;
  const high = lines.length * 16 + 10;
  let x = point.x + 14;
  let y = point.y + 14;
  if (x + wide > width) x = Math.max(2, point.x - wide - 10);
  if (y + high > height) y = Math.max(2, height - high - 2);
  pen.fillStyle = look.back;
  pen.globalAlpha = 0.95;
  pen.fillRect(x, y, wide, high);
  pen.globalAlpha = 1;
  pen.strokeStyle = look.muted;
  pen.lineWidth = 1;
  pen.strokeRect(x + 0.5, y + 0.5, wide - 1, high - 1);
  pen.fillStyle = look.ink;
  pen.textAlign = "left";
  pen.textBaseline = "top";
  lines.forEach((line, place) => pen.fillText(line, x + 8, y + 6 + place * 16));
}
