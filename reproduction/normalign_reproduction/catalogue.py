"""All tables and figures by the names of the command line, and subsets of variants."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import Any

from normalign_reproduction.spec import Item

__all__ = ["NAMES", "Condition", "check_name", "item", "items", "narrow"]

# In the paper's order; each is a folder of `items` with an ITEM in its `item.py`.
NAMES = (
    "sparsity",
    "capacity",
    "transformer",
    "table1",
    "table2",
    "alpha_path",
    "peers",
    "construction",
    "layers",
    "small_cifar",
    "kernel_logistic",
    "zero_jacobian",
    "tabarena",
    "hyperparameters",
    "ablation",
)


@cache
def item(name: str) -> Item:
    """Return a table or figure by its name.

    Examples
    --------
    >>> item("table1").reference
    'Table 1'
    """
    check_name(name, "normalign: NAME", NAMES)
    return import_module(f"normalign_reproduction.items.{name}.item").ITEM


def items() -> list[Item]:
    """Return all tables and figures, in the paper's order."""
    return [item(name) for name in NAMES]


def check_name(name: str, argument: str, valid: Sequence[str]) -> None:
    """Raise a ``ValueError`` that suggests a name unless the name is valid.

    Examples
    --------
    >>> check_name("tabel1", "NAME", ["table1", "table2"])
    Traceback (most recent call last):
    ValueError: NAME must be one of table1, table2, got 'tabel1'. Did you mean 'table1'?
    """
    if name not in valid:
        names = ", ".join(valid[:_SHOWN])
        names += f" and {len(valid) - _SHOWN} more" if len(valid) > _SHOWN else ""
        text = f"{argument} must be one of {names}, got {name!r}."
        close = get_close_matches(name, valid, n=1)
        raise ValueError(f"{text} Did you mean {close[0]!r}?" if close else text)


_SHOWN = 30  # names in a message
_FORM = re.compile(r"\s*(\w+)\s*(<=|>=|!=|=|<|>)\s*(.+?)\s*")
_COMPARISONS = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


@dataclass(frozen=True)
class Condition:
    """A condition on a setting: a limit, or a list of values.

    Examples
    --------
    >>> Condition.parse("rows<=10000").holds({"rows": 150})
    True
    >>> Condition.parse("task=xor,parity").holds({"task": "modular"})
    False
    """

    setting: str
    sign: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.setting}{self.sign}{','.join(self.values)}"

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Parse a condition such as ``rows<=10000`` or ``task=xor,parity``."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise ValueError(
                "normalign: --only must be NAME=VALUE[,VALUE], NAME!=VALUE or "
                f"NAME<=NUMBER (also <, >, >=), got {text!r}."
            )
        name, sign, value = match.groups()
        values: list[str] = [part.strip() for part in value.split(",")]
        if sign in _COMPARISONS and math.isnan(_number(value)):
            raise ValueError(
                f"normalign: --only must have a number after {sign}, got {text!r}."
            )
        return cls(name, sign, tuple(values))

    def holds(self, settings: Mapping[str, Any]) -> bool:
        """Return whether it holds; never for settings without the name."""
        if self.setting not in settings:
            return False
        value = settings[self.setting]
        if self.sign in _COMPARISONS:
            return _COMPARISONS[self.sign](_number(value), _number(self.values[0]))
        is_listed = any(_is_same(value, text) for text in self.values)
        return is_listed == (self.sign == "=")


def narrow(items: Sequence[Item], conditions: Sequence[Condition]) -> list[Item]:
    """Return items with the variants for which all conditions hold.

    A size without such variants is removed from the item.

    Raises
    ------
    ValueError
        If an item's variants do not differ in a setting, a value occurs in no variant,
        or no variant of an item is left.
    """
    for condition in conditions:
        _check_values(items, condition)
    return [_narrow(one, conditions) for one in items] if conditions else list(items)


def _narrow(item: Item, conditions: Sequence[Condition]) -> Item:
    def select(variants: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        return [v for v in variants if all(one.holds(v) for one in conditions)]

    sizes = {}
    for name, size in item.sizes.items():
        own = None if size.variants is None else select(size.variants)
        if own or (own is None and select(item.variants)):
            sizes[name] = replace(size, variants=own)
    text = " and ".join(map(str, conditions))
    if not sizes:
        raise ValueError(
            f"normalign: --only must leave some variants of {item.name}, got {text!r}."
        )
    return replace(
        item,
        variants=select(item.variants),
        sizes=sizes,
        departures=(f"only the variants with {text}", *item.departures),
    )


def _check_values(items: Sequence[Item], condition: Condition) -> None:
    """Raise unless each item has the setting, and a variant each of the values."""
    name, valid = condition.setting, []
    for one in items:
        variants = [*one.variants]
        for size in one.sizes.values():
            variants += size.variants or ()
        simple = [
            (key, value)
            for variant in variants
            for key, value in variant.items()
            if isinstance(value, str | int | float)
        ]
        names = list(dict.fromkeys(key for key, _ in simple))
        if name not in names:
            raise ValueError(
                f"normalign: --only must name a setting of {one.name} "
                f"({', '.join(names) or 'none'}), got {name!r}. "
                "Name the items that have this setting."
            )
        valid += [value for key, value in simple if key == name]
    texts = list(dict.fromkeys(map(_text, valid)))
    for text in condition.values if condition.sign in ("=", "!=") else ():
        if not any(_is_same(value, text) for value in valid):
            check_name(text, f"normalign: --only {name}", texts)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _is_same(value: Any, text: str) -> bool:
    """Return whether a text denotes a value: 1, 1.0 and 1e0 are the same number."""
    return str(value) == text or (
        not isinstance(value, str) and _number(value) == _number(text)
    )
