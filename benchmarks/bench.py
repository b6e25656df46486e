"""Times relative to other implementations ("peers"), compared with a stored baseline.

    make bench                    about four minutes on two idle cores
    make bench BASELINE=reset     measure, and store the ratios as the new baseline
    python benchmarks/bench.py --only step,fit-300 --baseline out/bench.json

A ratio is the time of a turn of ours over that of a turn of a peer. Ours and the peers
alternate (ours, peer, ours, peer, ...) in one process, after one turn of each to warm
up; each pair of turns gives one ratio, and there are at least five pairs. Where both
compute the same quantity, the results are compared once.

A ratio is lost (our code has become slower) if both hold:

1. the median over its pairs is more than 15 % above the stored median;
2. the increase is significant: p < 0.01 in the exact one-sided Mann-Whitney test of the
   pairs against the stored ones. For five against five, all but one of the 25
   comparisons must be increases.

The exit status is 1 if a ratio is lost, 2 if there is no baseline of this processor or
its ratios are not those that are measured, or a peer is not installed, else 0. Ratios
differ between processors (by up to 45 % between an Intel Xeon and an AMD EPYC), so each
processor has its own baseline in the file. The output says if versions or threads
differ from those of the baseline.

``step``       a training step with GrokAlign; peers: a step without it, the penalty in
               the form of the released scripts (`grokalign_step.py`, case a)
``geometry-*`` `local_geometry`; peer: vmap(jacrev) and a batched SVD (`geometry.py`,
               cases a to d; b to d on fewer samples and smaller inputs or vocabulary)
``fit-*``      `RFMRegressor` on so many rows; peers: the plain transcription, and from
               2000 rows on xrfm (`rfm_peers.py`)
``selection``  `RFAMClassifierCV` on breast cancer; peer: a grid search of 25 candidates
               for an SVC, five folds, two jobs
``lockstep-*`` ten seeds of modular addition in lockstep; peer: a plain loop over them
               (`ensemble.py`)
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import ensemble
import grokalign_step
import rfm_peers
import torch
from scipy import stats
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale
from sklearn.svm import SVC
from torch import Tensor

import geometry
from normalign import RFAMClassifierCV
from normalign_reproduction.files import write_json
from normalign_reproduction.items.table1.tasks import task
from normalign_reproduction.provenance import device_name, provenance

BASELINE = Path(__file__).parents[1] / "results" / "benchmarks" / "bench-cpu.json"
LOSS, LEVEL = 0.15, 0.01
FEWEST_PAIRS = 5


@dataclass(frozen=True)
class Contest:
    """Our code and its peers on one task.

    Parameters
    ----------
    title : str
    turns : mapping of str to callable
        The function that ours and each peer call in a turn; ours comes first.
    n_pairs : int
    answers : callable, optional
        Maps the result of a turn to the numbers that must agree.
    limit : float
        Largest accepted relative difference of these numbers, in root mean square.
    short : bool
        Whether a turn takes milliseconds; then an uncounted turn precedes each, to fill
        the caches.
    """

    title: str
    turns: Mapping[str, Callable[[], Any]]
    n_pairs: int
    answers: Callable[[Any], Tensor] | None = None
    limit: float = 0.0
    short: bool = False


# --- what is measured -------------------------------------------------------------


def step(*, quick: bool) -> Contest:
    case = grokalign_step.CASES["small" if quick else "a"]
    x = torch.randn(case.shape, generator=grokalign_step.seeded(1))
    y = torch.randint(0, 10, (len(x),), generator=grokalign_step.seeded(2))
    losses = grokalign_step.contestants(case)
    names = {"ours": "ours, power 2", "plain": "plain", "released": "released"}
    entered = {
        name: grokalign_step.Contestant(losses[label], case.build().train(), half=False)
        for name, label in names.items()
    }
    turns = {
        name: partial(one.turn, x, y, counts=False) for name, one in entered.items()
    }
    return Contest(f"a penalised step, {case.title}", turns, 15, short=True)


def transformer(vocabulary: int) -> torch.nn.Module:
    return geometry.Transformer(
        vocabulary, vocabulary, context=16, n_layers=2, generator=geometry.seeded(0)
    )


def tokens(vocabulary: int) -> Tensor:
    return torch.randint(0, vocabulary, (1, 16), generator=geometry.seeded(1))


def local(name: str, *, quick: bool) -> Contest:
    size, vocabulary = (28, 200) if quick else (56, 8000)
    changed: dict[str, dict[str, Any]] = {
        "a": {},
        "b": {"inputs": lambda: geometry.pictures(2 if quick else 16, 32),
              "title": "ResNet-18, 3x32x32, n = 16, k = 10"},
        # A sixteenth of the Jacobian's entries, and of the memory for it.
        "c": {"inputs": lambda: geometry.pictures(1, size), "memory_budget": 2**27,
              "title": "ResNet-18, 3x56x56, n = 1, k = 1000, 20 steps trained",
              "n_steps": 1 if quick else 20},
        "d": {"inputs": lambda: tokens(vocabulary), "memory_budget": 2**27,
              "build": lambda: transformer(vocabulary),
              "title": "transformer, 16 tokens of width 128, vocabulary 8000, n = 1"},
    }  # fmt: skip
    case = replace(geometry.CASES[name], **changed[name])
    model = case.build()
    model.load_state_dict(geometry.prepared(case))
    model.eval()
    x = case.inputs()

    def turn(route: str) -> dict[str, Tensor]:
        with torch.no_grad():
            return geometry.ROUTES[route](model, x, case)

    def answers(measures: dict[str, Tensor]) -> Tensor:
        # The radius is a difference of large numbers in float32.
        names = [name for name in geometry.COMPARED if name != "radius"]
        return torch.cat([measures[name].double() for name in names])

    turns = {"ours": partial(turn, "ours"), "plain": partial(turn, "plain")}
    n_pairs = 9 if name == "a" else FEWEST_PAIRS
    return Contest(f"local_geometry, {case.title}", turns, n_pairs, answers, limit=1e-2)


def fit(n: int, peers: Sequence[str], n_iter: int, *, quick: bool) -> Contest:
    n, n_iter = (60, 1) if quick else (n, n_iter)
    small = n <= 300
    d, k = (20, 3) if small else (30, 2)
    x, y, held_out = rfm_peers.table(n, d, k)
    turns = {
        name: partial(rfm_peers.PEERS[name](), x, y, n_iter, rfm_peers.nothing)
        for name in ("ours", *peers)
    }
    return Contest(
        f"a fit of {n} rows, {n_iter} updates", turns, 15 if small else 7,
        answers=lambda predict: predict(held_out).double(), limit=5e-3, short=small,
    )  # fmt: skip


def selection(*, quick: bool) -> Contest:
    table, y = load_breast_cancer(return_X_y=True)
    rows = slice(None, None, 5 if quick else 1)
    table, y, x = table[rows], y[rows], scale(table[rows])
    grid = {
        "svc__C": [0.1, 1.0, 10.0, 100.0, 1000.0],
        "svc__gamma": [1e-4, 1e-3, 1e-2, 1e-1, 1.0],
    }
    svc = make_pipeline(StandardScaler(), SVC())
    turns = {
        "ours": lambda: RFAMClassifierCV(random_state=0).fit(x, y),
        "SVC": lambda: GridSearchCV(svc, grid, cv=5, n_jobs=2).fit(table, y),
    }
    return Contest("RFAMClassifierCV, breast cancer", turns, FEWEST_PAIRS)


def lockstep(method: str, *, quick: bool) -> Contest:
    modular, place = task("modular"), torch.device("cpu")
    instances = {s: modular.build(s, place) for s in range(2 if quick else 10)}
    together = ensemble.Engine(modular, method, instances, "cpu")
    loops = [ensemble.Eager(modular, method, i, "cpu") for i in instances.values()]
    epochs = ensemble.EPOCHS_PER_TURN

    def one_by_one() -> None:
        for loop in loops:
            loop.turn(epochs)

    turns = {"ours": partial(together.turn, epochs), "loop": one_by_one}
    return Contest(f"{len(instances)} seeds in lockstep, {method}", turns, 7)


CONTESTS: dict[str, Callable[..., Contest]] = {
    "step": step,
    **{f"geometry-{name}": partial(local, name) for name in "abcd"},
    "fit-300": partial(fit, 300, ["plain"], 5),
    "fit-2000": partial(fit, 2000, ["plain", "xrfm"], 5),
    "fit-4000": partial(fit, 4000, ["plain", "xrfm"], 1),
    "selection": selection,
    **{f"lockstep-{name}": partial(lockstep, name) for name in ensemble.COMPARED},
}
WITH_XRFM = ("fit-2000", "fit-4000")


# --- measuring and judging --------------------------------------------------------


def seconds_of(
    contest: Contest, *, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Return the seconds of all turns by contestant, after one turn to warm up.

    Raises
    ------
    ValueError
        If the results of ours and a peer differ.
    """
    results = {name: turn() for name, turn in contest.turns.items()}
    if contest.answers is not None:
        ours, *others = (contest.answers(result) for result in results.values())
        for name, other in zip(list(results)[1:], others, strict=True):
            apart = float((ours - other).square().mean() / other.square().mean()) ** 0.5
            if not apart <= contest.limit:
                text = f"{contest.title}: ours and {name} must agree to "
                raise ValueError(f"{text}{contest.limit:g}, got {apart:.2g}.")
    del results
    seconds: dict[str, list[float]] = {name: [] for name in contest.turns}
    for _ in range(contest.n_pairs):
        for name, turn in contest.turns.items():
            rfm_peers.idle(rfm_peers.SETTLE)
            if contest.short:
                turn()
            start = clock()
            turn()
            seconds[name].append(clock() - start)
    return seconds


