// The digit page: two networks at moments of their training, and their maps around a digit.
"use strict";

const RUNS = {
  without: { title: "Without the penalty", colour: "without" },
  with: { title: "With GrokAlign", colour: "with" },
};
const SIDE = 28, PIXELS = SIDE * SIDE;
// Inputs are (pixel - mean) / deviation of MNIST, for pixels from 0 to 1.
const [MEAN, DEVIATION] = [0.1307, 0.3081];
const [LOW, HIGH] = [-MEAN / DEVIATION, (1 - MEAN) / DEVIATION];
const MAX_RADIUS = 40;

// ---- Networks: each checkpoint is read when it is first shown ----

const networks = { without: [], with: [] };

function networkAt(run, checkpoint) {
  networks[run][checkpoint] ??= readNetwork(DIGIT_WEIGHTS[run][checkpoint]);
  return networks[run][checkpoint];
}

// For each layer: a factor for each unit and the biases, as float32, then the weights in
// units of the factors, as int8: what `normalign export-web` writes.
function readNetwork(text) {
  const view = new DataView(fromBase64(text).buffer), network = new Network(DIGITS.widths);
  let at = 0;
  network.weights.forEach((weight, l) => {
    const bias = network.biases[l], m = bias.length, n = weight.length / m;
    const factors = Array.from({ length: m }, (_, u) => view.getFloat32(at + 4 * u, true));
    for (let u = 0; u < m; u++) bias[u] = view.getFloat32(at + 4 * (m + u), true);
    at += 8 * m;
    for (let u = 0; u < m; u++)
      for (let i = u * n; i < (u + 1) * n; i++) weight[i] = factors[u] * view.getInt8(at + i);
    at += weight.length;
  });
  return network;
}

// ---- State ----

let checkpoint = Math.max(0, DIGITS.epochs.indexOf(420));  // one has grokked, the other not
let digit = null;  // { pixels: 784 numbers from 0 to 1, half, index } or, drawn, { pixels }
let attacks = null;  // by run, once asked for

function inputOf({ pixels }) {
  return Float64Array.from(pixels, (value) => (value - MEAN) / DEVIATION);
}

function localMaps() {
  const x = inputOf(digit);
  return Object.fromEntries(Object.keys(RUNS).map((run) => {
    const network = networkAt(run, checkpoint);
    return [run, { x, ...localGeometry(network, x) }];
  }));
}

function readFragment() {
  const given = Fragment.read();
  const epoch = DIGITS.epochs.indexOf(Number(given.epoch));
  if (given.epoch !== undefined && epoch >= 0) checkpoint = epoch;
  const [half, index] = (given.digit ?? "").split("-");
  const known = DIGITS.digits[half]?.[Number(index)];
  pick(...(known ? [half, Number(index)] : ["train", 6]));
}

function writeFragment() {
  const name = digit.half ? { digit: `${digit.half}-${digit.index}` } : {};
  Fragment.write({ ...name, epoch: DIGITS.epochs[checkpoint] });
}

function pick(half, index) {
  const pixels = Array.from(fromBase64(DIGITS.digits[half][index].pixels), (byte) => byte / 255);
  setDigit({ pixels, half, index, label: DIGITS.digits[half][index].label });
}

function setDigit(value) {
  digit = value;
  attacks = null;
  showGallery();
  redraw();
}

function setCheckpoint(value) {
  checkpoint = Math.max(0, Math.min(DIGITS.epochs.length - 1, value));
  attacks = null;
  redraw();
}

// ---- Pictures ----

// Colours from one end through the middle to the other: index 0 to 255.
function ramp(names) {
  const stops = names.map(rgb), colours = new Uint32Array(256);
  for (let i = 0; i < 256; i++) {
    const place = (i / 255) * (stops.length - 1), from = Math.min(Math.floor(place), stops.length - 2);
    const [r, g, b] = [0, 1, 2].map((c) =>
      Math.round(stops[from][c] + (place - from) * (stops[from + 1][c] - stops[from][c])));
    colours[i] = (255 << 24) | (b << 16) | (g << 8) | r;
  }
  return colours;
}

function rgb(name) {
  const probe = document.createElement("canvas").getContext("2d");
  probe.fillStyle = colour(name);
  probe.fillRect(0, 0, 1, 1);
  return [...probe.getImageData(0, 0, 1, 1).data.subarray(0, 3)];
}

const ramps = {};
function makeRamps() {
  ramps.signed = ramp(["negative", "zero", "positive"]);
  ramps.ink = ramp(["plate", "ink"]);
}

