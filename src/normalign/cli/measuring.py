"""The long part of ``normalign measure``: told as it goes, kept when it ends early."""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn

from normalign._errors import complaint
from normalign.cli.output import note
from normalign.geometry import LayerProfile, MatrixFreeOptions, ProfileRun
from normalign.geometry._layer_profile import INPUT
from normalign.geometry._local_geometry import GeometryPlan

__all__ = ["Measurement"]

SECONDS_BETWEEN_NOTES = 5.0

# How torch says on a CPU that there is no room; on a GPU it has a kind of its own.
_NO_ROOM = ("can't allocate memory", "not enough memory", "bad allocation")


class Measurement:
    """One measurement of a user's model.

    Parameters
    ----------
    arguments : argparse.Namespace
        Those of the command: ``at``, ``profile``, ``method``, ``batch_limit``.
    """

    def __init__(
        self,
        callee: str,
        model: nn.Module,
        x: Tensor,
        y: Tensor | None,
        arguments: argparse.Namespace,
        device: torch.device,
    ) -> None:
        self._callee, self._model, self._arguments = callee, model, arguments
        self._x, self._y, self._device = x, y, device
        self._run: ProfileRun | None = None

    def work(self) -> BaseException | None:
        """Measure; return what ended it early, if anything did and some is finished."""
        try:
            self._measure()
        except KeyboardInterrupt as stop:
            return self._end_early(stop, "interrupted")
        except (torch.OutOfMemoryError, MemoryError) as error:
            return self._end_early(self._no_room(error), "out of memory")
        except (RuntimeError, LookupError, ArithmeticError, AssertionError) as error:
            if any(words in str(error) for words in _NO_ROOM):
                return self._end_early(self._no_room(error), "out of memory")
            # What torch and the model's own code say when shapes, dtypes or values do
            # not fit: a token beyond the vocabulary is an IndexError.
            raise ValueError(
                complaint(
                    self._callee, "--data", "inputs that the model takes",
                    f"{tuple(self._x.shape)} {self._x.dtype}, and the model says: "
                    f"{type(error).__name__}: {error}",
                )
            ) from error  # fmt: skip
        return None

    def profile(self) -> LayerProfile:
        """Return what is finished."""
        finished = {} if self._run is None else self._run.geometries()
        return LayerProfile(finished, automatic=self._arguments.profile)

    def _measure(self) -> None:
        self._run = run = self._plan_run()
        n, places = len(self._x), run.places
        note(f"measuring {n} samples on {self._device} at {', '.join(places)}")
        counts = dict.fromkeys(places, 0)
        start = told = time.monotonic()
        for place, done in run:
            counts[place] = done
            now, steps = time.monotonic(), sum(counts.values())
            if now - told >= SECONDS_BETWEEN_NOTES and steps < n * len(places):
                told = now
                text = f"{place}: {done} of {n} samples; in all {steps} of "
                text += f"{n * len(places)}"
                if all(counts.values()):  # places take very different times
                    left = (now - start) / steps * (n * len(places) - steps)
                    text += f", about {_duration(left)} left"
                note(text)

    def _plan_run(self) -> ProfileRun:
        arguments, x = self._arguments, self._x.to(self._device)
        y = None if self._y is None else self._y.to(self._device)
        plan = GeometryPlan(
            method=arguments.method,
            chunk_size=arguments.batch_limit or "auto",
            memory_budget=None,
            options=MatrixFreeOptions(),
        )

        def plan_places(places: list[str] | None) -> ProfileRun:
            return ProfileRun(
                self._model, x, y, places=places, output=None, plan=plan,
                callee=self._callee,
            )  # fmt: skip

        if arguments.profile:
            found = plan_places(None)
            more = [name for name in arguments.at if name not in found.places]
            return plan_places([*found.places, *more]) if more else found
        # Tokens have no Jacobian; from the places named with --at there is one.
        first = [INPUT] if x.is_floating_point() or not arguments.at else []
        return plan_places([*first, *arguments.at])

    def _end_early(self, end: BaseException, why: str) -> BaseException:
        n, profile = len(self._x), self.profile()
        finished = [
            name if len(geometry) == n else f"{name} ({len(geometry)} of {n} samples)"
            for name, geometry in profile.items()
        ]
        if finished and self._run is not None:
            missing = [name for name in self._run.places if name not in profile]
            note(f"{why}; measured: {', '.join(finished)}")
            if missing:
                note(f"not measured: {', '.join(missing)}")
        return end

    def _no_room(self, error: BaseException) -> MemoryError:
        said = " ".join(str(error).split())[:120] or type(error).__name__
        return MemoryError(
            complaint(
                self._callee, "the memory", "enough for the samples worked on at once",
                f"this: {said}",
                "Use --batch-limit with a small number, 1 for the least.",
            )
        )  # fmt: skip


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
