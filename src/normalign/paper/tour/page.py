"""The tour's report: one HTML file with everything in it."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from normalign.paper.reporting.html import document, facts, paragraph
from normalign.paper.tour.figures import CURVES, Figures
from normalign.paper.tour.numbers import ROWS, Summary, cell
from normalign.paper.tour.runs import TourSettings

__all__ = ["page"]

_STYLE = """
.grid { display: grid; gap: .8rem; margin: .8rem 0; }
.three { grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); }
.two { grid-template-columns: repeat(auto-fit, minmax(min(100%, 28rem), 1fr)); }
figcaption, .title { padding: .1rem .3rem .2rem; }
.title { font-size: .9rem; }
th, td { text-align: right; white-space: nowrap; }
th:first-child { text-align: left; font-weight: 400; white-space: normal; }
thead th { font-weight: 600; }
"""


def page(
    figures: Figures,
    numbers: Summary,
    sentences: Mapping[str, str],
    settings: TourSettings,
    about: Mapping[str, Any],
) -> str:
    """Return the report as the text of one HTML file that loads nothing.

    Parameters
    ----------
    sentences : mapping
        One for each group of pictures, as ``tour_numbers.sentences`` makes them.
    about : mapping
        Command, origin of the data, versions, commit and seconds.
    """
    parts = [
        "<h1>One network, trained twice</h1>",
        _introduction(settings, about),
        "<h2>What came out</h2>",
        _table(numbers, settings),
        "<h2>Over training</h2>",
        paragraph(f"{sentences['accuracy']} {sentences['alignment']}"),
        paragraph(sentences["robustness"]),
        _curves(figures, numbers, settings),
        "<h2>What the Jacobian holds of a digit</h2>",
        paragraph(
            "Each digit over its centroid, the sum of the rows of the Jacobian there, "
            "with the cosine between the two. " + sentences["centroids"]
        ),
        _centroids(figures, numbers),
        "<h2>The regions around a digit</h2>",
        paragraph(
            "A square of the plane through three training digits, around one of them "
            "(black dot), at the end of training. Thin lines: units switch. "
            "Colour: how steep the map is along the plane, on a scale of its own for "
            "each network. " + sentences["partition"]
        ),
        _partitions(figures),
        "<h2>How it was made</h2>",
        f"<pre>{escape(about['command'])}</pre>",
        _facts(about),
    ]
    return document("normalign: the tour", "\n".join(parts), style=_STYLE)


def _introduction(settings: TourSettings, about: Mapping[str, Any]) -> str:
    hidden = "-".join(str(width) for width in settings.hidden)
    weight = about["penalty_weight"]
    first = (
        f"A ReLU network with hidden layers {hidden} learns {settings.n_train:,} "
        f"digits and is tested on {settings.n_test:,} others ({about['data']}). "
        "Both runs start from the same weights, all multiplied by "
        f"{settings.init_scale:g}, and see the same batches: squared error to one-hot "
        "targets, AdamW with learning "
        f"rate {settings.learning_rate:g} and weight decay {settings.weight_decay:g}, "
        f"batches of {settings.batch_size}, {settings.epochs:,} epochs."
    )
    second = (
        f"The second run adds {weight:g} times the mean over the batch of the squared "
        "norm of Jacobian and offset, estimated with one random probe for each sample. "
        "One seed; loss, weight and length were chosen so that the effect shows within "
        "minutes: an illustration, not a comparison of tuned methods."
    )
    return paragraph(first) + paragraph(second)


def _table(numbers: Summary, settings: TourSettings) -> str:
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in numbers)
    rows = []
    for key, (title, _) in ROWS.items():
        cells = "".join(
            f"<td>{escape(cell(run, key, epochs=settings.epochs))}</td>"
            for run in numbers.values()
        )
        rows.append(f'<tr><th scope="row">{escape(title)}</th>{cells}</tr>')
    note = (
        f"Memorised: training accuracy above {settings.memorised:.0%}. Generalised: "
        f"and test accuracy above {settings.generalised:.0%}. Accuracies and measures "
        f"are those of the last epoch; measures are means over {settings.n_measured} "
        "training digits. Local robustness: Euclidean distance, in normalised pixels, "
        "to the nearest boundary of the local affine map. Seconds: training and "
        "measuring."
    )
    return (
        '<div class="scroll"><table><thead><tr><th></th>'
        f"{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        f'<p class="soft">{escape(note)}</p>'
    )


def _curves(figures: Figures, numbers: Summary, settings: TourSettings) -> str:
    cards = []
    for key in CURVES:
        ends = " and ".join(
            f"{cell(run, key, epochs=settings.epochs)} ({name})"
            for name, run in numbers.items()
        )
        cards.append(_card("", figures.curves[key], f"At the end {ends}."))
    note = (
        "Dotted line: the epoch of generalisation, where there was one. Epochs on a "
        f"logarithmic axis, 1 to {settings.epochs:,}."
    )
    return f'{_grid("three", cards)}<p class="soft">{escape(note)}</p>'


def _centroids(figures: Figures, numbers: Summary) -> str:
    cards = []
    for name, run in numbers.items():
        moments = {"memorised": "_at_memorisation", "end": ""}
        for state, ending in moments.items():
            mean = run[f"centroid_alignment{ending}"]
            picture = figures.centroids.get(f"{name}, {state}")
            if picture is None or mean is None:
                continue
            when = "at the end"
            if state == "memorised":
                when = f"at memorisation, epoch {run['memorised']:.0f}"
            note = f"Mean cosine {mean:.3f} over the measured digits."
            cards.append(_card(f"{name}, {when}", picture, note))
    return _grid("two", cards)


def _partitions(figures: Figures) -> str:
    cards = [
        _card(name, picture, f"{figures.regions[name]:,} regions.")
        for name, picture in figures.partition.items()
    ]
    return _grid("two", cards)


def _card(title: str, picture: str, note: str) -> str:
    head = f'<div class="title">{escape(title)}</div>' if title else ""
    return f"<figure>{head}{picture}<figcaption>{escape(note)}</figcaption></figure>"


def _grid(kind: str, cards: list[str]) -> str:
    return f'<div class="grid {kind}">{"".join(cards)}</div>'


def _facts(about: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {v}" for name, v in about["versions"].items())
    return facts(
        {
            "seed": str(about["seed"]),
            "versions": versions,
            "commit": about["commit"] or "not in a repository",
            "machine": f"{about['system']} {about['machine']}, "
            f"{about['threads']} threads",
        }
    )
