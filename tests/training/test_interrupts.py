import signal
import threading

import pytest

from normalign.training.interrupts import Interrupts

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
