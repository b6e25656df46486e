"""How rows are divided for cross-validation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.model_selection import check_cv

from normalign._errors import as_float, complaint, describe, require, require_kind
from normalign.estimators.tables.targets import Answers, plain_labels, plain_numbers

__all__ = ["Fold", "chosen_splits", "shuffled_folds", "shuffled_split", "words_of"]

Split = tuple[np.ndarray, np.ndarray]

# What None means, as in scikit-learn; but shuffled, like every number of folds here.
_FOLDS = 5


@dataclass(frozen=True)
class Fold:
    """Rows to fit on and rows to score on, each (x, y, weights).

    ``shown`` is what a caller's own scorer sees of the latter, if not x: a frame.
    """

    train: tuple[np.ndarray, np.ndarray, np.ndarray | None]
    test: tuple[np.ndarray, np.ndarray, np.ndarray | None]
    shown: Any = None


def shuffled_folds(
    n_folds: int, *, n: int, groups: np.ndarray | None, seed: int
) -> list[Split]:
    """Split rows into folds at random, with the same share of every group in each.

    Rows are shuffled, sorted by group and dealt out like cards, so a group with fewer
    rows than folds is no special case.

    Parameters
    ----------
    n_folds : int
        At most n.
    groups : array of int of shape (n,), optional
    seed : int

    Returns
    -------
    list of (train, test)
        Sorted row numbers.

    Examples
    --------
    >>> folds = shuffled_folds(2, n=4, groups=np.array([0, 0, 1, 1]), seed=0)
    >>> [len(test) for _, test in folds]
    [2, 2]
    """
    owner = np.empty(n, dtype=int)
    owner[_shuffled(n, groups, seed)] = np.arange(n) % n_folds
    return [
        (np.flatnonzero(owner != fold), np.flatnonzero(owner == fold))
        for fold in range(n_folds)
    ]


def shuffled_split(
    share: float, *, n: int, groups: np.ndarray | None, seed: int
) -> Split:
    """Keep a share of the rows apart at random, the same of every group.

    Parameters
    ----------
    share : float
        Of rows to score on; at least one row is on each side.
    groups : array of int of shape (n,), optional
    seed : int

    Returns
    -------
    (train, test)

    Examples
    --------
    >>> [len(rows) for rows in shuffled_split(0.3, n=10, groups=None, seed=0)]
    [7, 3]
    """
    count = min(max(round(share * n), 1), n - 1)
    places = np.floor((np.arange(count) + 0.5) * n / count).astype(int)
    apart = np.zeros(n, dtype=bool)
    apart[_shuffled(n, groups, seed)[places]] = True
    return np.flatnonzero(~apart), np.flatnonzero(apart)


def _shuffled(n: int, groups: np.ndarray | None, seed: int) -> np.ndarray:
    """Rows at random, group after group."""
    order = np.random.default_rng(seed).permutation(n)
    if groups is None:
        return order
    return order[np.argsort(groups[order], kind="stable")]


def chosen_splits(
    callee: str,
    cv: Any,
    given: tuple[Any, Any],
    alive: np.ndarray,
    answers: Answers,
    seed: int,
) -> list[Split]:
    """Rows to fit and to score on, counted among the rows of positive weight.

    Parts without rows to score on, or without two classes (where there are classes)
    to fit, are left out.

    Parameters
    ----------
    cv : int, float, splitter, list of splits or None
        Number of folds (None: 5); share of one validation split; or what scikit-learn
        takes.
    given : (X, y)
        All rows, for a splitter to look at.
    alive : array of int
        Rows of positive weight.
    answers : Answers
        Of the rows of positive weight.
    seed : int

    Raises
    ------
    TypeError, ValueError
        If cv is not one of these, cannot divide these rows, or no part is left.
    """
    labels = None if answers.codes is None else _combinations(answers.codes)
    cv = _FOLDS if cv is None else cv
    whole = isinstance(cv, Integral)
    if isinstance(cv, Real) and not isinstance(cv, bool):
        number = as_float(cv)
        require(
            number >= 2 if whole else 0 < number < 1, callee, "cv",
            "at least 2 folds, a share between 0 and 1, or a splitter", cv,
        )  # fmt: skip
        settings = {"n": len(alive), "groups": labels, "seed": seed}
        if whole:
            splits = shuffled_folds(int(min(number, len(alive))), **settings)
        else:
            splits = [shuffled_split(number, **settings)]
    else:
        splits = _given_splits(callee, cv, given, alive, answers)
    codes = answers.codes
    usable = [
        (train, test)
        for train, test in splits
        if len(test)
        and len(train)
        and (codes is None or all(np.ptp(column[train]) for column in codes.T))
    ]
    require(
        len(usable) > 0, callee, "cv",
        "such that rows of two classes, or any, are left to fit and to score on",
        f"{len(splits)} splits without",
    )  # fmt: skip
    return usable


def _combinations(codes: np.ndarray) -> np.ndarray:
    """One number for each combination of labels."""
    _, numbers = np.unique(codes, axis=0, return_inverse=True)
    return numbers.ravel()


def _given_splits(
    callee: str, cv: Any, given: tuple[Any, Any], alive: np.ndarray, answers: Answers
) -> list[Split]:
    rule = "a number of folds, a share, a splitter or a list of splits"
    require_kind(
        not isinstance(cv, Iterator), callee, "cv", rule, f"a {type(cv).__name__}",
        "It can be read only once, and would be empty in a second fit: pass list(cv).",
    )  # fmt: skip
    try:
        splitter: Any = check_cv(cv)
    except (TypeError, ValueError) as error:
        raise ValueError(complaint(callee, "cv", rule, describe(cv))) from error
    table, y = given
    n, shown = len(table), _shown(callee, y, answers)
    try:
        divided = [
            (np.asarray(train), np.asarray(test))
            for train, test in splitter.split(table, shown)
        ]
    except Exception as error:  # a splitter is the caller's code
        kind = TypeError if isinstance(error, TypeError) else ValueError
        rule = "a splitter, or splits, by which these rows can be divided"
        said = f"one that says: {words_of(error)}"
        remedy = "For groups pass the list of splits." if "group" in said else ""
        raise kind(complaint(callee, "cv", rule, said, remedy)) from error
    place = np.full(n, -1)
    place[alive] = np.arange(len(alive))
    splits = []
    for train, test in divided:
        numbers = (place[_row_numbers(callee, rows, n)] for rows in (train, test))
        splits.append(tuple(rows[rows >= 0] for rows in numbers))
    return splits


def words_of(error: Exception) -> str:
    """What an error of the caller's own code says; one of few words by its name, too.

    Examples
    --------
    >>> words_of(KeyError("price")), words_of(ValueError("Too few rows."))
    ("KeyError: 'price'", 'Too few rows')
    """
    text = str(error).rstrip(".")
    if isinstance(error, AttributeError | TypeError | ValueError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _shown(callee: str, y: Any, answers: Answers) -> np.ndarray:
    """Answers of all rows, as a splitter sees them.

    Several label columns are numbered by their combinations, so that what stratifies
    by one column stratifies by them.
    """
    if answers.codes is None:
        return plain_numbers(callee, y)
    labels = plain_labels(callee, y)
    if answers.flat:
        return labels.ravel()
    codes = [np.unique(column, return_inverse=True)[1] for column in labels.T]
    return _combinations(np.stack(codes, axis=1))


def _row_numbers(callee: str, rows: np.ndarray, n: int) -> np.ndarray:
    """One side of a split that was given: row numbers, or a mask."""
    if rows.dtype.kind == "b" and rows.shape == (n,):
        rows = np.flatnonzero(rows)
    rule = f"splits with row numbers below {n} on both sides"
    # an empty list is one of floats to numpy, but not of a wrong kind
    require_kind(
        rows.size == 0 or rows.dtype.kind in "iu", callee, "cv", rule, rows,
        "Pass integers, or a mask of all rows.",
    )  # fmt: skip
    require(rows.ndim == 1 and rows.size > 0, callee, "cv", rule, rows)
    least, most = int(rows.min()), int(rows.max())
    require(-n <= least and most < n, callee, "cv", rule, f"rows {least} to {most}")
    return rows
