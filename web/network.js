// ReLU networks, their local affine maps, the measures of these maps, an attack, and
// training with GrokAlign. Names and formulas are those of the Python library, and
// tests/web compares the two.
//
// All scripts of these pages are classic scripts in one scope: browsers do not import
// modules from file://.
"use strict";

// A fully connected ReLU network. `weights[l]` is an (out, in) matrix, row by row.
class Network {
  constructor(widths) {
    this.widths = widths;
    this.weights = [];
    this.biases = [];
    for (let l = 1; l < widths.length; l++) {
      this.weights.push(new Float64Array(widths[l] * widths[l - 1]));
      this.biases.push(new Float64Array(widths[l]));
    }
  }

  // As normalign.nn.mlp: weights and biases uniform in +-scale / sqrt(fan in).
  static random(widths, random, scale = 1) {
    const network = new Network(widths);
    network.weights.forEach((weight, l) => {
      const bound = scale / Math.sqrt(widths[l]);
      for (const values of [weight, network.biases[l]])
        for (let i = 0; i < values.length; i++) values[i] = bound * (2 * random() - 1);
    });
    return network;
  }

  get depth() { return this.weights.length; }

  // In the order of torch: weight and bias of the first layer, of the second, ...
  parameters() { return this.weights.flatMap((weight, l) => [weight, this.biases[l]]); }

  // Returns the outputs; `active`, if given, receives which hidden units are on.
  output(x, active = null) {
    let hidden = x;
    for (let l = 0; l < this.depth; l++) {
      const weight = this.weights[l], n = hidden.length;
      const next = Float64Array.from(this.biases[l]);
      for (let i = 0, at = 0; i < next.length; i++, at += n) {
        let sum = 0;
        for (let j = 0; j < n; j++) sum += weight[at + j] * hidden[j];
        next[i] += sum;
      }
      if (l < this.depth - 1) {
        if (active) active[l] = next.map((value) => (value > 0 ? 1 : 0));
        for (let i = 0; i < next.length; i++) if (!(next[i] > 0)) next[i] = 0;
      }
      hidden = next;
    }
    return hidden;
  }

  // Returns `rows` (k, outputs) times the Jacobian of the piece with these active units.
  pullBack(rows, active) {
    const k = rows.length / this.widths[this.depth];
    for (let l = this.depth - 1; l >= 0; l--) {
      const weight = this.weights[l], n = this.widths[l], m = this.widths[l + 1];
      const on = l < this.depth - 1 ? active[l] : null;
      const next = new Float64Array(k * n);
      for (let u = 0; u < m; u++) {
        if (on && !on[u]) continue;
        for (let c = 0; c < k; c++) {
          const factor = rows[c * m + u];
          if (factor === 0) continue;
          const from = u * n, to = c * n;
          for (let j = 0; j < n; j++) next[to + j] += factor * weight[from + j];
        }
      }
      rows = next;
    }
    return rows;
  }

  // The affine map around x: f(z) = J z + b on the region of x. J is (k, d), row by row.
  localAffine(x) {
    const active = [], output = this.output(x, active), k = output.length;
    const identity = new Float64Array(k * k);
    for (let c = 0; c < k; c++) identity[c * k + c] = 1;
    const jacobian = this.pullBack(identity, active);
    const offset = output.map((value, c) => value - dot(rowOf(jacobian, c, k), x));
    return { output, jacobian, offset, active };
  }
}

function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

function norm(a) { return Math.sqrt(dot(a, a)); }

function cosine(a, b) {
  const size = norm(a) * norm(b);
  return size === 0 ? 0 : Math.max(-1, Math.min(1, dot(a, b) / size));
}

// Row c of a matrix with k rows.
function rowOf(matrix, c, k) {
  const d = matrix.length / k;
  return matrix.subarray(c * d, (c + 1) * d);
}

function argmax(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}

