"""Kernel machines and their functions against a plain implementation in NumPy.

The plain implementation works from differences of all pairs of points, in float64, and
shares no code with the library. It is run again with its inputs and its intermediate
results perturbed by one rounding error of the library's precision: the change of its
outputs is the error that a backward stable algorithm may have, so tolerances are
multiples of it. Where both disagree in float64, it is run with 50 digits.
"""

from __future__ import annotations

import functools
import re
import warnings
from types import SimpleNamespace

import mpmath
import numpy as np
import torch

from normalign import kernels as na
from normalign.estimators import (
    RFAMClassifier,
    RFAMRegressor,
    RFMClassifier,
    RFMRegressor,
)

KINDS = {
    "RFMRegressor": RFMRegressor,
    "RFAMRegressor": RFAMRegressor,
    "RFMClassifier": RFMClassifier,
    "RFAMClassifier": RFAMClassifier,
}
GAPS = [None, None, 0.0, *(10.0**-power for power in range(2, 13))]
# Warnings of the library about results with few correct digits.
CAUTION = re.compile(
    "rounding in float|positive definite in float|may be rounding|conjugate gradients "
    "stopped|all rows alike|no row like another"
)
# Accepted relative errors of a metric that is a sum over pairs: the library stops at an
# estimate of 1e-9 and 1e-3, and measured errors were a tenth of that.
PAIRS = {"float64": 1e-9, "float32": 1e-3}
RESIDUAL = 1e-4  # where conjugate gradients stop
# Tolerance in units of the change of the plain results: the library makes many rounding
# errors, of which the runs below sample a few. In thousands of cases 120 was enough.
ROUNDINGS, RUNS = 300, 3
# Above this relative change the problem is ill-posed and is not checked.
ILL_POSED = 1e-3


def draw(rng: np.random.Generator) -> dict:
    """Sizes, kernel, data, precision and route of one case."""
    scale = float(10.0 ** rng.integers(-3, 4))
    d = int(rng.choice([1, 2, 3, 5, 8, 15, 25, 40]))
    case = {
        "what": str(rng.choice(["machine", "functions"], p=[0.6, 0.4])),
        "seed": int(rng.integers(2**31)),
        "n": int(rng.integers(4, 31)),
        "d": d,
        "k": int(rng.integers(1, 9)),
        "kernel": str(
            rng.choice(["laplace", "laplace", "gaussian", "product_laplace"])
        ),
        "exponent": float(rng.choice([0.5, 0.7, 1.0, 1.0, 1.5, 1.9, 2.0])),
        "bandwidth": scale * d**0.5 * float(10.0 ** rng.uniform(-0.5, 1.0)),
        "gap": rng.choice(np.array(GAPS, dtype=object)),
        "doubles": float(rng.choice([0.1, 0.5, 1.0])),  # of the rows
        "scale": scale,
        "offset": float(rng.choice([0.0, 1.0, 1e3, 1e6])),
        "constant": int(rng.integers(0, 2)),  # columns of one number
        "grid": bool(rng.random() < 0.2),  # columns of few numbers
        "weights": str(rng.choice(["none", "none", "counts", "shares"])),
        "metric": str(rng.choice(["none", "diagonal", "full", "low rank"])),
        "dtype": str(rng.choice(["float64", "float64", "float32", "auto"])),
    }
    if case["what"] == "functions":
        case["dtype"] = case["dtype"].replace("auto", "float64")
        case["cancel"] = bool(rng.random() < 0.5)  # coefficients of a fitted machine
        case["elsewhere"] = bool(rng.random() < 0.5)  # rows that are not the centers
    if case["kernel"] != "laplace":
        case["exponent"] = 1.0
    case["ridge"] = float(10.0 ** -rng.integers(0, 9))
    case["n_iter"] = int(rng.integers(0, 4))
    case["diagonal"] = bool(rng.random() < 0.4)
    case["center"] = bool(rng.random() < 0.7)
    case["rule"] = str(rng.choice(["fixed", "fixed", "median"]))
    case["solver"] = str(rng.choice(["auto", "cholesky", "cg"], p=[0.5, 0.3, 0.2]))
    case["identity_weight"] = float(rng.choice([0.0, 0.1, 0.5, 1.0]))
    case["kind"] = str(rng.choice(list(KINDS)))
    case["parts"] = bool(rng.random() < 0.1)
    return case


