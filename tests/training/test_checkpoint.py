import errno
import json
import math
import os
import signal
import subprocess
import sys
import time
from enum import IntEnum
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from normalign.training import _checkpoint as module
from normalign.training._checkpoint import (
    ENTRY,
    fingerprint,
    read_checkpoint,
    write_checkpoint,
)
from normalign.training.history import History

safetensors = pytest.importorskip("safetensors.torch")


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def assert_same(got, tensors):
    assert got.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert got[name].dtype == tensor.dtype
        assert got[name].shape == tensor.shape
        assert torch.equal(bits(got[name]), bits(tensor)), name


ODD = {
    "empty": torch.zeros(0, 3, dtype=torch.int64),
    "nothing": torch.zeros(0),
    "scalar": torch.tensor(math.pi, dtype=torch.float64),
    "flag": torch.tensor([True, False]),
    "large": torch.tensor([2**63 - 1, -(2**63)]),
    "not finite": torch.tensor([math.nan, math.inf, -math.inf, -0.0, 5e-324]).double(),
    "transposed": torch.arange(6.0).reshape(2, 3).T,
    "every other": torch.arange(10)[::2],
    "reversed view": torch.arange(10)[7:3],
    "expanded": torch.tensor([1.5]).expand(3, 2),
    "channels last": torch.arange(24.0)
    .reshape(1, 2, 3, 4)
    .to(memory_format=torch.channels_last),
    "a.name/with 'signs' \n and ümläuts": torch.zeros(1),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("dtype", module.DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 2), (3, 4)])
def test_every_dtype_keeps_its_bits(tmp_path, dtype, shape):
    tensors = {"t": (100 * torch.randn(shape)).to(dtype)}
    write_checkpoint(tmp_path / "c", tensors, {})
    assert_same(read_checkpoint(tmp_path / "c").tensors, tensors)


def test_odd_tensors_keep_their_bits_and_shapes(tmp_path):
    write_checkpoint(tmp_path / "c", ODD, {"epoch": 3})
    stored = read_checkpoint(tmp_path / "c")
    assert_same(stored.tensors, ODD)
    assert stored.record == {"epoch": 3}
    assert list(stored.tensors) == sorted(ODD)


def test_lazy_conjugates_are_written_as_the_numbers_they_show(tmp_path):
    value = torch.randn(3, dtype=torch.complex64)
    shown = {"conjugate": value.conj(), "negative": value.conj().imag}
    assert shown["conjugate"].is_conj()
    assert shown["negative"].is_neg()
    write_checkpoint(tmp_path / "c", shown, {})
    stored = read_checkpoint(tmp_path / "c").tensors
    assert torch.equal(stored["conjugate"], torch.complex(value.real, -value.imag))
    assert torch.equal(stored["negative"], -value.imag)


def test_tensors_that_share_memory_are_written_apart(tmp_path):
    base = torch.arange(12.0)
    layer = nn.Linear(2, 2)
    tensors = {
        "whole": base, "again": base, "part": base[2:7], "square": base.view(3, 4),
        "tied": layer.weight, "tied too": layer.weight,
    }  # fmt: skip
    write_checkpoint(tmp_path / "c", tensors, {})
    stored = read_checkpoint(tmp_path / "c").tensors
    assert_same(stored, tensors)
    stored["whole"].zero_()
    assert torch.equal(stored["again"], base)
    assert torch.equal(stored["part"], base[2:7])
    assert not stored["tied"].requires_grad
    assert type(stored["tied"]) is torch.Tensor


def test_a_small_part_of_a_large_tensor_makes_a_small_file(tmp_path):
    write_checkpoint(tmp_path / "c", {"row": torch.zeros(1000, 1000)[0]}, {})
    assert (tmp_path / "c").stat().st_size < 5000


