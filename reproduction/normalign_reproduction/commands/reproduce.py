"""``normalign reproduce``: rerun tables and figures, and write the report."""

from __future__ import annotations

import argparse
import errno
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normalign.cli import note, say
from normalign_reproduction.commands import _options, _terminal

if TYPE_CHECKING:
    from normalign_reproduction.plan import ItemPlan
    from normalign_reproduction.store import Store
    from normalign_reproduction.worker import BatchResult

__all__ = ["add_to", "run"]

_MAX_TRACEBACKS = 3  # named for failures with the same error
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def add_to(commands: Any) -> None:
    """Add the command to the parser's subcommands."""
    parser = commands.add_parser(
        "reproduce",
        allow_abbrev=False,
        help="rerun the paper's tables and figures and write the report",
        description="Rerun the paper's tables and figures, all by default, and write a "
        "report. Runs that are already stored are skipped. After Ctrl-C or a crash the "
        "same command continues from the last checkpoint.",
    )
    digits = "MNIST if found, else the 5000 embedded digits"
    _options.add_options(parser, digits=digits)
    add = parser.add_argument
    text = "default: %(default)s, a GPU if there is one"
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help=text)
    text = "batches to run at once (default: one per core, one on a GPU)"
    add("--jobs", type=_jobs, metavar="N|auto", help=text)
    text = "joblib backend that runs them (default: %(default)s, local processes)"
    add("--backend", choices=("loky", "dask", "ray"), default="loky", help=text)
    text = "also write one file of results for each item"
    add("--archive", type=Path, metavar="DIR", help=text)
    text = "seconds between checkpoints of a batch (default: %(default)s)"
    add("--checkpoint-seconds", type=_seconds, default=15.0, metavar="S", help=text)
    text = "print the plan and the expected time, run nothing"
    add("--dry-run", action="store_true", help=text)
    text = "commit to record in the results where there is no git repository"
    add("--commit", metavar="SHA", help=text)
    parser.set_defaults(run=run)


def _jobs(text: str) -> int | None:
    return None if text == "auto" else _options.at_least_one(text)


