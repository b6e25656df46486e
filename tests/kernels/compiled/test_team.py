import multiprocessing
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from normalign.kernels.compiled import team
from normalign.kernels.compiled.compiling import compiled
from normalign.kernels.compiled.team import (
    first_item,
    give_up,
    next_item,
    team_size,
    together,
    wait,
)


@compiled
def count(done, phases, items, members, flags):
    """In every phase, add one to each item of the phase before."""
    for phase in range(phases):
        item = first_item(flags, phase, members)
        while item < items:
            done[phase + 1, item] = done[phase, item] + 1
            item = next_item(flags, phase, members, item)
        if not wait(flags, phase, members, items):
            return False
    return True


@compiled
def never(members, flags):
    """Wait for an item that nobody does."""
    return wait(flags, 0, members, 1)


def counted(members, phases=50, items=7):
    done = np.zeros((phases + 1, items))
    fine = together(
        lambda some, flags: count(done, phases, items, some, flags),
        members,
        phases,
    )
    assert fine
    return done


@pytest.mark.parametrize("members", [1, 2, 4])
def test_phases_follow_each_other_and_no_item_is_left_out(members):
    done = counted(members)
    np.testing.assert_array_equal(done, np.arange(51.0)[:, None] * np.ones(7))


def test_a_caller_gets_through_alone_if_nobody_comes(monkeypatch):
    monkeypatch.setattr(team._Helper, "ask", lambda self, work, cores: None)
    assert counted(3)[-1].min() == 50


def test_a_member_that_comes_late_changes_nothing():
    late, done = [], np.zeros((4, 5))

    caller = threading.get_ident()

    def work(members, flags):
        if threading.get_ident() != caller:
            late.append(lambda: count(done, 3, 5, members, flags))
            return None
        return count(done, 3, 5, members, flags)

    assert together(work, 2, 3)
    while not late:
        time.sleep(0.001)
    done[:] = -1.0  # somebody else's by now
    assert late[0]()
    assert (done == -1).all()


def test_who_waits_is_told_when_another_gives_up():
    flags, answers = np.zeros(100, dtype=np.int64), []
    thread = threading.Thread(target=lambda: answers.append(never(2, flags)))
    thread.start()
    time.sleep(0.02)
    assert thread.is_alive()
    give_up(flags)
    thread.join(timeout=10)
    assert answers == [False]


def test_callers_in_several_threads_share_the_helpers():
    answers = []
    callers = [
        threading.Thread(target=lambda: answers.append(counted(3)[-1].min()))
        for _ in range(6)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=60)
    assert answers == [50] * 6


def _counted_there(queue):
    queue.put(float(counted(3)[-1].min()))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_has_helpers_of_its_own():
    counted(3)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_counted_there, args=(queue,))
    child.start()
    assert queue.get(timeout=60) == 50
    child.join(timeout=60)


def test_a_helper_sleeps_when_there_is_nothing_to_do():
    counted(2)
    deadline = time.monotonic() + 30
    while any(helper.awake for helper in team._helpers):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert counted(2)[-1].min() == 50  # and wakes again


ENDING = """
import logging
import torch
logging.disable()  # a compiler may have to be waited for, which is told
from normalign.kernels import Laplace, recursions
torch.set_num_threads(3)
x = torch.randn(500, 3)
for _ in recursions(x, x[:, :1], kernel=Laplace(), ridge=1.0, metric=torch.eye(3),
                    n_iter=1, every=False):
    pass
"""


@pytest.mark.slow
def test_a_process_ends_in_peace_while_helpers_look_for_work():
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")


def test_small_tables_are_done_alone(monkeypatch):
    monkeypatch.setattr(team.torch, "get_num_threads", lambda: 4)
    assert team_size(100) == 1
    assert team_size(1500) == 4
    monkeypatch.setattr(team.torch, "get_num_threads", lambda: 1)
    assert team_size(1500) == 1
