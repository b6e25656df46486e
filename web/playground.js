// The playground: points in the plane, a network trained on them, and its regions.
"use strict";

// ---- Data ----

const BOX = { left: -1.5, right: 1.5, bottom: -1.5, top: 1.5 };
const CLASS_NAMES = ["blue", "orange", "green", "purple", "pink"];

// Uniform numbers in [0, 1) from a seed (mulberry32): the URL gives everyone the same run.
function randomNumbers(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

// Each returns point i of n, before noise, as [x_0, x_1, class].
const SHAPES = {
  spirals(i, n) {
    const label = i % 3, t = i / n, radius = 0.15 + 1.05 * t;
    const angle = 1.6 * Math.PI * t + (2 * Math.PI * label) / 3;
    return [radius * Math.cos(angle), radius * Math.sin(angle), label];
  },
  moons(i, n) {
    const label = i % 2, angle = (Math.PI * i) / n, side = label ? -1 : 1;
    return [0.75 * (side * (Math.cos(angle) - 0.5)), 0.75 * side * (Math.sin(angle) - 0.25), label];
  },
  xor(i, n, random) {
    const corner = i % 4, x = 0.15 + 0.9 * random(), y = 0.15 + 0.9 * random();
    return [corner % 2 ? x : -x, corner < 2 ? y : -y, corner === 1 || corner === 2 ? 1 : 0];
  },
  circle(i, n) {  // a class for each point
    const angle = (2 * Math.PI * (i + 0.25)) / n;
    return [Math.cos(angle), Math.sin(angle), i];
  },
};

// Coordinates are multiples of 1/8192, so that the snippet can hold them in two bytes.
function makeData({ data, noise }, random) {
  const n = data === "circle" ? 5 : 160;
  const normal = () => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
  const inputs = new Float64Array(2 * n), labels = new Uint8Array(n);
  for (let i = 0; i < n; i++) {
    const [x, y, label] = SHAPES[data](i, n, random);
    const moved = [x + noise * normal(), y + noise * normal()];
    moved.forEach((value, j) => {
      inputs[2 * i + j] = Math.round(8192 * Math.max(-1.45, Math.min(1.45, value))) / 8192;
    });
    labels[i] = label;
  }
  return { inputs, labels };
}

// ---- Settings: those of the URL fragment, else the default ----

const STEPS = {
  penalty: [0, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3],
  decay: [0, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1],
};
const STARTS = ["0.5", "1", "2", "4", "8", "construction"];  // factors on the initial weights
const DEFAULTS = {
  data: "spirals", noise: 0.04, width: 16, depth: 2, penalty: 1e-3, decay: 0.01, start: "1",
  seed: 1, show: "regions,levels,arrows", point: "",
};
const LIMITS = { noise: [0, 0.4], width: [2, 32], depth: [1, 4], seed: [0, 2 ** 31] };
const RESTARTS = ["data", "noise", "width", "depth", "start", "seed"];

function readSettings() {
  const given = Fragment.read(), settings = { ...DEFAULTS };
  for (const [name, value] of Object.entries(given)) {
    if (name === "data" && SHAPES[value]) settings.data = value;
    if (name === "start" && STARTS.includes(value)) settings.start = value;
    if (name === "show" || name === "point") settings[name] = value;
    const number = Number(value);
    if (STEPS[name]?.includes(number)) settings[name] = number;
    if (LIMITS[name]) {
      const [low, high] = LIMITS[name], whole = name === "noise" ? number : Math.round(number);
      if (Number.isFinite(number)) settings[name] = Math.max(low, Math.min(high, whole));
    }
  }
  return consistent(settings);
}

// The construction is for distinct points on the circle, and has a unit for each of them.
function consistent(settings) {
  if (settings.start !== "construction") return settings;
  return { ...settings, data: "circle", noise: 0, depth: 1, width: 5 };
}

function writeSettings() {
  const changed = Object.entries({ ...settings, point: point.join(",") });
  Fragment.write(Object.fromEntries(changed.filter(([name, value]) => value !== DEFAULTS[name])));
}

// ---- The run ----

let settings, train, test, network, trainer, point;
let curves = null, previousCurves = null;
let running = false, regions = null;  // null: to be cut anew

const COLUMNS = ["step", "train", "test", "alignment", "rank", "robustness"];

function restart({ keepPoint = true } = {}) {
  if (curves && curves.step.length > 1) previousCurves = curves;
  const random = randomNumbers(settings.seed);
  train = makeData(settings, random);
  test = settings.data === "circle" ? null : makeData(settings, random);
  const classes = Math.max(...train.labels) + 1;
  const hidden = Array(settings.depth).fill(settings.width);
  if (settings.start === "construction") network = constructNetwork(train);
  else network = Network.random([2, ...hidden, classes], random, Number(settings.start));
  trainer = new Trainer(network, { learningRate: 0.01 });
  applyTraining();
  curves = Object.fromEntries(COLUMNS.map((name) => [name, []]));
  curves.every = 5;
  regions = null;
  if (settings.start === "construction") setRunning(false);  // it is worth a look as it is
  const middle = 2 * Math.floor(train.labels.length / 2);
  if (!keepPoint || !point) point = [...train.inputs.subarray(middle, middle + 2)];
  record();
}

// The normal-aligned network of the paper's Appendix A: unit i is on at point i and at no
// other, with its weights along the point. As na.theory.normal_aligned_network for one-hot
// outputs.
function constructNetwork({ inputs, labels }) {
  const n = labels.length, built = new Network([2, n, n]);
  for (let i = 0; i < n; i++) {
    const x = inputs.subarray(2 * i, 2 * i + 2);
    const others = [...labels.keys()].filter((j) => j !== i);
    const nearest = Math.max(...others.map((j) => dot(x, inputs.subarray(2 * j, 2 * j + 2))));
    built.weights[0].set(x, 2 * i);
    built.biases[0][i] = -(1 + nearest) / 2;
    built.weights[1][labels[i] * n + i] = 2 / (1 - nearest);
  }
  return built;
}

function applyTraining() {
  trainer.settings.penaltyWeight = settings.penalty;
  trainer.settings.weightDecay = settings.decay;
}

function trainStep() {
  trainer.step(train.inputs, train.labels);
  regions = null;
  if (trainer.steps % curves.every === 0) record();
}

// Means over the points, as na.local_geometry(model, x, y).mean().
function measureData({ inputs, labels }) {
  const sums = { accuracy: 0, alignment: 0, rank: 0, robustness: 0 };
  for (let i = 0; i < labels.length; i++) {
    const x = inputs.subarray(2 * i, 2 * i + 2);
    const local = localGeometry(network, x, labels[i]);
    sums.accuracy += argmax(local.output) === labels[i] ? 1 : 0;
    sums.alignment += local.normalAlignment;
    sums.rank += local.effectiveRank;
    sums.robustness += local.localRobustness;
  }
  for (const name of Object.keys(sums)) sums[name] /= labels.length;
  return sums;
}

function accuracyOn({ inputs, labels }) {
  let correct = 0;
  for (let i = 0; i < labels.length; i++)
    correct += argmax(network.output(inputs.subarray(2 * i, 2 * i + 2))) === labels[i] ? 1 : 0;
  return correct / labels.length;
}

function record() {
  const { accuracy, ...means } = measureData(train);
  const row = { step: trainer.steps, train: accuracy, test: test ? accuracyOn(test) : NaN, ...means };
  for (const name of COLUMNS) curves[name].push(row[name]);
  if (curves.step.length > 240) {  // thin out, so that a long run stays cheap to draw
    for (const name of COLUMNS) curves[name] = curves[name].filter((_, i) => i % 2 === 0);
    curves.every *= 2;
  }
}

// ---- Drawing ----

const map = document.getElementById("map");

function currentRegions() {
  regions ??= partition(network, BOX);
  return regions;
}

function drawMap() {
  const { drawing, width } = context(map);
  const scale = width / (BOX.right - BOX.left), pixel = 1 / scale;
  drawing.save();
  drawing.transform(scale, 0, 0, -scale, -BOX.left * scale, BOX.top * scale);
  const shown = settings.show.split(",");
  const { regions: cells, edges } = currentRegions();
  const classes = network.widths.at(-1), here = regionAt(cells, ...point);

  for (let c = 0; c < classes; c++) {
    drawing.beginPath();
    for (const cell of cells) tracePolygon(drawing, classPart(cell, c));
    drawing.fillStyle = colour(`class-${c}`);
    drawing.globalAlpha = 0.2;
    drawing.fill();
  }
  if (shown.includes("regions")) {
    if (here) {
      drawing.beginPath();
      tracePolygon(drawing, here.polygon);
      drawing.fillStyle = colour("ink");
      drawing.globalAlpha = 0.16;
      drawing.fill();
    }
    edges.forEach((segments, l) => {
      drawing.globalAlpha = l === 0 ? 0.5 : 0.3;
      strokeSegments(drawing, segments, colour("ink"), 0.8 * pixel);
    });
  }
  const boundary = [];
  if (shown.includes("levels")) {
    const spacing = levelSpacing(cells);
    for (let i = 0; i < classes; i++) {
      const segments = [];
      for (const cell of cells) marginSegments(cell, i, spacing, segments);
      drawing.globalAlpha = 0.75;
      strokeSegments(drawing, segments, colour(`class-${i}`), 1.1 * pixel);
    }
  }
  for (const cell of cells) boundarySegments(cell, boundary);
  drawing.globalAlpha = 1;
  strokeSegments(drawing, boundary, colour("ink"), 2.6 * pixel);

  drawPoints(drawing, pixel);
  drawProbe(drawing, pixel, shown.includes("arrows"));
  drawing.restore();
}

function tracePolygon(drawing, polygon) {
  if (polygon.length < 6) return;
  drawing.moveTo(polygon[0], polygon[1]);
  for (let i = 2; i < polygon.length; i += 2) drawing.lineTo(polygon[i], polygon[i + 1]);
  drawing.closePath();
}

function strokeSegments(drawing, segments, style, lineWidth, dash = []) {
  drawing.beginPath();
  for (let i = 0; i < segments.length; i += 4) {
    drawing.moveTo(segments[i], segments[i + 1]);
    drawing.lineTo(segments[i + 2], segments[i + 3]);
  }
  drawing.strokeStyle = style;
  drawing.lineWidth = lineWidth;
  drawing.setLineDash(dash);
  drawing.stroke();
}

// A power of two that gives at most ten levels between 0 and the largest margin.
function levelSpacing(cells) {
  let highest = 0;
  for (const { polygon, map: rows } of cells)
    for (let i = 0; i < polygon.length; i += 2) {
      let low = Infinity, high = -Infinity;
      for (let c = 0; c < rows.length; c += 3) {
        const value = rows[c] * polygon[i] + rows[c + 1] * polygon[i + 1] + rows[c + 2];
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
      highest = Math.max(highest, high - low);
    }
  return 2 ** Math.ceil(Math.log2(Math.max(highest, 1e-9) / 10));
}

function drawPoints(drawing, pixel) {
  const radius = (train.labels.length < 20 ? 6 : 4) * pixel;
  drawing.setLineDash([]);
  for (let i = 0; i < train.labels.length; i++) {
    drawing.beginPath();
    drawing.arc(train.inputs[2 * i], train.inputs[2 * i + 1], radius, 0, 2 * Math.PI);
    drawing.fillStyle = colour(`class-${train.labels[i]}`);
    drawing.strokeStyle = colour("plate");
    drawing.lineWidth = 1.2 * pixel;
    drawing.fill();
    drawing.stroke();
  }
}

function drawProbe(drawing, pixel, withArrows) {
  const local = localGeometry(network, Float64Array.from(point));
  const [x, y] = point, ink = colour("ink");
  if (withArrows) {
    const size = norm(point) || 1, far = 3 / size;
    strokeSegments(drawing, [0, 0, far * x, far * y], ink, pixel, [6 * pixel, 5 * pixel]);
    drawLocalBoundary(drawing, local, pixel);
    const rows = Array.from(local.output, (_, c) => rowOf(local.jacobian, c, local.output.length));
    const longest = Math.max(...rows.map(norm), norm(local.centroid)) || 1;
    const length = 0.5 / longest;
    drawArrow(drawing, point, local.centroid, length, ink, 4, pixel);
    rows.forEach((row, c) => drawArrow(drawing, point, row, length, colour(`class-${c}`), 3, pixel));
    drawing.beginPath();
    drawing.arc(0, 0, 2.5 * pixel, 0, 2 * Math.PI);
    drawing.fillStyle = ink;
    drawing.fill();
  }
  drawing.beginPath();
  drawing.arc(x, y, 8 * pixel, 0, 2 * Math.PI);
  drawing.fillStyle = "#fff";
  drawing.strokeStyle = "#1d2330";
  drawing.lineWidth = 2.5 * pixel;
  drawing.setLineDash([]);
  drawing.fill();
  drawing.stroke();
  return local;
}

// The boundary of the local map with its nearest class, and the way to it.
function drawLocalBoundary(drawing, local, pixel) {
  if (!(local.localRobustness > 0 && local.localRobustness < Infinity)) return;
  const k = local.output.length, own = argmax(local.output);
  const [a, b] = [0, 1].map((j) =>
    rowOf(local.jacobian, local.nearestClass, k)[j] - rowOf(local.jacobian, own, k)[j]);
  const size = Math.hypot(a, b), reach = local.localRobustness / size;
  const foot = [point[0] + reach * a, point[1] + reach * b];
  const along = [(-5 * b) / size, (5 * a) / size];
  const line = [foot[0] - along[0], foot[1] - along[1], foot[0] + along[0], foot[1] + along[1]];
  strokeSegments(drawing, line, colour("ink"), 1.6 * pixel, [1.5 * pixel, 4 * pixel]);
  strokeSegments(drawing, [...point, ...foot], colour("ink"), 1.6 * pixel, [1.5 * pixel, 4 * pixel]);
}

function drawArrow(drawing, [x, y], vector, length, style, width, pixel) {
  const size = norm(vector) * length;
  if (size < 2 * pixel) return;
  const [u, v] = [(vector[0] * length) / size, (vector[1] * length) / size];
  const head = Math.min(11 * pixel, size), tip = [x + u * size, y + v * size];
  const neck = [tip[0] - u * head, tip[1] - v * head];
  strokeSegments(drawing, [x, y, ...neck], style, width * pixel);
  drawing.beginPath();
  drawing.moveTo(...tip);
  drawing.lineTo(neck[0] - 0.45 * head * v, neck[1] + 0.45 * head * u);
  drawing.lineTo(neck[0] + 0.45 * head * v, neck[1] - 0.45 * head * u);
  drawing.closePath();
  drawing.fillStyle = style;
  drawing.fill();
}

// ---- Numbers and curves ----

function showMeasures() {
  const local = localGeometry(network, Float64Array.from(point));
  const pair = (values) => `(${Array.from(values, formatNumber).join(", ")})`;
  const own = argmax(local.output), k = local.output.length;
  const rows = [
    ["Prediction", `${swatch(own)}${CLASS_NAMES[own]}`],
    ["Outputs <i>f</i>(<i>x</i>)", pair(local.output)],
    ...Array.from(local.output, (_, c) => [
      `${swatch(c)}Row <i>J</i><sub>${CLASS_NAMES[c]}</sub>`, pair(rowOf(local.jacobian, c, k)),
    ]),
    ["Centroid <i>μ</i>", pair(local.centroid)],
    ["Sizes |<i>J</i>|, |<i>b</i>|", `${formatNumber(local.jacobianNorm)}, ${formatNumber(local.offsetNorm)}`],
    ["Normal alignment", formatNumber(local.normalAlignment)],
    ["Effective rank", formatNumber(local.effectiveRank)],
    ["Centroid alignment", formatNumber(local.centroidAlignment)],
    ["Local robustness", formatNumber(local.localRobustness)],
  ];
  document.getElementById("place").textContent = `At the point ${pair(point)}`;
  document.getElementById("measures").innerHTML = rows
    .map(([name, value]) => `<tr><th scope="row">${name}</th><td>${value}</td></tr>`).join("");
  const cells = currentRegions().regions.length;
  document.getElementById("counts").textContent = `${cells.toLocaleString("en")} regions`;
}

function swatch(c) {
  return `<span class="swatch" style="background:var(--class-${c})"></span>`;
}

function showCurves() {
  const last = (name) => curves[name].at(-1);
  const end = Math.max(last("step"), previousCurves?.step.at(-1) ?? 0, 100);
  const line = (source, name, options) => ({ x: source.step, y: source[name], ...options });
  const both = (name, style) => [
    ...(previousCurves ? [line(previousCurves, name, { colour: style, alpha: 0.35, width: 1.5 })] : []),
    line(curves, name, { colour: style }),
  ];
  const chart = (id, title, lines, range, ticks) =>
    drawChart(document.getElementById(id), { title, lines, range, ticks, domain: [0, end] });
  const tested = test ? both("test", colour("with")) : [];
  const percent = (name) => `${Math.round(100 * last(name))}%`;
  const ending = test ? `, test ${percent("test")}` : "";
  chart("chart-accuracy", `Training ${percent("train")}${ending}`,
    [...both("train", colour("soft")), ...tested], [0, 1], [0, 0.5, 1]);
  chart("chart-alignment", `Normal alignment: ${formatNumber(last("alignment"))}`,
    both("alignment", colour("with")), [0, 1], [0, 0.5, 1]);
  chart("chart-rank", `Effective rank: ${formatNumber(last("rank"))}`,
    both("rank", colour("with")), [1, 2], [1, 1.5, 2]);
  const highest = Math.max(0.05, ...curves.robustness, ...(previousCurves?.robustness ?? []));
  const top = [0.1, 0.2, 0.5, 1, 2, 5, 10].find((value) => value >= highest) ?? highest;
  chart("chart-robustness", `Local robustness: ${formatNumber(last("robustness"))}`,
    both("robustness", colour("with")), [0, top], [0, top / 2, top]);
}

// ---- Frames ----

// Work in milliseconds, averaged over frames; pages on slow machines draw the map in fewer
// frames and go on training in all of them.
const cost = { map: 4, frames: 0 };
let mapWanted = true, curvesWanted = true, scheduled = false;

function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(frame);
}

function redraw({ withCurves = true } = {}) {
  mapWanted = true;
  curvesWanted ||= withCurves;
  schedule();
}

function frame() {
  scheduled = false;
  const start = performance.now();
  if (running) {
    for (let n = 0; n < 4 && performance.now() - start < 4; n++) trainStep();
    cost.frames += 1;
    // With reduced motion the picture changes twice a second, not sixty times.
    const pause = stillness.matches ? 30 : Math.ceil(cost.map / 9);
    if (cost.frames % pause === 0) mapWanted = true;
    if (cost.frames % (6 * pause) === 0) curvesWanted = true;
  }
  if (curvesWanted) {  // in a frame of their own, which leaves the map as it is
    showCurves();
    showProgress();
    curvesWanted = false;
  } else if (mapWanted) {
    const before = performance.now();
    drawMap();
    showMeasures();
    cost.map += 0.1 * (performance.now() - before - cost.map);
    mapWanted = false;
  }
  if (running || mapWanted || curvesWanted) schedule();
}

function showProgress() {
  document.getElementById("progress").textContent =
    `step ${trainer.steps.toLocaleString("en")}`;
}

function setRunning(value) {
  running = value;
  const button = document.getElementById("run");
  button.textContent = running ? "Pause" : "Train";
  redraw();
}

// ---- Controls ----

const SLIDERS = ["noise", "penalty", "decay", "depth", "width"];

function makeControls() {
  for (const name of Object.keys(SHAPES)) {
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.data = name;
    button.append(document.createElement("canvas"), name);
    button.addEventListener("click", () => change({ data: name, start: randomStart() }));
    document.getElementById("data").append(button);
  }
  for (const name of SLIDERS) {
    const slider = document.getElementById(name);
    if (STEPS[name]) [slider.min, slider.max] = [0, STEPS[name].length - 1];
    slider.addEventListener("input", () => {
      const value = Number(slider.value);
      const shapes = ["noise", "depth", "width"].includes(name);
      change({
        [name]: STEPS[name] ? STEPS[name][value] : value,
        ...(shapes && { start: randomStart() }),
      });
    });
  }
  const start = document.getElementById("start");
  start.addEventListener("change", () => change({ start: start.value }));
  for (const layer of ["regions", "levels", "arrows"])
    document.getElementById(`show-${layer}`).addEventListener("change", (event) => {
      const rest = settings.show.split(",").filter((name) => name && name !== layer);
      change({ show: [...rest, ...(event.target.checked ? [layer] : [])].join(",") });
    });
  on("run", () => setRunning(!running));
  on("step", () => {
    setRunning(false);
    trainStep();
    record();
    redraw();
  });
  on("restart", () => {
    restart();
    redraw();
  });
  on("seed", () => change({ seed: settings.seed + 1 }));
  on("snippet", () => showSnippet(pythonSnippet()));
}

// What the construction does not allow ends it.
function randomStart() { return settings.start === "construction" ? "1" : settings.start; }

function on(id, action) { document.getElementById(id).addEventListener("click", action); }

// Takes new settings: some begin a new run, the others change the one that goes on.
function change(values) {
  const before = settings;
  settings = consistent({ ...settings, ...values });
  if (RESTARTS.some((name) => settings[name] !== before[name])) {
    if (settings.data !== before.data) previousCurves = curves = null;
    restart({ keepPoint: settings.data === before.data });
  } else applyTraining();
  showSettings();
  writeSettings();
  redraw();
}

function showSettings() {
  for (const name of SLIDERS) {
    const slider = document.getElementById(name), value = settings[name];
    slider.value = STEPS[name] ? STEPS[name].indexOf(value) : value;
    slider.previousElementSibling.textContent = value;
    slider.setAttribute("aria-valuetext", value);
  }
  document.getElementById("start").value = settings.start;
  const shown = settings.show.split(",");
  for (const layer of ["regions", "levels", "arrows"])
    document.getElementById(`show-${layer}`).checked = shown.includes(layer);
  for (const button of document.querySelectorAll("#data button"))
    button.setAttribute("aria-pressed", String(button.dataset.data === settings.data));
}

function drawPreviews() {
  for (const button of document.querySelectorAll("#data button")) {
    const { drawing, width } = context(button.querySelector("canvas"));
    const data = makeData({ data: button.dataset.data, noise: 0.03 }, randomNumbers(1));
    const radius = data.labels.length < 20 ? 3 : 1.5;
    data.labels.forEach((label, i) => {
      drawing.beginPath();
      const x = (data.inputs[2 * i] + 1.5) / 3, y = (1.5 - data.inputs[2 * i + 1]) / 3;
      drawing.arc(x * width, y * width, radius, 0, 2 * Math.PI);
      drawing.fillStyle = colour(`class-${label}`);
      drawing.fill();
    });
  }
}

// ---- The point: by pointer, by touch and by keyboard ----

function movePoint(...place) {
  point = place.map((value) => Math.max(-1.5, Math.min(1.5, value)));
  redraw({ withCurves: false });
}

// To three digits, so that the address stays short.
function rounded(value) { return Math.round(1000 * value) / 1000; }

function placeOf(event) {
  const box = map.getBoundingClientRect(), size = BOX.right - BOX.left;
  return [
    rounded(BOX.left + (size * (event.clientX - box.left)) / box.width),
    rounded(BOX.top - (size * (event.clientY - box.top)) / box.height),
  ];
}

// The training point within a few pixels of a place, else the place itself.
function snap([x, y], reach = 0.06) {
  let nearest = null, least = reach;
  for (let i = 0; i < train.labels.length; i++) {
    const distance = Math.hypot(train.inputs[2 * i] - x, train.inputs[2 * i + 1] - y);
    if (distance < least) [nearest, least] = [i, distance];
  }
  return nearest === null ? [x, y] : [...train.inputs.subarray(2 * nearest, 2 * nearest + 2)];
}

function isNearPoint(event) {
  const [x, y] = placeOf(event);
  return Math.hypot(x - point[0], y - point[1]) < 0.2;
}

function followPointer() {
  let dragging = false;
  map.addEventListener("pointerdown", (event) => {
    // A finger scrolls the page unless it begins at the point; a tap is a click.
    if (event.pointerType === "touch" && !isNearPoint(event)) return;
    dragging = true;
    map.setPointerCapture(event.pointerId);
    if (!isNearPoint(event)) movePoint(...snap(placeOf(event)));
  });
  map.addEventListener("pointermove", (event) => {
    if (dragging) movePoint(...placeOf(event));
  });
  for (const name of ["pointerup", "pointercancel"])
    map.addEventListener(name, () => {
      if (dragging) writeSettings();
      dragging = false;
    });
  map.addEventListener("touchstart", (event) => {
    if (isNearPoint(event.touches[0])) event.preventDefault();
  }, { passive: false });
  map.addEventListener("click", (event) => {
    if (event.pointerType === "touch" && !isNearPoint(event)) {
      movePoint(...snap(placeOf(event)));
      writeSettings();
    }
  });
}

function followKeys() {
  const directions = {
    ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1],
  };
  map.addEventListener("keydown", (event) => {
    const direction = directions[event.key], size = event.shiftKey ? 0.01 : 0.05;
    if (direction) movePoint(...point.map((value, i) => rounded(value + size * direction[i])));
    else if (event.key === "PageUp" || event.key === "PageDown") nextTrainingPoint(event.key);
    else return;
    event.preventDefault();
    writeSettings();
  });
}

