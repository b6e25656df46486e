"""Recursive Feature Machines as scikit-learn estimators."""

from __future__ import annotations

from normalign.estimators.naming import under_its_own_name
from normalign.estimators.tasks import KernelClassifier, KernelRegressor

__all__ = ["RFMClassifier", "RFMRegressor"]


@under_its_own_name
class RFMClassifier(KernelClassifier):
    r"""Classifier that learns in which directions of a table classes differ.

    A Recursive Feature Machine: ridge regression to indicators of the classes in a
    kernel of the distance :math:`r^2 = (x - z)^\top M (x - z)`, whose metric M is
    replaced, `n_iter` times, by the average outer product of the machine's gradients
    (Algorithm 1 of the paper),

    .. math:: f(x) = b + \sum_j a_j \phi_M(x, x_j), \qquad
              M \leftarrow \tfrac1n \sum_i J_{x_i}^\top J_{x_i}

    starting from the identity. The class with the largest output is predicted.
    Several label columns work as in scikit-learn's trees. Scale the columns first:
    ``make_tabular_pipeline(RFMClassifier())``.

    Parameters
    ----------
    kernel : {"laplace", "gaussian", "product_laplace"}, default="laplace"
        Of the distance in the metric: :math:`e^{-(r/\ell)^q}`,
        :math:`e^{-r^2/2\ell^2}`, or the product over the columns of
        :math:`M^{1/2} x` of one-dimensional Laplace kernels.
    exponent : float in (0, 2], default=1.0
        The exponent q of the Laplace kernel.
    bandwidth : float, default=10.0
        The bandwidth :math:`\ell`, meant for columns scaled to unit variance.
    bandwidth_rule : {"fixed", "median"}, default="fixed"
        "median": `bandwidth` times the median distance of two rows in the metric of
        each iteration; a `bandwidth` of about 1 then suits any units.
    ridge : float, default=1e-3
        Added to the diagonal of the kernel matrix.
    n_iter : int, default=5
        Updates of the metric. 0 is kernel ridge regression in the initial metric.
    diagonal : bool, default=False
        Learn one weight per column instead of a full metric.
    center : bool, default=True
        Fit deviations from the shares of the classes, which are then the outputs
        far from all rows; without it class 0 wins there. The paper's scripts do not.
    solver : {"auto", "cholesky", "cg"}, default="auto"
        Direct, or conjugate gradients that never hold the kernel matrix; "auto" is
        direct while the matrix fits `memory_limit`.
    device : str, default="auto"
        Any device of torch. "auto": where X is, or the GPU if there is one and there
        are at least 2000 rows. A fitted machine moves to the processor if its device
        is missing.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Working precision. "auto": float64 up to 1000 rows, for "product_laplace" and
        exponents below 1, and where float32 would blur distances. Where a solve in
        float32 loses digits the machine goes over to float64, whatever is asked;
        `dtype_` says so.
    memory_limit : int, optional
        Bytes that a fit may take above its data (a whole float, 1e9, is one, too); by
        default 80 % of what is free.
    max_leaf_size : int, "auto" or None, default="auto"
        Above that many rows, cut the table into overlapping parts of at most that
        size, fit machines with one metric to them and blend these smoothly. Work then
        grows like the number of rows. "auto": parts of 8000 rows above 20000 rows, on
        a GPU of 40000 above 200000, unless a `solver` is named. None: never.
    validation_fraction : float in (0, 1), optional
        Keep that share of the rows apart (the same of every class, at least one row),
        score every iteration on them by accuracy and keep the best one (the first of
        equals). Nothing is refitted: the rows kept apart are not in the machine.
    time_limit_s : float, optional
        Begin no iteration that would end later than that; the first is always made.
    agop_samples : int, default=20000
        Above that many rows the metric is averaged over a random sample of them.
    n_jobs : int, optional
        Workers of joblib for the parts of `max_leaf_size`. A whole machine uses the
        threads of torch.
    random_state : int, RandomState or None, default=None
        For rows kept apart, samples and parts: nothing is random without
        `validation_fraction`, in a table of at most `max_leaf_size` and `agop_samples`
        rows (and 1000, where the median rule measures distances). None: other draws in
        each fit.
    verbose : int, default=0
        1 shows a progress bar on stderr.

    Attributes
    ----------
    X_fit_ : ndarray of shape (m, d)
        Training rows: those of positive weight that were not kept apart.
    dual_coef_ : ndarray of shape (m, k)
        Their coefficients, for each class.
    intercept_ : ndarray of shape (k,)
        What the outputs tend to far from all rows: the share of each
        class in the training rows, or 0.
    metric_ : ndarray of shape (d, d), or (d,) if diagonal
        The metric M, of trace d.
    feature_importances_ : ndarray of shape (d,)
        :math:`M_{jj} \mathrm{Var}_j` as shares of 1: how much of the outputs' squared
        change there is when each column moves by its own standard deviation (after at
        least one iteration). Columns that move together may share or swap it; zeros if
        nothing matters.
    bandwidth_ : float
        The bandwidth of the iteration kept, in the units of X.
    n_iter_ : int
        Updates behind the machine that was kept.
    classes_ : ndarray of shape (k,), or a list of them for several label columns
        The labels, sorted.
    temperature_ : float, or ndarray for several label columns
        The factor t of ``predict_proba``.
    validation_scores_ : ndarray
        Scores of the iterations made, with `validation_fraction` only.
    solver_, solver_dtype_, dtype_, device_ : str
        What was used. `solver_dtype_` is float64 where float32 did not do.
    jitter_ : float
        What had to be added to the diagonal besides the ridge; 0.0 almost always.
    converged_ : bool
        Whether conjugate gradients reached their tolerance; True for Cholesky.
    location_, unit_ : ndarray of shape (d,), float
        Rows enter the kernel as ``(x - location_) / unit_``, which spares digits and
        changes nothing else.
    leaves_ : dict of str to ndarray
        The parts, if there are any. The rows of `dual_coef_` are then those of
        ``X_fit_[leaves_["rows"]]``, part after part, each from one of "offsets" to the
        next. "directions", "bands" and "children" are the cuts, "centers" is `X_fit_`
        as the kernel sees it.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], ["low", "low", "high", "high"]
    >>> RFMClassifier().fit(X, y).predict([[0.5], [2.5]])
    array(['low', 'high'], dtype='<U4')
    """