// The eigenvector of the largest eigenvalue of a symmetric k x k matrix, and that value,
// by Jacobi's rotations: exact to rounding, and quick for the sizes here.
function topEigen(matrix, k) {
  const a = Float64Array.from(matrix), v = new Float64Array(k * k);
  for (let i = 0; i < k; i++) v[i * k + i] = 1;
  for (let sweep = 0; sweep < 30; sweep++) {
    let off = 0, diagonal = 0;
    for (let i = 0; i < k; i++)
      for (let j = 0; j < k; j++)
        if (i === j) diagonal += a[i * k + j] ** 2;
        else off += a[i * k + j] ** 2;
    if (off <= 1e-30 * diagonal) break;
    for (let p = 0; p < k; p++)
      for (let q = p + 1; q < k; q++) {
        if (a[p * k + q] === 0) continue;
        const theta = (a[q * k + q] - a[p * k + p]) / (2 * a[p * k + q]);
        const sign = theta < 0 ? -1 : 1;
        const t = sign / (Math.abs(theta) + Math.sqrt(theta * theta + 1));
        const c = 1 / Math.sqrt(t * t + 1), s = t * c;
        for (let i = 0; i < k; i++) {
          const ip = a[i * k + p], iq = a[i * k + q];
          a[i * k + p] = c * ip - s * iq;
          a[i * k + q] = s * ip + c * iq;
        }
        for (let i = 0; i < k; i++) {
          const pi = a[p * k + i], qi = a[q * k + i];
          a[p * k + i] = c * pi - s * qi;
          a[q * k + i] = s * pi + c * qi;
          const vp = v[i * k + p], vq = v[i * k + q];
          v[i * k + p] = c * vp - s * vq;
          v[i * k + q] = s * vp + c * vq;
        }
      }
  }
  let top = 0;
  for (let i = 1; i < k; i++) if (a[i * k + i] > a[top * k + top]) top = i;
  const vector = Float64Array.from({ length: k }, (_, i) => v[i * k + top]);
  return { value: a[top * k + top], vector };
}

// The measures of na.local_geometry at one sample, from its affine map. `label` is the
// class from which local robustness is measured.
function measure({ output, jacobian, offset }, x, label) {
  const k = output.length;
  const rows = Array.from({ length: k }, (_, c) => rowOf(jacobian, c, k));
  const gram = new Float64Array(k * k);
  for (let i = 0; i < k; i++)
    for (let j = 0; j <= i; j++)
      gram[i * k + j] = gram[j * k + i] = dot(rows[i], rows[j]);
  let energy = 0;
  for (let i = 0; i < k; i++) energy += gram[i * k + i];
  const top = topEigen(gram, k);
  // The top right singular vector is J^T u / sigma, so its product with x is u J x / sigma.
  const along = rows.map((row) => dot(row, x));
  const length = norm(x), sigma = Math.sqrt(Math.max(top.value, 0));
  const aligned = sigma * length === 0 ? 0 : Math.abs(dot(top.vector, along)) / (sigma * length);
  const centroid = new Float64Array(x.length);
  for (const row of rows) for (let j = 0; j < x.length; j++) centroid[j] += row[j];
  const boundary = nearestBoundary(output, gram, label);
  return {
    normalAlignment: Math.min(1, aligned),
    effectiveRank: top.value > 0 ? energy / top.value : 0,
    centroid,
    centroidAlignment: cosine(centroid, x),
    jacobianNorm: Math.sqrt(energy),
    offsetNorm: norm(offset),
    radius: dot(centroid, centroid) + 2 * offset.reduce((sum, value) => sum + value, 0),
    localRobustness: boundary.distance,
    nearestClass: boundary.other,
    rowCosines: rows.map((row) => cosine(row, x)),
  };
}

// Distance to the nearest boundary of the affine map, and the class beyond it: the least
// (f_y - f_c) / |J_y - J_c|, 0 where the sample is not classified as y.
function nearestBoundary(output, gram, y) {
  const k = output.length;
  let distance = Infinity, other = -1;
  for (let c = 0; c < k; c++) {
    if (c === y) continue;
    const margin = output[y] - output[c];
    const squared = gram[y * k + y] + gram[c * k + c] - 2 * gram[y * k + c];
    let ratio = 0;
    if (margin > 0) ratio = squared > 0 ? margin / Math.sqrt(squared) : Infinity;
    if (ratio < distance) [distance, other] = [ratio, c];
  }
  return { distance, other };
}

function localGeometry(network, x, label = null) {
  const affine = network.localAffine(x);
  return { ...affine, ...measure(affine, x, label ?? argmax(affine.output)) };
}