def check(case: dict) -> None:
    """Raise if the results of the library are wrong and it gave no warning."""
    if case["what"] == "functions":
        _check_functions(case)
    elif case["parts"]:
        _check_parts(case)
    else:
        _check_machine(case)


# Arithmetic: float64, and 50 digits in arrays of objects.


def _double_root(metric: np.ndarray) -> np.ndarray:
    spectrum, axes = np.linalg.eigh(metric)
    return (axes * np.sqrt(np.maximum(spectrum, 0))) @ axes.T


def _mp_root(metric: np.ndarray) -> np.ndarray:
    spectrum, axes = mpmath.eigsy(mpmath.matrix(metric.tolist()))
    axes = np.array(axes.tolist(), dtype=object)
    roots = np.array([mpmath.sqrt(max(value, mpmath.mpf(0))) for value in spectrum])
    return (axes * roots) @ axes.T


def _mp_solve(matrix: np.ndarray, y: np.ndarray) -> np.ndarray:
    left = mpmath.matrix(matrix.tolist())
    columns = [mpmath.lu_solve(left, mpmath.matrix(column.tolist())) for column in y.T]
    return np.array([list(column) for column in columns], dtype=object).T


DOUBLE = SimpleNamespace(
    array=lambda values: np.asarray(values, dtype=np.float64),
    exp=np.exp,
    power=np.power,
    root=_double_root,
    solve=np.linalg.solve,
)
PRECISE = SimpleNamespace(
    array=np.vectorize(mpmath.mpf, otypes=[object]),
    exp=np.vectorize(mpmath.exp, otypes=[object]),
    power=np.vectorize(mpmath.power, otypes=[object]),
    root=_mp_root,
    solve=_mp_solve,
)


