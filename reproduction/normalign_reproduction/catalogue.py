"""All tables and figures by the names of the command line, and parts of them."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any

from normalign_reproduction._errors import require
from normalign_reproduction.spec import Item

__all__ = ["NAMES", "Condition", "item", "items", "narrow"]

# In the paper's order; each is a folder of `items` with an ITEM in its `item.py`.
NAMES = (
    "sparsity", "capacity", "transformer", "table1", "table2", "alpha_path", "peers",
    "construction", "layers", "small_cifar", "kernel_logistic", "zero_jacobian",
    "tabarena", "hyperparameters", "ablation",
)  # fmt: skip


@cache
def item(name: str) -> Item:
    """Return a table or figure by its name.

    Raises
    ------
    ValueError
        If there is none of that name.

    Examples
    --------
    >>> item("table1").reference
    'Table 1'
    """
    rule = f"one of {', '.join(NAMES)}"
    require(name in NAMES, "normalign_reproduction.item", "name", rule, repr(name))
    return import_module(f"normalign_reproduction.items.{name}.item").ITEM


def items() -> list[Item]:
    """Return all tables and figures, in the paper's order."""
    return [item(name) for name in NAMES]


_CALLEE = "normalign"
_FORM = re.compile(r"\s*(\w+)\s*(<=|>=|!=|=|<|>)\s*(.+?)\s*")
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
}  # fmt: skip


@dataclass(frozen=True)
class Condition:
    """A condition on a setting: an order, or one of several values.

    Examples
    --------
    >>> Condition.read("rows<=10000").holds({"rows": 150})
    True
    >>> Condition.read("task=xor,parity").holds({"task": "modular"})
    False
    """

    setting: str
    sign: str
    values: tuple[str, ...]

    @classmethod
    def read(cls, text: str) -> Condition:
        """Read a condition such as ``rows<=10000``, ``task=xor,parity``.

        Raises
        ------
        ValueError
            If it has another form, or orders what is no number.
        """
        found = _FORM.fullmatch(text)
        rule = "NAME=VALUE[,VALUE], NAME!=VALUE or NAME<=NUMBER (also <, >, >=)"
        require(found is not None, _CALLEE, "--only", rule, repr(text))
        name, sign, value = found.groups() if found else ("", "", "")
        values = tuple(part.strip() for part in value.split(","))
        if sign in _ORDERS:
            fits = len(values) == 1 and _number(values[0]) is not None
            require(fits, _CALLEE, "--only", f"a number after {sign}", repr(text))
        return cls(name, sign, values)

    def holds(self, settings: Mapping[str, Any]) -> bool:
        """Say whether it holds; of a variant without the setting it does not."""
        if self.setting not in settings:
            return False
        value = settings[self.setting]
        if self.sign in _ORDERS:
            number = _number(value)
            limit = _number(self.values[0])
            return number is not None and _ORDERS[self.sign](number, limit)
        among = any(_same(value, one) for one in self.values)
        return among is (self.sign == "=")


def narrow(item: Item, conditions: Sequence[Condition]) -> Item:
    """Return an item with the variants for which all conditions hold.

    A size of which nothing is left is none of the item's any more, and refused as such.

    Raises
    ------
    ValueError
        If the item's variants do not differ in that setting, or none is left.
    """
    if not conditions:
        return item
    names = list(dict.fromkeys(name for one in item.variants for name in one))
    for one in conditions:
        rule = f"on one of {', '.join(names)}, in which {item.name}'s variants differ"
        require(one.setting in names, _CALLEE, "--only", rule, repr(one.setting))

    def left(variants: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        return [v for v in variants if all(one.holds(v) for one in conditions)]

    variants = left(item.variants)
    sizes = {}
    for name, size in item.sizes.items():
        own = None if size.variants is None else left(size.variants)
        if variants if own is None else own:
            sizes[name] = replace(size, variants=own)
    said = " and ".join(f"{c.setting}{c.sign}{','.join(c.values)}" for c in conditions)
    require(
        bool(sizes),
        _CALLEE,
        "--only",
        f"one that leaves some variants of {item.name}",
        repr(said),
    )
    return replace(
        item, variants=variants, sizes=sizes,
        departures=(f"only the variants with {said}", *item.departures),
    )  # fmt: skip


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _same(value: Any, text: str) -> bool:
    number = _number(text)
    if number is not None and not isinstance(value, str):
        return _number(value) == number
    return str(value) == text
