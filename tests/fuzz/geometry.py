"""Measures, kernels, attacks and penalties against float64 autograd and NumPy's SVD.

A case is a model, an input (dtype, memory layout, number of samples), a context of the
call, and one operation with its route. The references are loops over
``torch.autograd.grad`` on a float64 copy of the model, written here. A call must leave
all objects of the caller unchanged, bit for bit.

:func:`refusal` says which cases must raise an error: the library must raise in these
cases and in no others.
"""

from __future__ import annotations

import contextlib
import copy
import math
import threading
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import normalign as na
from normalign.geometry import ntk
from normalign.robustness import pgd
from tests.cases import Attention, Recurrent, TokenModel
from tests.test_torch_compat import flags

SMOOTH = ("tanh", "gelu", "silu", "softplus", "sigmoid", "elu")
ACTIVATIONS = {
    "relu": nn.ReLU, "leaky": nn.LeakyReLU, "tanh": nn.Tanh, "gelu": nn.GELU,
    "silu": nn.SiLU, "softplus": nn.Softplus, "sigmoid": nn.Sigmoid, "elu": nn.ELU,
    "inplace": lambda: nn.ReLU(inplace=True),
}  # fmt: skip
DTYPES = ("float64", "float32", "bfloat16", "float16")
LAYOUTS = ("contiguous", "expanded", "strided", "transposed", "channels_last")
CONTEXTS = (
    "plain", "no_grad", "inference_mode", "inference_tensor", "autocast", "threads",
    "requires_grad", "train",
)  # fmt: skip
OPERATIONS = (
    "affine", "affine_gradient", "geometry", "geometry", "scalars", "profile", "ntk",
    "pgd", "penalty", "penalty_gradient",
)  # fmt: skip
MODELS = (
    "mlp", "mlp", "wide", "head", "scalar", "linear", "conv", "groupnorm", "batchnorm",
    "residual", "layernorm", "attention", "encoder", "gru", "lstm", "embedding",
    "sequence", "function", "buffers", "tuple", "tied",
)  # fmt: skip
FAULTS = ("position", "position_exact", "mixing", "batchnorm_train", "detached")

# Relative errors of a Jacobian of a few layers. float64 and float32: a thousand units
# of the last place, for sums of a hundred products and activations' derivatives; half
# precision keeps three digits (bfloat16: two), of which each layer takes a part.
TOLERANCE = {"float64": 1e-11, "float32": 3e-4, "bfloat16": 0.25, "float16": 0.05}


def draw(rng: np.random.Generator) -> dict[str, Any]:
    model = str(rng.choice(MODELS))
    fault = str(rng.choice(FAULTS)) if rng.random() < 0.08 else None
    dtype = str(rng.choice(DTYPES, p=(0.5, 0.3, 0.1, 0.1)))
    operation = str(rng.choice(OPERATIONS))
    context = str(rng.choice(CONTEXTS, p=(0.3, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1)))
    if context == "autocast":
        dtype = "float32"
    if context == "threads" and operation.startswith("penalty"):
        context = "plain"  # a model is to be penalised by one thread at a time
    half = dtype in ("bfloat16", "float16") or context == "autocast"
    if fault and (half or operation.startswith("penalty")):
        fault = None  # too small for half precision; a penalty takes the whole batch
    if fault and model == "scalar":
        model = "mlp"
    if half:  # where a kink lies is a matter of rounding, and few layers know these
        model = str(
            rng.choice(["mlp", "wide", "linear", "layernorm", "conv", "scalar"])
        )
        operation = str(rng.choice(["affine", "geometry", "scalars"]))
    activation = str(rng.choice(SMOOTH if half else list(ACTIVATIONS)))
    if dtype == "float16" and activation == "sigmoid":
        activation = "tanh"  # a few of its derivatives, of 1/4, leave the range
    if fault and activation in ("relu", "leaky", "inplace"):
        activation = "tanh"  # samples for which all units are off cannot mix
    piecewise = activation in ("relu", "leaky", "inplace") and model == "mlp"
    scales = [0.3, 1.0, 2.0] + ([1e-4, 1e3] if piecewise and dtype == "float64" else [])
    return {
        "seed": int(rng.integers(2**31)),
        "model": model,
        "fault": fault,
        "activation": activation,
        "depth": int(rng.integers(1, 4)),
        "width": int(rng.integers(3, 9)),
        "k": int(rng.integers(1, 7)),
        "d": int(rng.integers(2, 9)),
        "n": int(rng.choice([0, 1, 2, 3, 5], p=(0.08, 0.17, 0.2, 0.3, 0.25))),
        "dtype": dtype,
        "layout": str(rng.choice(LAYOUTS)),
        "context": context,
        "operation": operation,
        "method": str(rng.choice(["auto", "exact", "matrix_free"])),
        "chunk_size": [None, "auto", 1, 2][rng.integers(4)],
        "scale": float(rng.choice(scales)),
        "zero_row": bool(rng.random() < 0.1),
        "twins": bool(rng.random() < 0.1),
        "power": [1, 2, "ratio"][rng.integers(3)],
        "offset": bool(rng.random() < 0.5),
        "norm": str(rng.choice(["linf", "l2"])),
        "ntk_method": str(rng.choice(["auto", "contraction", "products"])),
    }


