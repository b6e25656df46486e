"""Fitted scikit-learn estimators as torch modules with the same decision function."""

from __future__ import annotations

import math
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from sklearn import linear_model, neural_network, preprocessing, svm
from sklearn.base import is_classifier
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from normalign._errors import complaint, require_kind
from normalign.estimators._partition import Tree, smoothstep
from normalign.estimators._predict import FittedMachine
from normalign.estimators._scaling import DTYPES, clip_limit
from normalign.kernels import metric_root


def dense(values: Any) -> Tensor:
    """Copy an array, a scalar or a sparse matrix into a float64 tensor."""
    array = values.toarray() if hasattr(values, "toarray") else values
    return torch.tensor(np.asarray(array, dtype=np.float64))


def linear_layer(weight: Any, bias: Any) -> nn.Linear:
    """Return a float64 layer of a (k, d) or (d,) weight and a (k,) or scalar bias."""
    matrix = torch.atleast_2d(dense(weight))
    k, d = matrix.shape
    layer = nn.Linear(d, k, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(matrix)
        layer.bias.copy_(dense(bias).expand(k))
    return layer


class ScalingLayer(nn.Module):
    r"""Centre, scale and shift each input, then clip if bounds are finite.

    .. math:: x \mapsto \mathrm{clip}\bigl((x - m) / s + t\bigr)

    Parameters
    ----------
    centre, scale, shift : Tensor of shape (d,)
        The vectors m, s and t.
    low, high : float, default=∓inf
        Bounds of the clipping.

    Examples
    --------
    >>> ScalingLayer(torch.ones(2), 2 * torch.ones(2), torch.zeros(2))(torch.ones(1, 2))
    tensor([[0., 0.]])
    """

    centre: Tensor
    scale: Tensor
    shift: Tensor

    def __init__(
        self,
        centre: Tensor,
        scale: Tensor,
        shift: Tensor,
        *,
        low: float = -math.inf,
        high: float = math.inf,
    ) -> None:
        super().__init__()
        self.register_buffer("centre", centre)
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)
        self.low, self.high = low, high

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled inputs, of shape (n, d)."""
        scaled = (x - self.centre) / self.scale + self.shift
        if math.isinf(self.low) and math.isinf(self.high):
            return scaled
        return scaled.clamp(self.low, self.high)


class KernelExpansion(nn.Module):
    r"""A weighted sum of kernels around fixed points.

    .. math:: f(x) = W^\top K(Z, x) + b

    with :math:`K` one of ``rbf`` :math:`e^{-\gamma |x - z|_2^2}`, ``laplacian``
    :math:`e^{-\gamma |x - z|_1}`, ``poly`` :math:`(\gamma \langle x, z\rangle + c)^p`
    and ``sigmoid`` :math:`\tanh(\gamma \langle x, z\rangle + c)`. The laplacian holds
    all ``n * m * d`` differences at once; the others ``n * m`` numbers.

    Parameters
    ----------
    kernel : {"rbf", "laplacian", "poly", "sigmoid"}
        Which kernel.
    points : Tensor of shape (m, d)
        The points Z.
    weights : Tensor of shape (m, k)
        One column per output.
    bias : Tensor of shape (k,)
        Added to the sum.
    gamma, degree, coef0 : float
        Constants of the kernel, where it has them.
    """

    points: Tensor
    weights: Tensor
    bias: Tensor

    def __init__(
        self,
        kernel: str,
        points: Tensor,
        weights: Tensor,
        bias: Tensor,
        *,
        gamma: float,
        degree: float = 3.0,
        coef0: float = 0.0,
    ) -> None:
        super().__init__()
        self.kernel, self.gamma, self.degree, self.coef0 = kernel, gamma, degree, coef0
        self.register_buffer("points", points)
        self.register_buffer("weights", weights)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sums, of shape (n, k)."""
        return self._gram(x) @ self.weights + self.bias

    def _gram(self, x: Tensor) -> Tensor:
        if self.kernel == "laplacian":
            distance = (x[:, None] - self.points).abs().sum(-1)
            return torch.exp(-self.gamma * distance)
        product = x @ self.points.T
        if self.kernel == "rbf":
            squares = x.square().sum(-1, keepdim=True) + self.points.square().sum(-1)
            return torch.exp(-self.gamma * (squares - 2 * product))
        inner = self.gamma * product + self.coef0
        return inner.tanh() if self.kernel == "sigmoid" else inner**self.degree

    def extra_repr(self) -> str:
        """Say which kernel, around how many points."""
        return f"{self.kernel}, points={len(self.points)}, gamma={self.gamma:.4g}"