@under_its_own_name
class RFMRegressor(KernelRegressor):
    r"""Regressor that learns which directions of a table matter.

    A Recursive Feature Machine: ridge regression in a kernel of the distance
    :math:`r^2 = (x - z)^\top M (x - z)`, whose metric M is replaced, `n_iter` times, by
    the average outer product of the machine's gradients (Algorithm 1 of the paper),

    .. math:: f(x) = b + \sum_j a_j \phi_M(x, x_j), \qquad
              M \leftarrow \tfrac1n \sum_i J_{x_i}^\top J_{x_i}

    starting from the identity. Several targets share one metric. Scale the columns
    first: ``make_tabular_pipeline(RFMRegressor())``.

    Parameters
    ----------
    bandwidth : float, default=10.0
        Width of the kernel, meant for columns scaled to unit variance.
    ridge : float, default=1e-3
        Added to the diagonal of the kernel matrix. The default nearly interpolates;
        noisy targets want 0.1, 1 or more.
    n_iter : int, default=5
        Updates of the metric. 0 is kernel ridge regression in the initial metric.
    center : bool, default=True
        Fit deviations from the mean target, which is then predicted far from all
        rows. The paper's scripts do not.
    device : str, default="auto"
        Any device of torch. "auto": where X is, or the GPU if there is one and there
        are at least 2000 rows.
    max_leaf_size : int, "auto" or None, default="auto"
        Above that many rows, fit overlapping parts of at most that size, with one
        metric, and blend them. Work then grows like the number of rows. "auto": parts
        of 8000 rows above 20000 rows (40000 above 200000 on a GPU). None: never.
    validation_fraction : float in (0, 1), optional
        Keep that share of the rows apart (drawn at random, at least one), score every
        iteration on them by R squared and keep the best one (the first of equals).
        Nothing is refitted: the rows kept apart are not in the machine.
    random_state : int, RandomState or None, default=None
        For rows kept apart, samples and parts. None: other draws in each fit.
    kernel, exponent, bandwidth_rule, diagonal, solver, dtype, memory_limit, \
    time_limit_s, agop_samples, n_jobs, verbose
        As in :class:`RFMClassifier`.

    Attributes
    ----------
    dual_coef_, intercept_ : ndarray of shape (m, k), (k,)
        Coefficients of the rows for each target; the mean target, or 0.
    flat_ : bool
        Whether targets came as one column, ``(n,)``.
    X_fit_, metric_, feature_importances_ and all others
        As in :class:`RFMClassifier`, but for what classes have.

    Examples
    --------
    >>> machine = RFMRegressor().fit([[0.0], [2.0]], [10.0, 30.0])
    >>> machine.predict([[1.0]])  # as far from both
    array([20.])
    """
