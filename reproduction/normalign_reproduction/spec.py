"""The vocabulary of the paper's tables and figures: items, sizes, runs, claims.

An *item* is one table or figure of the paper, written down once, declaratively. It has
*variants* (the lines of a figure, the cells of a table) and *settings* for each preset;
with a seed and a size, a variant becomes a :class:`Run`: one thing to compute, keyed by
all that changes it. What came out of a run is a :class:`Record`. Tables, figures,
and claims are functions of records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

from normalign_reproduction._errors import require
from normalign_reproduction.files import settings_hash

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

__all__ = [
    "Cell", "Claim", "Column", "Figure", "Item", "Record", "Records", "Run", "Size",
    "Table", "cross",
]  # fmt: skip

PRESETS = ("released", "text")
SIZES = ("quick", "full")

Row = dict[str, Any]


def cross(**axes: Iterable[Any]) -> tuple[dict[str, Any], ...]:
    """Return the variants of a grid: one for each combination, the last axis fastest.

    Examples
    --------
    >>> cross(task=["xor"], method=["baseline", "grokalign"])[1]
    {'task': 'xor', 'method': 'grokalign'}
    """
    values = [list(axis) for axis in axes.values()]
    return tuple(dict(zip(axes, one, strict=True)) for one in product(*values))


@dataclass(frozen=True)
class Run:
    """One thing to compute: a variant of an experiment, at a size, with a seed.

    Parameters
    ----------
    experiment : str
        The name of the experiment that computes it.
    version : int
        Of that experiment; raised when the same settings give other numbers.
    size, preset : str
    data : str
        Which data it is computed on: ``"mnist"``, ``"digits_5000"``, or what
        :class:`Size` says.
    settings : mapping
        Constants and variant together; values that JSON can hold.
    seed : int
    """

    experiment: str
    version: int
    size: str
    preset: str
    data: str
    settings: Mapping[str, Any]
    seed: int

    def __getitem__(self, name: str) -> Any:
        known = name in self.settings
        rule = f"one of {', '.join(self.settings)}"
        require(known, f"a run of {self.experiment}", "a setting", rule, repr(name))
        return self.settings[name]

    @cached_property
    def key(self) -> str:
        """Twelve hexadecimal digits that name the run, by all that changes it."""
        return settings_hash(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return what the key is made of, as JSON can hold it."""
        return {
            "experiment": self.experiment, "version": self.version, "size": self.size,
            "preset": self.preset, "data": self.data,
            "settings": dict(self.settings), "seed": self.seed,
        }  # fmt: skip


@dataclass(frozen=True)
class Record:
    """What came out of a run.

    Parameters
    ----------
    run : Run
    result : dict
        What its experiment returned: numbers, and curves as
        :meth:`normalign.training.History.to_dict` gives them under ``"history"``.
    made : dict
        Commit, versions, device and seconds.
    """

    run: Run
    result: dict[str, Any]
    made: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        """Return a setting of the run."""
        return self.run[name]


Records = Sequence[Record]


@dataclass(frozen=True)
class Size:
    """How much of an item is computed.

    Parameters
    ----------
    seeds : int
        Seeds 0, 1, ... of each variant.
    settings : mapping
        Constants that differ from the item's; a variant may differ further.
    variants : sequence, optional
        Which variants; by default all.
    seconds : mapping of device kind to float
        How long all of it takes, as measured: ``{"cpu": 60.0, "cuda": 20.0}``. Two
        cores, one H200. For estimates only.
    data : str
        What it is computed on where no digits are wanted: ``"synthetic"``,
        ``"bundled"`` (scikit-learn's tables and synthetic ones), ``"uci"`` or
        ``"tabarena"``.
    seeds_of : callable, optional
        How many of the seeds a variant has, where not all have all of them.
    """

    seeds: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    variants: Sequence[Mapping[str, Any]] | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    data: str = "synthetic"
    seeds_of: Callable[[Mapping[str, Any]], int] | None = None

    def seeds_for(self, variant: Mapping[str, Any]) -> int:
        """Return how many seeds a variant has."""
        return self.seeds if self.seeds_of is None else self.seeds_of(variant)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Parameters
    ----------
    name : str
        The key in the table's rows.
    title : str
    form : str
        How its numbers are written, for :meth:`str.format`. Text is written as it is,
        ``None`` as a dash.
    published : str, optional
        The key of the paper's own number, shown beside.
    interval : str, optional
        The key of a pair (low, high) of a 95 % interval, shown after the number.
    """

    name: str
    title: str
    form: str = "{:.3g}"
    published: str | None = None
    interval: str | None = None


@dataclass(frozen=True)
class Table:
    """A table: how its rows are made of records, and which columns they have.

    Parameters
    ----------
    name : str
        A word; part of file names.
    title : str
    rows : callable
        From records to rows, dictionaries with the columns' names. It must give the
        same rows for records in another order.
    columns : sequence of Column
        Those that name a row come first.
    note : str
        What a reader should know.
    repeatable : bool
        Whether the same runs give the same table; seconds do not.
    """

    name: str
    title: str
    rows: Callable[[Records], list[Row]]
    columns: Sequence[Column]
    note: str = ""
    repeatable: bool = True


@dataclass(frozen=True)
class Figure:
    """A figure in the paper's arrangement.

    Parameters
    ----------
    name : str
        A word; part of file names.
    draw : callable
        From records to a matplotlib figure; most are ``panels.Panels``.
    caption : str
    numbers : bool
        Whether a report has a table of its runs' numbers under it. Not where the item's
        own tables have them.
    """

    name: str
    draw: Callable[[Records], Drawing]
    caption: str
    numbers: bool = True


@dataclass(frozen=True)
class Cell:
    """One comparison by which a claim is judged.

    Parameters
    ----------
    name : str
        What is compared, for example a task and a method.
    paper, ours : str
        Both values as text.
    holds : bool or None
        ``None`` if the runs do not decide it.
    why : str
        The numbers that decided.
    value, interval : float and pair of float, optional
        Our value with its 95% interval, to be drawn.
    published : float, optional
        The paper's value.
    limit : float, optional
        The value at which the rule of the claim changes from true to false.
    n : int, optional
        How many seeds (or whatever the claim counts) the value is a mean of.
    """

    name: str
    paper: str
    ours: str
    holds: bool | None
    why: str = ""
    value: float | None = None
    interval: tuple[float, float] | None = None
    published: float | None = None
    limit: float | None = None
    n: int | None = None


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, or one beyond it, and the rule by which it is judged.

    Parameters
    ----------
    statement : str
        The claim in one plain sentence.
    rule : str
        The rule, with its numbers.
    check : callable
        From records to the :class:`Cell` objects of the claim.
    source : str
        Where the paper says it, for example ``"Table 1"``.
    sizes, presets : sequence of str
        At which sizes, and with which presets, the rule is meaningful.
    beyond : bool
        Whether the paper does not make the claim.
    reason : str
        Why the claim fails or is undecided, where that is known.
    quantity : str
        What the values of its cells are, with the unit.
    counts : str
        What the ``n`` of its cells counts.
    """

    statement: str
    rule: str
    check: Callable[[Records], list[Cell]]
    source: str = ""
    sizes: Sequence[str] = SIZES
    presets: Sequence[str] = PRESETS
    beyond: bool = False
    reason: str = ""
    quantity: str = ""
    counts: str = "seeds"


