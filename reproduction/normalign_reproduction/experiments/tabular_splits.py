"""The rows of a training fold that choose hyperparameters, the same for all methods."""

from __future__ import annotations

import torch
from torch import Tensor

from normalign_reproduction._errors import require

__all__ = ["inner_split"]


def inner_split(
    y: Tensor, rows: Tensor, *, seed: int, share: float = 0.25
) -> tuple[Tensor, Tensor]:
    r"""Return the rows to fit and the rows to validate on, inside a training fold.

    Of the :math:`n_j` rows of class :math:`j` about :math:`s\,n_j` validate, so that
    the classes keep their shares: the counts are rounded down or up at random, and
    their sum is :math:`s\,n` rounded down or up as well. Every class keeps a row to
    fit, so a class of one row has none to validate. Answers at other rows than those
    given are never read. At least one row validates.

    Parameters
    ----------
    y : Tensor of shape (n,)
        Classes of the whole table.
    rows : Tensor of shape (m,)
        The training fold: distinct indices into `y`, in any order.
    seed : int
        The same fold and seed give the same split.
    share : float
        Of the rows that validate, between 0 and 1.

    Returns
    -------
    fit, validation : Tensor
        Indices into `y` that divide `rows`, each ascending.

    Raises
    ------
    ValueError
        If the share is not between 0 and 1, or no class has two rows.

    Examples
    --------
    >>> y = torch.tensor([0, 0, 0, 0, 1])
    >>> fit, validation = inner_split(y, torch.arange(5), seed=0)
    >>> len(fit), y[validation].tolist()
    (4, [0])
    """
    require(0 < share < 1, "inner_split", "share", "between 0 and 1", share)
    generator = torch.Generator().manual_seed(seed)
    ascending = rows.sort().values.cpu()
    answers = y.cpu()[ascending]
    classes, counts = answers.unique(return_counts=True)
    require(
        bool((counts > 1).any()), "inner_split", "rows",
        "rows with two or more of one class", f"{len(rows)} rows of as many classes",
        "There is nothing to validate on.",
    )  # fmt: skip
    shift = torch.rand((), generator=generator, dtype=torch.float64)
    reached = (shift + share * counts.double().cumsum(0)).floor().long()
    held = reached.diff(prepend=torch.zeros(1, dtype=torch.long))
    held = torch.minimum(held, counts - 1)
    if not held.any():
        held[counts.argmax()] = 1
    validates = torch.zeros(len(ascending), dtype=torch.bool)
    for one, count in zip(classes, held, strict=True):
        of_class = (answers == one).nonzero().flatten()
        order = torch.randperm(len(of_class), generator=generator)
        validates[of_class[order[: int(count)]]] = True
    fit, validation = ascending[~validates], ascending[validates]
    return fit.to(rows.device), validation.to(rows.device)
