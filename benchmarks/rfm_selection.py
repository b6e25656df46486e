"""Whether float32 chooses the hyperparameters that float64 chooses.

    NORMALIGN_DATA=... python benchmarks/rfm_selection.py     about five minutes
    python benchmarks/rfm_selection.py --quick                the ten smallest tables

The released protocol of the paper's Table 2 on every UCI table of at most 1500 rows:
ridge in {10, 1, .1, .01, .001} times iteration 0 to 4, by the accuracy on the
collection's own split; Laplace kernel of bandwidth 10, one-hot targets, once from the
identity (RFM) and once from the covariance (RFAM). Among equals the largest ridge and
then the fewest iterations are chosen. Three routes choose: ours in float32, ours in
float64 and, as a check of the latter, the plain transcription in float64.

Printed: the share of choices, and of tables with all their choices, in which a route
agrees with ours in float64, and every disagreement with the accuracies of both choices.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from normalign.kernels import Laplace, initial_metric, recursions
from normalign_reproduction.data import UCICollection, UCITable
from normalign_reproduction.provenance import commit

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kernels"))
import transcription

RIDGES = (10.0, 1.0, 0.1, 0.01, 0.001)
N_ITER = 4
BANDWIDTH = 10.0
STARTS = {"RFM": 1.0, "RFAM": 0.0}  # identity weight of the first metric
WANTED = 0.98

Outputs = Callable[[Tensor], Tensor]


def ours(x: Tensor, y: Tensor, ridge: float, weight: float) -> Iterator[Outputs]:
    for iteration in recursions(
        x, y, kernel=Laplace(bandwidth=BANDWIDTH), ridge=ridge, n_iter=N_ITER,
        metric=initial_metric(x, identity_weight=weight),
        generator=torch.Generator().manual_seed(0),
    ):  # fmt: skip
        yield iteration.machine


def plain(x: Tensor, y: Tensor, ridge: float, weight: float) -> Iterator[Outputs]:
    for metric, coef in transcription.rfm(
        x, y, ridge=ridge, n_iter=N_ITER, identity_weight=weight, bandwidth=BANDWIDTH,
        exact=True,
    ):  # fmt: skip
        yield lambda z, metric=metric, coef=coef: transcription.outputs(
            z, x, coef, metric, bandwidth=BANDWIDTH, exact=True
        )


ROUTES = {
    "float64": (ours, torch.float64),
    "float32": (ours, torch.float32),
    "plain": (plain, torch.float64),
}


def scores(table: UCITable, route: str, weight: float) -> list[list[int]]:
    """Right answers on the validation rows, per ridge and iteration."""
    machines, dtype = ROUTES[route]
    train, validation = table.split
    x, labels = table.x.to(dtype), table.y
    y = torch.nn.functional.one_hot(labels[train], table.n_classes).to(dtype)
    found = []
    for ridge in RIDGES:
        found.append([
            int((f(x[validation]).argmax(1) == labels[validation]).sum())
            for f in machines(x[train], y, ridge, weight)
        ])  # fmt: skip
    return found


def choice(right: list[list[int]]) -> tuple[int, int]:
    """The first of the best, in the order of the ridges and of the iterations."""
    flat = [(i, j) for i in range(len(right)) for j in range(len(right[i]))]
    return max(flat, key=lambda at: right[at[0]][at[1]])


def compared(table: UCITable) -> Iterator[dict[str, Any]]:
    rows = len(table.split[1])
    for method, weight in STARTS.items():
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            right = {route: scores(table, route, weight) for route in ROUTES}
        chosen = {route: choice(right[route]) for route in ROUTES}
        yield {
            "table": table.name, "n": len(table.x), "d": table.x.shape[1],
            "k": table.n_classes, "method": method,
            "chosen": {
                route: {"ridge": RIDGES[i], "iteration": j}
                for route, (i, j) in chosen.items()
            },
            # what each choice is worth, by the float64 machines
            "accuracy": {
                route: right["float64"][i][j] / rows for route, (i, j) in chosen.items()
            },
            "cells_that_differ": {
                route: sum(
                    a != b
                    for one, other in zip(right[route], right["float64"], strict=True)
                    for a, b in zip(one, other, strict=True)
                )
                for route in ROUTES
            },
            "warnings": sorted({str(one.message) for one in said}),
        }  # fmt: skip


def summary(records: list[dict[str, Any]], route: str) -> dict[str, Any]:
    same = [r["chosen"][route] == r["chosen"]["float64"] for r in records]
    equal = [r["accuracy"][route] == r["accuracy"]["float64"] for r in records]
    names = {r["table"] for r in records}
    apart = {r["table"] for r, one in zip(records, same, strict=True) if not one}
    return {
        "choices": len(records),
        "same": sum(same) / len(records),
        "tables_same": 1 - len(apart) / len(names),
        "same_or_as_accurate": sum(equal) / len(records),
        "cells_that_differ": sum(r["cells_that_differ"][route] for r in records),
        "cells": len(records) * len(RIDGES) * (N_ITER + 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--max-rows", type=int, default=1500)
    parser.add_argument("--data-dir", type=Path, help="looked in first")
    parser.add_argument("--quick", action="store_true", help="the ten smallest tables")
    parser.add_argument("--save", type=Path, help="write the JSON to this file too")
    parser.add_argument("--commit", help="what is measured, where git cannot tell")
    options = parser.parse_args()
    start = time.perf_counter()
    collection = UCICollection.locate(options.data_dir)
    tables = [table for table in collection if len(table.x) <= options.max_rows]
    tables.sort(key=lambda table: len(table.x))
    if options.quick:
        tables = tables[:10]
    records = []
    for table in tables:
        for record in compared(table):
            records.append(record)
            if len({str(made) for made in record["chosen"].values()}) > 1:
                print(disagreement(record), flush=True)
    routes = {route: summary(records, route) for route in ("float32", "plain")}
    for route, found in routes.items():
        print(
            f"{route:8} chooses as float64 in {100 * found['same']:.1f} % of "
            f"{found['choices']} choices and on {100 * found['tables_same']:.1f} % of "
            f"{len(tables)} tables, as accurate a one in "
            f"{100 * found['same_or_as_accurate']:.1f} %; "
            f"{found['cells_that_differ']} of {found['cells']} accuracies differ"
        )
    result = {
        "benchmark": "rfm_selection", "quick": options.quick, "tables": len(tables),
        "max_rows": options.max_rows, "routes": routes,
        "passed": routes["float32"]["tables_same"] >= WANTED,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "torch": torch.__version__, "python": platform.python_version(),
        "commit": options.commit or commit(), "seconds": time.perf_counter() - start,
        "records": records,
    }  # fmt: skip
    if options.save:
        options.save.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


def disagreement(record: dict[str, Any]) -> str:
    made = ", ".join(
        f"{route}: ridge {at['ridge']:g} iteration {at['iteration']} "
        f"({100 * record['accuracy'][route]:.2f} %)"
        for route, at in record["chosen"].items()
    )
    return f"{record['table']} ({record['n']} rows, {record['method']}): {made}"


if __name__ == "__main__":
    main()