@dataclass(frozen=True)
class Item:
    """One table or figure of the paper.

    Parameters
    ----------
    name : str
        On the command line.
    reference : str
        What it is called in the paper, as ``"Table 1"``.
    title : str
    shows : str
        What the paper shows by it, in a sentence.
    experiment : str
        The name of the experiment that computes its runs.
    variants : sequence of mapping
        See :func:`cross`.
    settings : mapping of preset to mapping
        The constants, by preset. A preset that is missing has the same as the other.
    sizes : mapping of size to Size
    constants : callable, optional
        What else a run depends on, from its preset and its settings so far, where that
        is written down elsewhere; becomes the setting ``"constants"``.
    needs_digits : bool or callable
        Whether its data are MNIST, or the embedded digits in its place; or which of
        its variants' are, from their settings.
    version : int
        Of the experiment.
    finding : callable, optional
        From records to a sentence on the result, for an item without claims.
    departures : sequence of str
        What differs from the paper even at full size: where the paper is silent, or we
        depart.
    """

    name: str
    reference: str
    title: str
    shows: str
    experiment: str
    variants: Sequence[Mapping[str, Any]]
    settings: Mapping[str, Mapping[str, Any]]
    sizes: Mapping[str, Size]
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    claims: Sequence[Claim] = ()
    constants: Callable[[str, Mapping[str, Any]], Mapping[str, Any]] | None = None
    needs_digits: bool | Callable[[Mapping[str, Any]], bool] = False
    version: int = 1
    finding: Callable[[Records], str] | None = None
    departures: Sequence[str] = ()

    def presets(self) -> tuple[str, ...]:
        """Return the presets that differ for this item."""
        return tuple(preset for preset in PRESETS if preset in self.settings)

    def runs(
        self, *, size: str, preset: str, digits: str, seeds: int | None = None
    ) -> list[Run]:
        """Return all runs of the item at a size, variant by variant, seed by seed.

        Parameters
        ----------
        digits : {"mnist", "digits_5000"}
            Which digits there are.
        seeds : int, optional
            Another number of seeds than the size's.
        """
        known = size in self.sizes
        rule = f"one of {', '.join(self.sizes)}"
        remedy = "It has variants at no other size; `--full` is one, if it is named."
        require(known, f"{self.name}.runs", "size", rule, repr(size), remedy)
        require(preset in PRESETS, f"{self.name}.runs", "preset",
                " or ".join(map(repr, PRESETS)), repr(preset))  # fmt: skip
        kept = preset if preset in self.settings else next(iter(self.settings))
        chosen = self.sizes[size]
        variants = self.variants if chosen.variants is None else chosen.variants
        runs = []
        for variant in variants:
            settings = {**self.settings[kept], **chosen.settings, **variant}
            if self.constants is not None:
                settings["constants"] = self.constants(kept, settings)
            needed = self.needs_digits
            needed = needed(settings) if callable(needed) else needed
            data = digits if needed else chosen.data
            runs += [
                Run(self.experiment, self.version, size, kept, data, settings, seed)
                for seed in range(chosen.seeds_for(variant) if seeds is None else seeds)
            ]
        return runs
