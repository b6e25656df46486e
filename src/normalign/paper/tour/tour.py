"""The tour: one network trained twice, without and with the Jacobian penalty.

Claim: penalising the norm of Jacobian and offset at the training points aligns the
network to them, and lets it generalise in fewer epochs (Theorem 1, Table 1).
Setting: the paper's MNIST experiment with squared error, on 1000 of the embedded
digits. Command: ``normalign tour``. About two minutes on two cores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from normalign._checks import require
from normalign.paper.store import provenance, write_bytes, write_json
from normalign.paper.tour.figures import Figures, draw_figures
from normalign.paper.tour.numbers import Summary, sentences, summary, text_table
from normalign.paper.tour.page import page
from normalign.paper.tour.runs import RUNS, TourRun, TourSettings, digits, trained

__all__ = ["TourResult", "run_tour"]


@dataclass(frozen=True)
class TourResult:
    """What the tour leaves behind.

    Parameters
    ----------
    table : str
        The comparison, ready to print.
    report : Path
        The page, one file that needs no network.
    results : Path
        All numbers as JSON.
    summary : dict
        The numbers of the table, by run.
    sentences : dict
        What was measured, in words, by subject.
    """

    table: str
    report: Path
    results: Path
    summary: Summary
    sentences: dict[str, str]


def run_tour(
    out: Path,
    seed: int = 0,
    epochs: int | None = None,
    *,
    settings: TourSettings | None = None,
    command: str | None = None,
    progress: bool = True,
) -> TourResult:
    """Train the digit network without and with the penalty and report both.

    Writes to the folder ``report.html``, ``results.json``, the pictures as SVG, and
    under ``runs`` each trained network. A finished run with the same settings found
    there is used again, so a second call only writes the report. Ctrl-C loses the run
    it falls into and no other.

    Parameters
    ----------
    out : Path
        Folder for the results; made if it is not there.
    seed : int
        Of the split, the initial weights, the order and the probes.
    epochs : int, optional
        Passes through the training set, for each of the two runs.
    settings : TourSettings, optional
        Another size or criterion; ``seed`` and ``epochs`` come from the arguments.
    command : str, optional
        What the report says it was made with; by default the same on a command line.
    progress : bool
        Whether a bar on standard error shows the epochs, if that is a terminal.

    Returns
    -------
    TourResult

    Raises
    ------
    ValueError
        If ``epochs`` is not positive.
    KeyboardInterrupt
        If training was interrupted.
    """
    common = replace(settings or TourSettings(), seed=seed)
    common = common if epochs is None else replace(common, epochs=epochs)
    require(common.epochs >= 1, "run_tour", "epochs", "at least 1", common.epochs)
    folder, data = Path(out), digits(common)
    runs = {
        name: trained(
            replace(common, weight=weight),
            data,
            folder / "runs",
            name if progress else "",
        )
        for name, weight in RUNS.items()
    }
    about = {
        "command": command or _this_call(seed, epochs),
        "data": data.origin,
        "seed": seed,
        "penalty_weight": RUNS["with penalty"],
        **provenance(),
    }
    return _report(folder, common, runs, draw_figures(runs, data), about)


def _this_call(seed: int, epochs: int | None) -> str:
    length = "" if epochs is None else f" --epochs {epochs}"
    return f"normalign tour --seed {seed}{length}"


def _report(
    folder: Path,
    settings: TourSettings,
    runs: Mapping[str, TourRun],
    figures: Figures,
    about: Mapping[str, Any],
) -> TourResult:
    numbers = summary(runs)
    said = sentences(numbers, settings, figures.regions, figures.boundaries)
    for name, svg in figures.files().items():
        write_bytes(folder / name, svg.encode())
    results = {
        "about": about,
        "settings": asdict(settings),
        "summary": {name: _finite(row) for name, row in numbers.items()},
        "sentences": said,
        "regions": figures.regions,
        "boundaries": figures.boundaries,
        "runs": {
            name: {"settings": asdict(run.settings), "key": run.settings.key()}
            | run.history.to_dict()
            for name, run in runs.items()
        },
    }
    return TourResult(
        table=text_table(numbers, epochs=settings.epochs),
        report=write_bytes(
            folder / "report.html",
            page(figures, numbers, said, settings, about).encode(),
        ),
        results=write_json(folder / "results.json", results),
        summary=numbers,
        sentences=said,
    )


def _finite(row: Mapping[str, float | None]) -> dict[str, float | str | None]:
    """Return a row that JSON can hold: numbers that are not finite as text."""
    return {
        key: value if value is None or math.isfinite(value) else str(value)
        for key, value in row.items()
    }
