import io
import time

import pytest

from normalign_reproduction.plan import Batch
from normalign_reproduction.progress import Bars, Board, Lines, show_progress
from normalign_reproduction.spec import Run


def batch(seed, *, missing=1, seconds=None):
    run = Run("tiny", 1, "quick", "released", "synthetic", {}, seed)
    return Batch((run,), "cpu", missing, item="steady", seconds=seconds)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_shares_are_weighted_by_runs_where_no_times_are_known():
    one, two = batch(0, missing=3), batch(1, missing=1, seconds=5.0)
    board = Board([one, two], None)
    board.hear(one.key, 0.5, "half")
    assert board.share == pytest.approx(1.5 / 4)
    board.end(one.key)
    assert board.share == pytest.approx(3 / 4)
    board.end(two.key, failed=True)
    assert board.share == 1.0
    assert (board.n_done, board.n_failed) == (2, 1)


def test_the_time_left_is_the_plans_until_there_is_something_to_see():
    clock, one, two = Clock(), batch(0, seconds=30.0), batch(1, seconds=10.0)
    board = Board([one, two], 40.0, clock=clock)
    assert board.left() == 40.0
    board.hear(one.key, 0.0, "begins")
    clock.now = 20.0
    board.hear(one.key, 0.5, "half")
    # 15 of 40 units in 20 seconds: 25 more take 33.3
    assert board.left() == pytest.approx(20 * 25 / 15)
    assert board.now()[one.key].left(clock.now) == pytest.approx(20.0)
    assert Board([batch(2)], None).left() is None


def test_what_was_done_before_a_crash_does_not_count_as_pace():
    clock, one = Clock(), batch(0, seconds=100.0)
    board = Board([one], 100.0, clock=clock)
    board.hear(one.key, 0.8, "resumed")
    clock.now = 10.0
    board.hear(one.key, 0.9, "goes on")
    assert board.left() == pytest.approx(10.0)


def test_a_late_note_does_not_bring_a_batch_back():
    one = batch(0)
    board = Board([one], None)
    board.end(one.key)
    board.hear(one.key, 0.9, "late")
    assert board.now() == {}
    assert not board.awaits(one.key)


def test_a_log_gets_whole_lines():
    stream, one, two = io.StringIO(), batch(0), batch(1)
    board = Board([one, two], 90.0)
    view = Lines(stream)
    view.show(board)
    board.hear(one.key, 0.5, "epoch 3")
    board.hear(two.key, 0.0, "begins")
    view.show(board)
    assert stream.getvalue() == (
        "0 % done, 1.5 min left; 0 of 2 batches; begins\n"
        "25 % done, 68 s left; 0 of 2 batches; steady: epoch 3 and 1 more\n"
    )


def test_a_terminal_gets_a_bar_for_the_whole_and_one_for_each_batch():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream, one = Terminal(), batch(0)
    board = Board([one, batch(1)], None)
    board.hear(one.key, 0.5, "epoch [3]")
    view = Bars(stream)
    view.show(board)
    board.end(one.key, failed=True)
    view.show(board)
    view.close()
    text = stream.getvalue()
    assert "epoch [3]" in text
    assert "0 of 2 batches" in text
    assert "1 of 2 batches, 1 failed" in text


def test_the_thread_calls_back_and_ends_with_the_block():
    calls = []
    with show_progress(Board([], None), each=lambda: calls.append(time.monotonic())):
        end = time.monotonic() + 10
        while not calls and time.monotonic() < end:
            time.sleep(0.05)
    n = len(calls)
    assert n >= 1
    time.sleep(0.6)
    assert len(calls) == n
