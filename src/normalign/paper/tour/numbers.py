"""What the tour measured: the table, and sentences that follow from its numbers."""

from __future__ import annotations

from collections.abc import Mapping

from normalign.paper.tour.runs import TourRun, TourSettings

__all__ = ["ROWS", "Summary", "cell", "sentences", "summary", "text_table"]

Summary = dict[str, dict[str, float | None]]

# Key -> what the row is called, and how its numbers are written.
ROWS = {
    "memorised": ("epoch of memorisation", "{:.0f}"),
    "generalised": ("epoch of generalisation", "{:.0f}"),
    "train_accuracy": ("training accuracy", "{:.1%}"),
    "test_accuracy": ("test accuracy", "{:.1%}"),
    "normal_alignment": ("normal alignment", "{:.3f}"),
    "effective_rank": ("effective rank", "{:.2f}"),
    "centroid_alignment": ("centroid alignment", "{:.3f}"),
    "local_robustness": ("local robustness", "{:.2f}"),
    "jacobian_norm": ("Jacobian norm", "{:.3g}"),
    "seconds": ("seconds", "{:.0f}"),
}

# A difference below this share of the larger number is called none: about the
# fluctuation from one evaluated epoch to the next late in training.
_SAME = 0.02


def summary(runs: Mapping[str, TourRun]) -> Summary:
    """Return the numbers of the table: epochs reached, and measures at the end.

    An epoch that was not reached is ``None``. Measures at memorisation, where there
    was one, have ``"_at_memorisation"`` after their name.
    """
    numbers: Summary = {}
    for name, run in runs.items():
        last = run.history.last()
        row: dict[str, float | None] = {
            "memorised": run.epoch("memorised"),
            "generalised": run.epoch("generalised"),
            "seconds": run.history.seconds,
        }
        measured = [key for key in ROWS if key not in row]
        row |= {key: last[key] for key in measured}
        at = run.epoch("memorised")
        early = run.history.first(lambda r, at=at: at is not None and r["epoch"] >= at)
        for key in measured:
            row[f"{key}_at_memorisation"] = None if early is None else early[key]
        numbers[name] = row
    return numbers


def cell(numbers: Mapping[str, float | None], key: str, *, epochs: int) -> str:
    """Return a number as the table writes it."""
    value = numbers[key]
    return f"not by {epochs}" if value is None else ROWS[key][1].format(value)


