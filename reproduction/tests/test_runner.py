import errno
import json
import os
import random
import signal
import stat
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from normalign_reproduction import store as results_module
from normalign_reproduction import worker as workers
from normalign_reproduction.context import Context
from normalign_reproduction.files import write_checked
from normalign_reproduction.plan import make_plan, open_batches
from normalign_reproduction.runner import jobs_for, pool, run_plan
from normalign_reproduction.store import Store
from normalign_reproduction.worker import Workplace, compute_batch
from tests import tiny, tiny_training
from tests.processes import Server, is_alive, kill, notes, results, wait_for

pytestmark = pytest.mark.usefixtures("ctrl_c", "time_limit")


@pytest.fixture
def there(tmp_path):
    """A folder, its store, and what it takes to compute in it."""
    store = Store(tmp_path / "results")
    place = Workplace(
        tmp_path / "results", tmp_path / "work", threads=1, made={"commit": "abc"}
    )

    def plan(*items, **changes):
        words = {"size": "quick", "preset": "released", "digits": "mnist"}
        words |= {"device": "cpu", "store": store, "work": place.work, **changes}
        return make_plan(items or [tiny.item()], **words)

    return SimpleNamespace(out=tmp_path, store=store, place=place, plan=plan)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    one = Server(tmp_path_factory.mktemp("server"))
    yield one
    one.close()


def values(out):
    return sorted(json.loads(text)["value"] for text in results(out).values())


def logistic(seed, n_steps=40):
    value = 0.1 + 0.01 * seed
    for _ in range(n_steps):
        value = 3.9 * value * (1 - value)
    return value


EXPECTED = sorted([logistic(0), logistic(1)] * 3)


def test_all_results_are_stored_and_the_work_folder_is_left_empty(there):
    done = run_plan(there.plan(), there.place)
    assert [one.how for one in done.ended] == ["done"] * 3
    assert values(there.out) == EXPECTED
    assert there.plan().batches == []
    assert open_batches(there.place.work) == []
    assert [path.name for path in there.place.work.iterdir()] == [".lock"]


def test_a_record_says_what_made_it(there):
    run_plan(there.plan(), there.place)
    made = there.store.records(there.plan().parts[0].runs)[0].made
    assert made["commit"] == "abc"
    assert made["device_kind"] == "cpu"
    assert made["threads"] == 1
    assert made["n_runs"] == 2
    assert made["seconds"] >= 0
    assert len(made["batch"]) == 12


def test_a_batch_that_raises_does_not_stop_the_others(there):
    item = tiny.item(mode="raise")
    done = run_plan(there.plan(item), there.place)
    (failure,) = done.failures
    assert failure.error == "ValueError: the fifth step"
    assert "is too high" in failure.trace
    trace = there.place.work / f"{failure.batch.key}.error"
    assert trace.read_text() == failure.trace
    assert len(results(there.out)) == 4
    assert there.plan(item).missing == 2


def test_results_that_are_too_few_or_not_finite_are_a_failure(there, monkeypatch):
    for wrong in ([], [{"value": float("inf")}, {"value": 1.0}]):
        monkeypatch.setattr(tiny, "compute", lambda batch, context, w=wrong: w)
        done = run_plan(there.plan(), there.place)
        assert len(done.failures) == 3
    assert not results(there.out)


def test_a_checkpoint_that_does_not_fit_costs_a_new_start(there):
    plan = there.plan()
    key = plan.batches[0].key
    there.place.work.mkdir()
    (there.place.work / f"{key}.state.json").write_text('{"step": ')
    done = run_plan(plan, there.place)
    assert not done.failures
    assert values(there.out) == EXPECTED


def training(**settings):
    sizes = {"quick": tiny.Size(1, {"steps": 4, **settings})}
    return tiny.item(experiment="tests.tiny_training", groups=1, sizes=sizes)


def test_an_ensembles_checkpoint_that_is_damaged_or_of_another_costs_a_new_start(
    there,
):
    plan = there.plan(training())
    (batch,) = plan.batches
    there.place.work.mkdir()
    kept = there.place.work / f"{batch.key}.xor.safetensors"
    kept.write_bytes(b"no tensors")
    assert not run_plan(plan, there.place).failures
    whole = results(there.out)
    (other,) = there.plan(training(steps=6)).batches
    place = replace(there.place, results=there.out / "elsewhere")
    begun = there.place.work / f"{other.key}.xor.safetensors"
    with pytest.raises(KeyboardInterrupt):
        tiny_training.compute(other.runs, interrupting(there.place.work / other.key))
    begun.replace(kept)
    assert not run_plan(plan, place).failures
    assert results(there.out) == whole
    again = Store(place.results).records(batch.runs)
    assert [record.result for record in again] == [
        record.result for record in there.store.records(batch.runs)
    ]


