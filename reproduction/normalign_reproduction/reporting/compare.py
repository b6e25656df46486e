"""Whether ours agrees with the paper: a verdict for each cell, by a stated rule."""

from __future__ import annotations

from collections.abc import Collection

from normalign_reproduction.spec import Claim, Item, Records, Verdict

__all__ = ["command", "spoken", "verdicts"]

_WORDS = {True: "holds", False: "does not", None: "cannot tell"}


def spoken(holds: bool | None) -> str:
    """Return a verdict in words.

    Examples
    --------
    >>> spoken(None)
    'cannot tell'
    """
    return _WORDS[holds]


def command(
    item: Item,
    *,
    size: str,
    preset: str,
    seeds: int | None = None,
    data: Collection[str] = (),
) -> str:
    """Return the command that makes the runs of an item.

    Parameters
    ----------
    data : collection of str
        What the runs are computed on; the embedded digits are asked for by name, for
        where MNIST is found, it is taken.
    """
    words = ["normalign reproduce", item.name]
    words += ["--digits digits_5000"] if "digits_5000" in data else []
    words += ["--full"] if size == "full" else []
    words += [f"--preset {preset}"] if len(item.presets()) > 1 else []
    words += [] if seeds is None else [f"--seeds {seeds}"]
    return " ".join(words)


def verdicts(
    item: Item, records: Records, *, size: str, preset: str, seeds: int | None = None
) -> list[tuple[Claim, Verdict]]:
    """Return the verdicts on all claims of an item that mean something at a size.

    As long as runs are missing, each claim has one verdict, and that is that it cannot
    be told: a rule read off a part of the runs would be another rule.

    Parameters
    ----------
    records : sequence of Record
        Of the finished runs of this item, size and preset.
    seeds : int, optional
        Another number of seeds than the size's.

    Raises
    ------
    ValueError
        If the item has no such size or preset.
    """
    # The number of runs is the same for all data.
    runs = item.runs(size=size, preset=preset, digits="mnist", seeds=seeds)
    kept = preset if preset in item.settings else next(iter(item.settings))
    claims = [c for c in item.claims if size in c.sizes and kept in c.presets]
    if len(records) < len(runs) or not runs:
        data = {record.run.data for record in records}
        remedy = command(item, size=size, preset=kept, seeds=seeds, data=data)
        why = f"{len(records)} of {len(runs)} runs are there; {remedy} makes the others"
        return [(claim, Verdict("all", "", "", None, why)) for claim in claims]
    return [(claim, verdict) for claim in claims for verdict in claim.check(records)]
