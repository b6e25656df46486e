// The regions on which a ReLU network with two inputs is affine, exactly, by cutting a
// rectangle with the zero lines of one layer after another: its power diagram subdivision.
// Also the lines in these regions on which one output leads another by a given margin.
"use strict";

// Returns the regions in the rectangle and, for each hidden layer, the edges that it adds.
// A region is { polygon, map }: corners (x_0, x_1) that follow one another, and the rows
// (a, b, c) of its affine map, f_u(x) = a x_0 + b x_1 + c. An edge is four numbers.
function partition(network, { left, right, bottom, top }) {
  const corners = [left, bottom, right, bottom, right, top, left, top];
  let regions = [{ polygon: corners, map: null }];
  const edges = [];
  for (let l = 0; l < network.depth - 1; l++) {
    const layerEdges = [], finer = [];
    for (const { polygon, map } of regions) {
      const units = applyLayer(network, l, map);
      let parts = [polygon];
      for (let u = 0; u < units.length; u += 3) {
        const a = units[u], b = units[u + 1], c = units[u + 2];
        if (!isCut(polygon, a, b, c)) continue;
        const pieces = [];
        for (const part of parts) {
          if (isCut(part, a, b, c)) cut(part, a, b, c, pieces, layerEdges);
          else pieces.push(part);
        }
        parts = pieces;
      }
      for (const part of parts) finer.push({ polygon: part, map: rectify(units, part) });
    }
    regions = finer;
    edges.push(layerEdges);
  }
  for (const region of regions)
    region.map = applyLayer(network, network.depth - 1, region.map);
  return { regions, edges };
}

// The rows of layer l before its ReLU, from those of the layer below (null: the inputs).
function applyLayer(network, l, below) {
  const weight = network.weights[l], bias = network.biases[l], width = network.widths[l];
  const rows = new Float64Array(3 * bias.length);
  for (let u = 0; u < bias.length; u++) {
    let a = 0, b = 0, c = bias[u];
    if (below === null) [a, b] = [weight[2 * u], weight[2 * u + 1]];
    else
      for (let v = 0, at = u * width, i = 0; v < width; v++, at++, i += 3) {
        const w = weight[at];
        a += w * below[i];
        b += w * below[i + 1];
        c += w * below[i + 2];
      }
    rows[3 * u] = a;
    rows[3 * u + 1] = b;
    rows[3 * u + 2] = c;
  }
  return rows;
}

// The rows after the ReLU on a polygon that no unit cuts: zero for units that are off there.
function rectify(rows, polygon) {
  const [x, y] = middle(polygon);
  const map = rows.slice();
  for (let u = 0; u < map.length; u += 3)
    if (!(map[u] * x + map[u + 1] * y + map[u + 2] > 0)) map[u] = map[u + 1] = map[u + 2] = 0;
  return map;
}

function middle(polygon) {
  let x = 0, y = 0;
  for (let i = 0; i < polygon.length; i += 2) [x, y] = [x + polygon[i], y + polygon[i + 1]];
  return [(2 * x) / polygon.length, (2 * y) / polygon.length];
}

// Whether the line a x + b y + c = 0 has corners of the polygon strictly on both sides. A
// corner nearer than rounding is on the line: it must not cut off a sliver.
function isCut(polygon, a, b, c) {
  const tolerance = 1e-12 * (Math.abs(a) + Math.abs(b) + Math.abs(c));
  let above = false, below = false;
  for (let i = 0; i < polygon.length; i += 2) {
    const value = a * polygon[i] + b * polygon[i + 1] + c;
    if (value > tolerance) above = true;
    else if (value < -tolerance) below = true;
    if (above && below) return true;
  }
  return false;
}

// Adds the two pieces of a convex polygon to `pieces`, and the cut between to `edges`.
function cut(polygon, a, b, c, pieces, edges) {
  const tolerance = 1e-12 * (Math.abs(a) + Math.abs(b) + Math.abs(c));
  const above = [], below = [], ends = [];
  const n = polygon.length;
  let x = polygon[n - 2], y = polygon[n - 1], value = a * x + b * y + c;
  for (let i = 0; i < n; i += 2) {
    const nextX = polygon[i], nextY = polygon[i + 1];
    const next = a * nextX + b * nextY + c;
    const crosses = Math.abs(value) > tolerance && Math.abs(next) > tolerance;
    if (crosses && value > 0 !== next > 0) {
      const t = value / (value - next);
      const px = x + t * (nextX - x), py = y + t * (nextY - y);
      above.push(px, py);
      below.push(px, py);
      ends.push(px, py);
    }
    if (next >= -tolerance) above.push(nextX, nextY);
    if (next <= tolerance) below.push(nextX, nextY);
    if (Math.abs(next) <= tolerance) ends.push(nextX, nextY);
    [x, y, value] = [nextX, nextY, next];
  }
  pieces.push(above, below);
  if (ends.length >= 4) edges.push(ends[0], ends[1], ends[2], ends[3]);
}