// As na.robustness.minimal_radius(norm="l2", loss="margin"): bisection over the radius of
// projected gradient ascent. Returns the smallest radius at which an attack succeeded
// (Infinity if none did) and its point.
function minimalRadius(
  network, x, y,
  { maxRadius, low = -Infinity, high = Infinity, nSteps = 20, nBisections = 20 },
) {
  let lower = 0, radius = maxRadius;
  let found = { radius: Infinity, point: null };
  if (argmax(network.output(x)) !== y) return { radius: 0, point: x };
  for (let step = 0; step <= nBisections && lower < radius; step++) {
    const end = ascend(network, x, y, { radius, low, high, nSteps });
    if (!end.broken) lower = radius;
    else {
      const distance = Math.min(norm(end.point.map((value, i) => value - x[i])), radius);
      if (distance < found.radius) found = { radius: distance, point: end.point };
    }
    radius = found.point ? (lower + found.radius) / 2 : lower;
  }
  return found;
}

// Projected gradient ascent on the margin in a Euclidean ball around x, from x, with steps
// of 2.5 radii in total; returns the worst point on the way.
function ascend(network, x, y, { radius, low, high, nSteps }) {
  let point = x, worst = null;
  for (let step = 0; step <= nSteps; step++) {
    const active = [], output = network.output(point, active);
    const rival = argmax(output.map((value, c) => (c === y ? -Infinity : value)));
    const broken = argmax(output) !== y, margin = output[rival] - output[y];
    const isWorse = worst && (broken === worst.broken ? margin > worst.margin : broken);
    if (!worst || isWorse) worst = { point, broken, margin };
    if (step === nSteps) break;
    const slope = new Float64Array(output.length);
    slope[rival] = 1;
    slope[y] = -1;
    const gradient = network.pullBack(slope, active), size = norm(gradient);
    const length = size > 0 ? ((2.5 / nSteps) * radius) / size : 0;
    const next = point.map((value, i) => value + length * gradient[i]);
    const offset = next.map((value, i) => value - x[i]), away = norm(offset);
    if (away > radius) offset.forEach((value, i) => { next[i] = x[i] + (value * radius) / away; });
    point = next.map((value) => Math.max(low, Math.min(high, value)));
  }
  return worst;
}

// Training of a network with two inputs, by AdamW, on the mean over the samples of
//
//     cross-entropy + weight * (|J|_F^2 + |b|^2),
//
// na.GrokAlign(weight, estimator="exact"). With the masks of the active units held fixed,
// which is exact almost everywhere, f is affine in (x, 1): f(x) = A (x, 1) with A = (J, b).
// So a forward pass of A gives the outputs too, the penalty is |A|_F^2 with gradient 2 A,
// the loss with slope g in the outputs has the gradient g (x, 1)^T, and one backward pass of
// their sum gives the gradient of both.
class Trainer {
  constructor(network, settings) {
    this.network = network;
    this.settings = {
      learningRate: 0.01, weightDecay: 0, penaltyWeight: 0, betas: [0.9, 0.999],
      epsilon: 1e-8, ...settings,
    };
    this.steps = 0;
    const zeros = () => network.parameters().map((p) => new Float64Array(p.length));
    [this.gradients, this.first, this.second] = [zeros(), zeros(), zeros()];
    // maps[l] has the row (a, b, c) for each unit u after layer l: a x_0 + b x_1 + c around
    // the sample at hand; slopes[l] the derivatives of the objective in these numbers.
    const triples = () => network.widths.slice(1).map((n) => new Float64Array(3 * n));
    [this.maps, this.slopes] = [triples(), triples()];
    this.active = network.widths.slice(1, -1).map((n) => new Uint8Array(n));
  }

  // One step on samples (x_0, x_1) that follow one another in `inputs`.
  step(inputs, labels) {
    const n = labels.length, sums = { loss: 0, penalty: 0, correct: 0 };
    for (const gradient of this.gradients) gradient.fill(0);
    for (let i = 0; i < n; i++) {
      const x0 = inputs[2 * i], x1 = inputs[2 * i + 1];
      this.#forward(x0, x1);
      this.#differentiate(x0, x1, labels[i], n, sums);
      this.#backward();
    }
    this.#update();
    return { loss: sums.loss / n, penalty: sums.penalty / n, accuracy: sums.correct / n };
  }