def test_no_tensor_is_spelled_out_on_the_way(tmp_path, monkeypatch):
    # It took a hundred times as long as the file.
    def spelled(self, **given):
        raise AssertionError("a tensor's repr")

    monkeypatch.setattr(torch.Tensor, "__repr__", spelled)
    write_checkpoint(tmp_path / "run", {"w": torch.ones(3)}, {"epoch": 1})
    assert read_checkpoint(tmp_path / "run").record == {"epoch": 1}


def test_a_checkpoint_without_tensors_is_one(tmp_path):
    write_checkpoint(tmp_path / "c", {}, {"a": 1})
    stored = read_checkpoint(tmp_path / "c")
    assert (stored.tensors, stored.record) == ({}, {"a": 1})


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=8,
)
records = st.dictionaries(st.text(), values, max_size=4)


@given(records)
def test_every_record_comes_back_equal(tmp_path_factory, record):
    path = tmp_path_factory.mktemp("records") / "c"
    write_checkpoint(path, {}, record)
    stored = read_checkpoint(path).record
    assert stored == record
    assert repr(stored) == repr(record)  # order, and 1 apart from 1.0 and True


def test_a_history_survives_with_its_nan(tmp_path):
    history = History()
    history.append({"epoch": 0, "loss": math.nan, "other": math.inf})
    write_checkpoint(tmp_path / "c", {}, {"history": history.to_dict()})
    back = History.from_dict(read_checkpoint(tmp_path / "c").record["history"])
    assert math.isnan(back["loss"][0])
    assert back["other"] == [math.inf]


def test_the_same_content_gives_the_same_bytes(tmp_path):
    record = {"b": 1, "a": [0.1, {"c": None}]}
    for name, tensors in (("one", ODD), ("two", dict(reversed(ODD.items())))):
        write_checkpoint(tmp_path / name, tensors, record)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_other_programs_read_the_tensors(tmp_path):
    write_checkpoint(tmp_path / "c.safetensors", {"w": torch.eye(2)}, {})
    assert_same(safetensors.load_file(tmp_path / "c.safetensors"), {"w": torch.eye(2)})


def test_tensors_go_to_the_device_asked_for(tmp_path):
    write_checkpoint(tmp_path / "c", {"w": torch.ones(2)}, {})
    assert read_checkpoint(tmp_path / "c", device="meta").tensors["w"].is_meta


def test_reading_leaves_the_file_free_to_be_replaced(tmp_path):
    write_checkpoint(tmp_path / "c", {"w": torch.ones(1000)}, {})
    stored = read_checkpoint(tmp_path / "c").tensors["w"]
    with (tmp_path / "c").open("r+b") as file:
        file.truncate(0)
    assert torch.equal(stored, torch.ones(1000))


def test_missing_folders_are_made_and_links_are_followed(tmp_path):
    write_checkpoint(tmp_path / "new" / "folder" / "c", {}, {"a": 1})
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "new" / "folder" / "c")
    write_checkpoint(str(link), {}, {"a": 2})
    assert link.is_symlink()
    assert read_checkpoint(tmp_path / "new" / "folder" / "c").record == {"a": 2}


@pytest.mark.skipif(os.name != "posix", reason="modes as on POSIX")
def test_a_checkpoint_has_the_mode_of_any_new_file(tmp_path):
    (tmp_path / "plain").touch()
    write_checkpoint(tmp_path / "c", {}, {})
    assert (tmp_path / "c").stat().st_mode == (tmp_path / "plain").stat().st_mode


class Size(IntEnum):
    SMALL = 1


@pytest.mark.parametrize(
    ("record", "kind", "part"),
    [
        ({"a": math.nan}, ValueError, r"record\['a'\] must be finite, got nan\. JSON"),
        ({"a": [0, {"b": -math.inf}]}, ValueError, r"record\['a'\]\[1\]\['b'\] must"),
        ({"a": {1: 2}}, TypeError, r"a key of record\['a'\] must be a str, got 1\."),
        ({"a": torch.ones(2)}, TypeError, "got a float32 Tensor of shape"),
        ({"a": np.float32(1)}, TypeError, r"float\(value\)"),
        ({"a": {1, 2}}, TypeError, r"record\['a'\] must be None, bool"),
        ([1], TypeError, "record must be a mapping"),
    ],
)
def test_what_json_cannot_hold_is_refused_by_its_place(tmp_path, record, kind, part):
    with pytest.raises(kind, match=f"write_checkpoint: .*{part}"):
        write_checkpoint(tmp_path / "c", {}, record)
    with pytest.raises(kind, match=f"fingerprint: .*{part}"):
        fingerprint(record)
    assert not list(tmp_path.iterdir())


