"""The data of an ensemble: sets by name, brought to the device once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from normalign._checks import require
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

    def points(self, pairs: Sequence[Pair]) -> Points:
        """Return the points of some networks, stacked; shared ones are kept once."""
        return Points(*(self._table(values) for values in zip(*pairs, strict=True)))

    def _table(self, values: Sequence[Tensor]) -> Tensor:
        key = tuple(map(id, values))
        key = key[:1] if len(set(key)) == 1 else key
        if key not in self._made:
            made = torch.stack([v.to(self._device) for v in values[: len(key)]])
            dtype = self._dtype if made.is_floating_point() else made.dtype
            self._made[key] = made.detach().to(dtype)
        return self._made[key]


def one_each(data: Split | Sequence[Split], s: int) -> list[Split]:
    """Return the split of each of s members."""
    # A named tuple of four tensors is a Split, though a sequence too.
    shared = hasattr(data, "x_train") or not isinstance(data, Sequence)
    return [data] * s if shared else list(data)  # pyright: ignore


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
        one = len(pairs) == 2 and isinstance(pairs[0], Tensor)
        sets[name] = [pairs] * len(splits) if one else list(pairs)  # pyright: ignore
    return sets


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
