// Values as text, in the same form as on the terminal.

export function number(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (!Number.isFinite(value)) return String(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return String(value);
  if (size >= 1e-4 && size < 1e6) return String(Number(value.toPrecision(4)));
  return value.toExponential(3).replace(/\.?0+e/, "e").replace("e+", "e");
}

export function short(value, length = 24) {
  const text = typeof value === "number" ? number(value) : typeof value === "string" ? value : JSON.stringify(value) ?? "–";
  return text.length <= length ? text : `${text.slice(0, length - 1)}…`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const total = Math.round(seconds);
  const two = (count) => String(count).padStart(2, "0");
  if (seconds < 10) return `${Number(seconds.toFixed(1))}s`;
  if (total < 60) return `${total}s`;
  if (total < 3600) return `${Math.floor(total / 60)}m ${two(total % 60)}s`;
  if (total < 86400) return `${Math.floor(total / 3600)}h ${two(Math.floor((total % 3600) / 60))}m`;
  return `${Math.floor(total / 86400)}d ${two(Math.floor((total % 86400) / 3600))}h`;
}

export function size(count) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (count < 1024) return unit === "B" ? `${count} B` : `${count.toFixed(1)} ${unit}`;
    count /= 1024;
  }
  return `${count.toFixed(1)} TiB`;
}

export const percent = (fraction) => (fraction === null || fraction === undefined ? "–" : `${Math.round(fraction * 100)}%`);

export function moment(seconds) {
  if (!seconds) return "–";
  const date = new Date(seconds * 1000);
  const two = (count) => String(count).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

export const plural = (count, noun) => (count === 1 ? `1 ${noun}` : `${count} ${noun}s`);

// A cell that a spreadsheet would take for a formula begins with an apostrophe.
function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  let text = typeof value === "string" ? value : JSON.stringify(value);
  if (/^[=+\-@\t\r]/.test(text)) text = `'${text}`;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export const csv = (rows) => rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";

export function save(name, content, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name.replace(/[^\w.-]+/g, "_");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
