"""An experiment small enough to be killed often, and the command line with it alone.

``python -m tests.tiny serve`` answers each line of words from stdin by a process that
has imported everything already.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
import types
from importlib import import_module

from normalign_reproduction.files import load_cache, write_checked
from normalign_reproduction.spec import Cell, Claim, Item, Size, cross

NAME = "tests.tiny"


def batches(runs, device):
    groups = {}
    for run in runs:
        groups.setdefault(run["group"], []).append(run)
    return list(groups.values())


def compute(batch, context):
    """Iterate the logistic map: one lost or repeated step changes every digit."""
    path = context.checkpoint.with_name(f"{context.checkpoint.name}.state.json")
    start = {"step": 0, "values": [0.1 + 0.01 * run.seed for run in batch]}
    state = load_cache(path) or start
    saved = time.monotonic()
    n_steps = batch[0]["steps"]
    while state["step"] < n_steps:
        misbehave(batch[0]["mode"], batch[0]["group"], state, path)
        time.sleep(batch[0]["pause"])
        state["values"] = [3.9 * value * (1 - value) for value in state["values"]]
        state["step"] += 1
        words = f"step {state['step']} in process {os.getpid()}"
        context.progress(state["step"] / n_steps, words)
        if time.monotonic() - saved > context.checkpoint_seconds:
            saved = time.monotonic()
            write_checked(path, state)
    return [{"value": value} for value in state["values"]]


def misbehave(mode, group, state, path):
    """Fail in the middle of the first group, in the way that the mode says."""
    if mode == "raise_alike":  # in all groups
        raise ValueError("no step is right")
    if group != 0 or state["step"] != 5:
        return
    if mode == "raise":
        raise ValueError("the fifth step\nis too high")
    if mode == "full":
        raise OSError(errno.ENOSPC, "No space left on device")
    failed = path.with_suffix(".failed")
    if mode == "too_large" or (mode == "crowded" and not failed.exists()):
        failed.write_text("")
        raise import_module("torch").OutOfMemoryError("Tried to allocate 1 TiB")
    if mode == "die" or (mode == "die_once" and not failed.exists()):
        failed.write_text("")
        write_checked(path, state)
        os.kill(os.getpid(), signal.SIGKILL)


def logistic(seed, n_steps=40):
    """The result of a run."""
    value = 0.1 + 0.01 * seed
    for _ in range(n_steps):
        value = 3.9 * value * (1 - value)
    return value


def is_chaotic(records):
    return [Cell("all", "0 to 1", "0 to 1", holds=len(records) > 0)]


def item(name="steady", *, mode="none", pause=0.0, groups=3, **changes):
    return Item(
        **{
            "name": name,
            "reference": f"Table {name}",
            "title": "The logistic map",
            "shows": "That it goes on.",
            "experiment": NAME,
            "variants": cross(group=range(groups)),
            "settings": {"released": {"mode": mode, "pause": pause}},
            "sizes": {
                "quick": Size(2, {"steps": 40}, seconds={"cpu": 12.0}),
                "full": Size(3, {"steps": 80}, seconds={"cuda": 3.0}),
            },
            "claims": [Claim("It is chaotic", "values differ", is_chaotic)],
            **changes,
        }
    )


ITEMS = {
    one.name: one
    for one in (
        item(pause=0.005),
        item("failing", mode="raise"),
        item("alike", mode="raise_alike", groups=5),
        item("filling", mode="full"),
        item("slow", pause=0.05),
        item("training", experiment="tests.tiny_training"),
    )
}


def install():
    """Put the tiny items in the place of the paper's."""
    from normalign_reproduction import catalogue

    catalogue.NAMES = tuple(ITEMS)
    for name, one in ITEMS.items():
        module = types.ModuleType(f"normalign_reproduction.items.{name}.item")
        module.ITEM = one
        sys.modules[module.__name__] = module
    catalogue.item.cache_clear()


def serve():
    """Run each line of words in a process; write its number and its exit code."""
    # What every process needs is imported once, before the forks.
    for name in ("report.files", "runner", "training"):
        import_module(f"normalign_reproduction.{name}")
    import_module("tests.tiny_training")
    from normalign.cli import main

    for line in sys.stdin:
        request = json.loads(line)
        if not (child := os.fork()):
            # Ignored where the tests run in the background.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number, path in ((1, request["out"]), (2, request["err"])):
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(file, number)
            sys.exit(main(request["words"]))
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    # Other processes import the experiment by its name, not as a script.
    from tests import tiny

    tiny.install()
    tiny.serve()