# Models. Each is built in float64 and takes one sample as well as a batch.


class Residual(nn.Module):
    def __init__(self, d: int, width: int, k: int, act: Any) -> None:
        super().__init__()
        self.stem = nn.Linear(d, width)
        self.body = nn.Sequential(nn.Linear(width, width), act(), nn.LayerNorm(width))
        self.head = nn.Linear(width, k)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.stem(x)
        return self.head(hidden + self.body(hidden))


class MaskAndCounter(nn.Module):
    """A mask for the features and a counter of calls, which no measure may change."""

    def __init__(self, d: int, k: int) -> None:
        super().__init__()
        self.layer = nn.Linear(d, k)
        self.register_buffer("mask", torch.linspace(0.5, 2, d))
        self.register_buffer("shift", torch.ones(k))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x * self.mask)) + self.shift


class Tied(nn.Module):
    def __init__(self, d: int, act: Any) -> None:
        super().__init__()
        self.layer, self.act = nn.Linear(d, d), act()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.act(self.layer(x)))


class Sequence(nn.Module):
    """(n, tokens, d) to (n, tokens, k)."""

    def __init__(self, d: int, k: int, act: Any) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d, 4), act(), nn.Linear(4, k))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x + x.mean(1, keepdim=True))


class Several(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"features": x, "logits": self.inner(x)}


class Faulty(nn.Module):
    """A model that is no function of each sample alone, or without a derivative."""

    def __init__(self, inner: nn.Module, fault: str, n: int) -> None:
        super().__init__()
        self.inner, self.fault = inner, fault
        self.rows = 1 + 0.02 * torch.arange(max(n, 1), dtype=torch.float64)
        self.norm = nn.BatchNorm1d(1)

    def forward(self, x: Tensor) -> Tensor:
        if self.fault == "detached":
            return self.inner(x.detach())
        if self.fault == "batchnorm_train":
            return self.norm(self.inner(x).flatten(1)[:, :1].contiguous())
        out = self.inner(x).flatten(1)
        if self.fault == "mixing":
            return out + 0.1 * out.sum(0)  # also where all outputs are equal
        rows = self.rows if self.fault == "position_exact" else self.rows[: len(x)]
        return out * rows.to(out)[:, None]


def build(case: dict[str, Any]) -> tuple[nn.Module, tuple[int, ...]]:
    """The model in float64, in evaluation mode, and the shape of a sample."""
    kind, k, d, width = case["model"], case["k"], case["d"], case["width"]
    act = ACTIVATIONS[case["activation"]]

    def mlp(first: int, last: int) -> nn.Sequential:
        sizes = [first, *[width] * case["depth"]]
        layers: list[nn.Module] = []
        for i, size in enumerate(sizes[1:]):
            layers += [nn.Linear(sizes[i], size), act()]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], last))

    def wide() -> nn.Sequential:
        """More outputs than inputs, with a normalisation in every other network."""
        if width % 2:
            return mlp(d, d + 4)
        head = nn.LayerNorm(width), act(), nn.Linear(width, d + 4)
        return nn.Sequential(mlp(d, width), *head)

    def conv(norm: nn.Module | None) -> nn.Sequential:
        middle = [] if norm is None else [norm]
        return nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), *middle, act(), nn.AvgPool2d(2),
            nn.Conv2d(4, 3, 2), act(), nn.Flatten(), nn.Linear(12, k),
        )  # fmt: skip

    vector, picture = (d,), (2, 6, 6)
    models: dict[str, tuple[Any, tuple[int, ...]]] = {
        "mlp": (lambda: mlp(d, k), vector),
        "wide": (wide, vector),
        "head": (lambda: mlp(80, 70), (80,)),
        "scalar": (lambda: nn.Sequential(mlp(d, 1), nn.Flatten(0)), vector),
        "linear": (lambda: nn.Sequential(nn.Linear(d, k)), vector),
        "conv": (lambda: conv(None), picture),
        "groupnorm": (lambda: conv(nn.GroupNorm(2, 4)), picture),
        "batchnorm": (lambda: conv(nn.BatchNorm2d(4)), picture),
        "residual": (lambda: Residual(d, width, k, act), vector),
        "layernorm": (
            lambda: nn.Sequential(mlp(d, width), nn.LayerNorm(width), mlp(width, k)),
            vector,
        ),
        "attention": (Attention, (3, 8)),
        "encoder": (
            lambda: nn.Sequential(
                nn.TransformerEncoderLayer(6, 2, 8, batch_first=True),
                nn.Flatten(), nn.Linear(18, k),
            ),
            (3, 6),
        ),
        "gru": (lambda: Recurrent(nn.GRU), (3, 6)),
        "lstm": (lambda: Recurrent(nn.LSTM), (3, 6)),
        "embedding": (TokenModel, (4,)),
        "sequence": (lambda: Sequence(d, k, act), (3, d)),
        "function": (lambda: mlp(d, k), vector),
        "buffers": (lambda: MaskAndCounter(d, k), vector),
        "tuple": (lambda: Several(mlp(d, k)), vector),
        "tied": (lambda: Tied(d, act), vector),
    }  # fmt: skip
    make, shape = models[kind]
    model = make().double()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
    model.eval()
    if case["fault"] and kind not in ("tuple", "embedding", "function"):
        model = Faulty(model, case["fault"], case["n"]).double()
        model.eval().norm.train(case["fault"] == "batchnorm_train")
    return model, shape


