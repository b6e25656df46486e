"""``normalign reproduce``: rerun tables and figures, and write the report."""

from __future__ import annotations

import argparse
import errno
import math
import os
import shlex
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normalign.cli import note, say, table
from normalign_reproduction._errors import complaint, require
from normalign_reproduction.commands import options
from normalign_reproduction.commands.unchanged import (
    fingerprint,
    load_output,
    save_output,
)

if TYPE_CHECKING:
    from normalign_reproduction.plan import ItemPlan, Plan
    from normalign_reproduction.runner import Performance
    from normalign_reproduction.spec import Item
    from normalign_reproduction.store import Store
    from normalign_reproduction.worker import BatchEnd

__all__ = ["add_to", "run"]

_CALLEE = "normalign reproduce"
_FOLDERS = ("tables", "figures")
_TRACES = 3  # named of failures that say the same


def add_to(commands: Any) -> None:
    """Add the command to the parser's subcommands."""
    parser = commands.add_parser(
        "reproduce", allow_abbrev=False,
        help="rerun the paper's tables and figures and write the report",
        description="Rerun the paper's tables and figures, all by default, and write a "
        "report. Runs that are already stored are skipped. After Ctrl-C or a crash the "
        "same command continues from the last checkpoint.",
    )  # fmt: skip
    options.add_options(parser)
    add = parser.add_argument
    add(
        "--digits", choices=("mnist", "digits_5000"),
        help="which digits to use (default: MNIST if found, else the embedded ones)",
    )  # fmt: skip
    add(
        "--device", choices=("auto", "cpu", "cuda"), default="auto",
        help="default: %(default)s, a GPU if there is one",
    )  # fmt: skip
    add(
        "--jobs", default="auto", metavar="N|auto",
        help="batches to run at once (default: one per core, one on a GPU)",
    )  # fmt: skip
    add(
        "--backend", choices=("loky", "dask", "ray"), default="loky",
        help="joblib backend that runs them (default: %(default)s, local processes)",
    )  # fmt: skip
    add(
        "--archive", type=Path, metavar="DIR",
        help="also write one file of results for each item",
    )  # fmt: skip
    add(
        "--checkpoint-seconds", type=float, default=15.0, metavar="S",
        help="seconds between checkpoints of a batch (default: %(default)s)",
    )  # fmt: skip
    add(
        "--dry-run",
        action="store_true",
        help="print the plan and the expected time, run nothing",
    )
    add(
        "--commit", metavar="SHA",
        help="commit to record in the results where there is no git repository",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Do what is missing; print the findings and where the report is."""
    options.check_options(arguments, _CALLEE)
    jobs, every = _jobs(arguments.jobs), arguments.checkpoint_seconds
    rule = "a finite number above 0"
    require(0 < every < math.inf, _CALLEE, "--checkpoint-seconds", rule, every)
    memory = arguments.out / "unchanged.json"
    # A copy of a folder, or the same words elsewhere, are another command.
    places = (arguments.out, *options.archives(arguments))
    words = [*options.words_of(arguments), *(str(place.resolve()) for place in places)]
    lasting = not (arguments.dry_run or arguments.archive)
    if lasting and (before := load_output(memory, words)) is not None:
        say(before)
        return 0
    try:
        return _reproduce(arguments, jobs, memory if lasting else None, words)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        note(_no_space(arguments.out, str(error)))
        return 1


def _reproduce(
    arguments: argparse.Namespace, jobs: int | None, memory: Path | None, words: Any
) -> int:
    before: list[tuple[str, list[Path]]] = [(fingerprint(words, []), [])]  # the code
    from normalign_reproduction.data.digits import digits_source
    from normalign_reproduction.plan import make_plan
    from normalign_reproduction.runner import jobs_for

    given = _input_files(arguments)
    before.append((fingerprint(words, given), given))
    device, out = _device(arguments.device), arguments.out
    n_jobs, threads = jobs_for(jobs, device=device)
    items, store = options.select_items(arguments), options.store_of(arguments)
    asked: dict[str, Any] = {
        "size": options.size_of(arguments), "preset": arguments.preset,
        "digits": arguments.digits or digits_source(), "seeds": arguments.seeds,
    }  # fmt: skip
    plan = make_plan(
        items, **asked, device=device, store=store, work=out / "work", jobs=n_jobs
    )
    if arguments.archive is not None:
        _check_archives(plan, arguments.archive)
    if arguments.dry_run:
        _print_plan(plan, device, n_jobs)
        return 0
    _prepare(arguments)
    if plan.batches:
        _announce(plan, device, n_jobs)
        performance = _perform(plan, arguments, device, n_jobs, threads)
        if performance.interrupted:
            _tell_interrupted(plan, store)
            return 130
        if performance.full is not None:
            note(_no_space(out, performance.full.error))
            return 1
        if performance.failures:
            _report(arguments, items, store, asked)
            _tell_failures(performance, out / "work")
            return 1
    before.append((fingerprint(words, [out / "results"]), [out / "results"]))
    printed = _report(arguments, items, store, asked)
    if arguments.archive is not None:
        _write_archives(plan, store, arguments.archive)
    if memory is not None:
        report = [out / name for name in ("results", "report.html", *_FOLDERS)]
        seen = [*given, *report]
        save_output(memory, words, printed, seen=seen, before=before)
    return 0


def _perform(
    plan: Plan,
    arguments: argparse.Namespace,
    device: str,
    jobs: int,
    threads: int | None,
) -> Performance:
    from normalign_reproduction.provenance import device_name, provenance
    from normalign_reproduction.runner import run_plan
    from normalign_reproduction.worker import Workplace

    # The pool replaces a process that grew or rested; nothing is lost by it.
    warnings.filterwarnings("ignore", "A worker stopped while some jobs were given")
    made = provenance()
    made["commit"] = arguments.commit or made["commit"]
    made["device"] = device_name(device)
    made["at_a_time"] = min(jobs, len(plan.batches))
    out = arguments.out.absolute()
    place = Workplace(
        out / "results", out / "work", device, threads, made,
        checkpoint_seconds=arguments.checkpoint_seconds,
    )  # fmt: skip
    return run_plan(
        plan, place, jobs=jobs, backend=arguments.backend, stream=sys.stderr
    )


def _report(
    arguments: argparse.Namespace, items: list[Item], store: Store, asked: Any
) -> str:
    """Write the report; print what was found and where the report is."""
    from normalign_reproduction.report.files import write_report
    from normalign_reproduction.report.outcome import outcomes

    command = shlex.join(["normalign", "reproduce", *options.words_of(arguments)])
    report = write_report(
        arguments.out, items=items, store=store, command=command, **asked
    )
    lines = []
    for one in outcomes(items, store=store, **asked):
        lines.append(f"{one.item.reference}, {one.item.title} ({one.about})")
        lines.append(f"  {one.finding or one.missing}")
        counts = {"hold": True, "do not": False, "cannot be told": None}
        said = [f"{one.count(how)} {word}" for word, how in counts.items()]
        lines += [f"  claims: {', '.join(said)}"] if one.verdicts else []
    printed = "\n".join([*lines, f"report: {report}"])
    say(printed)
    return printed


def _print_plan(plan: Plan, device: str, jobs: int) -> None:
    from normalign_reproduction.progress import duration

    rows = [
        (
            part.item.name,
            part.item.reference,
            f"{part.finished} of {len(part.runs)}",
            f"{sum(batch.missing for batch in part.batches)}",
            f"{len(part.batches)}",
            f"{sum(batch.begun for batch in part.batches)}",
            duration(part.seconds) if part.batches else "-",
        )
        for part in plan.parts
    ]
    columns = ("item", "reference", "finished", "to run", "batches", "begun", "time")
    table(f"Plan for {device}, {jobs} at a time", columns, rows)
    say(f"{plan.missing} runs to do; expected time: {duration(plan.seconds)}")


def _announce(plan: Plan, device: str, jobs: int) -> None:
    from normalign_reproduction.progress import duration

    note(
        f"{plan.missing} runs in {len(plan.batches)} batches on {device}, {jobs} at a "
        f"time; expected time: {duration(plan.seconds)}"
    )


def _tell_interrupted(plan: Plan, store: Store) -> None:
    runs = {run.key: run for part in plan.parts for run in part.runs}
    n_stored = len(store.records(list(runs.values())))
    note(
        f"{_CALLEE}: interrupted; {n_stored} of {len(runs)} runs are stored. The same "
        "command continues from here."
    )


def _tell_failures(performance: Performance, work: Path) -> None:
    failures = performance.failures
    note(f"{_CALLEE}: {len(failures)} of {len(performance.ended)} batches failed:")
    alike: dict[tuple[str, str], list[BatchEnd]] = {}
    for one in failures:
        alike.setdefault((one.batch.item, str(one.error)), []).append(one)
    for (item, error), group in alike.items():
        runs = sum(len(one.batch.runs) for one in group)
        note(f"  {item}, {runs} runs: {error}" if runs > 1 else f"  {item}: {error}")
        traces = [work / f"{one.batch.key}.error" for one in group]
        there = [trace for trace in traces if trace.exists()]
        for trace in there[:_TRACES]:
            note(f"    {trace}")
        if len(there) > _TRACES:
            note(f"    and {len(there) - _TRACES} more")
    note("All other runs are stored; the same command tries these again.")


def _no_space(out: Path, error: str) -> str:
    return complaint(
        _CALLEE, "--out", "on a disk with space left", f"{out}: {error}",
        "Nothing stored is lost: free some space and repeat the command.",
    )  # fmt: skip


def _prepare(arguments: argparse.Namespace) -> None:
    """Make the folders that are written to, or refuse those that cannot be."""
    out, archive = arguments.out, arguments.archive
    wanted = {out: "--out"} | ({archive: "--archive"} if archive is not None else {})
    for folder, option in wanted.items():
        rule = "a folder that can be written to"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise
            got = f"{folder}: {error.strerror}"
            raise ValueError(complaint(_CALLEE, option, rule, got)) from error
        require(os.access(folder, os.W_OK), _CALLEE, option, rule, f"{folder}")
    for name in ("results", "work", *_FOLDERS):
        inner = out / name
        fits, got = (
            inner.is_dir() or not inner.exists(),
            f"{out}, in which it is a file",
        )
        require(fits, _CALLEE, "--out", f"one in which {name} is a folder", got)


def _input_files(arguments: argparse.Namespace) -> list[Path]:
    """Return what the printed text depends on, beside the code and the results."""
    from normalign.data import MNIST, search_path

    data = [folder / file.path for folder in search_path() for file in MNIST.files]
    places = (*options.archives(arguments), *data)
    return [place.absolute() for place in places]


def _device(asked: str) -> str:
    import torch

    there = torch.cuda.is_available()
    require(
        there or asked != "cuda", _CALLEE, "--device",
        "a device of this machine", "'cuda', of which there is none",
    )  # fmt: skip
    return "cuda" if there and asked != "cpu" else "cpu"


def _jobs(asked: str) -> int | None:
    if asked == "auto":
        return None
    legal = asked.isdecimal() and int(asked) >= 1
    require(legal, _CALLEE, "--jobs", "'auto' or a number from 1 on", repr(asked))
    return int(asked)


def _check_archives(plan: Plan, folder: Path) -> None:
    """Refuse to write an archive in place of one that has further runs.

    Raises
    ------
    ValueError
        If runs would be lost, or an archive there is damaged.
    """
    from normalign_reproduction.store import read_archive

    for part in plan.parts:
        path = _archive_path(part, folder)
        if not path.exists():
            continue
        held = {record.run.key for record in read_archive(path)}
        lost = len(held - {run.key for run in part.runs})
        require(
            not lost, _CALLEE, "--archive", "a folder whose archives lose no runs",
            f"{path}, which has {lost} runs that are not asked for here",
            "Ask for the same --seeds and --digits, name another folder, or move that "
            "file away.",
        )  # fmt: skip


def _write_archives(plan: Plan, store: Store, folder: Path) -> None:
    """Write the archives of what was planned, and note where they are."""
    from normalign_reproduction.store import write_archive

    for part in plan.parts:
        run = part.runs[0]
        about = {"item": part.item.name, "size": run.size, "preset": run.preset}
        records = store.records(part.runs)
        path = write_archive(_archive_path(part, folder), records, **about)
        note(f"archive: {path}")


def _archive_path(part: ItemPlan, folder: Path) -> Path:
    run = part.runs[0]
    return folder / f"{part.item.name}-{run.size}-{run.preset}.json"