let visited = 0;
function nextTrainingPoint(key) {
  const n = train.labels.length;
  visited = (visited + (key === "PageDown" ? 1 : n - 1)) % n;
  movePoint(...train.inputs.subarray(2 * visited, 2 * visited + 2));
}

// ---- Python ----

function pythonSnippet() {
  const widths = `[${network.widths.join(", ")}]`;
  const weights = toBase64(Float64Array.from(network.parameters().flatMap((p) => [...p])));
  const inputs = toBase64(Int16Array.from(train.inputs, (value) => Math.round(value * 8192)));
  return `"""The network of the playground after ${trainer.steps} steps, and 500 steps more."""

import base64

import numpy as np
import torch

import normalign as na

WEIGHTS = "${weights}"
POINTS = "${inputs}"
LABELS = "${Array.from(train.labels).join("")}"


def numbers(text, kind):
    values = np.frombuffer(base64.b64decode(text), kind)
    return torch.tensor(values.astype(np.float64))


model = na.nn.mlp(${widths}, dtype=torch.float64)
torch.nn.utils.vector_to_parameters(numbers(WEIGHTS, "<f8"), model.parameters())
x = numbers(POINTS, "<i2").reshape(-1, 2) / 8192
y = torch.tensor([int(label) for label in LABELS])

point = torch.tensor([[${point.join(", ")}]], dtype=torch.float64)
affine = na.local_affine(model, point)
print("rows of J", affine.jacobian[0], "centroid", affine.jacobian[0].sum(0))
print(na.local_geometry(model, point, affine.output.argmax(1)))  # at the selected point
print(na.local_geometry(model, x, y))  # at the training points

penalty = na.GrokAlign(${settings.penalty}, estimator="exact")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=${settings.decay})
for step in range(500):
    logits, value = penalty(model, x)
    loss = torch.nn.functional.cross_entropy(logits, y) + value
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(na.local_geometry(model, x, y))
`;
}

// ---- Start ----

function load() {
  settings = readSettings();
  const given = settings.point.split(",").map(Number);
  curves = previousCurves = null;
  point = given.length === 2 && given.every(Number.isFinite) ? given : null;
  restart();
  showSettings();
  redraw();
}

makeControls();
followPointer();
followKeys();
setRunning(!stillness.matches);
load();
drawPreviews();
addEventListener("hashchange", () => {
  load();
  map.scrollIntoView({ block: "nearest" });
});
addEventListener("resize", () => { drawPreviews(); redraw(); });
document.addEventListener("themechange", () => { drawPreviews(); redraw(); });
