"""What every loader returns: one small record of four tensors and their origin."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from normalign._errors import require, require_kind

__all__ = ["Dataset", "rows"]

_SUBSETS = ("first", "random", "balanced")


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A train and a test set, with where they came from.

    Parameters
    ----------
    x_train, x_test : Tensor of shape (n, ...)
        Inputs, one sample per row.
    y_train, y_test : Tensor of shape (n,)
        Class indices (int64), or real targets (the ±1 of the XOR task).
    name : str
        The task in a word.
    origin : str
        One sentence for a report: which files, subset and seed made it.
    exact : bool, default=True
        Whether the files were those of the original publication, by checksum.
        Results from a partial or re-encoded copy have to say so.

    Raises
    ------
    ValueError
        If inputs and targets differ in length, or train and test in shape.

    Examples
    --------
    >>> x, y = torch.zeros(3, 2), torch.tensor([0, 1, 1])
    >>> Dataset(x, y, x[:1], y[:1], name="zeros", origin="made by hand").to("cpu")
    Dataset(zeros: 3 train, 1 test, inputs (2,) float32, exact)
    """

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    name: str
    origin: str
    exact: bool = True

    def __post_init__(self) -> None:
        for part, x, y in (
            ("train", self.x_train, self.y_train),
            ("test", self.x_test, self.y_test),
        ):
            require(
                len(x) == len(y), "Dataset", f"y_{part}",
                f"as long as x_{part} ({len(x)} rows)", y,
            )  # fmt: skip
        require(
            self.x_train.shape[1:] == self.x_test.shape[1:], "Dataset", "x_test",
            f"of shape (n, *{tuple(self.x_train.shape[1:])}) like x_train", self.x_test,
        )  # fmt: skip

    def to(
        self,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Dataset:
        """Return the same data on a device, its real tensors in a dtype.

        Integer tensors (class indices, tokens) keep their dtype.

        Parameters
        ----------
        device : torch.device or str, optional
            Where the copy lives; by default where it is.
        dtype : torch.dtype, optional
            A floating-point type; by default the one it has.

        Raises
        ------
        TypeError
            If `dtype` is not a floating-point type.
        """
        require_kind(
            dtype is None or dtype.is_floating_point, "Dataset.to", "dtype",
            "a floating-point dtype", dtype,
        )  # fmt: skip

        def convert(tensor: Tensor) -> Tensor:
            real = tensor.is_floating_point()
            return tensor.to(device=device, dtype=dtype if real else None)

        return replace(
            self,
            x_train=convert(self.x_train),
            y_train=convert(self.y_train),
            x_test=convert(self.x_test),
            y_test=convert(self.y_test),
        )

    def __repr__(self) -> str:
        kind = str(self.x_train.dtype).removeprefix("torch.")
        return (
            f"Dataset({self.name}: {len(self.x_train)} train, {len(self.x_test)} test, "
            f"inputs {tuple(self.x_train.shape[1:])} {kind}, "
            f"{'exact' if self.exact else 'not exact'})"
        )


def rows(
    callee: str,
    argument: str,
    labels: Tensor,
    *,
    count: int | None,
    subset: str = "first",
    seed: int = 0,
) -> Tensor:
    """Return the row numbers of a subset of labelled data, in the order to use them.

    Parameters
    ----------
    callee, argument : str
        Who asks, and for which argument: the opening of a complaint.
    labels : Tensor of shape (n,)
        Class of each row.
    count : int or None
        How many rows; ``None`` takes all of them.
    subset : {"first", "random", "balanced"}, default="first"
        The first rows, rows drawn without replacement from `seed`, or the first
        ``count / k`` rows of each of the ``k`` classes, in file order.
    seed : int, default=0
        Seed of ``"random"``.

    Returns
    -------
    Tensor of shape (count,)
        Row numbers, int64.

    Raises
    ------
    ValueError
        If there are fewer rows than asked for, or `subset` is none of the three.

    Examples
    --------
    >>> labels = torch.tensor([0, 0, 1, 0, 1])
    >>> rows("load", "n_train", labels, count=4, subset="balanced")
    tensor([0, 1, 2, 4])
    """
    require(subset in _SUBSETS, callee, "subset", f"one of {_SUBSETS}", subset)
    total = len(labels)
    if count is None:
        count = total
    require(
        0 < count <= total, callee, argument,
        f"between 1 and the {total} rows at hand", count,
    )  # fmt: skip
    if subset == "first":
        return torch.arange(count)
    if subset == "random":
        generator = torch.Generator().manual_seed(seed)
        return torch.randperm(total, generator=generator)[:count]
    return _balanced_rows(callee, argument, labels, count)


def _balanced_rows(callee: str, argument: str, labels: Tensor, count: int) -> Tensor:
    classes = labels.unique()
    per_class, rest = divmod(count, len(classes))
    require(
        rest == 0, callee, argument,
        f"a multiple of the {len(classes)} classes for subset='balanced'", count,
    )  # fmt: skip
    picked = [(labels == c).nonzero().flatten()[:per_class] for c in classes]
    smallest = min(len(p) for p in picked)
    require(
        smallest == per_class, callee, argument,
        f"at most {smallest * len(classes)} for subset='balanced'", count,
    )  # fmt: skip
    return torch.cat(picked).sort().values
