from pathlib import Path

import pytest
import torch

from normalign_reproduction.context import Context, experiment_named
from normalign_reproduction.items.table1 import experiment
from tests import tiny


def test_an_experiment_is_found_by_its_name_here_or_by_its_whole_name_elsewhere():
    assert experiment_named("acceleration") is experiment
    assert experiment_named(tiny.NAME) is tiny
    with pytest.raises(ModuleNotFoundError):
        experiment_named("alchemy")


def test_a_context_says_nothing_unless_it_is_told_to():
    context = Context(torch.device("cpu"), Path("work/0"))
    assert context.progress(0.5, "half") is None
    heard = []
    loud = Context(
        torch.device("cpu"), Path("work/0"),
        progress=lambda *told: heard.append(told),
    )  # fmt: skip
    loud.progress(0.5, "half")
    assert heard == [(0.5, "half")]
