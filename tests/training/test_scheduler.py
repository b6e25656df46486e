import math
import signal
import threading

import pytest
import torch

from normalign.training import Member
from normalign.training._scheduler import Interrupts, Plan, Record
from normalign.training.history import History
from normalign.training.rules import SGD
from tests.training.ensembles import chains, ensemble, members, never, task


def every(epoch):
    return True


def group_of(count=2, **options):
    these = [Member(i, SGD(0.1)) for i in range(count)]
    training = ensemble(chains(count), task(), these, **options)
    records = [Record(History()) for _ in these]
    (group,) = training.groups(records)
    return group, records


def test_the_last_epoch_is_due_whatever_the_schedule_says():
    plan = Plan(7, never)
    assert [epoch for epoch in range(8) if plan.is_due(epoch)] == [7]
    plan = Plan(7, lambda epoch: epoch in (0, 3))
    assert [epoch for epoch in range(8) if plan.is_due(epoch)] == [0, 3, 7]


@pytest.mark.parametrize("most", [1, 2, 32])
def test_a_slice_ends_at_the_next_row_or_is_full(most):
    plan = Plan(40, lambda epoch: epoch in (0, 3, 4))
    for epoch in range(40):
        rows = [e for e in range(epoch + 1, 41) if plan.is_due(e)]
        assert plan.ahead(epoch, most) == min(most, rows[0] - epoch)


def test_a_long_run_without_rows_asks_for_the_schedule_only_near_by():
    asked = []

    def evaluate(epoch):
        asked.append(epoch)
        return False

    plan = Plan(10**9, evaluate)
    assert plan.ahead(5, 32) == 32
    assert len(asked) <= 32


def test_rows_come_at_their_epochs_and_nothing_between():
    group, records = group_of(epochs=4, evaluate=lambda epoch: epoch in (0, 2))
    seen = []
    while not group.is_done:
        assert group.is_idle
        group.launch()
        assert not group.is_idle
        assert group.is_ready()
        seen.append([(i, row["epoch"]) for i, row in group.collect()])
    assert seen == [[(0, 0), (1, 0)], [], [(0, 2), (1, 2)], [], [(0, 4), (1, 4)]]
    assert [record.stopped for record in records] == ["epochs", "epochs"]
    assert group.collect() == []


def test_a_stopped_network_leaves_the_stack_and_keeps_its_parameters():
    group, records = group_of(3, epochs=9, evaluate=every)
    group.launch()
    group.collect()
    group.launch()
    group.collect()
    row = group.stack.rows[1].clone()
    group.stop(1, "callback")
    group.stop(1, "criterion")  # the first reason counts
    assert records[1].stopped == "callback"
    assert group.positions == [0, 2]
    assert group.stack.size == 2
    for _ in range(3):
        group.launch()
        assert [i for i, _ in group.collect()] == [0, 2]
    assert torch.equal(records[1].row, row)
    assert len(records[1].history) == 2


def test_the_last_network_may_stop_too():
    group, records = group_of(1, epochs=9, evaluate=every)
    group.launch()
    group.collect()
    group.stop(0, "callback")
    assert group.is_done
    assert torch.equal(records[0].row, group.stack.rows[0])


def test_a_network_without_a_finite_loss_has_diverged_even_where_it_is_done():
    group, records = group_of(epochs=3, evaluate=every, until=lambda row: True)
    with torch.no_grad():
        group.stack.rows[0].fill_(math.inf)
    group.launch()
    group.collect()
    assert [record.stopped for record in records] == ["diverged", "criterion"]


def test_columns_that_are_not_measured_at_an_epoch_are_nan():
    asked = []

    def measure(stack):
        asked.append(stack.epoch)
        return {"length": stack.rows.norm(dim=1).float()}

    group, records = group_of(
        epochs=3, evaluate=every, measure=measure, measure_at=lambda epoch: epoch == 2
    )
    while not group.is_done:
        group.launch()
        group.collect()
    for record in records:
        found = [math.isnan(value) for value in record.history["length"]]
        assert found == [True, True, False, True]
    assert asked == [0, 2]  # at first for the names of its columns


def test_groups_are_of_one_kind_and_know_who_is_in_them():
    these = members("sgd", "power 1", "adamw", "grokfast")
    these = these[::2] + these[1::2]
    # Of weight 0 it is a penalty in name only.
    these.append(Member(0, SGD(0.1), weight=0.0, penalty=these[1].penalty))
    training = ensemble(chains(9), task(), these)
    groups = training.groups([Record(History()) for _ in these])
    assert [group.positions for group in groups] == [[0, 4, 8], [1, 5], [2, 6], [3, 7]]
    for group in groups:
        for k, i in enumerate(group.positions):
            assert torch.equal(group.stack.rows[k], training.start[i])


pytestmark = pytest.mark.usefixtures("ctrl_c", "time_limit")


def test_the_first_ctrl_c_is_noted_and_the_second_interrupts():
    with Interrupts() as interrupts:
        assert not interrupts.came
        signal.raise_signal(signal.SIGINT)
        assert interrupts.came
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("error", [None, ZeroDivisionError, KeyboardInterrupt])
def test_the_earlier_handler_comes_back_however_the_block_ends(error):
    def own(number, frame):
        seen.append(number)

    seen, before = [], signal.signal(signal.SIGINT, own)
    try:
        try:
            with Interrupts():
                assert signal.getsignal(signal.SIGINT) is not own
                if error is not None:
                    raise error
        except (ZeroDivisionError, KeyboardInterrupt):
            pass
        assert signal.getsignal(signal.SIGINT) is own
        signal.raise_signal(signal.SIGINT)
        assert seen == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_process_that_ignores_ctrl_c_goes_on_ignoring_it():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGINT)
            assert not interrupts.came
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_changes_no_handler():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with Interrupts() as interrupts:
            seen.append((signal.getsignal(signal.SIGINT), interrupts.came))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(before, False)]
    assert signal.getsignal(signal.SIGINT) is before
