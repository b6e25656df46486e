"""All tables and figures, in the paper's order, by the names of the command line."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from normalign_reproduction._errors import require
from normalign_reproduction.spec import Item

__all__ = ["NAMES", "item", "items"]

# Name -> module that has its ITEM.
_HOMES = {
    "sparsity": "figures.sparsity",
    "capacity": "figures.capacity",
    "transformer": "figures.transformer",
    "table1": "tables.table1",
    "table2": "tables.table2",
    "alpha_path": "figures.alpha_path",
    "peers": "tables.peers",
    "construction": "figures.construction",
    "layers": "figures.layers",
    "small_cifar": "figures.small_cifar",
    "kernel_logistic": "figures.kernel_logistic",
    "zero_jacobian": "figures.zero_jacobian",
    "tabarena": "tables.tabarena",
    "hyperparameters": "tables.hyperparameters",
    "ablation": "figures.ablation",
}

NAMES = tuple(_HOMES)


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
    require(name in _HOMES, "normalign_reproduction.item", "name", rule, repr(name))
    return import_module(f"normalign_reproduction.{_HOMES[name]}").ITEM


def items() -> list[Item]:
    """Return all tables and figures, in the paper's order."""
    return [item(name) for name in NAMES]