def test_numbers_of_other_makes_become_plain_ones(tmp_path):
    record = {"a": np.float64(0.5), "b": Size.SMALL, "c": (1, 2)}
    write_checkpoint(tmp_path / "c", {}, record)
    assert repr(read_checkpoint(tmp_path / "c").record) == (
        "{'a': 0.5, 'b': 1, 'c': [1, 2]}"
    )


@pytest.mark.parametrize(
    ("tensors", "kind", "part"),
    [
        ({1: torch.ones(1)}, TypeError, "tensors must be named by strings, got 1"),
        ({"a": [1.0]}, TypeError, r"tensors\['a'\] must be a tensor, got \[1.0\]"),
        ({"a": torch.eye(2).to_sparse()}, TypeError, "must be dense"),
        ({"a": torch.ones(2, device="meta")}, TypeError, "with numbers in memory"),
        ({"a": torch.ones(2).to(torch.complex128)}, TypeError, "of dtype float64"),
        ({"__metadata__": torch.ones(2)}, ValueError, "other than the format's own"),
        ([torch.ones(2)], TypeError, "tensors must be a mapping"),
    ],
)
def test_tensors_that_cannot_be_written_are_refused(tmp_path, tensors, kind, part):
    with pytest.raises(kind, match=f"write_checkpoint: .*{part}"):
        write_checkpoint(tmp_path / "c", tensors, {})
    assert not list(tmp_path.iterdir())


def test_a_record_too_long_for_any_reader_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "HEADER_LIMIT", 1000)
    write_checkpoint(tmp_path / "c", {}, {"a": "x" * 800})
    with pytest.raises(ValueError, match=r"at most 1000 bytes, .*Keep tables"):
        write_checkpoint(tmp_path / "c", {}, {"a": '"' * 800})
    assert read_checkpoint(tmp_path / "c").record == {"a": "x" * 800}