def interrupting(checkpoint):
    """What a computation is given that is stopped at its first sign of life."""

    def stop(share, words):
        raise KeyboardInterrupt

    return Context(torch.device("cpu"), checkpoint, progress=stop)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA out of memory"), MemoryError("none left"),
        OSError(errno.EIO, "the disk hung"), ValueError("other data than before"),
    ],
)  # fmt: skip
def test_any_other_error_keeps_the_checkpoint_and_fails_the_batch(
    there, monkeypatch, error
):
    place = replace(there.place, checkpoint_seconds=-1)
    (batch,) = there.plan(tiny.item(groups=1)).batches
    steps, wrong = [], [KeyboardInterrupt(), error]

    def stop(mode, group, state, kept):
        steps.append(state["step"])
        if state["step"] == 30 and wrong:
            raise wrong.pop(0)

    monkeypatch.setattr(tiny, "misbehave", stop)
    assert compute_batch(batch, place).how == "interrupted"
    ended = compute_batch(batch, place)
    assert ended.how == "failed"
    assert str(error) in ended.error
    assert steps[31:] == [30]
    assert compute_batch(batch, place).how == "done"
    assert steps[32:] == list(range(30, 40))
    assert values(there.out) == [logistic(0), logistic(1)]


def test_what_was_stored_just_before_a_kill_is_tidied_up(there):
    plan = there.plan()
    run_plan(plan, there.place)
    workers.remember(plan.batches[0], there.place.work)
    (there.place.work / f"{plan.batches[0].key}.xor.safetensors").write_text("")
    run_plan(there.plan(seeds=3), there.place)
    assert [path.name for path in there.place.work.iterdir()] == [".lock"]


def test_what_is_stored_is_never_overwritten(there):
    batch = there.plan().batches[0]
    there.store.write(batch.runs[0], {"value": 7}, {})
    compute_batch(batch, there.place)
    assert there.store.records(batch.runs)[0].result == {"value": 7}
    assert there.store.records(batch.runs)[1].result["value"] == logistic(1)


def test_an_interrupted_batch_ends_the_work_and_goes_on_later(there, monkeypatch):
    place = Workplace(there.place.results, there.place.work, checkpoint_seconds=-1)
    real, n = tiny.misbehave, []

    def interrupt(mode, group, state, kept):
        n.append(state["step"])
        if group == 1 and state["step"] == 20 and len(n) < 70:
            raise KeyboardInterrupt

    monkeypatch.setattr(tiny, "misbehave", interrupt)
    done = run_plan(there.plan(), place)
    assert done.interrupted
    assert [one.how for one in done.ended] == ["done", "interrupted"]
    n += [0] * 70
    assert sum(batch.begun for batch in there.plan().batches) == 1
    before = len(n)
    again = run_plan(there.plan(), place)
    assert n[before] == 20  # not from the start
    assert not again.interrupted
    monkeypatch.setattr(tiny, "misbehave", real)
    assert values(there.out) == EXPECTED


def test_seconds_add_up_over_processes(there, monkeypatch):
    batch = there.plan().batches[0]
    note = {"share": 0.5, "words": "half", "seconds": 100.0, "session": "", "pid": 1}
    there.place.work.mkdir()
    write_checked(there.place.work / f"{batch.key}.progress", note)
    compute_batch(batch, there.place)
    made = there.store.records(batch.runs)[0].made
    assert 100.0 < made["seconds"] < 160.0


# a full disk


def test_a_full_disk_stops_the_work_and_loses_nothing(there, monkeypatch):
    real, n = results_module.write_checked, []

    def write(path, content):
        n.append(path)
        if len(n) > 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, content)

    monkeypatch.setattr(results_module, "write_checked", write)
    done = run_plan(there.plan(), there.place)
    assert done.full is not None
    assert "No space left" in done.full.error
    assert [one.how for one in done.ended] == ["done", "full"]
    assert len(results(there.out)) == 3
    monkeypatch.setattr(results_module, "write_checked", real)
    run_plan(there.plan(), there.place)
    assert values(there.out) == EXPECTED


@pytest.mark.skipif(not os.access("/dev/full", os.W_OK), reason="no /dev/full here")
def test_the_systems_own_error_counts_as_a_full_disk(there, monkeypatch):
    def compute(batch, context):
        with open("/dev/full", "w") as full:
            full.write("x")

    monkeypatch.setattr(tiny, "compute", compute)
    assert compute_batch(there.plan().batches[0], there.place).how == "full"


