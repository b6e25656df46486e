"""`python -m tests.fuzz`: run random cases; exit 1 if one fails or no case ran."""

from __future__ import annotations

import argparse
import os
import secrets
import sys

from tests.fuzz.driver import PACKAGE, QUOTAS, check_case, draw_case, run


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "--seconds",
        type=float,
        default=float(os.environ.get("FUZZ_SECONDS") or 600),
        help="start no case after so many seconds (default: $FUZZ_SECONDS or 600)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=int(os.environ.get("FUZZ_SEED") or secrets.randbits(32)),
        help="default: $FUZZ_SEED or a random one",
    )
    parser.add_argument("--only", choices=QUOTAS, help="run one family")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--case", type=int, help="run only this case of the family")
    arguments = parser.parse_args()
    if arguments.case is not None and arguments.only is None:
        parser.error("--case needs --only, the family of the case")
    return arguments


def main() -> int:
    """Run the families, print the counts, and return the exit status."""
    options = _arguments()
    if options.case is not None:
        case = draw_case(PACKAGE, options.only, options.seed, options.case)
        print(case)
        check_case(PACKAGE, options.only, case)
        print("passed")
        return 0
    quotas = QUOTAS if options.only is None else {options.only: 10**9}
    print(f"seed {options.seed}, no new case after {options.seconds:g} s", flush=True)
    summary = run(
        quotas, seconds=options.seconds, seed=options.seed, n_workers=options.workers
    )
    failures = [failure.family for failure in summary.failures]
    for family in quotas:
        count, failed = summary.counts[family], failures.count(family)
        print(f"{family:16} {count:6} cases, {failed} failed")
    print(
        f"{summary.counts.total()} cases in {summary.seconds:.0f} s, "
        f"{len(failures)} failed (seed {options.seed})"
    )
    if failures:
        family, index = summary.failures[0].family, summary.failures[0].index
        print(
            f"Repeat one of them: python -m tests.fuzz --only {family} "
            f"--seed {options.seed} --case {index}"
        )
    idle = [family for family in quotas if not summary.counts[family]]
    if idle:
        print(f"No case ran for: {', '.join(idle)}. Increase --seconds.")
    return 1 if failures or idle else 0


if __name__ == "__main__":
    sys.exit(main())