def test_a_folder_is_no_checkpoint(tmp_path):
    with pytest.raises(ValueError, match="path must be a file, got the folder"):
        write_checkpoint(tmp_path, {}, {})
    with pytest.raises(FileNotFoundError, match="a checkpoint file, got"):
        read_checkpoint(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere, which is none"):
        read_checkpoint(tmp_path / "nowhere")


def good_file():
    head = {"version": 1, "checksum": 0, "record": {}}
    return safetensors.save({"w": torch.ones(3)}, {ENTRY: json.dumps(head)})


FOREIGN = {
    "empty": (b"", "not a whole safetensors file"),
    "text": (b"epoch,loss\n1,0.5\n", "not a whole safetensors file"),
    "torch.save": (b"PK\x03\x04" + bytes(200), "not a whole safetensors file"),
    "another's": (safetensors.save({"w": torch.ones(3)}), "not one that write_checkp"),
    "another's with metadata": (
        safetensors.save({"w": torch.ones(3)}, {"format": "pt"}),
        "not one that write_checkpoint made",
    ),
    "version of no number": (
        safetensors.save({}, {ENTRY: json.dumps({"version": "new"})}),
        "not one that write_checkpoint made",
    ),
    "no json": (safetensors.save({}, {ENTRY: "{"}), "damaged: Expecting"),
    "no record": (safetensors.save({}, {ENTRY: '{"version":1}'}), "record is missing"),
    "wrong checksum": (good_file(), "its checksum does not match"),
    "a later version": (
        safetensors.save({}, {ENTRY: '{"version":2,"anything":"else"}'}),
        "of version 2. Read it with the newer normalign that wrote it",
    ),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_files_are_named_explained_and_left_alone(tmp_path, kind):
    content, part = FOREIGN[kind]
    path = tmp_path / "run.ckpt"
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=f"read_checkpoint: path .*run.ckpt.*{part}"
    ) as e:
        read_checkpoint(path)
    assert "It was not changed" in str(e.value) or "newer" in str(e.value)
    assert path.read_bytes() == content


def whole_file(folder):
    tensors = {"weight": torch.arange(6.0).reshape(2, 3), "step": torch.tensor(7)}
    write_checkpoint(folder / "whole", tensors, {"epoch": 12, "lr": 0.25})
    return tensors, (folder / "whole").read_bytes()


def test_a_file_cut_anywhere_is_refused(tmp_path):
    _, content = whole_file(tmp_path)
    path = tmp_path / "cut"
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match="must be a whole checkpoint"):
            read_checkpoint(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(ValueError, match="must be a whole checkpoint"):
        read_checkpoint(path)


def test_one_wrong_bit_anywhere_is_found_or_harmless(tmp_path):
    tensors, content = whole_file(tmp_path)
    path, harmless, complaints = tmp_path / "flipped", 0, set()
    for position in range(len(content)):
        for bit in (0, 3, 5):
            damaged = bytearray(content)
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                stored = read_checkpoint(path)
            except ValueError as error:
                complaints.add(str(error).split(",")[0])
                continue
            assert_same(stored.tensors, tensors)
            assert stored.record == {"epoch": 12, "lr": 0.25}
            harmless += 1
    assert all(text.startswith("read_checkpoint: path must") for text in complaints)
    # Blanks that pad the header may become other blanks.
    assert harmless < 10


class FullDisk:
    """A file that takes some bytes and then has no room left."""

    def __init__(self, file):
        self.file = file

    def write(self, content):
        self.file.write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *reason):
        self.file.close()


def fails(kind):
    def fail(*_):
        raise kind

    return fail


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("where", ["write", "fsync", "replace", "Ctrl-C"])
def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path, monkeypatch, where, old
):
    path = tmp_path / "c"
    if old:
        write_checkpoint(path, {"w": torch.ones(3)}, {"epoch": 1})
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    kind: type[BaseException] = OSError
    if where == "write":
        opened = Path.open
        monkeypatch.setattr(Path, "open", lambda *args: FullDisk(opened(*args)))
    elif where == "Ctrl-C":
        kind = KeyboardInterrupt
        monkeypatch.setattr(os, "fsync", fails(KeyboardInterrupt()))
    else:
        monkeypatch.setattr(os, where, fails(full))
    with pytest.raises(kind):
        write_checkpoint(path, {"w": torch.zeros(3)}, {"epoch": 2})
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == ([path] if old else [])
    if old:
        assert read_checkpoint(path).record == {"epoch": 1}