# the work folder


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A folder for temporary files; ``elsewhere`` is where no folder can be made."""
    monkeypatch.setattr(workers.tempfile, "gettempdir", lambda: str(tmp_path))
    made = type(tmp_path).mkdir

    def mkdir(self, *arguments, **options):
        if self.name == "elsewhere":
            raise PermissionError
        return made(self, *arguments, **options)

    monkeypatch.setattr(type(tmp_path), "mkdir", mkdir)
    return tmp_path


def test_a_work_folder_that_cannot_be_made_is_replaced_by_one_of_the_user(temporary):
    before = os.umask(0)
    try:
        path = workers._work_folder(temporary / "elsewhere")
    finally:
        os.umask(before)
    assert path == temporary / f"normalign-work-{os.getuid()}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert workers._work_folder(temporary / "elsewhere") == path


@pytest.mark.parametrize(
    ("put", "got"),
    [
        (lambda path: path.symlink_to(path.parent), "got a link"),
        (lambda path: path.symlink_to("nowhere"), "got a link"),
        (lambda path: path.touch(), "got a file"),
        (lambda path: (path.mkdir(), path.chmod(0o755)), "got one of mode 755"),
        (lambda path: (path.mkdir(), path.chmod(0o720)), "got one of mode 720"),
        (None, f"got one of user {os.getuid()}"),
    ],
)
def test_a_folder_that_others_may_have_made_is_refused(
    temporary, there, monkeypatch, put, got
):
    if put is None:
        (temporary / f"normalign-work-{os.getuid() + 1}").mkdir(mode=0o700)
        user = os.getuid() + 1
        monkeypatch.setattr(os, "getuid", lambda: user)
    else:
        put(temporary / f"normalign-work-{os.getuid()}")
    place = replace(there.place, work=temporary / "elsewhere")
    ended = compute_batch(there.plan().batches[0], place)
    assert ended.how == "failed"
    assert got in ended.error
    assert "a folder of user" in ended.error


# processes


def test_processors_are_shared_out_and_a_gpu_is_not(monkeypatch):
    monkeypatch.setattr("joblib.cpu_count", lambda: 8)
    monkeypatch.setattr("torch.get_num_threads", lambda: 8)
    assert jobs_for(None, device="cpu") == (8, 1)
    assert jobs_for(2, device="cpu") == (2, 4)
    assert jobs_for(16, device="cpu") == (16, 1)
    assert jobs_for(None, device="cuda") == (1, None)
    assert jobs_for(2, device="cuda") == (2, 4)
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)  # OMP_NUM_THREADS=1
    assert jobs_for(2, device="cpu") == (2, 1)


def test_threads_are_limited_in_a_batch_and_given_back(there, monkeypatch):
    import torch

    seen = []
    monkeypatch.setattr(
        tiny, "misbehave", lambda *_: seen.append(torch.get_num_threads())
    )
    before = torch.get_num_threads()
    compute_batch(there.plan().batches[0], there.place)
    assert set(seen) == {1}
    assert torch.get_num_threads() == before


def test_two_processes_do_not_work_in_one_folder(there):
    import fcntl

    there.place.work.mkdir()
    with (there.place.work / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="in which another process computes"):
            run_plan(there.plan(), there.place)
    run_plan(there.plan(), there.place)
    assert values(there.out) == EXPECTED


def test_a_backend_that_is_not_installed_is_named(there, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray.util.joblib", None)
    with pytest.raises(ModuleNotFoundError, match="Install ray, or take 'loky'"):
        run_plan(there.plan(), there.place, jobs=2, backend="ray")
    rule = "backend must be 'loky' or 'dask' or 'ray', got 'mpi'"
    with pytest.raises(ValueError, match=rule), pool("mpi", there.place, jobs=2):
        pass


@pytest.mark.full
def test_a_process_that_dies_costs_its_batch_one_more_try(there):
    once = tiny.item(mode="die_once", groups=2)
    done = run_plan(there.plan(once), there.place, jobs=2)
    assert not done.failures
    assert values(there.out) == sorted([logistic(0), logistic(1)] * 2)
    assert open_batches(there.place.work) == []


@pytest.mark.full
def test_a_batch_that_finds_a_gpus_memory_taken_is_tried_again_alone(there):
    done = run_plan(there.plan(tiny.item(mode="crowded")), there.place, jobs=2)
    assert [one.how for one in done.ended] == ["done"] * 3
    assert values(there.out) == EXPECTED


@pytest.mark.full
def test_a_batch_that_a_gpu_cannot_hold_fails_once_and_for_all(there):
    done = run_plan(there.plan(tiny.item(mode="too_large")), there.place, jobs=2)
    (failure,) = done.failures
    assert failure.error == "OutOfMemoryError: Tried to allocate 1 TiB"
    assert len(done.ended) == 3


@pytest.mark.full
def test_a_batch_whose_process_dies_twice_is_given_up(there):
    always = tiny.item(mode="die")
    done = run_plan(there.plan(always), there.place, jobs=2)
    (failure,) = done.failures
    assert "died 2 times: TerminatedWorkerError" in failure.error
    assert values(there.out) == sorted([logistic(0), logistic(1)] * 2)
    (left,) = open_batches(there.place.work)
    assert left.key == failure.batch.key


@pytest.mark.full
def test_a_dask_cluster_of_two_processes_computes_the_same(there):
    pytest.importorskip("distributed")
    item = tiny.item(mode="raise")
    done = run_plan(there.plan(item), there.place, jobs=2, backend="dask")
    assert [one.error for one in done.failures] == ["ValueError: the fifth step"]
    assert values(there.out) == sorted([logistic(0), logistic(1)] * 2)
    again = run_plan(there.plan(), there.place, jobs=2, backend="dask")
    assert not again.failures
    assert there.plan().batches == []
    assert len({path.name for path in there.place.work.iterdir()}) <= 4


# kill -9 and Ctrl-C


def test_three_kills_at_random_moments_change_no_digit(server, tmp_path):
    words = ["reproduce", "steady", "training", "--jobs", "1"]
    words += ["--checkpoint-seconds", "0.1"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert server.run(*words, "--out", str(whole)) == 0, server.err

    def done():
        return len(results(killed)) + 2 * sum(note["share"] for note in notes(killed))

    # Other moments each time. Six runs are stored before training, the last, begins;
    # 7 is the middle of that, and notes of it may be half a second old.
    moments = random.Random(os.getpid())
    for moment in sorted(moments.uniform(0, 7) for _ in range(3)):
        process = server.start(*words, "--out", str(killed))
        wait_for(lambda moment=moment: done() >= moment)
        time.sleep(moments.uniform(0, 0.05))
        kill(process)
        assert server.end() == -signal.SIGKILL
    assert server.run(*words, "--out", str(killed)) == 0, server.err
    assert results(killed) == results(whole)
    assert len(results(whole)) == 12
    assert (killed / "report.html").exists()
    assert not list((killed / "work").glob("*.json"))


@pytest.mark.slow
def test_processes_end_with_their_parent_and_their_work_is_gone_on_with(
    server, tmp_path
):
    words = ["reproduce", "slow", "--out", str(tmp_path), "--checkpoint-seconds", "0.1"]
    parent = server.start(*words, "--jobs", "2")
    wait_for(lambda: sum(note["share"] > 0.1 for note in notes(tmp_path)) == 2)
    children = [note["pid"] for note in notes(tmp_path)]
    kill(parent)
    assert server.end() == -signal.SIGKILL
    wait_for(lambda: not any(map(is_alive, children)), seconds=10)
    assert server.run(*words, "--jobs", "1") == 0, server.err
    assert values(tmp_path) == EXPECTED


@pytest.mark.slow
def test_ctrl_c_ends_in_seconds_and_says_how_to_go_on(server, tmp_path):
    words = ["reproduce", "slow", "--out", str(tmp_path), "--jobs", "2"]
    parent = server.start(*words)
    wait_for(lambda: sum(note["share"] > 0.1 for note in notes(tmp_path)) == 2)
    children = [note["pid"] for note in notes(tmp_path)]
    start = time.monotonic()
    os.kill(parent, signal.SIGINT)
    assert server.end() == 130
    assert time.monotonic() - start < 8
    assert "interrupted; 0 of 6 runs are stored. The same command" in server.err
    wait_for(lambda: not any(map(is_alive, children)), seconds=10)
    assert {note["pid"] for note in notes(tmp_path)} == {None}  # they left in order
    assert server.out == ""


def test_ctrl_c_in_one_process_keeps_the_checkpoint(server, tmp_path):
    words = ["reproduce", "training", "--out", str(tmp_path), "--jobs", "1"]
    process = server.start(*words)
    wait_for(lambda: any(note["share"] > 0.05 for note in notes(tmp_path)))
    os.kill(process, signal.SIGINT)
    assert server.end() == 130, server.err
    share = notes(tmp_path)[0]["share"]
    (checkpoint,) = (tmp_path / "work").glob("*.safetensors")
    assert checkpoint.stat().st_size > 0
    server.start(*words)
    wait_for(lambda: notes(tmp_path) and notes(tmp_path)[0]["share"] >= share)
    assert server.end() == 0, server.err
    assert len(results(tmp_path)) == 6