class _Rounding:
    """Changes numbers by one rounding; the same number by the same."""

    def __init__(self, eps: float, seed: int, *, residual: float = 0.0) -> None:
        self.eps, self.residual = eps, residual
        self.rng = np.random.default_rng(seed)
        # squared distances are a difference of squares above this share of them
        self.near = 1e-6 if eps < 1e-10 else 1e-3

    def table(self, x: np.ndarray) -> np.ndarray:
        """Equal numbers of a column stay equal, and zero stays zero."""
        columns = []
        for column in x.T:
            values, places = np.unique(column, return_inverse=True)
            columns.append((1 + self.eps * self.rng.normal(size=len(values)))[places])
        return x * np.stack(columns, 1)

    def entries(self, table: np.ndarray) -> np.ndarray:
        return table * (1 + self.eps * self.rng.normal(size=table.shape))

    def symmetric(self, table: np.ndarray, more: float = 0.0) -> np.ndarray:
        """``more`` is of the mean of the diagonal, not of each entry."""
        if table.ndim == 1:
            noise = self.rng.normal(size=table.shape) * (table > 1e-12 * table.mean())
            return np.maximum(self.entries(table) + more * table.mean() * noise, 0)
        noise = self.rng.normal(size=(2, *table.shape))
        noise = noise + noise.swapaxes(1, 2)
        mean = table.trace() / len(table)
        there = table.diagonal() > 1e-12 * mean  # rows of constant columns are zero
        noise[1] *= np.outer(there, there)
        return table * (1 + self.eps * noise[0]) + more * mean * noise[1]

    def apart(self, apart: np.ndarray, x: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Differences that are made of sums over both points."""
        size = self.eps * (abs(x)[:, None] + abs(z)[None])
        return apart + size * self.rng.normal(size=apart.shape)

    def placed(self, placed: np.ndarray, x, z, bandwidth: float) -> np.ndarray:
        """Differences of points that a root has mixed, but for near points."""
        sizes = (abs(x).max(1)[:, None] + abs(z).max(1)) / bandwidth
        length = abs(placed).sum(-1)
        far = length > self.near * sizes
        # of the sums, and of the root, which mixes in a bit of all other differences
        size = 3 * self.eps * (3 * far * sizes + 8 * length)[..., None]
        lost = (abs(placed) < size) & (self.rng.random(placed.shape) < 0.5)
        return np.where(lost, 0, placed + size * self.rng.normal(size=placed.shape))

    def squared(self, squared, squares, terms) -> np.ndarray:
        """Differences of squares where they are no small share of them.

        The terms of which squares are summed up cancel in a singular metric.
        """
        far = squared > self.near * squares
        return squared + far * self.eps * terms * self.rng.normal(size=squared.shape)

    def targets(self, y: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """A residual of conjugate gradients, also where it does most harm."""
        y = self.entries(y)
        if self.residual:
            worst = np.linalg.eigh(matrix)[1][:, :1]
            sizes = np.linalg.norm(y, axis=0)
            ways = worst * self.rng.choice([-1, 1], y.shape[1])
            anywhere = self.rng.normal(size=y.shape) / np.sqrt(len(y))
            y = y + self.residual * sizes * (ways + anywhere)
        return y


class _Exact:
    """Changes nothing."""

    def table(self, x):
        return x

    entries = table

    def apart(self, apart, x, z):
        return apart

    def placed(self, placed, x, z, bandwidth):
        return placed

    def squared(self, squared, squares, terms):
        return squared

    def targets(self, y, matrix):
        return y

    def symmetric(self, table, more=0.0):
        return table


class _Grid(_Exact):
    """Rounds the points of each column to a grid, on which near ones may coincide."""

    def __init__(self, eps: float) -> None:
        self.eps = eps

    def table(self, x):
        step = 2 * self.eps * np.abs(x).max(0)
        step[step == 0] = 1.0
        return np.round(x / step) * step


# Plain formulas.


def _pairs(x, z, metric, spec, ops, noise):
    """Values, gradients in x and distances of all pairs: (n, m), (n, m, d), (n, m)."""
    apart = z[None] - x[:, None]
    if spec.kernel == "product_laplace":
        if metric.ndim == 1:
            root = ops.power(metric, ops.array(0.5))
            placed = apart * root / spec.bandwidth
        else:
            root = ops.root(metric)
            placed = apart @ root / spec.bandwidth
            size = abs(placed).sum(-1, keepdims=True)
            # Columns that have nothing to do with each other are mixed by a rounding.
            mixed = abs(placed) > 1e-15 * size
            changed = noise.placed(placed, x @ root, z @ root, spec.bandwidth)
            placed = np.where(mixed, changed, 0 * placed)
        distances = abs(placed).sum(-1)
        values = ops.exp(-distances)
        signs = (placed > 0).astype(float) - (placed < 0)
        steps = noise.entries(values)[..., None] * ops.array(signs)
        slopes = (steps * root if metric.ndim == 1 else steps @ root) / spec.bandwidth
        return values, slopes, distances
    scaled = metric / spec.bandwidth**2

    def seen(points, through=scaled):
        return points * through if metric.ndim == 1 else points @ through

    def both(of):
        return of(x)[:, None] + of(z)[None]

    squared = (apart * noise.apart(seen(apart), seen(x), seen(z))).sum(-1)
    squares = both(lambda points: (points * seen(points)).sum(-1))
    terms = both(lambda points: (abs(points) * seen(abs(points), abs(scaled))).sum(-1))
    squared = noise.squared(squared, squares, terms)
    squared = np.where(squared > 0, squared, 0 * squared)
    away = squared > 0
    filled = np.where(away, squared, 1 + 0 * squared)
    if spec.kernel == "gaussian":
        values = ops.exp(-squared / 2)
        slopes = values
    else:
        half = ops.array(spec.exponent) / 2
        values = np.where(away, ops.exp(-ops.power(filled, half)), 1 + 0 * squared)
        slopes = 2 * half * ops.power(filled, half - 1) * values
    slopes = np.where(away, slopes, 0 * slopes)
    distances = np.where(away, ops.power(filled, ops.array(0.5)), 0 * squared)
    images = noise.apart(seen(apart), seen(x), seen(z))
    return values, noise.entries(slopes)[..., None] * images, distances


def _outer(jacobian, weights):
    return (jacobian.swapaxes(1, 2) @ jacobian * weights[:, None, None]).sum(0) / (
        weights.sum()
    )


def _start(x, weights, identity_weight, diagonal, ops):
    d, mass = x.shape[1], weights.sum()
    identity = ops.array(np.eye(d))
    centred = x - (weights[:, None] * x).sum(0) / mass
    share = weights / max(mass - 1, mass / 2)
    covariance = (centred * share[:, None]).T @ centred
    metric = (1 - identity_weight) * covariance + identity_weight * identity
    if identity_weight == 1 or not covariance.trace() > 0:
        metric = identity
    metric = metric * d / metric.trace()
    return metric.diagonal() if diagonal else metric


def _median(distances, weights):
    above = np.triu_indices(len(distances), 1)
    lengths, mass = distances[above], np.outer(weights, weights)[above]
    lengths, mass = lengths[lengths > 0], mass[lengths > 0]
    if not len(lengths):
        return 1.0
    order = np.argsort(lengths)
    total = np.cumsum(mass[order])
    return lengths[order][np.searchsorted(total, total[-1] * (0.5 - 1e-12))]


def _fit_reference(x, y, weights, case, ops, noise, more=0.0):
    """Algorithm 1: metric, coefficients, bandwidth, intercept, the last condition."""
    spec = SimpleNamespace(kernel=case["kernel"], exponent=case["exponent"])
    diagonal, alpha = case["diagonal"], case["identity_weight"]
    alpha = alpha if case["kind"].startswith("RFAM") else 1.0
    if case["kernel"] == "product_laplace" and isinstance(noise, _Rounding):
        # A root is that of a metric which is off by a rounding of its largest entry.
        more = more + noise.eps
    metric = noise.symmetric(_start(x, weights, alpha, diagonal, ops))
    intercept = (weights[:, None] * y).sum(0) / weights.sum() * int(case["center"])
    for index in range(case["n_iter"] + 1):
        spec.bandwidth = ops.array(case["bandwidth"])
        if case["rule"] == "median":
            spec.bandwidth = ops.array(1.0)
            spec.bandwidth = _median(_pairs(x, x, metric, spec, ops, noise)[2], weights)
        values, slopes, _ = _pairs(x, x, metric, spec, ops, noise)
        matrix = noise.symmetric(values) + np.diag(ops.array(case["ridge"]) / weights)
        coef = ops.solve(matrix, noise.targets(y - intercept, matrix))
        if index == case["n_iter"]:
            break
        learned = _outer(coef.T @ slopes, weights)
        if learned.trace() > 0:
            learned = learned * len(learned) / learned.trace()
            if diagonal:
                metric = learned.diagonal() * len(learned) / learned.trace()
            metric = noise.symmetric(learned.diagonal() if diagonal else learned, more)
    return metric, coef, spec, intercept, matrix


# Data.


def _data(case, rng):
    n, d = case["n"], case["d"]
    x = rng.normal(size=(n, d))
    if case["grid"]:
        x = np.round(x)
    if case["gap"] is not None:
        for row in range(1, n, 2):
            if rng.random() < case["doubles"]:
                x[row] = x[row - 1] + case["gap"] * rng.normal(size=d)
    x[:, : min(case["constant"], d - 1)] = 0.5
    x = case["scale"] * (x + case["offset"])
    weights = np.ones(n)
    if case["weights"] == "counts":
        weights = rng.integers(1, 4, size=n).astype(float)
    elif case["weights"] == "shares":
        weights = rng.uniform(0.2, 2.0, size=n)
    return x, weights


def _metric(case, rng):
    d = case["d"]
    if case["metric"] == "none":
        return None
    if case["metric"] == "diagonal":
        metric = rng.uniform(0, 2, size=d)
        metric[: d // 3] = 0
        return metric
    rank = max(d // 2, 1) if case["metric"] == "low rank" else d
    root = rng.normal(size=(d, rank))
    return root @ root.T / rank


def _compare(name, found, wanted, changed, *, least, precise=None):
    """Raise if an output differs by more than rounding errors explain.

    ``changed`` are plain outputs with rounding errors, ``least`` is an absolute
    tolerance, and ``precise`` makes the answer with 50 digits.
    """
    found, wanted = (np.asarray(part, dtype=np.float64) for part in (found, wanted))
    assert found.shape == wanted.shape, (name, found.shape, wanted.shape)
    size = np.abs(wanted).max(initial=0.0)
    moved = max(np.abs(one - wanted).max(initial=0.0) for one in changed)
    if not moved <= ILL_POSED * size:
        return
    tolerance = ROUNDINGS * moved + least
    error = np.abs(found - wanted).max(initial=0.0)
    if not error <= tolerance and precise is not None:
        exact = np.asarray(precise(), dtype=np.float64)
        error = np.abs(found - exact).max(initial=0.0)
    assert error <= tolerance, (
        f"{name}: off by {error:.2e}, more than {tolerance:.2e}; answers of size "
        f"{size:.2e} move by {moved:.2e} with a rounding"
    )


def _middle(x):
    """The lower median, from which the library takes differences, too."""
    return np.sort(x, axis=0)[(len(x) - 1) // 2]


def _eps(dtype):
    return float(torch.finfo(getattr(torch, dtype)).eps)


# Functions.


def _kernel_of(case):
    kind = na.KERNELS[case["kernel"]]
    more = {"exponent": case["exponent"]} if case["kernel"] == "laplace" else {}
    return kind(bandwidth=case["bandwidth"], **more)


def _check_functions(case):
    rng, dtype = np.random.default_rng(case["seed"]), case["dtype"]
    eps = _eps(dtype)
    centers, weights = _data(case, rng)
    metric = _metric(case, rng)
    precision = getattr(torch, dtype)
    # Rows as the library gets them; without the offset float32 could not hold them.
    if dtype == "float32":
        centers = centers - case["scale"] * case["offset"]
    x = centers
    if case["elsewhere"]:
        x = centers[rng.permutation(len(centers))] + case["scale"] * rng.normal(
            size=centers.shape
        ) * rng.choice([1e-6, 1e-2, 1.0])
    spec = SimpleNamespace(**{p: case[p] for p in ("kernel", "exponent", "bandwidth")})
    full = np.ones(case["d"]) if metric is None else metric
    coef = rng.normal(size=(len(centers), case["k"]))
    if case["cancel"]:
        values = _pairs(centers, centers, full, spec, DOUBLE, _Exact())[0]
        ridge = case["ridge"] * np.eye(len(values))
        coef = np.linalg.solve(values + ridge, coef)
    tensors = [
        None if part is None else torch.tensor(part, dtype=precision)
        for part in (x, centers, coef, metric, weights)
    ]
    x, centers, coef, metric, weights = (
        None if part is None else part.double().numpy() for part in tensors
    )
    full = np.ones(case["d"]) if metric is None else metric
    one, other, factors, seen, mass = tensors
    kernel, middle = _kernel_of(case), _middle(centers)

    def answers(ops, noise):
        both = noise.table(np.concatenate([x, centers]) - middle)
        placed, targets, a, w, m = (
            ops.array(part)
            for part in (both[: len(x)], both[len(x) :], coef, weights, full)
        )
        m = noise.symmetric(m) if m.ndim == 2 else m
        plain = SimpleNamespace(
            **{**vars(spec), "bandwidth": ops.array(spec.bandwidth)}
        )
        values, slopes, _ = _pairs(placed, targets, m, plain, ops, noise)
        values, a = noise.entries(values), noise.entries(a)
        jacobian = a.T @ slopes
        return values, values @ a, jacobian, _outer(jacobian, w)

    wanted = answers(DOUBLE, _Exact())
    changed = [answers(DOUBLE, _Rounding(eps, seed)) for seed in range(RUNS)]
    changed.append(answers(DOUBLE, _Grid(eps)))
    precise = functools.cache(lambda: answers(PRECISE, _Exact()))

    def agrees(name, place, found, *, least=0.0, of=lambda part: part):
        size = np.abs(wanted[place]).max(initial=0.0)
        _compare(
            name, found.double().numpy(), of(wanted[place]),
            [of(part[place]) for part in changed], least=(least + 50 * eps) * size,
            precise=lambda: of(precise()[place]),
        )  # fmt: skip

    agrees("kernel_matrix", 0, na.kernel_matrix(one, other, kernel, metric=seen))
    expansion = na.expansion(one, other, factors, kernel, metric=seen)
    agrees("expansion", 1, expansion)
    jacobian = na.expansion_jacobian(one, other, factors, kernel, metric=seen)
    agrees("expansion_jacobian", 2, jacobian)
    columns = na.Columns.of(other, factors, kernel, metric=seen)
    direction = torch.tensor(rng.normal(size=case["k"]), dtype=precision)
    outputs, pulled = na.pull_back(
        one, columns, lambda values, _: direction.expand_as(values)
    )
    agrees("pull_back outputs", 1, outputs)
    along = direction.double().numpy()
    agrees(
        "pull_back", 2, pulled,
        of=lambda part: np.einsum("nkd,k->nd", np.asarray(part, np.float64), along),
        least=np.sqrt(case["k"]) * eps,
    )  # fmt: skip
    forms = ["auto", "gradients", "pairs"]
    for form in forms[:2] if case["kernel"] == "product_laplace" else forms:
        accepted = 0.0 if form == "gradients" else PAIRS[dtype]
        for diagonal in (False, True):
            found = na.agop(
                one, other, factors, kernel, metric=seen, weights=mass,
                diagonal=diagonal, form=form,
            )  # fmt: skip
            agrees(
                f"agop {form}", 3, found, least=accepted * case["d"],
                of=np.diagonal if diagonal else np.asarray,
            )  # fmt: skip
            _require_positive(f"agop {form}", found.double().numpy(), accepted, eps)


def _require_positive(name, metric, accepted, eps):
    trace = metric.sum() if metric.ndim == 1 else metric.trace()
    least = metric.min() if metric.ndim == 1 else np.linalg.eigvalsh(metric)[0]
    assert trace >= 0, f"{name}: trace {trace:.2e}"
    assert least >= -(accepted + 50 * eps) * trace, f"{name}: eigenvalue {least:.2e}"


# Machines.


def _problem(case):
    rng = np.random.default_rng(case["seed"])
    x, weights = _data(case, rng)
    n, k = case["n"], case["k"]
    if "Classifier" not in case["kind"]:
        y = rng.normal(size=(n, k))
        return x, weights, y, y, rng
    labels = rng.integers(0, k + 1, size=n)
    labels[:2] = 0, 1  # two classes at least
    classes, codes = np.unique(labels, return_inverse=True)
    return x, weights, labels, np.eye(len(classes))[codes], rng


def _machine(case, **more):
    settings = {
        "kernel": case["kernel"], "exponent": case["exponent"],
        "bandwidth": case["bandwidth"], "bandwidth_rule": case["rule"],
        "ridge": case["ridge"], "n_iter": case["n_iter"], "diagonal": case["diagonal"],
        "center": case["center"], "solver": case["solver"], "dtype": case["dtype"],
        "device": "cpu", "random_state": 0, **more,
    }  # fmt: skip
    if case["rule"] == "median":
        settings["bandwidth"] = 1.0
    if case["kind"].startswith("RFAM"):
        settings["identity_weight"] = case["identity_weight"]
    return KINDS[case["kind"]](**settings)


def _fit(machine, x, labels, weights, case):
    """The fitted machine and whether it said that digits are lost; None if refused."""
    given = {} if case["weights"] == "none" else {"sample_weight": weights}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            machine.fit(x, labels, **given)
        except ValueError as error:
            refusal = str(error)
        else:
            refusal = None
    if refusal is not None:
        assert refusal.startswith(f"{case['kind']}: "), refusal
        return None, refusal
    said = [str(one.message) for one in caught if CAUTION.search(str(one.message))]
    return machine, " ".join(said)


def _check_machine(case):
    x, weights, labels, y, rng = _problem(case)
    machine, said = _fit(_machine(case), x, labels, weights, case)
    single = case["dtype"] == "float32"
    eps = _eps("float32" if single else "float64")
    fresh = x[rng.integers(len(x), size=6)] + case["scale"] * rng.normal(
        size=(6, x.shape[1])
    )
    asked = np.concatenate([x[:6], fresh])
    # a sum over pairs may be off by what is accepted, and the metric with it
    k, d = y.shape[1], x.shape[1]
    radial = case["kernel"] != "product_laplace"
    pairs = radial and len(x) + 4 * (k + d) < 2 * k * (d + 1)
    more = PAIRS["float32" if single else "float64"] / 10 if pairs else 0.0
    residual = 3 * RESIDUAL if case["solver"] == "cg" else 0.0
    middle = _middle(x)

    def answers(ops, noise):
        both = noise.table(np.concatenate([x, asked]) - middle)
        placed, points = (ops.array(part) for part in (both[: len(x)], both[len(x) :]))
        metric, coef, spec, intercept, matrix = _fit_reference(
            placed, ops.array(y), ops.array(weights), case, ops, noise, more
        )
        values, slopes, _ = _pairs(points, placed, metric, spec, ops, noise)
        whole = np.diag(metric) if metric.ndim == 1 else metric
        outputs = noise.entries(values) @ noise.entries(coef) + intercept
        return outputs, coef.T @ slopes, whole, matrix

    wanted = answers(DOUBLE, _Exact())
    condition = np.linalg.cond(wanted[3])
    if machine is None:
        # A sum of n roundings is what a factor may lose; conjugate gradients need more.
        if case["solver"] == "cg" and condition > 1e7:
            return
        assert condition * eps * len(x) > 1e-2, (
            f"refused: {said} (cond {condition:.1e})"
        )
        return
    if said and condition * eps > 1e-9:
        return
    changed = [
        answers(DOUBLE, _Rounding(eps, seed, residual=residual)) for seed in range(RUNS)
    ]
    changed.append(answers(DOUBLE, _Grid(eps)))
    precise = functools.cache(lambda: answers(PRECISE, _Exact()))

    # The root of a singular metric is off by the root of a rounding.
    learns = case["n_iter"] > 0 or case["kind"].startswith("RFAM")
    rooted = not radial and learns and not case["diagonal"]
    least = eps**0.5 if rooted else 50 * eps

    def agrees(name, place, found, of=lambda part: np.asarray(part, np.float64)):
        size = np.abs(of(wanted[place])).max(initial=0.0)
        _compare(
            name, found, of(wanted[place]), [of(part[place]) for part in changed],
            least=least * size, precise=lambda: of(precise()[place]),
        )  # fmt: skip

    metric = machine.metric_
    whole = np.diag(metric) if metric.ndim == 1 else metric
    _require_positive("metric_", whole, more * 10, eps)
    agrees("metric_", 2, whole)
    agrees("jacobian", 1, machine.jacobian(asked))
    if "Regressor" in case["kind"]:
        agrees("predict", 0, machine.predict(asked).reshape(len(asked), -1))
    else:
        found = machine.decision_function(asked)
        if found.ndim == 1:
            agrees(
                "decision_function", 0, found,
                of=lambda part: np.asarray(part[:, 1] - part[:, 0], np.float64),
            )  # fmt: skip
        else:
            agrees("decision_function", 0, found)
        chances = machine.predict_proba(asked)
        assert np.isfinite(chances).all()
        assert np.allclose(chances.sum(1), 1)
        picked = np.searchsorted(machine.classes_, machine.predict(asked))
        # of two equal chances either may be picked
        assert (chances[np.arange(len(asked)), picked] >= chances.max(1) - 1e-12).all()

    def importances(part):
        part = np.asarray(part, np.float64)
        centered = x - middle  # exact, where a mean of large numbers is rounded
        mean = weights @ centered / weights.sum()
        spread = weights @ (centered - mean) ** 2 / weights.sum()
        share = np.maximum(np.diagonal(part), 0) * spread
        return share / (share.sum() or 1.0)

    agrees("feature_importances_", 2, machine.feature_importances_, of=importances)


def _check_parts(case):
    """Of a machine in parts: a metric, and Jacobians that are those of its outputs."""
    x, weights, labels, _, rng = _problem(case)
    case = {**case, "solver": "auto", "dtype": "float64"}
    machine, said = _fit(
        _machine(case, max_leaf_size=max(len(x) // 3, 3)), x, labels, weights, case
    )
    if machine is None or said:
        return
    metric = machine.metric_
    whole = np.diag(metric) if metric.ndim == 1 else metric
    _require_positive("metric_ of parts", whole, PAIRS["float64"], _eps("float64"))
    assert np.isclose(whole.trace(), x.shape[1])
    if "Classifier" in case["kind"] or case["offset"] > 1e3:
        return
    points = x[:4] + case["scale"] * rng.normal(size=(4, x.shape[1]))
    step = 1e-5 * case["scale"]
    direction = rng.normal(size=x.shape[1])
    ahead, here, behind = (
        machine.predict(points + side * step * direction).reshape(4, -1)
        for side in (1, 0, -1)
    )
    halfway = (
        machine.predict(points + step / 2 * direction)
        - machine.predict(points - step / 2 * direction)
    ).reshape(4, -1) / step
    slope = (ahead - behind) / (2 * step)
    found = machine.jacobian(points) @ direction
    # Two step lengths disagree where a kink or a cancellation is near.
    doubt = np.abs(slope - halfway).max() + 1e-9 * np.abs(here).max() / step
    tolerance = 10 * doubt + 1e-6 * np.abs(found).max()
    assert np.abs(found - halfway).max() <= tolerance, np.abs(found - halfway).max()