def ratios_of(seconds: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Return the ratio of ours to each peer for every pair of turns.

    Examples
    --------
    >>> ratios_of({"ours": [1.0, 3.0], "plain": [2.0, 2.0]})
    {'plain': [0.5, 1.5]}
    """
    ours, *peers = seconds
    return {
        peer: [a / b for a, b in zip(seconds[ours], seconds[peer], strict=True)]
        for peer in peers
    }


def quartiles(ratios: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return low, middle, high


def is_lost(ratios: Sequence[float], stored: Sequence[float]) -> bool:
    """Return whether a ratio is lost, by the rule of this file."""
    if statistics.median(ratios) <= (1 + LOSS) * statistics.median(stored):
        return False
    test = stats.mannwhitneyu(ratios, stored, alternative="greater", method="exact")
    return bool(test.pvalue < LEVEL)


def record(seconds: Mapping[str, Sequence[float]], peer: str) -> dict[str, Any]:
    """Return the stored form of a ratio."""
    ratios = ratios_of(seconds)[peer]
    low, middle, high = quartiles(ratios)
    return {
        "ratio": middle, "quartiles": [low, high], "ratios": ratios,
        "seconds": statistics.median(seconds["ours"]),
        "peer_seconds": statistics.median(seconds[peer]),
    }  # fmt: skip


def measure(names: Sequence[str], *, quick: bool) -> dict[str, dict[str, Any]]:
    """Return the record of each ratio, by contest and peer."""
    found = {}
    for name in names:
        start = time.perf_counter()
        contest = CONTESTS[name](quick=quick)
        if quick:
            contest = replace(contest, n_pairs=FEWEST_PAIRS)
        seconds = seconds_of(contest)
        print(f"{contest.title} ({time.perf_counter() - start:.0f} s)", flush=True)
        for peer in list(contest.turns)[1:]:
            found[f"{name}/{peer}"] = record(seconds, peer)
    return found


def compare(
    found: Mapping[str, Mapping[str, Any]], stored: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Print each ratio beside the stored one, and return the names of lost ratios."""
    lost = []
    print(f"{'ours / peer':28}{'ratio':>8}  {'quartiles':16}{'stored':>8}  change")
    for name, one in found.items():
        low, high = one["quartiles"]
        line = f"{name:28}{one['ratio']:8.3f}  {f'{low:.3f} to {high:.3f}':16}"
        before = stored.get(name)
        if before is None:
            print(f"{line}       -")
            continue
        line += f"{before['ratio']:8.3f}  {one['ratio'] / before['ratio'] - 1:+.0%}"
        if is_lost(one["ratios"], before["ratios"]):
            lost.append(name)
            line += "  LOST"
        print(line, flush=True)
    return lost


def read_baselines(path: Path) -> dict[str, dict[str, Any]]:
    """Return the stored ratios by processor; none if there is no file."""
    if not path.exists():
        return {}
    return json.loads(path.read_text(encoding="utf-8"))["devices"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help=f"comma-separated: {','.join(CONTESTS)}")
    parser.add_argument("--reset", action="store_true", help="store a new baseline")
    parser.add_argument("--baseline", type=Path, default=BASELINE, metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, as a test")
    parser.add_argument("--commit", help="commit to record where git has none")
    options = parser.parse_args()
    names = list(CONTESTS) if options.only is None else options.only.split(",")
    if not set(names) <= set(CONTESTS):
        parser.error(f"--only must be among {','.join(CONTESTS)}, got {options.only}")
    if options.reset and options.only:
        parser.error("--reset must be given without --only: a baseline has all ratios")
    if options.quick and options.baseline == BASELINE:
        parser.error("--baseline must be given with --quick, whose ratios differ")
    if set(names) & set(WITH_XRFM) and importlib.util.find_spec("xrfm") is None:
        install = "pip install --constraint constraints.txt xrfm"
        parser.error(f"xrfm must be installed for {', '.join(WITH_XRFM)}: {install}")
    device = device_name("cpu")
    stored = read_baselines(options.baseline)
    if not options.reset and device not in stored:
        parser.error(
            f"--baseline must have ratios of {device}, got {options.baseline} with "
            f"{'; '.join(stored) or 'none'}. Store them from the commit to compare "
            "with: make bench BASELINE=reset"
        )
    start = time.perf_counter()
    found = measure(names, quick=options.quick)
    made = {**provenance(), "quick": options.quick}
    made["commit"] = options.commit or made["commit"]
    made["seconds"] = round(time.perf_counter() - start, 1)
    if options.reset:
        compare(found, {})
        stored[device] = {**made, "ratios": found}
        content = {"benchmark": "bench", "loss": LOSS, "devices": stored}
        print(f"stored in {write_json(options.baseline, content)}")
        return 0
    before = stored[device]
    lost = compare(found, before["ratios"])
    for name in ("threads", "versions", "quick"):
        if made[name] != before[name]:
            print(f"The baseline has other {name}: {before[name]}, now {made[name]}.")
    print(f"{made['seconds']:.0f} s; baseline of commit {before['commit']}")
    known = before["ratios"]
    # without --only the baseline must have exactly the ratios that are measured
    due = {n for n in known if options.only is None or n.partition("/")[0] in names}
    unlike = sorted(found.keys() ^ due)
    if lost:
        print(f"Slower by more than {LOSS:.0%}, with p < {LEVEL:g}: {', '.join(lost)}.")
        print("To accept it: make bench BASELINE=reset, in a commit of its own.")
    if unlike:
        print(f"Only measured, or only in the baseline: {', '.join(unlike)}.")
        print("Store a new one: make bench BASELINE=reset, in a commit of its own.")
    return 1 if lost else 2 if unlike else 0


if __name__ == "__main__":
    sys.exit(main())