def test_a_limit_of_the_system_itself_leaves_the_old_file_and_no_other(tmp_path):
    resource = pytest.importorskip("resource")
    path = tmp_path / "c"
    write_checkpoint(path, {"w": torch.ones(3)}, {"epoch": 1})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_checkpoint(path, {"w": torch.ones(100_000)}, {"epoch": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == [path]
    assert read_checkpoint(path).record == {"epoch": 1}


def test_a_folder_that_cannot_be_flushed_does_not_matter(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, "open", refuse)
    write_checkpoint(tmp_path / "c", {}, {"a": 1})
    assert read_checkpoint(tmp_path / "c").record == {"a": 1}


def test_file_and_folder_are_flushed_around_the_renaming(tmp_path, monkeypatch):
    events, fsync, replace = [], os.fsync, os.replace

    def noted_fsync(handle):
        events.append("folder" if Path(f"/proc/self/fd/{handle}").is_dir() else "file")
        fsync(handle)

    def noted_replace(*paths):
        events.append("rename")
        replace(*paths)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    write_checkpoint(tmp_path / "c", {"w": torch.ones(3)}, {})
    if Path("/proc/self/fd").is_dir():
        assert events == ["file", "rename", "folder"]
    else:
        assert events.index("rename") == 1


WRITER = """
import itertools, sys, torch
from normalign.training._checkpoint import write_checkpoint
torch.set_num_threads(1)
for i in itertools.count():
    tensors = {"w": torch.full((200_000,), float(i)), "i": torch.tensor(i)}
    write_checkpoint(sys.argv[1], tensors, {"i": i})
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_process_killed_while_writing_leaves_a_whole_file(tmp_path):
    paths = [tmp_path / f"run{i}" for i in range(4)]
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path)]) for path in paths
    ]
    try:
        deadline = time.monotonic() + 120
        first = dict.fromkeys(paths)
        while None in first.values() or any(
            read_checkpoint(path).record["i"] <= first[path] for path in paths
        ):
            assert all(writer.poll() is None for writer in writers)
            assert time.monotonic() < deadline
            for path in paths:
                if first[path] is None and path.exists():
                    first[path] = read_checkpoint(path).record["i"]
            time.sleep(0.01)
    finally:
        for delay, writer in enumerate(writers):
            time.sleep(0.013 * delay)
            writer.kill()
            writer.wait()
    for path in paths:
        stored = read_checkpoint(path)
        last = stored.record["i"]
        assert last > first[path]
        assert int(stored.tensors["i"]) == last
        assert torch.equal(stored.tensors["w"], torch.full((200_000,), float(last)))
    left = {path.name for path in tmp_path.iterdir()} - {path.name for path in paths}
    assert all(name.startswith(".run") and name.endswith(".tmp") for name in left)


@given(records)
def test_the_fingerprint_ignores_order_and_survives_the_file(tmp_path_factory, record):
    path = tmp_path_factory.mktemp("prints") / "c"
    write_checkpoint(path, {}, record)
    shuffled = dict(reversed(record.items()))
    assert fingerprint(shuffled) == fingerprint(record)
    assert fingerprint(read_checkpoint(path).record) == fingerprint(record)


@given(records, records)
def test_different_records_have_different_fingerprints(one, other):
    def with_kinds(value):  # Python holds True and 1 equal, JSON does not
        if isinstance(value, dict):
            return {key: with_kinds(part) for key, part in value.items()}
        if isinstance(value, list):
            return [with_kinds(part) for part in value]
        return (isinstance(value, bool), value)

    same = with_kinds(one) == with_kinds(other)
    assert (fingerprint(one) == fingerprint(other)) == same


def test_the_fingerprint_counts_numbers_by_value_and_tells_them_apart():
    assert fingerprint({"a": 1}) == fingerprint({"a": 1.0})
    assert fingerprint({"a": (0.0, 2)}) == fingerprint({"a": [-0.0, 2.0]})
    different = [{"a": 1}, {"a": "1"}, {"a": True}, {"a": [1]}, {"b": 1}, {"a": None}]
    assert len({fingerprint(record) for record in different}) == len(different)
    # printf '{"a":1}' | sha256sum
    assert fingerprint({"a": 1}) == (
        "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"
    )


@pytest.mark.parametrize(
    "call", [lambda path: write_checkpoint(path, {}, {}), read_checkpoint]
)
def test_without_safetensors_the_extra_is_named(tmp_path, monkeypatch, call):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    remedy = r'pip install "normalign\[weights\]"'
    with pytest.raises(ModuleNotFoundError, match=remedy):
        call(tmp_path / "c")
    assert not list(tmp_path.iterdir())


@pytest.mark.cuda
def test_tensors_of_the_gpu_come_back_to_it_bit_for_bit(tmp_path):
    tensors = {"w": torch.randn(3, 4, device="cuda").T, "s": torch.tensor(1.0).cuda()}
    write_checkpoint(tmp_path / "c", tensors, {})
    stored = read_checkpoint(tmp_path / "c", device="cuda").tensors
    assert stored["w"].is_cuda
    assert_same(stored, tensors)
