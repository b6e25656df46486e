"""The data of an ensemble: sets by name, brought to the device once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from normalign._errors import describe, require, require_kind
from normalign.training.answers import Answers
from normalign.training.loop import Split
from normalign.training.losses import prepared_target
from normalign.training.stack import Points

__all__ = ["Pair", "Tables", "named_sets", "one_each", "with_targets"]

Pair = tuple[Tensor, Tensor]


class Tables:
    """Data brought to the device once, whatever number of stacks reads it."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._made: dict[tuple[int, ...], Tensor] = {}

    def points(self, pairs: Sequence[Pair], answers: Answers | None = None) -> Points:
        """Return the points of some networks, stacked; shared ones are kept once."""
        x, y = (self._table(values) for values in zip(*pairs, strict=True))
        return Points(x, y, answers)

    def _table(self, values: Sequence[Tensor]) -> Tensor:
        key = tuple(map(id, values))
        key = key[:1] if len(set(key)) == 1 else key
        if key not in self._made:
            made = torch.stack([v.to(self._device) for v in values[: len(key)]])
            dtype = self._dtype if made.is_floating_point() else made.dtype
            self._made[key] = made.detach().to(dtype)
        return self._made[key]


_HALVES = ("x_train", "y_train", "x_test", "y_test")


def one_each(data: Split | Sequence[Split], s: int) -> list[Split]:
    """Return the split of each of s members.

    Raises
    ------
    TypeError
        If something is no split.
    """
    # A named tuple of four tensors is a Split, though a sequence too.
    shared = _is_split(data) or not isinstance(data, Sequence)
    splits: list[Any] = [data] * s if shared else list(data)  # pyright: ignore
    names = ", ".join(_HALVES)
    rule = f"an object with {names}, or a sequence of one for each member"
    fields = ", ".join(f"{name}=..." for name in _HALVES)
    remedy = f"Pass a normalign.data.Dataset, or types.SimpleNamespace({fields})."
    for split in splits:
        got = describe(split) if isinstance(split, Tensor) else f"a {_kind(split)}"
        require_kind(_is_split(split), "Ensemble", "data", rule, got, remedy)
    return splits


def _is_split(value: Any) -> bool:
    return all(hasattr(value, name) for name in _HALVES)


def _kind(value: Any) -> str:
    return type(value).__name__


def named_sets(
    splits: Sequence[Split], also: Mapping[str, Pair | Sequence[Pair]]
) -> dict[str, list[Pair]]:
    """Return the inputs and targets of every member, by the name of the set."""
    sets: dict[str, list[Pair]] = {
        "train": [(split.x_train, split.y_train) for split in splits],
        "test": [(split.x_test, split.y_test) for split in splits],
    }
    for name, pairs in also.items():
        rule = "sets with names other than train and test"
        require(name not in ("train", "test"), "Ensemble", "also", rule, repr(name))
        one = _is_pair(pairs)
        several = isinstance(pairs, Sequence) and all(map(_is_pair, pairs))
        rule = "a pair (x, y) of tensors, or a sequence of one for each member"
        kind = f"a {_kind(pairs)}"
        require_kind(one or several, "Ensemble", f"also[{name!r}]", rule, kind)
        sets[name] = [pairs] * len(splits) if one else list(pairs)  # pyright: ignore
    return sets


def _is_pair(value: Any) -> bool:
    listed = isinstance(value, Sequence) and len(value) == 2
    return listed and all(isinstance(part, Tensor) for part in value)


def with_targets(
    sets: Mapping[str, Sequence[Pair]],
    loss: str | Callable[[Tensor, Tensor], Tensor],
    k: int,
) -> dict[str, list[Pair]]:
    """Return the sets with targets as the loss takes them, shared ones made once."""
    made: dict[int, Tensor] = {}
    for pairs in sets.values():
        for _, y in pairs:
            if id(y) not in made:
                made[id(y)] = prepared_target(y, loss, k)
    return {name: [(x, made[id(y)]) for x, y in pairs] for name, pairs in sets.items()}