// Draws 28 x 28 numbers; `low` has the first colour of the ramp and `high` the last.
function drawPixels(canvas, values, colours, low, high) {
  const image = new ImageData(SIDE, SIDE), out = new Uint32Array(image.data.buffer);
  const factor = 255 / (high - low);
  for (let i = 0; i < PIXELS; i++) {
    const place = Math.round((values[i] - low) * factor);
    out[i] = colours[place < 0 ? 0 : place > 255 ? 255 : place];
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function largest(values) {
  let size = 1e-300;
  for (const value of values) if (Math.abs(value) > size) size = Math.abs(value);
  return size;
}

// ---- The panel of a network ----

function makePanel(run) {
  const panel = document.getElementById(run);
  panel.append(document.getElementById("network").content.cloneNode(true));
  panel.querySelector("h2").textContent = RUNS[run].title;
  for (let c = 0; c < 10; c++) {
    const tile = document.createElement("figure");
    tile.innerHTML = `<canvas class="pixels" width="28" height="28" role="img"
      aria-label="Row ${c} of the Jacobian"></canvas><figcaption><b>${c}</b><span></span></figcaption>`;
    panel.querySelector(".rows").append(tile);
  }
  panel.querySelector(".python").addEventListener("click", () => showSnippet(pythonSnippet(run)));
}

function showPanel(run, local) {
  const panel = document.getElementById(run), own = argmax(local.output);
  drawPixels(panel.querySelector(".input"), digit.pixels, ramps.ink, 0, 1);
  const centroidSize = largest(local.centroid);
  drawPixels(panel.querySelector(".centroid"), local.centroid, ramps.signed, -centroidSize, centroidSize);
  const size = largest(local.jacobian);
  [...panel.querySelector(".rows").children].forEach((tile, c) => {
    drawPixels(tile.querySelector("canvas"), rowOf(local.jacobian, c, 10), ramps.signed, -size, size);
    tile.querySelector("span").textContent = signed(local.rowCosines[c]);
    tile.classList.toggle("predicted", c === own);
  });
  panel.querySelector(".prediction b").textContent = own;
  const isWrong = digit.label !== undefined && digit.label !== own;
  panel.querySelector(".prediction .wrong").textContent = isWrong ? `is a ${digit.label}` : "";
  showAttack(panel, local, attacks?.[run]);
}

// Without the sign of what is rounded to zero.
function signed(value) { return value.toFixed(2).replace(/^-(?!0\.00)/, "−").replace("-", ""); }

function showAttack(panel, local, attack) {
  const length = norm(local.x);
  const share = (distance) => `<small>(${Math.round((100 * distance) / length)}% of |<i>x</i>|)</small>`;
  const picture = panel.querySelector("figure.attacked");
  picture.style.visibility = attack?.point ? "visible" : "hidden";
  let needed = "press Attack";
  if (attack && !attack.point) needed = `none within ${MAX_RADIUS}`;
  if (attack?.point) {
    const pixels = attack.point.map((value) => value * DEVIATION + MEAN);
    drawPixels(panel.querySelector("canvas.attacked"), pixels, ramps.ink, 0, 1);
    picture.querySelector("figcaption").textContent = `attacked: reads ${attack.answer}`;
    needed = `${formatNumber(attack.radius)} ${share(attack.radius)}`;
  }
  const rows = [
    ["Normal alignment", formatNumber(local.normalAlignment)],
    ["Effective rank", formatNumber(local.effectiveRank)],
    ["Centroid alignment", formatNumber(local.centroidAlignment)],
    ["Local robustness", `${formatNumber(local.localRobustness)} ${share(local.localRobustness)}`],
    ["Distance of the attack", needed],
  ];
  panel.querySelector("tbody").innerHTML = rows
    .map(([name, value]) => `<tr><th scope="row">${name}</th><td>${value}</td></tr>`).join("");
}

// One network after the other, so that the page can paint in between.
async function attack() {
  const x = inputOf(digit), moment = checkpoint, target = digit;
  attacks = {};
  for (const run of Object.keys(RUNS)) {
    const network = networkAt(run, checkpoint), own = argmax(network.output(x));
    const found = minimalRadius(network, x, own, { maxRadius: MAX_RADIUS, low: LOW, high: HIGH });
    if (moment !== checkpoint || target !== digit) return;  // the visitor has gone on
    attacks[run] = { ...found, answer: found.point ? argmax(network.output(found.point)) : null };
    redraw();
    await new Promise((done) => setTimeout(done));
  }
}

// ---- Curves ----

const CURVES = [
  { id: "chart-accuracy", name: "test_accuracy", title: "Test accuracy", range: [0, 1], ticks: [0, 0.5, 1] },
  { id: "chart-alignment", name: "normal_alignment", title: "Normal alignment", range: [0, 0.4], ticks: [0, 0.2, 0.4] },
  { id: "chart-robustness", name: "local_robustness", title: "Local robustness", range: [0, 8], ticks: [0, 4, 8] },
];

function showCurves() {
  const moment = DIGITS.epochs[checkpoint], end = DIGITS.epochs.at(-1);
  for (const curve of CURVES) {
    const canvas = document.getElementById(curve.id), lines = [];
    for (const [run, { colour: name }] of Object.entries(RUNS)) {
      const { history } = DIGITS.runs[run], style = colour(name);
      if (curve.name === "test_accuracy")
        lines.push({ x: history.epoch, y: history.train_accuracy, colour: style, width: 1.2, alpha: 0.55 });
      lines.push({ x: history.epoch, y: history[curve.name], colour: style, width: 2.4 });
    }
    const xTicks = [0, 1, 10, 100, 1000, 10000].filter((tick) => tick <= end);
    canvas.chart = drawChart(canvas, {
      ...curve, lines, log: true, domain: [0, end], marker: moment, xTicks,
      title: `${curve.title} by epoch`,
    });
  }
}

// The checkpoint whose mark on the chart is nearest to a click.
function checkpointAt(event, canvas) {
  const at = event.clientX - canvas.getBoundingClientRect().left;
  const away = DIGITS.epochs.map((epoch) => Math.abs(canvas.chart.x(epoch) - at));
  return away.indexOf(Math.min(...away));
}

// ---- Frames ----

let scheduled = false;
function redraw() {
  if (!scheduled) requestAnimationFrame(frame);
  scheduled = true;
}

function frame() {
  scheduled = false;
  const maps = localMaps();
  for (const run of Object.keys(RUNS)) showPanel(run, maps[run]);
  showCurves();
  const text = `epoch ${DIGITS.epochs[checkpoint].toLocaleString("en")}`;
  document.getElementById("epoch").textContent = text;
  document.getElementById("checkpoint").value = checkpoint;
  document.getElementById("checkpoint").setAttribute("aria-valuetext", text);
  writeFragment();
}

let playing = null;
function play() {
  if (playing === null && checkpoint === DIGITS.epochs.length - 1) checkpoint = -1;
  clearInterval(playing);
  playing = playing === null ? setInterval(() => {
    setCheckpoint(checkpoint + 1);
    if (checkpoint === DIGITS.epochs.length - 1) play();
  }, 450) : null;
  document.getElementById("play").textContent = playing === null ? "Play" : "Pause";
  if (playing !== null) setCheckpoint(checkpoint + 1);
}

// ---- Drawing a digit ----

const pad = document.getElementById("pad");
// The strokes, in parts of the pad's side, so that a new size or theme can redraw them.
let strokes = [], pen = [0.5, 0.5];

function drawPad() {
  const { drawing, width } = context(pad);
  drawing.strokeStyle = colour("ink");
  drawing.lineWidth = 0.075 * width;
  drawing.lineCap = drawing.lineJoin = "round";
  for (const stroke of strokes) {
    drawing.beginPath();
    drawing.moveTo(stroke[0][0] * width, stroke[0][1] * width);
    for (const [x, y] of stroke) drawing.lineTo(x * width, y * width + 0.01);
    drawing.stroke();
  }
  if (document.activeElement === pad) {
    drawing.beginPath();
    drawing.arc(pen[0] * width, pen[1] * width, 5, 0, 2 * Math.PI);
    drawing.lineWidth = 2;
    drawing.strokeStyle = colour("accent");
    drawing.stroke();
  } else if (strokes.length === 0) {
    drawing.font = "15px system-ui, sans-serif";
    drawing.textAlign = "center";
    drawing.fillStyle = colour("soft");
    drawing.fillText("draw here", width / 2, width / 2);
  }
}

// What the strokes are in MNIST: the longer side of their box is 20 pixels, and their
// centre of mass lies in the middle of 28 x 28.
function strokesToPixels() {
  const size = 280, sheet = document.createElement("canvas");
  sheet.width = sheet.height = size;
  const drawing = sheet.getContext("2d", { willReadFrequently: true });
  const points = strokes.flat(), half = 0.0375;
  const [left, right] = [Math.min, Math.max].map((f) => f(...points.map((p) => p[0])));
  const [top, bottom] = [Math.min, Math.max].map((f) => f(...points.map((p) => p[1])));
  const scale = 200 / Math.max(right - left + 2 * half, bottom - top + 2 * half);
  drawing.setTransform(scale, 0, 0, scale, 140 - (scale * (left + right)) / 2, 140 - (scale * (top + bottom)) / 2);
  drawing.lineCap = drawing.lineJoin = "round";
  drawing.lineWidth = 2 * half;
  for (const stroke of strokes) {
    drawing.beginPath();
    drawing.moveTo(...stroke[0]);
    for (const [x, y] of stroke) drawing.lineTo(x, y + 1e-5);
    drawing.stroke();
  }
  const ink = drawing.getImageData(0, 0, size, size).data;
  const alpha = (x, y) => (x < 0 || y < 0 || x >= size || y >= size ? 0 : ink[4 * (y * size + x) + 3]);
  let mass = 0, sumX = 0, sumY = 0;
  for (let y = 0; y < size; y++)
    for (let x = 0; x < size; x++) {
      const value = alpha(x, y);
      mass += value;
      sumX += value * (x + 0.5);
      sumY += value * (y + 0.5);
    }
  const [shiftX, shiftY] = [Math.round(sumX / mass - 140), Math.round(sumY / mass - 140)];
  return Array.from({ length: PIXELS }, (_, i) => {
    let sum = 0;
    const x0 = (i % SIDE) * 10 + shiftX, y0 = Math.floor(i / SIDE) * 10 + shiftY;
    for (let y = 0; y < 10; y++) for (let x = 0; x < 10; x++) sum += alpha(x0 + x, y0 + y);
    return sum / 25500;
  });
}

function takeStrokes() {
  drawPad();
  if (strokes.length) setDigit({ pixels: strokesToPixels() });
}

function clearPad() {
  strokes = [];
  drawPad();
}

function followPad() {
  const place = (event) => {
    const box = pad.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  };
  let down = false;
  pad.addEventListener("pointerdown", (event) => {
    // A picked digit is done with; a drawn one can have several strokes.
    if (digit.half) strokes = [];
    down = true;
    pad.setPointerCapture(event.pointerId);
    pen = place(event);
    strokes.push([pen]);
    takeStrokes();
  });
  pad.addEventListener("pointermove", (event) => {
    if (!down) return;
    pen = place(event);
    strokes.at(-1).push(pen);
    takeStrokes();
  });
  for (const name of ["pointerup", "pointercancel"]) pad.addEventListener(name, () => { down = false; });
  let drawing = false;
  pad.addEventListener("keydown", (event) => {
    const direction = {
      ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
    }[event.key];
    if (event.key === "Delete" || event.key === "Backspace") clearPad();
    else if (direction) {
      if (event.shiftKey && digit.half) strokes = [];
      if (event.shiftKey && !drawing) strokes.push([pen]);
      drawing = event.shiftKey;
      pen = pen.map((value, i) => Math.max(0.05, Math.min(0.95, value + 0.04 * direction[i])));
      if (drawing) strokes.at(-1).push(pen);
      if (drawing) takeStrokes();
      else drawPad();
    } else return;
    event.preventDefault();
  });
  pad.addEventListener("keyup", (event) => { if (event.key === "Shift") drawing = false; });
  pad.addEventListener("focus", drawPad);
  pad.addEventListener("blur", drawPad);
}

// ---- Gallery ----

function makeGallery(half) {
  DIGITS.digits[half].forEach(({ label }, index) => {
    const button = document.createElement("button"), picture = document.createElement("canvas");
    button.type = "button";
    button.setAttribute("aria-label", `${half === "train" ? "Training" : "Test"} digit ${label}`);
    picture.className = "pixels";
    picture.width = picture.height = SIDE;
    button.append(picture);
    button.addEventListener("click", () => {
      clearPad();
      pick(half, index);
    });
    document.getElementById(half).append(button);
  });
}

function drawGallery() {
  for (const half of ["train", "test"])
    [...document.getElementById(half).children].forEach((button, index) => {
      const bytes = fromBase64(DIGITS.digits[half][index].pixels);
      drawPixels(button.firstChild, bytes, ramps.ink, 0, 255);
    });
}

function showGallery() {
  for (const half of ["train", "test"])
    [...document.getElementById(half).children].forEach((button, index) => {
      button.setAttribute("aria-pressed", String(digit.half === half && digit.index === index));
    });
}

// ---- Python ----

function pythonSnippet(run) {
  const pixels = toBase64(Uint8Array.from(digit.pixels, (value) => Math.round(255 * value)));
  const folder = new URL("data/", location.href.split("#")[0]);
  return `"""${RUNS[run].title}, after ${DIGITS.epochs[checkpoint]} epochs: the map around a digit.

Train both networks again: normalign export-web
"""

import base64
import json
from urllib.request import urlopen

import numpy as np
import torch

import normalign as na

FOLDER = "${folder}"
DIGIT = "${pixels}"


def load(name):
    text = urlopen(FOLDER + name).read().decode()
    return json.loads(text[text.index("{") : text.rindex(";")])


# For each layer: a factor for each unit, the biases, the weights in units of the factors.
raw = base64.b64decode(load("digits-weights.js")["${run}"][${checkpoint}])
model = na.nn.mlp([${DIGITS.widths.join(", ")}], dtype=torch.float64)
for layer in list(model)[::2]:
    m, n = layer.weight.shape
    factor, bias = np.frombuffer(raw[: 8 * m], "<f4").astype("f8").reshape(2, m)
    whole = np.frombuffer(raw[8 * m : 8 * m + m * n], "i1").reshape(m, n)
    layer.weight.data = torch.tensor(whole * factor[:, None])
    layer.bias.data = torch.tensor(bias)
    raw = raw[8 * m + m * n :]

pixels = np.frombuffer(base64.b64decode(DIGIT), "u1").astype("f8") / 255
x = torch.tensor((pixels - na.data.MNIST_MEAN) / na.data.MNIST_STD)[None]
predicted = model(x).argmax(1)
affine = na.local_affine(model, x)  # .jacobian: ten rows of 784 pixels
print("reads", int(predicted))
print(na.local_geometry(model, x, predicted))
radius = na.robustness.minimal_radius(
    model, x, predicted, max_radius=${MAX_RADIUS}.0, norm="l2",
    low=float(x.min()), high=(1 - na.data.MNIST_MEAN) / na.data.MNIST_STD,
)
print("an attack needs", float(radius))
`;
}

// ---- Start ----

// Numbers in the text: those of the runs on this page.
function fillNumbers() {
  for (const element of document.querySelectorAll("output[data-run]")) {
    const { run, epoch, name } = element.dataset, { history } = DIGITS.runs[run];
    const value = history[name][history.epoch.indexOf(Number(epoch))];
    element.textContent = name.endsWith("accuracy") ? formatPercent(value) : value.toFixed(2);
  }
}

function showProvenance() {
  const { commit, versions, device, seconds, command, data } = DIGITS.provenance;
  const names = Object.entries(versions).map(([name, version]) => `${name} ${version}`).join(", ");
  const last = Object.entries(RUNS).map(([run, { title }]) =>
    `${title.toLowerCase()} ${formatPercent(DIGITS.runs[run].rounded_test_accuracy.at(-1))}`);
  document.getElementById("provenance").textContent =
    `Test accuracy of the last rounded checkpoint: ${last.join(", ")}. Data: ${data}. Made by ` +
    `“${command}” at commit ${commit?.slice(0, 10) ?? "unknown"} (${names}) on a ${device}, in ` +
    `${Math.round(seconds / 60)} minutes.`;
}

function paintAll() {
  makeRamps();
  drawGallery();
  drawPad();
  redraw();
}

for (const run of Object.keys(RUNS)) makePanel(run);
for (const half of ["train", "test"]) makeGallery(half);
document.getElementById("checkpoint").max = DIGITS.epochs.length - 1;
document.getElementById("checkpoint").addEventListener("input", (event) => {
  setCheckpoint(Number(event.target.value));
});
document.getElementById("play").addEventListener("click", play);
document.getElementById("clear").addEventListener("click", clearPad);
document.getElementById("attack").addEventListener("click", attack);
for (const { id } of CURVES) {
  const canvas = document.getElementById(id);
  canvas.addEventListener("click", (event) => setCheckpoint(checkpointAt(event, canvas)));
}
followPad();
readFragment();
fillNumbers();
showProvenance();
paintAll();
addEventListener("hashchange", readFragment);
addEventListener("resize", () => { drawPad(); redraw(); });
document.addEventListener("themechange", paintAll);