  #forward(x0, x1) {
    const { network, maps } = this, last = network.depth - 1;
    for (let l = 0; l <= last; l++) {
      const map = maps[l], weight = network.weights[l], bias = network.biases[l];
      const width = network.widths[l];
      for (let u = 0; u < bias.length; u++) {
        let a = 0, b = 0, c = bias[u];
        if (l === 0) [a, b] = [weight[2 * u], weight[2 * u + 1]];
        else {
          const below = maps[l - 1], on = this.active[l - 1];
          for (let v = 0, at = u * width; v < width; v++, at++) {
            if (!on[v]) continue;
            const w = weight[at];
            a += w * below[3 * v];
            b += w * below[3 * v + 1];
            c += w * below[3 * v + 2];
          }
        }
        if (l < last) {
          const on = a * x0 + b * x1 + c > 0;
          this.active[l][u] = on ? 1 : 0;
          if (!on) a = b = c = 0;
        }
        map[3 * u] = a;
        map[3 * u + 1] = b;
        map[3 * u + 2] = c;
      }
    }
  }

  // Fills the slopes of the last layer, and adds to the sums over the samples.
  #differentiate(x0, x1, label, n, sums) {
    const map = this.maps.at(-1), slope = this.slopes.at(-1), k = map.length / 3;
    const weight = this.settings.penaltyWeight;
    let top = 0, highest = -Infinity, total = 0;
    const value = (c) => map[3 * c] * x0 + map[3 * c + 1] * x1 + map[3 * c + 2];
    for (let c = 0; c < k; c++) if (value(c) > highest) [top, highest] = [c, value(c)];
    for (let c = 0; c < k; c++) total += Math.exp(value(c) - highest);
    sums.loss += Math.log(total) + highest - value(label);
    sums.correct += top === label ? 1 : 0;
    for (let c = 0; c < k; c++) {
      const error = Math.exp(value(c) - highest) / total - (c === label ? 1 : 0);
      for (let j = 0; j < 3; j++) {
        const entry = map[3 * c + j], input = [x0, x1, 1][j];
        sums.penalty += weight * entry * entry;
        slope[3 * c + j] = (error * input + 2 * weight * entry) / n;
      }
    }
  }

  #backward() {
    const { network, maps, slopes, gradients } = this;
    for (let l = network.depth - 1; l > 0; l--) {
      const above = slopes[l], below = slopes[l - 1], map = maps[l - 1];
      const weight = network.weights[l], width = network.widths[l], on = this.active[l - 1];
      const into = gradients[2 * l], bias = gradients[2 * l + 1];
      below.fill(0);
      for (let u = 0; u < bias.length; u++) {
        const a = above[3 * u], b = above[3 * u + 1], c = above[3 * u + 2];
        bias[u] += c;
        for (let v = 0, at = u * width; v < width; v++, at++) {
          if (!on[v]) continue;
          const w = weight[at], i = 3 * v;
          into[at] += a * map[i] + b * map[i + 1] + c * map[i + 2];
          below[i] += w * a;
          below[i + 1] += w * b;
          below[i + 2] += w * c;
        }
      }
    }
    const above = slopes[0], [into, bias] = gradients;
    for (let u = 0; u < bias.length; u++) {
      into[2 * u] += above[3 * u];
      into[2 * u + 1] += above[3 * u + 1];
      bias[u] += above[3 * u + 2];
    }
  }

  // AdamW, as torch.optim.AdamW does it.
  #update() {
    const { learningRate, weightDecay, betas: [beta1, beta2], epsilon } = this.settings;
    this.steps += 1;
    const rate = learningRate / (1 - beta1 ** this.steps);
    const correction = Math.sqrt(1 - beta2 ** this.steps);
    this.network.parameters().forEach((parameter, p) => {
      const gradient = this.gradients[p], first = this.first[p], second = this.second[p];
      for (let i = 0; i < parameter.length; i++) {
        const g = gradient[i];
        first[i] = beta1 * first[i] + (1 - beta1) * g;
        second[i] = beta2 * second[i] + (1 - beta2) * g * g;
        parameter[i] *= 1 - learningRate * weightDecay;
        parameter[i] -= (rate * first[i]) / (Math.sqrt(second[i]) / correction + epsilon);
      }
    });
  }
}
