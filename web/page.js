// What both interactive pages share: theme, canvases, charts, the URL fragment, the snippet.
"use strict";

const stillness = matchMedia("(prefers-reduced-motion: reduce)");

// A colour of the style sheet, for canvases; remembered, as canvases ask in every frame.
const colours = new Map();
document.addEventListener("themechange", () => colours.clear());
function colour(name) {
  if (!colours.has(name)) {
    const style = getComputedStyle(document.documentElement);
    colours.set(name, style.getPropertyValue(`--${name}`).trim());
  }
  return colours.get(name);
}

// ---- Theme: the visitor's choice, else the system's ----

const Theme = {
  system: matchMedia("(prefers-color-scheme: dark)"),
  stored() {
    try { return localStorage.getItem("theme"); } catch { return null; }
  },
  apply(name = this.stored() ?? (this.system.matches ? "dark" : "light")) {
    document.documentElement.dataset.theme = name;
    for (const button of document.querySelectorAll("button.theme"))
      button.textContent = name === "dark" ? "Light" : "Dark";
    document.dispatchEvent(new Event("themechange"));
  },
  toggle() {
    const name = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("theme", name); } catch { /* private window */ }
    this.apply(name);
  },
};
Theme.apply();  // at once, before anything is painted
Theme.system.addEventListener("change", () => Theme.apply());
document.addEventListener("DOMContentLoaded", () => {
  Theme.apply();
  document.querySelector("button.theme").addEventListener("click", () => Theme.toggle());
});

// ---- Canvases ----

// A drawing context in CSS pixels, at the resolution of the screen.
function context(canvas) {
  const ratio = Math.min(devicePixelRatio || 1, 2);
  const width = canvas.clientWidth, height = canvas.clientHeight;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  const drawing = canvas.getContext("2d");
  drawing.setTransform(ratio, 0, 0, ratio, 0, 0);
  drawing.clearRect(0, 0, width, height);
  return { drawing, width, height };
}

// A chart of lines over a common axis. Each line is { x, y, colour, width?, dash?, alpha? };
// `marker` is a place on the axis. Text on the chart is for the eye only: the element has
// a label, and the numbers are elsewhere on the page.
function drawChart(canvas, { title, lines, range, ticks, log = false, domain, marker, xTicks, format }) {
  const { drawing, width, height } = context(canvas);
  const box = { left: 38, right: width - 8, top: 22, bottom: height - 18 };
  const scale = log ? (value) => Math.log(value + 1) : (value) => value;
  const [first, last] = [scale(domain[0]), scale(Math.max(domain[1], domain[0] + 1))];
  const x = (value) => box.left + ((scale(value) - first) / (last - first)) * (box.right - box.left);
  const y = (value) => box.bottom - ((value - range[0]) / (range[1] - range[0])) * (box.bottom - box.top);

  drawing.font = "11px system-ui, sans-serif";
  drawing.fillStyle = colour("ink");
  drawing.textAlign = "left";
  drawing.fillText(title, 0, 12);
  drawing.fillStyle = colour("soft");
  drawing.strokeStyle = colour("line");
  drawing.lineWidth = 1;
  drawing.textAlign = "right";
  for (const tick of ticks) {
    const at = Math.round(y(tick)) + 0.5;
    drawing.beginPath();
    drawing.moveTo(box.left, at);
    drawing.lineTo(box.right, at);
    drawing.stroke();
    drawing.fillText(format ? format(tick) : String(tick), box.left - 5, at + 4);
  }
  let free = -Infinity;
  for (const tick of xTicks ?? [domain[0], domain[1]]) {
    const text = tick.toLocaleString("en"), half = drawing.measureText(text).width / 2;
    const at = Math.min(Math.max(x(tick), box.left + half), box.right - half);
    if (at - half < free) continue;
    drawing.textAlign = "center";
    drawing.fillText(text, at, height - 4);
    free = at + half + 8;
  }

  drawing.save();
  drawing.beginPath();
  drawing.rect(box.left, box.top - 3, box.right - box.left + 3, box.bottom - box.top + 6);
  drawing.clip();
  for (const line of lines) {
    drawing.beginPath();
    for (let i = 0; i < line.x.length; i++) drawing.lineTo(x(line.x[i]), y(line.y[i]));
    drawing.strokeStyle = line.colour;
    drawing.globalAlpha = line.alpha ?? 1;
    drawing.lineWidth = line.width ?? 2;
    drawing.setLineDash(line.dash ?? []);
    drawing.stroke();
  }
  drawing.restore();
  if (marker !== undefined) {
    drawing.beginPath();
    drawing.moveTo(x(marker), box.top - 3);
    drawing.lineTo(x(marker), box.bottom);
    drawing.strokeStyle = colour("ink");
    drawing.lineWidth = 1.5;
    drawing.stroke();
  }
  return { x, box };
}

// ---- Numbers ----

// Three digits after the point for small numbers, fewer for large ones.
function formatNumber(value) {
  if (value === Infinity) return "∞";
  if (Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential(2).replace("-", "−");
  return value.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : 3).replace("-", "−");
}

function formatPercent(value) { return `${(100 * value).toFixed(1)}%`; }

// ---- State in the URL fragment ----

const Fragment = {
  read() { return Object.fromEntries(new URLSearchParams(location.hash.slice(1))); },
  write(values) {
    const text = new URLSearchParams(values).toString().replaceAll("%2C", ",");
    if (text !== location.hash.slice(1)) history.replaceState(null, "", `#${text}`);
  },
};

// ---- Bytes as text ----

function toBase64(array) {
  const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}

function fromBase64(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

// ---- The Python snippet ----

function showSnippet(code) {
  const dialog = document.querySelector("dialog.snippet");
  dialog.querySelector("pre").textContent = code;
  const copy = dialog.querySelector("button.copy");
  copy.textContent = "Copy";
  copy.onclick = async () => {
    // Without the permission, as on file:// in some browsers, the text is selected instead.
    try {
      await navigator.clipboard.writeText(code);
      copy.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(dialog.querySelector("pre"));
      copy.textContent = "Selected";
    }
  };
  dialog.showModal();
}