def sample(case: dict[str, Any], shape: tuple[int, ...]) -> Tensor:
    """The inputs, in float64, contiguous; what a layout repeats is equal already."""
    n = case["n"]
    if case["model"] == "embedding":
        return torch.randint(0, 7, (n, *shape))
    x = case["scale"] * torch.randn(n, *shape, dtype=torch.float64)
    if case["twins"] and n > 1:
        x[-1] = x[0]
    if case["zero_row"] and n:
        x[0] = 0
    if case["layout"] == "expanded":
        x = x[:, :1].expand(x.shape).contiguous()
    return x


def change_layout(x: Tensor, layout: str) -> Tensor:
    """The same numbers in another memory layout."""
    if layout == "expanded" and x.is_floating_point():
        return x[:, :1].expand(x.shape)
    if layout == "strided":
        wide = torch.zeros(x.shape[0] + 2, *x.shape[1:-1], 2 * x.shape[-1] + 1).to(x)
        wide[1:-1, ..., 1::2] = x
        return wide[1:-1, ..., 1::2]
    if layout == "transposed":
        return x.mT.contiguous().mT
    if layout == "channels_last" and x.ndim == 4:
        return x.contiguous(memory_format=torch.channels_last)
    return x.clone()


def refusal(
    case: dict[str, Any], model: nn.Module
) -> tuple[type[Exception], str] | None:
    """Return the error that the call must raise, or None if it must succeed."""
    operation, n, fault = case["operation"], case["n"], case["fault"]
    penalty = operation.startswith("penalty")
    if penalty and case["context"] in ("no_grad", "inference_mode"):
        return ValueError, "gradients enabled"
    if case["model"] == "embedding" and operation == "pgd":
        return TypeError, "floating point"
    if penalty and case["model"] == "scalar" and not isinstance(model, Faulty):
        return ValueError, r"tensors of shape \(n, \.\.\.\)"
    if isinstance(model, Faulty) and fault == "batchnorm_train":
        return ValueError, "training mode"
    if operation == "ntk" and case["model"] in ("gru", "lstm"):
        return ValueError, "layers that vmap knows"
    if not isinstance(model, Faulty):
        return None
    if fault == "detached" and operation != "ntk" and n:
        return ValueError, "does not connect"
    if n < 2:
        return None
    if fault == "mixing":
        return ValueError, "others are in the batch"
    if fault == "position":
        return ValueError, "position in the batch"
    if fault == "position_exact":
        return ValueError, "row for each sample"
    return None


# References.


def jacobians(function: Any, x: Tensor, create_graph: bool = False) -> Tensor:
    """(n, k, d), one sample and one output at a time; x may depend on parameters."""
    found = []
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        for row in x:
            point = row[None]
            if not x.requires_grad:
                point = point.detach().clone().requires_grad_()
            output = function(point.clone()).flatten()  # it may work in place
            rows = [
                torch.autograd.grad(
                    value,
                    point,
                    retain_graph=True,
                    create_graph=create_graph,
                    allow_unused=True,
                    materialize_grads=True,
                )[0].flatten()
                for value in output
            ]
            found.append(torch.stack(rows))
    return torch.stack(found)