def text_table(numbers: Summary, *, epochs: int) -> str:
    """Return the table as lines of text of one width, runs from left to right.

    Examples
    --------
    >>> numbers = {"baseline": {key: 1.0 for key in ROWS}}
    >>> print(text_table(numbers, epochs=9).splitlines()[2])
    epoch of memorisation           1
    """
    head = ["", *numbers]
    body = [
        [title, *(cell(run, key, epochs=epochs) for run in numbers.values())]
        for key, (title, _) in ROWS.items()
    ]
    widths = [max(len(row[i]) for row in [head, *body]) for i in range(len(head))]

    def line(row: list[str]) -> str:
        first, *others = (
            text.ljust(width) if i == 0 else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join([first, *others])

    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    return "\n".join([line(head), rule, *(line(row) for row in body)])


def sentences(
    numbers: Summary,
    settings: TourSettings,
    regions: Mapping[str, int],
    boundaries: Mapping[str, int],
) -> dict[str, str]:
    """Return one sentence under each picture, each computed from the numbers.

    Parameters
    ----------
    regions : mapping of run to int
        How many regions the drawn slice has for each network.
    boundaries : mapping of run to int
        In how many segments the prediction changes there.
    """
    without, held = numbers.values()
    return {
        "accuracy": _accuracy(without, held, settings),
        "alignment": _alignment(without, held, settings),
        "robustness": _robustness(without, held, settings),
        "centroids": _centroids(numbers),
        "partition": _partition(regions, boundaries),
    }


def _accuracy(
    without: Mapping[str, float | None],
    held: Mapping[str, float | None],
    settings: TourSettings,
) -> str:
    level, epochs = f"{settings.generalised:.0%}", settings.epochs
    late, soon = without["generalised"], held["generalised"]
    final = (
        f"At the end test accuracy is {_shown(held, 'test_accuracy')} with the penalty "
        f"and {_shown(without, 'test_accuracy')} without."
    )
    if soon is None and late is None:
        return f"Neither run passed {level} test accuracy by epoch {epochs}. {final}"
    if soon is None:
        return (
            f"Without the penalty test accuracy passes {level} at epoch {late:.0f}; "
            f"with it, it does not by epoch {epochs}. {final}"
        )
    if late is None:
        return (
            f"With the penalty test accuracy passes {level} at epoch {soon:.0f}; "
            f"without it, it does not by epoch {epochs}. {final}"
        )
    ratio = f"{late / soon:.1f} times that" if soon else "later"
    return (
        f"Test accuracy passes {level} at epoch {soon:.0f} with the penalty and at "
        f"epoch {late:.0f} without, {ratio}. {final}"
    )


def _alignment(
    without: Mapping[str, float | None],
    held: Mapping[str, float | None],
    settings: TourSettings,
) -> str:
    higher = _compared(held, without, "normal_alignment", "higher", "lower")
    rank = _compared(held, without, "effective_rank", "higher", "lower")
    return (
        f"Over {settings.n_measured} training digits, normal alignment ends {higher} "
        f"with the penalty than without, {_shown(held, 'normal_alignment')} against "
        f"{_shown(without, 'normal_alignment')} (1 is full alignment), and effective "
        f"rank {rank}, {_shown(held, 'effective_rank')} against "
        f"{_shown(without, 'effective_rank')} (1 is rank one)."
    )


def _robustness(
    without: Mapping[str, float | None],
    held: Mapping[str, float | None],
    settings: TourSettings,
) -> str:
    farther = _compared(held, without, "local_robustness", "farther", "nearer")
    return (
        "The nearest decision boundary of the local affine map ends "
        f"{farther} with the penalty than without: {_shown(held, 'local_robustness')} "
        f"against {_shown(without, 'local_robustness')} in Euclidean distance, on "
        f"average over {settings.n_measured} training digits."
    )


def _centroids(numbers: Summary) -> str:
    parts = []
    for name, run in numbers.items():
        early = run["centroid_alignment_at_memorisation"]
        end = _shown(run, "centroid_alignment")
        start = "not memorised" if early is None else f"{early:.3f} at memorisation"
        parts.append(f"{name}: {start}, {end} at the end")
    return f"Mean cosine between digit and centroid. {'; '.join(parts).capitalize()}."


def _partition(regions: Mapping[str, int], boundaries: Mapping[str, int]) -> str:
    counted = " and ".join(f"{count:,} ({name})" for name, count in regions.items())
    return (
        f"The networks cut this square into {counted} regions; on each of them the "
        f"network is one affine map. {_crossed(boundaries)}"
    )


def _crossed(boundaries: Mapping[str, int]) -> str:
    crossed = [name for name, count in boundaries.items() if count]
    if not crossed:
        return "The prediction is the same all over the square, for each network."
    return f"The prediction changes (red) in the square of: {', '.join(crossed)}."


def _shown(run: Mapping[str, float | None], key: str) -> str:
    value = run[key]
    return "not measured" if value is None else ROWS[key][1].format(value)


def _compared(
    first: Mapping[str, float | None],
    second: Mapping[str, float | None],
    key: str,
    more: str,
    less: str,
) -> str:
    """Return which of two words is true of the first number, or that neither is."""
    a, b = first[key], second[key]
    if a is None or b is None or abs(a - b) <= _SAME * max(abs(a), abs(b)):
        return f"no {more}"
    return more if a > b else less
