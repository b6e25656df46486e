"""Computing a plan: failures, kills, Ctrl-C, a full disk, several processes."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from normalign_reproduction import runner
from normalign_reproduction.context import Context
from normalign_reproduction.files import write_checked
from normalign_reproduction.plan import make_plan
from normalign_reproduction.runner import choose_jobs, exclusive, run_batches
from normalign_reproduction.store import Store
from normalign_reproduction.worker import compute_batch
from tests import tiny, tiny_training
from tests.processes import Server, is_alive, progress, results, wait_for
from tests.tiny import logistic

pytestmark = pytest.mark.usefixtures("ctrl_c", "time_limit")


@pytest.fixture
def folder(tmp_path):
    """A folder with a store, and functions that plan and compute in it."""
    store, work = Store(tmp_path / "results"), tmp_path / "work"

    def plan(item=None, **changes):
        words = {"size": "quick", "preset": "released", "digits": "mnist"}
        words |= {"device": "cpu", "store": store, **changes}
        (part,) = make_plan([item or tiny.item()], **words)
        return part.batches

    def run(item=None, **options):
        with exclusive(work):
            runner.store_pending(work, store)
            return run_batches(plan(item), store, work, threads=1, **options)

    return SimpleNamespace(out=tmp_path, work=work, store=store, plan=plan, run=run)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    one = Server(tmp_path_factory.mktemp("server"))
    yield one
    one.close()


def values(out):
    return sorted(json.loads(text)["value"] for text in results(out).values())


EXPECTED = sorted([logistic(0), logistic(1)] * 3)


def work_files(folder):
    return [path.name for path in folder.work.iterdir()]


def test_all_results_are_stored_and_the_work_folder_is_left_empty(folder):
    assert folder.run(made={"commit": "abc"}) == []
    assert values(folder.out) == EXPECTED
    assert folder.plan() == ()
    assert work_files(folder) == [".lock"]
    made = folder.store.records(
        tiny.item().runs(size="quick", preset="released", digits="mnist")
    )[0].made
    assert made.pop("seconds") >= 0
    assert len(made.pop("batch")) == 12
    assert made == {"commit": "abc", "device_kind": "cpu", "threads": 1, "n_runs": 2}


def test_a_batch_that_raises_does_not_stop_the_others(folder):
    item = tiny.item(mode="raise")
    (failure,) = folder.run(item)
    assert failure.error == "ValueError: the fifth step"
    path = folder.work / f"{failure.batch.key}.error"
    assert "is too high" in path.read_text()
    assert len(results(folder.out)) == 4
    assert [batch.key for batch in folder.plan(item)] == [failure.batch.key]


@pytest.mark.parametrize("wrong", [[], [{"value": float("inf")}, {"value": 1.0}]])
def test_results_that_are_too_few_or_not_finite_are_a_failure(
    folder, monkeypatch, wrong
):
    monkeypatch.setattr(tiny, "compute", lambda batch, context: wrong)
    assert len(folder.run()) == 3
    assert not results(folder.out)


def training(**settings):
    sizes = {"quick": tiny.Size(1, {"steps": 4, **settings})}
    return tiny.item(experiment="tests.tiny_training", groups=1, sizes=sizes)


def test_a_checkpoint_that_is_damaged_or_of_other_settings_costs_a_new_start(folder):
    (batch,) = folder.plan(training())
    (other,) = folder.plan(training(steps=6))
    folder.work.mkdir()
    path = folder.work / f"{batch.key}.xor.safetensors"
    path.write_bytes(b"no tensors")
    (expected,) = compute_batch(batch, folder.work).records

    def interrupt(share, words):
        raise KeyboardInterrupt

    context = Context(torch.device("cpu"), folder.work / "other", progress=interrupt)
    with pytest.raises(KeyboardInterrupt):
        tiny_training.compute(other.runs, context)
    (folder.work / "other.xor.safetensors").replace(path)
    (record,) = compute_batch(batch, folder.work).records
    assert record.result == expected.result


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        RuntimeError("CUDA out of memory"),
        MemoryError("none"),
        OSError(errno.EIO, "the disk hung"),
        ValueError("other data than before"),
    ],
)
def test_after_any_error_the_batch_resumes_from_its_checkpoint(
    folder, monkeypatch, error
):
    steps, errors = [], [error]

    def stop(mode, group, state, path):
        steps.append(state["step"])
        if state["step"] == 30 and errors:
            raise errors.pop()

    monkeypatch.setattr(tiny, "misbehave", stop)
    item = tiny.item(groups=1)
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            folder.run(item, checkpoint_seconds=-1)
    else:
        (failure,) = folder.run(item, checkpoint_seconds=-1)
        assert str(error) in failure.error
    assert folder.run(item) == []
    assert steps == [*range(31), *range(30, 40)]
    assert values(folder.out) == [logistic(0), logistic(1)]


def test_results_of_a_batch_are_stored_together_whenever_it_is_killed(
    folder, monkeypatch
):
    """Stored in part, the rest would be another batch without a checkpoint."""
    write, n = Store.write, []

    def killed(*arguments):
        n.append(1)
        if len(n) == 2:
            raise KeyboardInterrupt
        return write(*arguments)

    monkeypatch.setattr(Store, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        folder.run()
    assert len(results(folder.out)) == 1
    monkeypatch.setattr(tiny, "compute", None)
    runner.store_pending(folder.work, folder.store)
    assert len(results(folder.out)) == 2
    assert len(folder.plan()) == 2
    assert work_files(folder) == [".lock"]


def test_seconds_add_up_over_processes(folder):
    batch = folder.plan()[0]
    state = {"share": 0.5, "words": "half", "seconds": 100.0}
    write_checked(folder.work / f"{batch.key}.progress", state)
    record = compute_batch(batch, folder.work).records[0]
    assert 100.0 < record.made["seconds"] < 160.0


def test_a_full_disk_stops_the_work_and_loses_nothing(folder, monkeypatch):
    write, n = Store.write, []

    def full(*arguments):
        n.append(1)
        if len(n) > 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(*arguments)

    monkeypatch.setattr(Store, "write", full)
    with pytest.raises(OSError, match="No space left"):
        folder.run()
    assert len(results(folder.out)) == 3
    monkeypatch.undo()
    assert folder.run() == []
    assert values(folder.out) == EXPECTED
    with pytest.raises(OSError, match="No space left"):  # found by an experiment
        folder.run(tiny.item(mode="full"))


def test_a_worker_without_access_to_the_work_folder_uses_a_temporary_one(
    folder, monkeypatch
):
    mkdir = type(folder.work).mkdir

    def refuse(self, *arguments, **options):
        if self.name == "elsewhere":
            raise PermissionError
        return mkdir(self, *arguments, **options)

    monkeypatch.setattr(type(folder.work), "mkdir", refuse)
    assert compute_batch(folder.plan()[0], folder.work / "elsewhere").records


def test_cores_are_shared_out_and_a_gpu_is_not(monkeypatch):
    monkeypatch.setattr("joblib.cpu_count", lambda: 8)
    monkeypatch.setattr("torch.get_num_threads", lambda: 8)
    assert choose_jobs(None, device="cpu") == (8, 1)
    assert choose_jobs(2, device="cpu") == (2, 4)
    assert choose_jobs(16, device="cpu") == (16, 1)
    assert choose_jobs(None, device="cuda") == (1, None)
    assert choose_jobs(2, device="cuda") == (2, 4)
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)  # OMP_NUM_THREADS=1
    assert choose_jobs(2, device="cpu") == (2, 1)


def test_threads_are_limited_in_a_batch_only(folder, monkeypatch):
    seen, before = set(), torch.get_num_threads()
    monkeypatch.setattr(tiny, "misbehave", lambda *_: seen.add(torch.get_num_threads()))
    compute_batch(folder.plan()[0], folder.work, threads=before + 1)
    assert seen == {before + 1}
    assert torch.get_num_threads() == before


def test_two_processes_do_not_work_in_one_folder(folder):
    folder.work.mkdir()
    code = (
        "import fcntl, sys; lock = open(sys.argv[1], 'w')\n"
        "fcntl.flock(lock, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(folder.work / ".lock")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        with pytest.raises(ValueError, match="another process computes in"):
            folder.run()
        other.kill()
    assert folder.run() == []
    assert folder.run(tiny.item("more", groups=4)) == []


def test_a_backend_that_is_not_installed_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray.util.joblib", None)
    with pytest.raises(ModuleNotFoundError, match="pip install ray"):
        folder.run(jobs=2, backend="ray")


# several processes


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["die_once", "crowded"])
def test_a_batch_that_fails_beside_others_is_computed_again_alone(folder, mode):
    assert folder.run(tiny.item(mode=mode), jobs=2) == []
    assert values(folder.out) == EXPECTED
    assert work_files(folder) == [".lock"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "error"),
    [
        ("too_large", "OutOfMemoryError: Tried to allocate 1 TiB"),
        ("die", "its process died twice: TerminatedWorkerError"),
    ],
)
def test_a_batch_that_fails_alone_is_given_up(folder, mode, error):
    (failure,) = folder.run(tiny.item(mode=mode), jobs=2)
    assert failure.error == error
    assert values(folder.out) == sorted([logistic(0), logistic(1)] * 2)


@pytest.mark.slow
def test_dask_computes_the_same(folder):
    pytest.importorskip("distributed")
    (failure,) = folder.run(tiny.item(mode="raise"), jobs=2, backend="dask")
    assert failure.error == "ValueError: the fifth step"
    assert folder.run(jobs=2, backend="dask") == []
    assert values(folder.out) == sorted([*EXPECTED, *[logistic(0), logistic(1)] * 2])


def test_ray_gets_batches_in_waves(folder, monkeypatch):
    waves = []

    def parallel(**options):
        def call(tasks):
            waves.append(len(tasks))
            return [function(*args, **kwargs) for function, args, kwargs in tasks]

        return call

    monkeypatch.setattr(runner.joblib, "Parallel", parallel)
    monkeypatch.setattr(
        runner.joblib, "parallel_config", lambda name: exclusive(folder.out)
    )
    package = SimpleNamespace(register_ray=lambda: None, RayError=RecursionError)
    monkeypatch.setattr(runner, "import_module", lambda name: package)
    assert folder.run(jobs=2, backend="ray") == []
    assert waves == [2, 1]
    assert values(folder.out) == EXPECTED


# kill -9 and Ctrl-C


def test_three_kills_at_random_moments_change_no_digit(server, tmp_path):
    words = ["reproduce", "steady", "training", "--jobs", "1"]
    words += ["--checkpoint-seconds", "0.1"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert server.run(*words, "--out", str(whole)) == 0, server.err

    def done():
        return len(results(killed)) + 2 * sum(one["share"] for one in progress(killed))

    # Other moments each time. Six runs are stored before training, the last, begins;
    # 7 is the middle of that, and a progress file may be half a second old.
    moments = random.Random(os.getpid())
    for moment in sorted(moments.uniform(0, 7) for _ in range(3)):
        process = server.start(*words, "--out", str(killed))
        wait_for(lambda moment=moment: done() >= moment)
        time.sleep(moments.uniform(0, 0.05))
        os.kill(process, signal.SIGKILL)
        assert server.wait() == -signal.SIGKILL
    assert server.run(*words, "--out", str(killed)) == 0, server.err
    assert results(killed) == results(whole)
    assert len(results(whole)) == 12
    assert (killed / "report.html").exists()
    assert [path.name for path in (killed / "work").iterdir()] == [".lock"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_processes_end_with_their_parent_and_the_same_command_resumes(
    server, tmp_path, number
):
    words = ["reproduce", "slow", "--out", str(tmp_path), "--checkpoint-seconds", "0.1"]
    parent = server.start(*words, "--jobs", "2")
    wait_for(lambda: sum(one["share"] > 0.1 for one in progress(tmp_path)) == 2)
    workers = [int(one["words"].split()[-1]) for one in progress(tmp_path)]
    start = time.monotonic()
    os.kill(parent, number)
    if number == signal.SIGINT:
        assert server.wait() == 130
        assert time.monotonic() - start < 8
        assert "interrupted; 0 of 6 runs are stored. The same command" in server.err
    else:
        assert server.wait() == -signal.SIGKILL
    wait_for(lambda: not any(map(is_alive, workers)), seconds=10)
    assert server.run(*words, "--jobs", "1") == 0, server.err
    assert values(tmp_path) == EXPECTED


def test_ctrl_c_in_one_process_keeps_the_checkpoint(server, tmp_path):
    words = ["reproduce", "training", "--out", str(tmp_path), "--jobs", "1"]
    process = server.start(*words)
    wait_for(lambda: any(one["share"] > 0.05 for one in progress(tmp_path)))
    os.kill(process, signal.SIGINT)
    assert server.wait() == 130, server.err
    share = progress(tmp_path)[0]["share"]
    (checkpoint,) = (tmp_path / "work").glob("*.safetensors")
    assert checkpoint.stat().st_size > 0
    server.start(*words)
    wait_for(lambda: progress(tmp_path) and progress(tmp_path)[0]["share"] >= share)
    assert server.wait() == 0, server.err
    assert len(results(tmp_path)) == 6
