"""The share that is done, a steady estimate of the time left, and what is shown."""

import io
import random
import time

import pytest

from normalign_reproduction.files import write_checked
from normalign_reproduction.plan import Batch
from normalign_reproduction.progress import Progress, show_progress
from normalign_reproduction.spec import Run


def batch(seed, *, n_runs=1, seconds=None):
    runs = tuple(
        Run("tiny", 1, "quick", "released", "synthetic", {"i": i}, seed)
        for i in range(n_runs)
    )
    return Batch(runs, "cpu", item="steady", seconds=seconds)


def report(work, batch, share, words="half"):
    """Write what the process of a batch writes."""
    state = {"share": share, "words": words, "seconds": 1.0}
    write_checked(work / f"{batch.key}.progress", state)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_shares_are_weighted_by_runs_where_a_time_is_unknown(tmp_path):
    one, two = batch(0, n_runs=3), batch(1, seconds=5.0)
    progress = Progress([one, two], tmp_path)
    progress.start(one)
    report(tmp_path, one, 0.5)
    progress.update()
    assert progress.share == pytest.approx(1.5 / 4)
    progress.finish(one)
    assert progress.share == pytest.approx(3 / 4)
    progress.start(two)
    progress.finish(two, failed=True)
    assert progress.share == 1.0
    assert progress.line().startswith("100% done, 0 s left, 2 of 2 batches, 1 failed")


def test_the_time_left_begins_with_the_plan_and_approaches_the_measured_pace(tmp_path):
    clock, batches = Clock(), [batch(i, seconds=10.0) for i in range(100)]
    progress = Progress(batches, tmp_path, jobs=2, clock=clock)
    assert progress.seconds_left() == 500.0
    for i, one in enumerate(batches[:80]):  # three times as slow as expected
        progress.start(one)
        clock.now += 15.0
        progress.finish(one)
        if i == 0:
            assert progress.seconds_left() == pytest.approx(500, abs=50)
        progress.seconds_left()
    assert progress.seconds_left() == pytest.approx(20 * 15.0, rel=0.3)


def test_the_last_batch_is_not_divided_among_processes(tmp_path):
    clock, one, two = Clock(), batch(0, seconds=10.0), batch(1, seconds=100.0)
    progress = Progress([one, two], tmp_path, jobs=2, clock=clock)
    assert progress.seconds_left() == 100.0


def test_work_of_an_earlier_process_does_not_count_as_pace(tmp_path):
    clock, one = Clock(), batch(0, seconds=100.0)
    report(tmp_path, one, 0.8)
    progress = Progress([one], tmp_path, clock=clock)
    progress.start(one)
    for tenth in range(1, 10):
        clock.now = float(tenth)
        report(tmp_path, one, 0.8 + tenth / 100)
        progress.update()
        left = progress.seconds_left()
    assert left < 100.0 - 9.0
    assert progress._estimate() == pytest.approx(11.0)


@pytest.mark.parametrize("seed", range(5))
def test_the_time_left_does_not_jump(tmp_path, seed):
    """Batches take a third to three times the expected time, and report in jumps."""
    rng, clock = random.Random(seed), Clock()
    batches = [batch(i, seconds=20.0) for i in range(30)]
    took = {one.key: 20.0 * 3 ** rng.uniform(-1, 1) for one in batches}
    progress = Progress(batches, tmp_path, jobs=2, clock=clock)
    waiting, running, before = list(batches), {}, progress.seconds_left()
    while waiting or running:
        while waiting and len(running) < 2:
            one = waiting.pop()
            running[one.key] = one, clock.now
            progress.start(one)
        clock.now += 0.5
        for one, start in list(running.values()):
            share = (clock.now - start) / took[one.key]
            report(tmp_path, one, round(share * 3) / 3)
            if share >= 1:
                del running[one.key]
                progress.finish(one)
        progress.update()
        left = progress.seconds_left()
        assert abs(left - before) <= max(0.02 * before, 2.0)
        before = left


def test_without_expected_times_nothing_is_said_at_first(tmp_path):
    clock, batches = Clock(), [batch(i) for i in range(10)]
    progress = Progress(batches, tmp_path, clock=clock)
    assert "time left unknown" in progress.line()
    progress.start(batches[0])
    clock.now = 5.0
    progress.finish(batches[0])
    assert progress.seconds_left() == pytest.approx(45.0)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_one_line_that_fits(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    stream, one, two = Terminal(), batch(0, seconds=10.0), batch(1, seconds=10.0)
    progress = Progress([one, two], tmp_path, clock=Clock())
    progress.start(one)
    progress.start(two)
    report(tmp_path, one, 0.5, f"epoch {'3' * 80}")
    with show_progress(progress, stream):
        time.sleep(0.8)
    lines = stream.getvalue().split("\r\033[K")
    assert lines[1].startswith(" 25% done, 20 s left, 0 of 2 batches, steady: epoch")
    assert all(len(line) < 60 for line in lines)
    assert lines[-1] == ""


def test_a_log_gets_whole_lines(tmp_path, monkeypatch):
    monkeypatch.setattr("normalign_reproduction.progress._LOG_SECONDS", 0.1)
    stream, one, two = io.StringIO(), batch(0), batch(1)
    progress = Progress([one, two], tmp_path)
    progress.start(one)
    progress.start(two)
    report(tmp_path, one, 0.5, "epoch 3")
    with show_progress(progress, stream):
        time.sleep(0.4)
    line = stream.getvalue().splitlines()[0]
    assert line.endswith("0 of 2 batches, steady: epoch 3 (and 1 more)")
