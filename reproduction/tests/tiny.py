"""An experiment small enough to be killed often, and the command line with it alone.

As a script it takes the words of the command line; with ``serve`` it stays, and answers
each line of words from stdin by a process of its own that has all imported already.
"""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import sys
import time
import types
from importlib import import_module

from normalign_reproduction.spec import Item, Size, cross

NAME = "tests.tiny"


def batches(runs, device):
    groups = {}
    for run in runs:
        groups.setdefault(run["group"], []).append(run)
    return list(groups.values())


def compute(batch, context):
    """Iterate the logistic map: one lost or doubled step changes every digit."""
    kept = context.checkpoint.with_name(f"{context.checkpoint.name}.state.json")
    state = {"step": 0, "values": [0.1 + 0.01 * run.seed for run in batch]}
    if kept.exists():
        state = json.loads(kept.read_text())
    saved = time.monotonic()
    n_steps = batch[0]["steps"]
    while state["step"] < n_steps:
        misbehave(batch[0]["mode"], batch[0]["group"], state, kept)
        time.sleep(batch[0]["pause"])
        state["values"] = [3.9 * value * (1 - value) for value in state["values"]]
        state["step"] += 1
        context.progress(state["step"] / n_steps, f"step {state['step']}")
        if time.monotonic() - saved > context.checkpoint_seconds:
            saved = time.monotonic()
            save(kept, state)
    return [{"value": value, "steps": n_steps} for value in state["values"]]


def save(kept, state):
    draft = kept.with_suffix(".draft")
    draft.write_text(json.dumps(state))
    draft.replace(kept)


def misbehave(mode, group, state, kept):
    """Fail in the middle of the first group, in the way the mode says, or of all."""
    if mode == "raise_alike":
        raise ValueError("no step is right")
    if group != 0 or state["step"] != 5:
        return
    if mode == "raise":
        raise ValueError("the fifth step\nis too high")
    if mode == "full":
        raise OSError(errno.ENOSPC, "No space left on device")
    died = kept.with_suffix(".died")
    if mode == "too_large" or (mode == "crowded" and not died.exists()):
        # A GPU's memory is taken by others, or was never enough.
        died.write_text("")
        raise import_module("torch").OutOfMemoryError("Tried to allocate 1 TiB")
    if mode == "die" or (mode == "die_once" and not died.exists()):
        died.write_text("")
        save(kept, state)
        os.kill(os.getpid(), signal.SIGKILL)


def mean_value(records):
    values = [record.result.get("value", math.nan) for record in records]
    return f"The mean is {math.fsum(values) / len(values)!r}."


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
            "finding": mean_value,
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
        item("dying", mode="die", pause=0.01),
        item("dying_once", mode="die_once", pause=0.01),
        item("slow", pause=0.05),
        item("training", experiment="tests.tiny_training"),
    )
}


def install():
    """Put the tiny items in the place of the paper's."""
    from normalign_reproduction import catalogue

    catalogue.NAMES = tuple(ITEMS)
    for name, one in ITEMS.items():
        home = types.ModuleType(f"normalign_reproduction.items.{name}.item")
        home.ITEM = one
        sys.modules[home.__name__] = home
    catalogue.item.cache_clear()


def serve():
    """Answer each line of words by a process; tell its number and how it ended."""
    # What every process needs is imported once, before it is born.
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
                opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(opened, number)
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
    if sys.argv[1:] == ["serve"]:
        tiny.serve()
    else:
        from normalign.cli import main

        sys.exit(main(sys.argv[1:]))