def outputs_of(function: Any, x: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return torch.stack([function(row[None]).flatten() for row in x])


def assert_close(name: str, found: Tensor, wanted: Tensor, allowed: Any) -> None:
    found, wanted = found.detach().double(), wanted.detach().double()
    assert found.shape == wanted.shape, (name, found.shape, wanted.shape)
    allowed = torch.as_tensor(allowed, dtype=torch.float64).expand(wanted.shape)
    wrong = ~((found - wanted).abs() <= allowed)
    wrong &= found != wanted  # both infinite
    assert not wrong.any(), (name, found[wrong], wanted[wrong], allowed[wrong])


def check_measures(
    measures: dict[str, Tensor],
    jacobian: Tensor,
    output: Tensor,
    x: Tensor,
    y: Tensor | None,
    tolerance: float,
    error: dict[str, Tensor],
) -> None:
    """Compare every measure with that of the SVD of a Jacobian off by ``tolerance``.

    The bounds are those of perturbation theory for a change of J by ``tolerance |J|``
    and of the output by ``tolerance`` times its terms.
    """
    for i in range(len(x)):
        J, f, point = (t[i].detach().numpy() for t in (jacobian, output, x.flatten(1)))
        got = {name: float(value[i].detach()) for name, value in measures.items()}
        slack = {name: 5 * float(value[i]) for name, value in error.items()}
        near = Nearness(got, slack, 5e-3 if error else 0.0, tolerance)
        k = len(J)
        s, vt = np.linalg.svd(J, full_matrices=False)[1:]
        total, length = np.linalg.norm(J), np.linalg.norm(point)
        centroid, offset = J.sum(0), f - J @ point
        terms = np.linalg.norm(f) + total * length

        near("jacobian_norm", total, tolerance * total)
        near("offset_norm", float(np.linalg.norm(offset)), 2 * tolerance * terms)
        reach = total * math.sqrt(k)
        near(
            "radius",
            float(centroid @ centroid + 2 * offset.sum()),
            3 * tolerance * (reach**2 + 2 * math.sqrt(k) * terms),
        )
        if total == 0 or length == 0:
            names = ["alignment_ratio", "normal_alignment", "centroid_alignment"]
            for name in names if length == 0 or total == 0 else []:
                assert got[name] == 0, (name, got[name])
        else:
            ratio = np.linalg.norm(J @ point) / (total * length)
            near("alignment_ratio", float(ratio), 3 * tolerance)
            size = float(np.linalg.norm(centroid))
            if size > 10 * tolerance * reach:
                cosine = float(centroid @ point) / (size * length)
                near("centroid_alignment", cosine, 4 * tolerance * reach / size)
            assert abs(got["centroid_alignment"]) <= 1
            gap = s[0] - s[1] if len(s) > 1 else s[0]
            cosine = abs(float(vt[0] @ point)) / length
            if gap > 20 * tolerance * total and gap > 1e-2 * s[0] * bool(error):
                near("normal_alignment", cosine, 8 * tolerance * total / gap)
            assert 0 <= got["normal_alignment"] <= 1
        if total:
            rank = float((s**2).sum() / s[0] ** 2)
            near("effective_rank", rank, 8 * tolerance * rank * math.sqrt(rank))
            if "participation_rank" in got:
                spread = float(s.sum() ** 2 / (s**2).sum())
                # Small singular values come from squares: the root of the rounding.
                change = len(s) * (tolerance + 1e-7) * math.sqrt(rank)
                near("participation_rank", spread, 8 * change * math.sqrt(spread))
        else:
            assert got["effective_rank"] == 0
        if y is not None:
            low, high = robustness_bounds(J, f, int(y[i]), tolerance)
            high += slack.get("local_robustness", 0.0)
            low -= slack.get("local_robustness", 0.0)
            value = got["local_robustness"]
            if value == math.inf and tolerance == 4e-3:  # beyond float16
                value = max(low, 65504.0)
            margin = 1 + 1e-6 + near.rough  # float32 holds it to seven digits
            assert low / margin <= value <= high * margin, (low, value, high)


class Nearness:
    """Compares the measures of one sample with what they should be.

    ``rough`` is the relative error that estimates may have beyond their own.
    """

    def __init__(
        self,
        got: dict[str, float],
        slack: dict[str, float],
        rough: float,
        tolerance: float,
    ) -> None:
        self.got, self.slack, self.rough = got, slack, rough
        self.stored = 1e-6 if tolerance > 1e-9 else 0.0  # in float32

    def __call__(self, name: str, wanted: float, allowed: float) -> None:
        bound = allowed + self.slack.get(name, 0.0)
        bound += (self.rough + self.stored) * abs(wanted) + 1e-300
        found = self.got[name]
        assert abs(found - wanted) <= bound, (name, found, wanted, bound)


def robustness_bounds(
    J: np.ndarray, f: np.ndarray, label: int, tolerance: float
) -> tuple[float, float]:
    """The least and the greatest distance that rounding allows."""
    of_output = 2 * tolerance * float(np.abs(f).max(initial=0)) + 1e-300
    of_rows = 2 * tolerance * float(np.linalg.norm(J)) + 1e-300
    low, high = math.inf, math.inf
    for c in range(len(J)):
        if c == label:
            continue
        margin, distance = f[label] - f[c], float(np.linalg.norm(J[label] - J[c]))
        low = min(low, max(margin - of_output, 0.0) / (distance + of_rows))
        far = distance - of_rows
        if margin + of_output <= 0:
            high = 0.0
        elif far > 0:
            high = min(high, (margin + of_output) / far)
    return low, high


# Operations: each returns a function that calls the library and one that judges.


def run(case: dict[str, Any]) -> None:
    model64, shape = build(case)
    x64 = sample(case, shape)
    dtype = getattr(torch, case["dtype"])
    tokens = case["model"] == "embedding"
    model = copy.deepcopy(model64).to(dtype)
    model64 = copy.deepcopy(model).double()  # the same weights
    if isinstance(model, Faulty):
        model.rows = model64.rows
    x = change_layout(x64 if tokens else x64.to(dtype), case["layout"])
    x64 = x.clone() if tokens else x.double().contiguous()
    labels = torch.randint(0, 2**20, (case["n"],))
    tolerance = TOLERANCE[case["dtype"]]
    if tokens:  # measures of whole numbers are stored in float32
        tolerance = max(tolerance, 2e-8)
    if case["context"] == "autocast":
        tolerance = TOLERANCE["bfloat16"]
    if case["context"] == "train" and case["fault"] is None:
        plain = ("mlp", "wide", "linear", "residual", "layernorm", "attention", "conv")
        if case["model"] in plain:
            model.train()
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
    if case["context"] == "requires_grad" and not tokens:
        x.requires_grad_()
    if case["context"] == "inference_tensor":
        with torch.inference_mode():
            x = change_layout(x.clone(), case["layout"])
    operation = Operation(case, model, model64, x, x64, labels, tolerance)
    error = refusal(case, model)
    before = caller_state(model, x)
    with surroundings(case["context"]):
        if error is not None:
            kind, words = error
            require_refusal(operation, kind, words)
        elif case["context"] == "threads":
            in_threads(operation)
        else:
            result = operation()
    if error is None and case["context"] != "threads":
        operation.judge(result)
    after = caller_state(model, x)
    for name in before:
        assert same(before[name], after[name]), f"{name} of the caller has changed"


def require_refusal(operation: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        operation()


def in_threads(operation: Any) -> None:
    results: list[Any] = []
    errors: list[BaseException] = []
    barrier = threading.Barrier(3)

    def work() -> None:
        barrier.wait()
        try:
            results.append(operation())
        except Exception as error:  # noqa: BLE001  # raised again below
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    for result in results:
        operation.judge(result)


@contextlib.contextmanager
def surroundings(context: str) -> Any:
    contexts = {
        "no_grad": torch.no_grad,
        "inference_mode": torch.inference_mode,
        "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    }
    with contexts.get(context, contextlib.nullcontext)():
        yield


def caller_state(model: nn.Module, x: Tensor) -> dict[str, Any]:
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        "input": x.detach().clone(),
        "version of the input": None if x.is_inference() else x._version,
        "gradient of the input": None if x.is_inference() else x.grad,
        "requires_grad": x.requires_grad,
        "weights": [t.detach().clone() for t in tensors.values()],
        "versions of the weights": [t._version for t in tensors.values()],
        "gradients": [
            None if p.grad is None else p.grad.clone() for p in model.parameters()
        ],
        "trained": [p.requires_grad for p in model.parameters()],
        "modes": [m.training for m in model.modules()],
        "hooks": [
            len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()
        ],
        "random state": torch.get_rng_state(),
        "random state of numpy": np.random.get_state()[1].tolist(),  # noqa: NPY002
        "flags": flags(),
    }


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


class Operation:
    """One call of the library, and the judgement of its result."""

    def __init__(
        self,
        case: dict[str, Any],
        model: nn.Module,
        model64: nn.Module,
        x: Tensor,
        x64: Tensor,
        labels: Tensor,
        tolerance: float,
    ) -> None:
        self.case, self.model, self.x, self.labels = case, model, x, labels
        self.model64, self.x64, self.tolerance = model64, x64, tolerance
        self.at = "embed" if case["model"] == "embedding" else None
        self.output = (lambda out: out["logits"]) if case["model"] == "tuple" else None
        self.called: Any = model
        if case["model"] == "function" and case["operation"] != "ntk":
            self.called = lambda z: model(z)
        if case["model"] == "tuple" and case["operation"] in PLAIN_OUTPUT:
            self.called = model.inner

    def __call__(self) -> Any:
        return getattr(self, "call_" + self.case["operation"])()

    def judge(self, result: Any) -> None:
        getattr(self, "judge_" + self.case["operation"])(result)

    # the map, in float64 unless another model is given
    def function(self, z: Tensor, model: Any = None) -> Tensor:
        model = self.model64 if model is None else model
        if self.at is not None:
            hidden = torch.tanh(model.twice(z))
            return model.attention(model.twice(hidden))
        out = model(z)
        return out["logits"] if isinstance(out, dict) else out

    def points(self) -> Tensor:
        return self.model64.embed(self.x64).detach() if self.at else self.x64

    def reference(self) -> tuple[Tensor, Tensor, Tensor]:
        x = self.points()
        return jacobians(self.function, x), outputs_of(self.function, x), x

    def settings(self) -> dict[str, Any]:
        return {
            "at": self.at, "output": self.output, "chunk_size": self.case["chunk_size"],
        }  # fmt: skip

    def lacks_digits(self, jacobian: Tensor) -> bool:
        """Whether 16 bits are too few for this Jacobian, for plain autograd as well.

        Normal numbers of float16 end at 6e-5, and both formats have few digits where
        the terms of a derivative cancel.
        """
        if self.case["dtype"] not in ("float16", "bfloat16"):
            return False
        size = jacobian.detach().flatten(1).norm(dim=1)
        if self.case["dtype"] == "float16" and bool((size < 1e-2).any()):
            return True
        x = self.model.embed(self.x) if self.at else self.x
        plain = jacobians(lambda z: self.function(z, self.model), x.detach().clone())
        error = (plain.double() - jacobian.detach()).flatten(1).norm(dim=1)
        return not bool((error <= self.tolerance / 4 * size).all())

    def call_affine(self) -> Any:
        return na.local_affine(self.called, self.x, **self.settings())

    def judge_affine(self, found: Any) -> None:
        if not len(self.x):
            assert len(found.jacobian) == len(found.offset) == 0
            return
        jacobian, output, x = self.reference()
        if self.lacks_digits(jacobian):
            return
        size = jacobian.flatten(1).norm(dim=1)
        terms = output.norm(dim=1) + size * x.flatten(1).norm(dim=1)
        tol = self.tolerance
        assert_close("input", found.input, x.flatten(1), tol * x.abs().max())
        # an output is a sum of terms, which may cancel
        assert_close("output", found.output, output, tol * (terms + 1)[:, None])
        assert_close(
            "jacobian", found.jacobian, jacobian, tol * (size + 1e-300)[:, None, None]
        )
        offset = output - torch.einsum("nkd,nd->nk", jacobian, x.flatten(1))
        assert_close("offset", found.offset, offset, 2 * tol * (terms + 1)[:, None])

    def call_affine_gradient(self) -> Any:
        """The gradient in the parameters of a sum over Jacobians and offsets."""
        found = na.local_affine(self.called, self.x, **self.settings())
        if not (torch.is_grad_enabled() and len(self.x)):
            assert not found.jacobian.requires_grad or torch.is_grad_enabled()
            return None
        total = weighted_sum(found.jacobian) + weighted_sum(found.offset)
        return torch.autograd.grad(
            total, list(self.model.parameters()), allow_unused=True,
            materialize_grads=True,
        )  # fmt: skip

    def judge_affine_gradient(self, found: Any) -> None:
        if found is None:
            return
        x = self.points()
        jacobian = jacobians(self.function, x, create_graph=True)
        with torch.enable_grad():
            output = outputs_of(self.function, x)
            offset = output - torch.einsum("nkd,nd->nk", jacobian, x.flatten(1))
            total = weighted_sum(jacobian) + weighted_sum(offset)
        self.compare_gradients(found, total)

    def compare_gradients(self, found: Any, total: Tensor) -> None:
        with sdpa_kernel(SDPBackend.MATH):
            wanted = torch.autograd.grad(
                total, list(self.model64.parameters()), allow_unused=True,
                materialize_grads=True,
            )  # fmt: skip
        scale = max(float(w.abs().max()) for w in wanted)
        for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
            # sums of many products of the terms whose size the largest shows
            allowed = 30 * self.tolerance * (scale + 1e-6)
            assert_close(f"gradient in parameter {i}", one, other, allowed)

    def labels_below(self, k: int) -> Tensor:
        return self.labels % k

    def call_geometry(self) -> Any:
        k = self.n_outputs()
        return na.local_geometry(
            self.called, self.x, self.labels_below(k), method=self.case["method"],
            **self.settings(),
        )  # fmt: skip

    def n_outputs(self) -> int:
        one = self.x64[:1] if len(self.x64) else torch.zeros(1, *self.x64.shape[1:])
        with torch.no_grad():
            point = one.to(self.x64.dtype)
            if self.at is not None:
                point = self.model64.embed(point)
            if isinstance(self.model64, Faulty):
                return self.model64.inner(point).flatten(1).shape[1]
            out = self.function(point)
        return 1 if out.ndim == 1 else out.flatten(1).shape[1]

    def judge_geometry(self, found: Any) -> None:
        assert len(found) == len(self.x)
        if not len(self.x):
            return
        jacobian, output, x = self.reference()
        if self.lacks_digits(jacobian):
            return
        y = self.labels_below(jacobian.shape[1])
        kept = torch.float64 if self.x.dtype == torch.float64 else torch.float32
        assert all(value.dtype == kept for value in found.measures().values())
        wanted = self.case["method"]
        assert wanted in ("auto", found.method)
        check_measures(
            found.measures(), jacobian, output, x, y, self.tolerance, found.error
        )

    def call_scalars(self) -> Any:
        """The functions of a Jacobian, on one that autograd gave."""
        affine = na.local_affine(self.called, self.x, **self.settings())
        jacobian, offset, x = affine.jacobian, affine.offset, affine.input
        diagram = na.power_diagram(jacobian, offset)
        y = self.labels_below(jacobian.shape[1])
        return affine, {
            "normal_alignment": na.normal_alignment(jacobian, x),
            "alignment_ratio": na.alignment_ratio(jacobian, x),
            "effective_rank": na.effective_rank(jacobian),
            "participation_rank": na.participation_rank(jacobian),
            "centroid_alignment": na.centroid_alignment(diagram.centroid, x),
            "radius": diagram.radius,
            "local_robustness": na.local_robustness(jacobian, offset, x, y),
        }

    def judge_scalars(self, found: Any) -> None:
        affine, measures = found
        # against the same Jacobian, so that little but rounding is left
        jacobian, offset, x = (
            t.detach().double() for t in (affine.jacobian, affine.offset, affine.input)
        )
        output = torch.einsum("nkd,nd->nk", jacobian, x) + offset
        measures["jacobian_norm"] = jacobian.flatten(1).norm(dim=1)
        measures["offset_norm"] = offset.norm(dim=1)
        tolerance = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 0.03}.get(
            str(affine.jacobian.dtype).removeprefix("torch."), 4e-3
        )
        for i in range(len(x)):  # half precision ends at 65504
            assert all(bool(v[i].isfinite()) for v in (measures["effective_rank"],))
        y = self.labels_below(max(jacobian.shape[1], 1))
        check_measures(measures, jacobian, output, x, y, tolerance, {})

    def call_profile(self) -> Any:
        places = None
        if self.at is not None:
            places = ["embed"]
        elif self.splits():
            places = [None, "2"]
        return na.layer_profile(
            self.called, self.x, places=places, output=self.output,
            method=self.case["method"], chunk_size=self.case["chunk_size"],
        )  # fmt: skip

    def splits(self) -> bool:
        chain = isinstance(self.called, nn.Sequential) and len(self.called) > 2
        return chain and self.case["model"] != "scalar"

    def judge_profile(self, found: Any) -> None:
        if not len(self.x):
            return
        jacobian, output, x = self.reference()
        first = found["embed" if self.at else "input"]
        check_measures(
            first.measures(), jacobian, output, x, None, self.tolerance, first.error
        )
        if not self.splits():
            return
        model, inner = self.model64, found["2"]
        with torch.no_grad():
            hidden = model[:2](self.x64.clone())
        check_measures(
            inner.measures(), jacobians(model[2:], hidden), output, hidden, None,
            self.tolerance, inner.error,
        )  # fmt: skip

    def call_ntk(self) -> Any:
        model, x = self.model, self.x
        if self.case["model"] == "tuple":
            model = model.inner
        method = self.case["ntk_method"]
        chunk_size = self.case["chunk_size"] or "auto"
        return ntk(model, x, method=method, chunk_size=chunk_size)

    def judge_ntk(self, found: Any) -> None:
        model = self.model64
        parameters = list(model.parameters())
        rows = []
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            for row in self.x64:
                out = model(row[None])
                out = out["logits"] if isinstance(out, dict) else out
                for value in out.flatten():
                    grads = torch.autograd.grad(
                        value, parameters, retain_graph=True, allow_unused=True,
                        materialize_grads=True,
                    )  # fmt: skip
                    rows.append(torch.cat([g.flatten() for g in grads]))
        n = len(self.x64)
        if n == 0:
            assert found.numel() == 0
            return
        flat = torch.stack(rows)
        wanted = (flat @ flat.T).unflatten(0, (n, -1)).unflatten(2, (n, -1))
        wanted = wanted.transpose(1, 2)
        assert_close("ntk", found, wanted, 10 * self.tolerance * wanted.abs().max())

    def call_pgd(self) -> Any:
        k = self.n_outputs()
        y = self.labels % max(k, 2)
        return pgd(
            self.called, self.x, y, radii=[0.0, 0.1], norm=self.case["norm"],
            n_steps=1, step_size=1.0, start="center",
            chunk_size=self.case["chunk_size"],
        )  # fmt: skip

    def judge_pgd(self, found: Any) -> None:
        x = self.x64
        assert same(found.points[0], self.x.detach().clone())
        if not len(x):
            return
        k = self.n_outputs()
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            leaf = x.clone().requires_grad_()
            out = self.function(leaf)
            out = out.unsqueeze(1) if out.ndim == 1 else out.flatten(1)
            if k == 1:
                sign = 2.0 * (self.labels % 2) - 1
                loss = F.softplus(-out[:, 0] * sign)
                assert same(found.clean, out[:, 0] * sign > 0)
            else:
                loss = F.cross_entropy(out, self.labels % k, reduction="none")
            (gradient,) = torch.autograd.grad(loss.sum(), leaf)
        size = gradient.flatten(1).norm(dim=1).clamp_min(1e-300)
        size = size.view(-1, *[1] * (x.ndim - 1))
        step = found.points[1].detach().double() - x
        rounding = 1e-6 * (1 + x.abs()) + 300 * self.tolerance
        if self.case["norm"] == "l2":
            wanted = 0.1 * gradient / size
            sure = (size > 1e-5 * (1 + out.abs().max())).expand(x.shape)
        else:
            wanted = 0.1 * gradient.sign()
            sure = gradient.abs() > 1e3 * self.tolerance * size.clamp_min(1e-6)
        # Of a sample that is wrong at x the worse of both points is given.
        right = found.clean.view(-1, *[1] * (x.ndim - 1))
        wrong = ((step - wanted).abs() > rounding) & sure & right
        assert not wrong.any(), (step[wrong], wanted[wrong])

    def penalty(self) -> Any:
        return na.GrokAlign(
            0.7, estimator="exact", power=self.case["power"],
            offset=self.case["offset"], at=self.at,
        )  # fmt: skip

    def call_penalty(self) -> Any:
        output, value = self.penalty()(self.called, self.x)
        return output.detach(), value.detach()

    def call_penalty_gradient(self) -> Any:
        _, value = self.penalty()(self.called, self.x)
        if not len(self.x):
            return None
        return torch.autograd.grad(
            value, list(self.model.parameters()), allow_unused=True,
            materialize_grads=True,
        )  # fmt: skip

    def penalty_reference(self, create_graph: bool) -> tuple[Tensor, float]:
        """The penalty, and by how much its terms are larger than it."""
        x = self.points()
        if self.at is not None and create_graph:  # the embedding is trained, too
            with torch.enable_grad():
                x = self.model64.embed(self.x64)
        jacobian = jacobians(self.function, x, create_graph=create_graph)
        with torch.enable_grad():
            output, flat = outputs_of(self.function, x), x.flatten(1)
            along = torch.einsum("nkd,nd->nk", jacobian, flat)
            square = jacobian.square().sum((1, 2))
            terms = square + output.square().sum(1) + along.square().sum(1)
            if self.case["power"] == "ratio":
                value = (square * flat.square().sum(1)).log()
                value = value - along.square().sum(1).log()
                terms = terms / along.square().sum(1)
            else:
                value = square
                if self.case["power"] == 1:
                    value = square.clamp_min(1e-8).sqrt()
                if self.case["offset"]:
                    value = value + (output - along).square().sum(1)
        return 0.7 * value.mean(), float(terms.detach().max()) + 1.0

    def judge_penalty(self, found: Any) -> None:
        output, value = found
        assert value.shape == ()
        if not len(self.x):
            assert value == 0
            return
        if isinstance(self.model, Faulty):  # the batch belongs together
            return
        wanted, terms = self.penalty_reference(create_graph=False)
        if not self.is_well_posed():
            return
        assert_close("penalty", value, wanted, 10 * self.tolerance * terms)
        assert_close(
            "output of the penalty", output.flatten(1), outputs_of(
                self.function, self.points()
            ), self.tolerance * (1 + terms),
        )  # fmt: skip

    def is_well_posed(self) -> bool:
        """Return whether the ratio is defined: for x = 0 it is not."""
        if self.case["power"] != "ratio":
            return True
        x = self.points()
        along = torch.einsum("nkd,nd->nk", jacobians(self.function, x), x.flatten(1))
        size = jacobians(self.function, x).flatten(1).norm(dim=1)
        length = x.flatten(1).norm(dim=1)
        return bool((along.norm(dim=1) > 0.05 * size * length).all() & (size > 0).all())

    def judge_penalty_gradient(self, found: Any) -> None:
        if found is None or isinstance(self.model, Faulty) or not self.is_well_posed():
            return
        total, _ = self.penalty_reference(create_graph=True)
        self.compare_gradients(found, total)


PLAIN_OUTPUT = ("pgd", "penalty", "penalty_gradient")


def weighted_sum(tensor: Tensor) -> Tensor:
    """Return a sum with different weights, so that exchanged entries are detected."""
    weights = torch.linspace(0.5, 1.5, max(tensor.numel(), 1), dtype=torch.float64)
    return (tensor.double().flatten() * weights[: tensor.numel()]).sum()


def check(case: dict[str, Any]) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case["seed"])
        run(case)