class TwoClassScores(nn.Module):
    """Turn one score s into the two outputs (-s/2, s/2).

    Examples
    --------
    >>> TwoClassScores()(torch.tensor([[4.0]]))
    tensor([[-2.,  2.]])
    """

    def forward(self, score: Tensor) -> Tensor:
        """Return the two outputs, of shape (n, 2)."""
        return torch.cat([-score / 2, score / 2], dim=-1)


class Columns(nn.Module):
    """Several modules with one output each, side by side.

    Parameters
    ----------
    parts : iterable of nn.Module
        Each maps (n, d) to (n, 1).

    Examples
    --------
    >>> Columns([nn.Identity(), nn.ReLU()])(torch.tensor([[-1.0]]))
    tensor([[-1.,  0.]])
    """

    def __init__(self, parts: Iterable[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        """Return the columns, of shape (n, k)."""
        return torch.cat([part(x) for part in self.parts], dim=-1)


_SCALERS = (
    preprocessing.MaxAbsScaler, preprocessing.MinMaxScaler,
    preprocessing.RobustScaler, preprocessing.StandardScaler,
)  # fmt: skip
TRANSFORMERS = (*_SCALERS, PCA)


def transformer(callee: str, step: Any, *, remedy: str) -> nn.Module:
    """Return the module of a fitted scaler or PCA."""
    if isinstance(step, PCA):
        return _pca(step)
    require_kind(
        isinstance(step, _SCALERS), callee, "fitted",
        "a Pipeline of steps with a conversion", f"the step {type(step).__name__}",
        remedy,
    )  # fmt: skip
    return _scaling(step)


def _scaling(step: Any) -> ScalingLayer:
    d = step.n_features_in_
    low, high = -np.inf, np.inf
    if isinstance(step, preprocessing.MinMaxScaler):
        centre, scale, shift = 0.0, 1 / step.scale_, step.min_
        if step.clip:
            low, high = step.feature_range
    elif isinstance(step, preprocessing.MaxAbsScaler):
        centre, scale, shift = 0.0, step.scale_, 0.0
        if getattr(step, "clip", False):  # newer than the oldest release we support
            low, high = -1.0, 1.0
    else:
        robust = isinstance(step, preprocessing.RobustScaler)
        moves = step.with_centering if robust else step.with_mean
        centre = (step.center_ if robust else step.mean_) if moves else 0.0
        scale, shift = (1.0 if step.scale_ is None else step.scale_), 0.0
    return ScalingLayer(
        *(dense(v).expand(d).clone() for v in (centre, scale, shift)),
        low=float(low),
        high=float(high),
    )


def _pca(step: Any) -> nn.Module:
    components = step.components_
    if step.whiten:
        # as scikit-learn: a direction without variance is not blown up
        deviation = np.sqrt(step.explained_variance_)
        smallest = np.finfo(deviation.dtype).eps
        components = components / np.maximum(deviation, smallest)[:, None]
    layer = linear_layer(components, 0.0)
    d = components.shape[1]
    centring = ScalingLayer(
        dense(step.mean_).expand(d).clone(),
        torch.ones(d, dtype=torch.float64),
        torch.zeros(d, dtype=torch.float64),
    )
    return nn.Sequential(OrderedDict(centring=centring, rotation=layer))


class ClippedScaling(ScalingLayer):
    r"""Rows scaled as a machine scales them; those too far to matter are clipped.

    .. math:: x \mapsto \mathrm{clip}\bigl((x - m) / u\bigr)

    As far as predictions go: squares of what comes out are numbers, in the precision
    of the machine and in that of a module that was moved to a lower one.

    Parameters
    ----------
    location : Tensor of shape (d,)
    unit : float
    bandwidth : float
        Of the kernel, in scaled units.
    dtype : torch.dtype
        In which the machine predicts.

    Examples
    --------
    >>> ClippedScaling(torch.ones(1), 2.0, bandwidth=1.0, dtype=torch.float32)(
    ...     torch.tensor([[5.0], [1e30]]))
    tensor([[2.0000e+00],
            [1.0000e+15]])
    """

    def __init__(
        self, location: Tensor, unit: float, *, bandwidth: float, dtype: torch.dtype
    ) -> None:
        far = clip_limit(dtype, bandwidth)
        units = torch.full_like(location, unit)
        super().__init__(location, units, 0 * location, low=-far, high=far)
        self.far_in_single = min(far, clip_limit(torch.float32, bandwidth))

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled rows, of shape (n, d)."""
        placed = (x - self.centre) / self.scale
        far = self.high if placed.dtype == torch.float64 else self.far_in_single
        far = min(far, torch.finfo(placed.dtype).max)
        return placed.clamp(-far, far)


class MetricExpansion(nn.Module):
    r"""A sum of kernels of distances in a metric.

    .. math:: f(x) = b + \sum_j a_j \, \phi\bigl(M^{1/2} (x - z_j)\bigr)

    with the kernels of :mod:`normalign.kernels`. Points nearer than rounding can tell
    are one point, whose own kernel has gradient zero, as in Algorithm 1. Radial
    kernels hold ``n * m`` numbers, the product of Laplace kernels ``n * m * d``.

    Parameters
    ----------
    kernel : {"laplace", "gaussian", "product_laplace"}
    points : Tensor of shape (m, d)
        The centers z.
    weights : Tensor of shape (m, k)
        The coefficients a.
    bias : Tensor of shape (k,)
    root : Tensor of shape (d, d) or (d,)
        The root of the metric, over the bandwidth.
    exponent : float, default=1.0
        Of the Laplace kernel.

    Examples
    --------
    >>> one = torch.ones(1, 1)
    >>> MetricExpansion("gaussian", 0 * one, one, one[0], one)(one)
    tensor([[1.6065]])
    """

    root: Tensor
    placed: Tensor
    weights: Tensor
    bias: Tensor

    def __init__(
        self,
        kernel: str,
        points: Tensor,
        weights: Tensor,
        bias: Tensor,
        root: Tensor,
        *,
        exponent: float = 1.0,
    ) -> None:
        super().__init__()
        self.kernel, self.exponent = kernel, exponent
        self.register_buffer("root", root)
        self.register_buffer("placed", self._through(points))
        self.register_buffer("weights", weights)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sums, of shape (n, k)."""
        u = self._through(x)
        gram = self._product(u) if self.kernel == "product_laplace" else self._radial(u)
        return gram @ self.weights + self.bias

    def _through(self, x: Tensor) -> Tensor:
        return x * self.root if self.root.ndim == 1 else x @ self.root

    def _radial(self, u: Tensor) -> Tensor:
        sizes = u.square().sum(-1, keepdim=True) + self.placed.square().sum(-1)
        squares = sizes - 2 * u @ self.placed.T
        noise = torch.finfo(u.dtype).eps * (8 + 2 * u.shape[-1] ** 0.5)
        same = squares <= noise * sizes
        # a stand-in keeps the root's infinite slope out of the graph
        squares = torch.where(same, 1.0, squares)
        if self.kernel == "gaussian":
            values = torch.exp(-squares / 2)
        else:
            values = torch.exp(-(squares ** (self.exponent / 2)))
        return torch.where(same, 1.0, values)

    def _product(self, u: Tensor) -> Tensor:
        gaps = u[..., None, :] - self.placed
        noise = torch.finfo(u.dtype).eps * (8 + 2 * u.shape[-1] ** 0.5)
        sizes = u.abs().amax(-1, keepdim=True) + self.placed.abs().amax(-1)
        gaps = torch.where(gaps.abs() <= noise * sizes[..., None], 0.0, gaps)
        return torch.exp(-gaps.abs().sum(-1))

    def extra_repr(self) -> str:
        """Say which kernel, around how many points."""
        return f"{self.kernel}, points={len(self.placed)}, exponent={self.exponent:g}"


class Blend(nn.Module):
    r"""Machines of parts as one, blended by the gates of a tree of cuts.

    .. math:: f(x) = b + \sum_\ell g_\ell(x) f_\ell(x)

    Every part is evaluated at every row, so that functions of :mod:`torch.func` work:
    ``n * m`` numbers are held for the largest part.

    Parameters
    ----------
    parts : sequence of Module
        From left to right.
    tree : Tree
        In the space of the inputs.
    bias : Tensor of shape (k,)

    Examples
    --------
    >>> tree = Tree(torch.ones(1, 1), torch.tensor([[0.0, 2.0]]),
    ...             torch.tensor([[-1, -2]]))
    >>> Blend([nn.ReLU(), nn.Identity()], tree, torch.zeros(1))(torch.ones(1, 1))
    tensor([[1.]])
    """

    directions: Tensor
    bands: Tensor
    bias: Tensor

    def __init__(self, parts: Sequence[nn.Module], tree: Tree, bias: Tensor) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.register_buffer("directions", tree.directions)
        self.register_buffer("bands", tree.bands)
        self.register_buffer("bias", bias)
        self.children_of = tree.children.tolist()

    def forward(self, x: Tensor) -> Tensor:
        """Return the blended outputs, of shape (n, k)."""
        gates = self._gates(x)
        return self.bias + sum(
            gates[leaf][..., None] * part(x) for leaf, part in enumerate(self.parts)
        )

    def _gates(self, x: Tensor) -> dict[int, Tensor]:
        """Of every leaf, the product along its path."""
        lower, upper = self.bands.T
        right = smoothstep((x @ self.directions.T - lower) / (upper - lower))
        gates, waiting = (
            {},
            [(0 if self.children_of else -1, torch.ones_like(x[..., 0]))],
        )
        while waiting:
            node, gate = waiting.pop()
            if node < 0:
                gates[-1 - node] = gate
                continue
            left_child, right_child = self.children_of[node]
            waiting.append((left_child, gate * (1 - right[..., node])))
            waiting.append((right_child, gate * right[..., node]))
        return gates


def machine_module(callee: str, fitted: Any) -> nn.Module:
    """Return the module of a fitted kernel machine: its k outputs."""
    if isinstance(getattr(fitted, "classes_", None), list):
        raise ValueError(
            f"{callee}: fitted must be a classifier with one label per sample, got "
            f"a {type(fitted).__name__} with several. Fit one classifier per label."
        )
    scaling = ClippedScaling(
        dense(fitted.location_),
        fitted.unit_,
        bandwidth=fitted.bandwidth_ / fitted.unit_,
        dtype=DTYPES[fitted.dtype_],
    )
    leaves = getattr(fitted, "leaves_", None)
    return nn.Sequential(
        scaling, _single(fitted, scaling) if leaves is None else _blend(fitted, leaves)
    )


def _single(fitted: FittedMachine, scaling: nn.Module) -> nn.Module:
    return _expansion(
        fitted,
        _root(fitted),
        scaling(dense(fitted.X_fit_)),
        dense(fitted.dual_coef_),
        dense(fitted.intercept_),
    )


def _blend(fitted: FittedMachine, leaves: dict[str, np.ndarray]) -> nn.Module:
    root, centers = _root(fitted), dense(leaves["centers"])
    coef, bias = dense(fitted.dual_coef_), dense(fitted.intercept_)
    rows = torch.tensor(leaves["rows"])
    parts = [
        _expansion(fitted, root, centers[rows[start:stop]], coef[start:stop], 0 * bias)
        for start, stop in pairwise(leaves["offsets"].tolist())
    ]
    cuts = (torch.tensor(leaves[name]) for name in ("directions", "bands", "children"))
    return Blend(parts, Tree(*cuts), bias)


def _root(fitted: FittedMachine) -> Tensor:
    """The root of the metric over the bandwidth, which all parts share."""
    return metric_root(dense(fitted.metric_)) * (fitted.unit_ / fitted.bandwidth_)


def _expansion(
    fitted: FittedMachine, root: Tensor, points: Tensor, coef: Tensor, bias: Tensor
) -> MetricExpansion:
    return MetricExpansion(
        fitted.kernel_, points, coef, bias, root, exponent=fitted.exponent_
    )


_LINEAR = (
    linear_model.ElasticNet, linear_model.ElasticNetCV, linear_model.Lasso,
    linear_model.LassoCV, linear_model.LinearRegression,
    linear_model.LogisticRegression, linear_model.LogisticRegressionCV,
    linear_model.Perceptron, linear_model.Ridge, linear_model.RidgeClassifier,
    linear_model.RidgeClassifierCV, linear_model.RidgeCV, linear_model.SGDClassifier,
    linear_model.SGDRegressor, svm.LinearSVC, svm.LinearSVR,
)  # fmt: skip
_MLP = (neural_network.MLPClassifier, neural_network.MLPRegressor)
_SVM = (svm.SVC, svm.SVR, svm.NuSVC, svm.NuSVR)
_SEARCHES = (GridSearchCV, RandomizedSearchCV)
_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "identity": nn.Identity,
    "logistic": nn.Sigmoid,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
}
_REMEDY = (
    "Supported: "
    + ", ".join(
        kind.__name__
        for kind in (
            *_LINEAR, *_MLP, *_SVM, KernelRidge, OneVsRestClassifier, *_SEARCHES,
            Pipeline,
        )
    )
    + ", RFM and RFAM estimators; in a Pipeline also "
    + ", ".join(kind.__name__ for kind in TRANSFORMERS)
    + "."
)  # fmt: skip


def as_torch(fitted: Any) -> nn.Module:
    r"""Return a float64 module that computes what a fitted estimator computes.

    The module maps ``(n, d)`` to ``(n, k)``, so that the local geometry of a model
    that was never a network can be measured. A regressor's outputs equal ``predict``;
    a classifier's equal ``decision_function`` (for ``MLPClassifier`` the logits), and
    their argmax is the index into ``classes_``.

    A binary classifier has one score :math:`s`, but competition between classes takes
    two outputs. They are

    .. math:: f(x) = (-s(x) / 2, \; s(x) / 2)

    whose difference is the score and whose softmax, for logistic models, is
    ``predict_proba``. The outputs sum to zero, so the power-diagram centroid
    :math:`J^\top 1` of such a module is zero and only the alignment of the normal,
    not of the centroid, says something. RFM and RFAM classifiers have an output for
    each class already, and keep them.

    Nothing is pickled and nothing refers back to the estimator: the numbers are
    copied into parameters and buffers. A pipeline becomes a ``Sequential`` whose
    children carry the names of its steps, so ``at="clf"`` measures the map behind
    the preprocessing.

    Parameters
    ----------
    fitted : estimator
        A fitted linear model, multi-layer perceptron, support vector machine
        (``rbf``, ``linear``, ``poly`` or ``sigmoid``; ``SVC`` with two classes only,
        since its decision function for more counts votes: wrap it in
        ``OneVsRestClassifier``), ``KernelRidge`` (also ``laplacian``), RFM or RFAM
        estimator, one of these in ``OneVsRestClassifier`` or a finished search, or a
        ``Pipeline`` of scalers and ``PCA`` before one of them.

    Returns
    -------
    nn.Module
        In evaluation mode, on the CPU. For another dtype or device use ``.to``.

    Raises
    ------
    TypeError
        If there is no conversion for this kind of estimator.
    ValueError
        If an option of the estimator has none (kernel, output activation, several
        labels per sample).
    sklearn.exceptions.NotFittedError
        If the estimator is not fitted.

    Examples
    --------
    >>> line = linear_model.LinearRegression().fit([[0.0], [1.0]], [1.0, 3.0])
    >>> as_torch(line)(torch.tensor([[2.0]], dtype=torch.float64)).detach().round()
    tensor([[5.]], dtype=torch.float64)
    """
    _require_fitted(fitted)
    # whatever is set outside: tensors of inference mode cannot be differentiated
    with torch.inference_mode(False), torch.device("cpu"):
        return _convert(fitted).double().eval()


def _convert(fitted: Any) -> nn.Module:
    if isinstance(fitted, _SEARCHES):
        best = fitted.best_estimator_
        _refuse_tables(best, "search.best_estimator_")
        return _convert(best)
    if isinstance(fitted, Pipeline):
        _refuse_tables(fitted, "pipeline")
        return _steps(fitted, _convert)
    if isinstance(fitted, OneVsRestClassifier):
        return _one_vs_rest(fitted)
    if isinstance(fitted, FittedMachine):
        return machine_module("as_torch", fitted)
    scores = _scores(fitted)
    if not is_classifier(fitted):
        return scores
    _require_one_label(fitted)
    return _two_class(scores) if len(fitted.classes_) == 2 else scores


def _scores(fitted: Any) -> nn.Module:
    """One output per target, or per class; a single one for two classes."""
    if isinstance(fitted, _LINEAR):
        return linear_layer(fitted.coef_, fitted.intercept_)
    if isinstance(fitted, _MLP):
        return _mlp(fitted)
    if isinstance(fitted, _SVM):
        return _support_vectors(fitted)
    if isinstance(fitted, KernelRidge):
        return _kernel_ridge(fitted)
    raise TypeError(
        complaint(
            "as_torch", "fitted", "an estimator with a conversion",
            f"a {type(fitted).__name__}", _REMEDY,
        )
    )  # fmt: skip


def _require_fitted(fitted: Any) -> None:
    require_kind(
        hasattr(fitted, "fit") and not isinstance(fitted, type), "as_torch", "fitted",
        "a fitted scikit-learn estimator", fitted, _REMEDY,
    )  # fmt: skip
    try:
        check_is_fitted(fitted)
    except NotFittedError as error:
        raise NotFittedError(
            f"as_torch: fitted must be fitted, got a {type(fitted).__name__} that "
            "is not. Call fit first."
        ) from error


def _require_one_label(fitted: Any) -> None:
    with warnings.catch_warnings():  # of columns without the names they had in fit
        warnings.simplefilter("ignore", UserWarning)
        one = fitted.predict(np.zeros((1, fitted.n_features_in_)))
    if np.ndim(one) != 1:
        raise ValueError(
            "as_torch: fitted must be a classifier with one label per sample, got "
            f"a {type(fitted).__name__} with several. Convert one classifier per "
            "label."
        )


def _two_class(scores: nn.Module) -> nn.Module:
    # A last linear layer absorbs the doubling, so a linear model stays one layer.
    last = scores[-1] if isinstance(scores, nn.Sequential) else scores
    if not isinstance(last, nn.Linear):
        return nn.Sequential(OrderedDict(scores=scores, classes=TwoClassScores()))
    halves = torch.tensor([[-0.5], [0.5]], dtype=torch.float64)
    doubled = linear_layer(
        (halves * last.weight.detach()).numpy(), (halves[:, 0] * last.bias).detach()
    )
    if not isinstance(scores, nn.Sequential):
        return doubled
    children = OrderedDict(scores.named_children())
    children[next(reversed(children))] = doubled
    return nn.Sequential(children)


def _mlp(fitted: Any) -> nn.Module:
    if fitted.out_activation_ not in ("identity", "logistic", "softmax"):
        raise ValueError(
            "as_torch: fitted must be a perceptron with identity, logistic or "
            f"softmax output, got {fitted.out_activation_!r}."
        )
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    depth = len(fitted.coefs_)
    for i, (coef, intercept) in enumerate(
        zip(fitted.coefs_, fitted.intercepts_, strict=True), start=1
    ):
        parts[f"linear{i}"] = linear_layer(coef.T, intercept)
        if i < depth:
            parts[f"{fitted.activation}{i}"] = _ACTIVATIONS[fitted.activation]()
    return nn.Sequential(parts)


def _support_vectors(fitted: Any) -> nn.Module:
    if is_classifier(fitted) and len(fitted.classes_) != 2:
        raise ValueError(
            f"as_torch: fitted must be a {type(fitted).__name__} with two classes, "
            f"got one with {len(getattr(fitted, 'classes_', ()))}. Fit it inside "
            "sklearn.multiclass.OneVsRestClassifier."
        )
    if fitted.kernel == "linear":
        return linear_layer(fitted.coef_, fitted.intercept_)
    # The only trace of gamma="scale" and "auto" that a fitted machine keeps.
    gamma = getattr(fitted, "_gamma", None)
    return _kernel(
        fitted, fitted.support_vectors_, dense(fitted.dual_coef_).T,
        gamma=gamma, bias=fitted.intercept_,
    )  # fmt: skip


def _kernel_ridge(fitted: Any) -> nn.Module:
    weights = dense(fitted.dual_coef_)
    weights = weights[:, None] if weights.ndim == 1 else weights
    if fitted.kernel == "linear":
        return linear_layer((dense(fitted.X_fit_).T @ weights).T, 0.0)
    gamma = 1 / fitted.X_fit_.shape[1] if fitted.gamma is None else fitted.gamma
    return _kernel(fitted, fitted.X_fit_, weights, gamma=gamma, bias=0.0)


def _kernel(
    fitted: Any, points: Any, weights: Tensor, *, gamma: float | None, bias: Any
) -> KernelExpansion:
    allowed = ["rbf", "poly", "polynomial", "sigmoid"]
    if isinstance(fitted, KernelRidge):
        allowed.append("laplacian")
    known = isinstance(fitted.kernel, str) and fitted.kernel in allowed
    if not (known and gamma is not None):
        raise ValueError(
            f"as_torch: fitted must be a {type(fitted).__name__} with kernel "
            f"linear, {', '.join(allowed)}, got kernel={fitted.kernel!r}."
        )
    return KernelExpansion(
        "poly" if fitted.kernel == "polynomial" else fitted.kernel,
        dense(points),
        weights,
        dense(bias).expand(weights.shape[1]).clone(),
        gamma=float(gamma or 0.0),
        degree=float(fitted.degree),
        coef0=float(fitted.coef0),
    )


def _one_vs_rest(fitted: OneVsRestClassifier) -> nn.Module:
    _require_one_label(fitted)
    scores = [_binary_score(part) for part in fitted.estimators_]
    if len(scores) == 1:
        return _two_class(scores[0])
    return Columns(scores)


def _binary_score(part: Any) -> nn.Module:
    """One column: the score of the positive class against the rest."""
    if not (is_classifier(part) and hasattr(part, "decision_function")):
        raise ValueError(
            "as_torch: fitted must be a OneVsRestClassifier over classifiers with "
            f"a decision_function, got one over {type(part).__name__}."
        )
    if isinstance(part, Pipeline):
        return _steps(part, _binary_score)
    if isinstance(part, FittedMachine):
        against = linear_layer([[-1.0, 1.0]], 0.0)
        return nn.Sequential(machine_module("as_torch", part), against)
    return _scores(part)


def _refuse_tables(fitted: Any, name: str) -> None:
    """Refuse a pipeline that takes mixed tables, which are no tensors."""
    steps = fitted.steps if isinstance(fitted, Pipeline) else []
    for _, step in steps[:-1]:
        last = f'as_torch({name}["{steps[-1][0]}"])'
        if isinstance(step, ColumnTransformer):
            raise TypeError(
                "as_torch: fitted must be a Pipeline of steps with a conversion, "
                f"got the step {type(step).__name__}. Convert its last step: "
                f"{last} at {name}[:-1].transform(X)."
            )


def _steps(fitted: Pipeline, last: Callable[[Any], nn.Module]) -> nn.Module:
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    *before, (final_name, final) = fitted.steps
    for name, step in before:
        if step is not None and step != "passthrough":
            parts[_child_name(name)] = _before(step)
    parts[_child_name(final_name)] = last(final)
    return nn.Sequential(parts)


def _child_name(name: str) -> str:
    return name.replace(".", "_")  # torch keeps the dot for paths


def _before(step: Any) -> nn.Module:
    if isinstance(step, Pipeline):
        return _steps(step, _before)
    return transformer("as_torch", step, remedy=_REMEDY)