def _seconds(text: str) -> float:
    try:
        if 0 < float(text) < math.inf:
            return float(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")


def run(arguments: argparse.Namespace) -> int:
    """Compute what is missing; write the report and print where it is."""
    _options.check_folders(arguments)
    items, work = _options.select_items(arguments), arguments.out / "work"
    import torch

    from normalign_reproduction.data.digits import digits_source
    from normalign_reproduction.plan import make_plan
    from normalign_reproduction.runner import choose_jobs, exclusive, store_pending

    has_gpu = torch.cuda.is_available()
    if arguments.device == "cuda" and not has_gpu:
        raise ValueError("normalign reproduce: --device cuda needs a GPU, found none.")
    device = "cuda" if has_gpu and arguments.device != "cpu" else "cpu"
    jobs, threads = choose_jobs(arguments.jobs, device=device)
    arguments.digits = arguments.digits or digits_source()
    store, settings = _options.store_of(arguments), _options.settings_of(arguments)
    if arguments.dry_run:
        plans = make_plan(items, store=store, device=device, **settings)
        _print_plan(plans, device, jobs)
        return 0
    try:
        _make_folders(arguments)
        with exclusive(work):
            store_pending(work, store)
            plans = make_plan(items, store=store, device=device, **settings)
            if arguments.archive is not None:
                _check_archives(plans, arguments.archive)
            return _reproduce(plans, store, arguments, jobs, threads)
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        note(
            f"normalign reproduce: no space is left for {arguments.out} ({error}). "
            "Nothing stored is lost: free some space and repeat the command."
        )
        return 1


def _make_folders(arguments: argparse.Namespace) -> None:
    names = ("results", "work", "tables", "figures")
    folders = [arguments.out / name for name in names]
    if arguments.archive is not None:
        folders.append(arguments.archive)
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno in _NO_SPACE:
                raise
            text = f"normalign reproduce: cannot make the folder {folder}"
            raise ValueError(f"{text} ({error.strerror}).") from error


def _reproduce(
    plans: list[ItemPlan],
    store: Store,
    arguments: argparse.Namespace,
    jobs: int,
    threads: int | None,
) -> int:
    from normalign_reproduction.commands.compare import judge_claims, totals
    from normalign_reproduction.provenance import device_name, provenance
    from normalign_reproduction.runner import run_batches

    batches = [batch for plan in plans for batch in plan.batches]
    failed: list[BatchResult] = []
    work = (arguments.out / "work").absolute()
    if batches:
        device = batches[0].device
        note(_describe_plan(plans, device, jobs))
        made = provenance()
        made["commit"] = arguments.commit or made["commit"]
        made |= {"device": device_name(device), "at_a_time": min(jobs, len(batches))}
        try:
            failed = run_batches(
                batches,
                store,
                work,
                made=made,
                jobs=jobs,
                backend=arguments.backend,
                threads=threads,
                checkpoint_seconds=arguments.checkpoint_seconds,
                stream=sys.stderr,
            )
        except KeyboardInterrupt:
            runs = {run.key: run for plan in plans for run in plan.runs}
            n_stored = len(store.records(list(runs.values())))
            note(
                f"normalign reproduce: interrupted; {n_stored} of {len(runs)} runs are "
                "stored. The same command continues from here."
            )
            return 130
    page = _options.write_page("reproduce", arguments)
    claims = judge_claims(_options.load_outcomes(arguments))
    size = "full" if arguments.full else "quick"
    say(f"At {size} size {totals(claims)}\nreport: {page}")
    if failed:
        _print_failures(failed, len(batches), work)
        return 1
    if arguments.archive is not None:
        _write_archives(plans, store, arguments.archive)
    return 0


def _describe_plan(plans: list[ItemPlan], device: str, jobs: int) -> str:
    from normalign_reproduction.plan import expected_seconds
    from normalign_reproduction.progress import duration

    batches = [batch for plan in plans for batch in plan.batches]
    n_runs = sum(len(batch.runs) for batch in batches)
    return (
        f"{n_runs} runs in {len(batches)} batches on {device}, {jobs} at a time; "
        f"expected time: {duration(expected_seconds(batches, jobs))}"
    )


def _print_plan(plans: list[ItemPlan], device: str, jobs: int) -> None:
    from normalign_reproduction.plan import expected_seconds
    from normalign_reproduction.progress import duration

    rows = []
    for plan in plans:
        n_missing = sum(len(batch.runs) for batch in plan.batches)
        seconds = expected_seconds(plan.batches, jobs)
        finished = f"{plan.n_finished} of {len(plan.runs)}"
        counts = (finished, str(n_missing), str(len(plan.batches)), duration(seconds))
        rows.append((plan.item.name, plan.item.reference, *counts))
    heads = ("name", "in the paper", "finished", "to run", "batches", "time")
    say(_terminal.table(heads, rows))
    say(_describe_plan(plans, device, jobs))


def _print_failures(failed: list[BatchResult], n_batches: int, work: Path) -> None:
    """Print each error once, with the files of its tracebacks."""
    note(f"normalign reproduce: {len(failed)} of {n_batches} batches failed:")
    groups: dict[tuple[str, str], list[BatchResult]] = {}
    for one in failed:
        groups.setdefault((one.batch.item, one.error), []).append(one)
    for (item, error), group in groups.items():
        n_runs = sum(len(one.batch.runs) for one in group)
        note(f"  {item}, {n_runs} run{'s' * (n_runs > 1)}: {error}")
        for one in group[:_MAX_TRACEBACKS]:
            note(f"    {work / one.batch.key}.error")
        if len(group) > _MAX_TRACEBACKS:
            note(f"    and {len(group) - _MAX_TRACEBACKS} more")
    note("All other runs are stored; the same command tries these again.")


def _archive_path(plan: ItemPlan, folder: Path) -> Path:
    run = plan.runs[0]
    return folder / f"{plan.item.name}-{run.size}-{run.preset}.json"


def _check_archives(plans: list[ItemPlan], folder: Path) -> None:
    """Raise rather than replace an archive by one that lacks some of its runs."""
    from normalign_reproduction.store import read_archive

    for plan in plans:
        path = _archive_path(plan, folder)
        stored = read_archive(path) if path.exists() else []
        lost = {one.run.key for one in stored} - {run.key for run in plan.runs}
        if lost:
            raise ValueError(
                f"normalign reproduce: --archive would remove {len(lost)} runs from "
                f"{path}. Use the same --seeds and --digits, or another folder."
            )


def _write_archives(plans: list[ItemPlan], store: Store, folder: Path) -> None:
    from normalign_reproduction.store import write_archive

    for plan in plans:
        run = plan.runs[0]
        about = {"item": plan.item.name, "size": run.size, "preset": run.preset}
        records, path = store.records(plan.runs), _archive_path(plan, folder)
        note(f"archive: {write_archive(path, records, **about)}")