// The part of a convex polygon where a x + b y + c >= 0; empty if there is none.
function clip(polygon, a, b, c) {
  const kept = [], n = polygon.length;
  if (n === 0) return kept;
  let x = polygon[n - 2], y = polygon[n - 1], value = a * x + b * y + c;
  for (let i = 0; i < n; i += 2) {
    const nextX = polygon[i], nextY = polygon[i + 1];
    const next = a * nextX + b * nextY + c;
    if (value >= 0 !== next >= 0) {
      const t = value / (value - next);
      kept.push(x + t * (nextX - x), y + t * (nextY - y));
    }
    if (next >= 0) kept.push(nextX, nextY);
    [x, y, value] = [nextX, nextY, next];
  }
  return kept;
}

// The part of a region where f_c leads every other output: nothing where two are the same.
function classPart({ polygon, map }, c) {
  let part = polygon;
  for (let j = 0; 3 * j < map.length && part.length; j++) {
    if (j === c) continue;
    const lead = rowDifference(map, c, j);
    if (lead.every((value) => value === 0)) return [];
    part = clip(part, ...lead);
  }
  return part;
}

function rowDifference(map, i, j) {
  return [map[3 * i] - map[3 * j], map[3 * i + 1] - map[3 * j + 1], map[3 * i + 2] - map[3 * j + 2]];
}

// Adds to `segments` where output i leads the runner-up by a multiple of `spacing`.
function marginSegments({ polygon, map }, i, spacing, segments) {
  for (let j = 0; 3 * j < map.length; j++) {
    if (j === i) continue;
    const [a, b, c] = rowDifference(map, i, j);
    let low = Infinity, high = -Infinity;
    for (let p = 0; p < polygon.length; p += 2) {
      const lead = a * polygon[p] + b * polygon[p + 1] + c;
      if (lead < low) low = lead;
      if (lead > high) high = lead;
    }
    const first = Math.max(1, Math.ceil(low / spacing));
    for (let n = first; n * spacing < high; n++)
      addSegment(polygon, map, [a, b, c - n * spacing], i, j, segments);
  }
}

// Adds to `segments` where two outputs of a region are equal and no other is larger.
function boundarySegments({ polygon, map }, segments) {
  for (let i = 0; 3 * i < map.length; i++)
    for (let j = 0; j < i; j++)
      addSegment(polygon, map, rowDifference(map, i, j), i, j, segments);
}

// The part of a line in a polygon on which j is at least every output but i.
function addSegment(polygon, map, [a, b, c], i, j, segments) {
  let ends = crossing(polygon, a, b, c);
  for (let m = 0; 3 * m < map.length && ends; m++)
    if (m !== i && m !== j) ends = clipSegment(ends, ...rowDifference(map, j, m));
  if (ends) segments.push(...ends);
}

// The two ends of a line within a convex polygon, or null.
function crossing(polygon, a, b, c) {
  const ends = [], n = polygon.length;
  let x = polygon[n - 2], y = polygon[n - 1], value = a * x + b * y + c;
  for (let i = 0; i < n; i += 2) {
    const nextX = polygon[i], nextY = polygon[i + 1];
    const next = a * nextX + b * nextY + c;
    if (value >= 0 !== next >= 0) {
      const t = value / (value - next);
      ends.push(x + t * (nextX - x), y + t * (nextY - y));
    }
    [x, y, value] = [nextX, nextY, next];
  }
  return ends.length === 4 ? ends : null;
}

// The part of a segment where a x + b y + c >= 0, or null.
function clipSegment([x0, y0, x1, y1], a, b, c) {
  const from = a * x0 + b * y0 + c, to = a * x1 + b * y1 + c;
  if (from < 0 && to < 0) return null;
  if (from >= 0 && to >= 0) return [x0, y0, x1, y1];
  const t = from / (from - to), x = x0 + t * (x1 - x0), y = y0 + t * (y1 - y0);
  return from >= 0 ? [x0, y0, x, y] : [x, y, x1, y1];
}

// The region that holds a point, or undefined outside the rectangle.
function regionAt(regions, x, y) {
  return regions.find(({ polygon }) => {
    const n = polygon.length;
    let [fromX, fromY] = [polygon[n - 2], polygon[n - 1]];
    for (let i = 0; i < n; i += 2) {
      const toX = polygon[i], toY = polygon[i + 1];
      if ((toX - fromX) * (y - fromY) < (toY - fromY) * (x - fromX)) return false;
      [fromX, fromY] = [toX, toY];
    }
    return true;
  });
}
