import csv
import functools
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import threading
import tracemalloc
import types
import zipfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import normalign
from normalign.cli import main

MODEL = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))

def number():
    return 3

def broken():
    return undefined_name

def leaving():
    raise SystemExit(0)
"""


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("NORMALIGN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NORMALIGN_DATA", raising=False)


@pytest.fixture
def files(tmp_path):
    """A model file, its trained-elsewhere weights, and labelled inputs."""
    (tmp_path / "net.py").write_text(MODEL)
    generator = torch.Generator().manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    state = {
        name: torch.randn(value.shape, generator=generator)
        for name, value in model.state_dict().items()
    }
    model.load_state_dict(state)
    torch.save(state, tmp_path / "w.pt")
    x = torch.randn(8, 6, generator=generator)
    y = torch.arange(8) % 3
    np.savez(tmp_path / "d.npz", x=x.numpy(), y=y.numpy())
    return types.SimpleNamespace(
        model=model, x=x, y=y, state=state, folder=tmp_path,
        words=["measure", "--model", f"{tmp_path / 'net.py'}:build",
               "--weights", str(tmp_path / "w.pt"), "--data", str(tmp_path / "d.npz")],
    )  # fmt: skip


def one_line(capsys) -> str:
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert "Traceback" not in captured.err
    return lines[-1]


def python(code: str, *, timeout: float = 60) -> subprocess.CompletedProcess:
    source = str(Path(normalign.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        timeout=timeout, env={**os.environ, "PYTHONPATH": source},
    )  # fmt: skip


def test_help_does_not_import_torch():
    code = (
        "import sys; from normalign.cli import main; code = main(['--help']); "
        "heavy = {'torch', 'numpy', 'sklearn', 'rich'} & set(sys.modules); "
        "sys.exit(code or len(heavy))"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert "measure" in done.stdout


@pytest.mark.parametrize(
    "command",
    ["reproduce", "list", "show", "compare", "report", "verify", "measure", "data",
     "doctor"],
)  # fmt: skip
def test_every_command_has_help(capsys, command):
    assert main([command, "--help"]) == 0
    assert f"normalign {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command", ["reproduce", "list", "show", "compare", "report", "verify"]
)
@pytest.mark.parametrize(
    "words", [[], ["--full"], ["--help"], ["table1", "--full", "--seeds", "3"]]
)
def test_without_the_reproduction_its_commands_name_the_package(
    command, words, capsys, monkeypatch
):
    monkeypatch.setattr("normalign.cli.entry_points", lambda group: ())
    assert main([command, *words]) == 2
    line = one_line(capsys)
    assert line.startswith(f"normalign {command}: the package normalign-reproduction")
    assert "pip install normalign-reproduction" in line


def test_without_the_reproduction_its_tables_name_the_package(capsys, monkeypatch):
    monkeypatch.setattr("normalign.cli.data.entry_points", lambda group: ())
    for action in ("where", "fetch"):
        assert main(["data", action, "uci"]) == 2
        assert "The package normalign-reproduction adds uci" in one_line(capsys)


def test_version_is_the_packages(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"normalign {normalign.__version__}\n"


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["mesure"],
        ["measure"],
        ["doctor", "--jsn"],
        ["data"],
        ["data", "fetch"],
        ["data", "fetch", "mnist", "--timeout", "soon"],
    ],
)
def test_bad_words_get_one_line_and_exit_2(capsys, words):
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert re.fullmatch(r"normalign.*: .*\. See `normalign.* --help`\.\n", captured.err)


def test_ctrl_c_exits_130_with_one_line(monkeypatch, capsys):
    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("normalign.cli.doctor._report", lambda: interrupted(None))
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "normalign: interrupted.\n"


def test_a_failed_run_exits_1(monkeypatch, capsys):
    def failing():
        raise RuntimeError("the loss is not\nfinite")

    monkeypatch.setattr("normalign.cli.doctor._report", failing)
    assert main(["doctor"]) == 1
    assert capsys.readouterr().err == "the loss is not finite\n"


def test_a_reader_that_stops_early_is_no_error():
    done = python(
        "import os, sys; from normalign.cli import main; "
        "read, write = os.pipe(); os.close(read); os.dup2(write, 1); "
        "sys.exit(main(['data', 'list']))"
    )
    assert done.returncode == 0
    assert done.stderr == ""


# doctor


def test_doctor_reports_versions_devices_and_data(capsys):
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["versions"]["torch"] == torch.__version__.split("+")[0] or (
        report["versions"]["torch"] == torch.__version__
    )
    assert report["versions"]["normalign"] == normalign.__version__
    assert report["devices"][0]["threads"] == torch.get_num_threads()
    assert report["data"]["mnist"] == {"folder": None, "exact": None}
    assert report["extras"]["download"]["package"] == "pooch"


def test_doctor_prints_tables(capsys, monkeypatch):
    monkeypatch.setattr(
        "normalign.cli.doctor._version_of", lambda p: None if p == "pooch" else "1.0"
    )
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "cpu" in out
    assert 'pip install "normalign[download]"' in out
    assert "not here" in out


def test_doctor_exits_1_when_a_needed_package_is_missing(capsys, monkeypatch):
    monkeypatch.setattr("normalign.cli.doctor._version_of", lambda package: None)
    assert main(["doctor"]) == 1
    assert "MISSING" in capsys.readouterr().out


# data


def write_other_mnist(folder: Path) -> None:
    (folder / "mnist").mkdir(parents=True)
    for file in normalign.data.MNIST.files:
        (folder / file.path).write_bytes(b"not the published bytes")


def test_data_list_names_every_source(capsys):
    assert main(["data", "list"]) == 0
    out = capsys.readouterr().out
    for name in ("mnist", "cifar10", "digits_5000", "xor", "modular_addition"):
        assert name in out
    assert "not here" in out


def test_data_where_prints_the_folder_and_flags_a_copy(capsys, tmp_path):
    write_other_mnist(tmp_path / "here")
    assert main(["data", "where", "mnist", "--data-dir", str(tmp_path / "here")]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{tmp_path / 'here'}\n"
    assert "partial or re-encoded" in captured.err


def test_data_where_of_a_missing_source_exits_1(capsys, tmp_path):
    assert main(["data", "where", "cifar10"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "normalign data fetch cifar10" in captured.err
    assert str(tmp_path / "cache") in captured.err


def test_data_where_without_a_name_shows_the_search_path(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("NORMALIGN_DATA", str(tmp_path / "shared"))
    write_other_mnist(tmp_path / "shared")
    assert main(["data", "where"]) == 0
    out = capsys.readouterr().out
    assert f"looked in {tmp_path / 'shared'}" in out
    assert f"looked in {tmp_path / 'cache'}" in out


@pytest.mark.parametrize("action", ["where", "fetch"])
def test_an_unknown_source_exits_2(capsys, action):
    assert main(["data", action, "minst"]) == 2
    line = one_line(capsys)
    assert "name must be one of mnist, cifar10" in line
    assert "got 'minst'" in line


def test_data_fetch_without_a_network_exits_1(capsys, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    pytest.importorskip("pooch")
    # port 9 of the loopback: nothing listens there
    assert main(["data", "fetch", "mnist", "--mirror", "http://127.0.0.1:9"]) == 1
    assert "fetch: mirrors must be reachable" in one_line(capsys)


@pytest.fixture
def served(tmp_path):
    """A loopback server over a folder, and its address."""
    (tmp_path / "served").mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield tmp_path / "served", f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(5)


def test_data_fetch_downloads_and_prints_the_folder(
    served, capsys, monkeypatch, tmp_path
):
    pytest.importorskip("pooch")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    folder, address = served
    raw = bytes(range(256))
    (folder / "a.bin").write_bytes(raw)
    md5 = hashlib.md5(raw, usedforsecurity=False).hexdigest()
    source = normalign.data.Source(
        "tiny", "a tiny source", (normalign.data.RemoteFile("tiny/a.bin", 256, md5),),
        (), "no terms", "nobody",
    )  # fmt: skip
    monkeypatch.setitem(normalign.data.SOURCES, "tiny", source)
    words = [
        "data",
        "fetch",
        "tiny",
        "--mirror",
        f"{address}/gone",
        "--mirror",
        address,
    ]
    assert main(words) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{tmp_path / 'cache'}\n"
    assert "nobody; no terms" in captured.err
    assert (tmp_path / "cache/tiny/a.bin").read_bytes() == raw
    assert main(["data", "where", "tiny"]) == 0
    assert capsys.readouterr() == (f"{tmp_path / 'cache'}\n", "")


# measure


def test_measure_equals_local_geometry_of_the_loaded_model(files, capsys):
    target = files.folder / "r.json"
    assert main([*files.words, "--at", "2", "--json", str(target)]) == 0
    captured = capsys.readouterr()
    assert "normal alignment" in captured.out.replace("\n", " ")
    assert "measuring 8 samples on" in captured.err
    report = json.loads(target.read_text())
    for name, at in (("input", None), ("2", "2")):
        ours = report["at"][name]
        truth = normalign.local_geometry(files.model.eval(), files.x, files.y, at=at)
        assert set(ours["mean"]) == set(truth.mean())
        for key, value in truth.mean().items():
            # float32 sums in the same order: equal but for printing
            assert ours["mean"][key] == pytest.approx(value, rel=1e-5, abs=1e-6)
        assert len(ours["samples"]["local_robustness"]) == 8


def test_a_narrow_terminal_gets_one_row_per_measure(files, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert main([*files.words, "--at", "2"]) == 0
    plain = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    lines = plain.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum("effective rank" in line for line in lines) == 1


def test_measure_saves_a_row_per_sample_and_place(files):
    target = files.folder / "r.csv"
    assert main([*files.words, "--at", "2", "--csv", str(target), "--limit", "5"]) == 0
    with target.open(newline="") as stream:
        table = list(csv.DictReader(stream))
    assert [row["at"] for row in table] == ["input"] * 5 + ["2"] * 5
    assert [row["sample"] for row in table[:5]] == list("01234")
    truth = normalign.local_geometry(files.model.eval(), files.x[:5], files.y[:5])
    ours = torch.tensor([float(row["effective_rank"]) for row in table[:5]])
    torch.testing.assert_close(ours, truth.effective_rank)


def test_measure_starts_tokens_from_the_places_that_are_named(tmp_path, capsys):
    (tmp_path / "net.py").write_text(
        "from normalign.nn import Transformer\n"
        "def build(): return Transformer(11, 5, width=8, n_heads=2, hidden=16)\n"
    )
    np.savez(tmp_path / "d.npz", x=np.arange(12).reshape(4, 3) % 11)
    words = ["measure", "--model", f"{tmp_path / 'net.py'}:build"]
    words += ["--data", str(tmp_path / "d.npz")]
    assert main(words) == 2
    assert "at='embed'" in one_line(capsys)
    assert main([*words, "--at", "embed", "--at", "blocks"]) == 0
    assert "blocks" in capsys.readouterr().out


def test_measure_says_what_the_model_says(tmp_path, capsys):
    (tmp_path / "net.py").write_text(
        "from normalign.nn import Transformer\n"
        "def build(): return Transformer(11, 5, width=8, n_heads=2, hidden=16)\n"
    )
    np.savez(tmp_path / "d.npz", x=np.full((4, 3), 99))
    words = ["measure", "--model", f"{tmp_path / 'net.py'}:build"]
    words += ["--data", str(tmp_path / "d.npz"), "--at", "embed"]
    assert main(words) == 2
    assert "the model says: IndexError" in one_line(capsys)


@pytest.mark.parametrize("content", ["junk", {0: torch.zeros(2)}])
def test_measure_refuses_weights_that_are_none(files, capsys, content):
    if isinstance(content, str):
        (files.folder / "w.pt").write_text(content)
    else:
        torch.save(content, files.folder / "w.pt")
    assert main(files.words) == 2
    assert "--weights must be" in one_line(capsys)


def test_measure_without_labels_leaves_robustness_out(files, capsys):
    np.savez(files.folder / "d.npz", x=files.x.numpy())
    assert main(files.words) == 0
    assert "robustness" not in capsys.readouterr().out


def test_measure_in_float64_and_small_batches(files):
    one, two = files.folder / "1.json", files.folder / "2.json"
    assert main([*files.words, "--dtype", "float64", "--json", str(one)]) == 0
    assert (
        main([*files.words, "--batch-limit", "3", "--device", "cpu",
              "--method", "exact", "--json", str(two)])
        == 0
    )  # fmt: skip
    means = [json.loads(p.read_text())["at"]["input"]["mean"] for p in (one, two)]
    assert means[0] == pytest.approx(means[1], rel=1e-4, abs=1e-5)  # float32


def test_measure_reads_other_keys_and_limits(files, capsys):
    np.savez(files.folder / "d.npz", rows=files.x.numpy(), cls=files.y.numpy())
    words = [*files.words, "--x-key", "rows", "--y-key", "cls", "--limit", "2"]
    assert main(words) == 0
    assert "Means over 2 samples" in capsys.readouterr().out


def test_weights_come_as_safetensors_nested_or_prefixed(files, capsys):
    torch_file = files.folder / "w.pt"
    reports = []
    variants = {
        "plain": files.state,
        "nested": {"state_dict": files.state},
        "prefixed": {f"module.{k}": v for k, v in files.state.items()},
    }
    for state in variants.values():
        torch.save(state, torch_file)
        assert main(files.words) == 0
        reports.append(capsys.readouterr().out)
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(files.state, files.folder / "w.safetensors")
    words = [w.replace("w.pt", "w.safetensors") for w in files.words]
    assert main(words) == 0
    reports.append(capsys.readouterr().out)
    assert len(set(reports)) == 1


def test_without_safetensors_the_extra_is_named(files, capsys, monkeypatch):
    (files.folder / "w.safetensors").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert main(replaced(files.words, "w.pt", "w.safetensors")) == 2
    assert 'pip install "normalign[weights]"' in one_line(capsys)


def test_the_function_is_called_build_unless_said_otherwise(files):
    assert main(replaced(files.words, ":build", "")) == 0


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_measure_on_cuda_agrees_with_the_cpu(files):
    means = []
    for device in ("cpu", "cuda"):
        target = files.folder / f"{device}.json"
        words = ["--device", device, "--dtype", "float64", "--json", str(target)]
        assert main([*files.words, "--at", "2", *words]) == 0
        means.append(json.loads(target.read_text())["at"])
    for place in ("input", "2"):
        ours, theirs = (m[place]["mean"] for m in means)
        assert ours == pytest.approx(theirs, rel=1e-9)  # float64 on both


def test_without_weights_the_built_model_is_measured_and_said_so(files, capsys):
    words = [w for w in files.words if w != "--weights" and not w.endswith("w.pt")]
    assert main(words) == 0
    assert "as the model's function left them" in capsys.readouterr().err


def test_the_users_file_may_import_its_neighbour(files):
    (files.folder / "width_of_net.py").write_text("WIDTH = 5")
    (files.folder / "net.py").write_text(
        "from width_of_net import WIDTH\n" + MODEL.replace("5", "WIDTH")
    )
    before = list(sys.path)
    assert main(files.words) == 0
    assert sys.path == before


def replaced(words: list[str], old: str, new: str) -> list[str]:
    return [word.replace(old, new) for word in words]


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("net.py:build", "gone.py:build", "--model must be FILE.py:build"),
        ("net.py:build", "net.py:make", "a file with a function make()"),
        ("net.py:build", "net.py:number", "returns a torch.nn.Module, got 3"),
        ("net.py:build", "net.py:broken", "NameError: name 'undefined_name'"),
        ("net.py:build", "net.py:leaving", "SystemExit: 0"),
        ("w.pt", "gone.pt", "--weights must be a file that exists"),
        ("w.pt", "net.py", "a .safetensors, .pt or .pth file"),
        ("d.npz", "gone.npz", "--data must be a file that exists"),
        ("d.npz", "net.py", "an .npz archive of plain arrays"),
    ],
)
def test_a_wrong_file_gets_one_line_and_exit_2(files, capsys, old, new, match):
    assert main(replaced(files.words, old, new)) == 2
    line = one_line(capsys)
    assert line.startswith("normalign measure: --")
    assert match in line


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["--limit", "0"], "--limit must be at least 1"),
        (["--batch-limit", "-1"], "--batch-limit must be at least 1"),
        (["--device", "tpu"], "--device must be auto, cpu, cuda or cuda:N"),
        (["--device", "cuda:99"], "--device must be one of the"),
        (["--x-key", "z"], "--x-key must be one of x, y, got 'z'"),
        (["--y-key", "z"], "--y-key must be one of x, y, got 'z'"),
        (["--at", "2", "--at", "2"], "--at must be different names"),
        (
            ["--at", "layer9"],
            "got 'layer9'. Some of its names: 0, 1, 2.",
        ),
        (["--json", "no/such/folder/r.json"], "--json must be a file in a folder"),
    ],
)
def test_a_wrong_option_gets_one_line_and_exit_2(files, capsys, words, match):
    assert main([*files.words, *words]) == 2
    assert match in one_line(capsys)


def test_a_syntax_error_says_file_and_line(files, capsys):
    (files.folder / "net.py").write_text("x = 1\ndef build(:\n")
    assert main(files.words) == 2
    assert "net.py, line 2" in one_line(capsys)


def test_mismatched_weights_are_listed(files, capsys):
    state = dict(files.state)
    state["extra"] = state.pop("0.bias")
    state["2.weight"] = torch.zeros(3, 4)
    torch.save(state, files.folder / "w.pt")
    assert main(files.words) == 2
    line = one_line(capsys)
    assert "1 missing (0.bias)" in line
    assert "1 unexpected (extra)" in line
    assert "2.weight: (3, 4) in the file, (3, 5) in the model" in line


class Evil:
    def __reduce__(self):
        return (os.mkdir, ("evil-was-here",))


def test_pickled_objects_are_never_run(files, capsys, monkeypatch):
    monkeypatch.chdir(files.folder)
    torch.save({"0.weight": Evil()}, files.folder / "w.pt")
    assert main(files.words) == 2
    assert "tensors only" in one_line(capsys)
    torch.save(files.state, files.folder / "w.pt")
    np.savez(files.folder / "d.npz", x=np.array([Evil()], dtype=object))
    assert main(files.words) == 2
    assert "plain arrays" in one_line(capsys)
    assert not Path("evil-was-here").exists()


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors", "d.npz"])
@pytest.mark.parametrize("keep", [0, 20, 300])
def test_a_truncated_file_gets_one_line(files, capsys, name, keep):
    words = files.words
    if name == "w.safetensors":
        safetensors = pytest.importorskip("safetensors.torch")
        safetensors.save_file(files.state, files.folder / name)
        words = replaced(words, "w.pt", name)
    path = files.folder / name
    path.write_bytes(path.read_bytes()[:keep])
    assert main(words) == 2
    assert one_line(capsys).startswith("normalign measure: --")


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"x": np.zeros((8, 7), np.float32)}, "inputs that the model takes"),
        ({"x": np.array(["a", "b"])}, "an x of real numbers"),
        ({"x": np.zeros((0, 6))}, "at least one sample"),
        ({"x": np.zeros((2, 6)), "y": np.zeros(2)}, "a y of class indices"),
        ({"x": np.zeros((2, 6)), "y": np.zeros(3, int)}, "a y of shape (2,)"),
        ({"x": np.zeros((2, 6)), "y": np.array([0, 3])}, "y must be"),
    ],
)
def test_data_that_do_not_fit_get_one_line(files, capsys, arrays, match):
    np.savez(files.folder / "d.npz", **arrays)
    assert main(files.words) == 2
    assert match in one_line(capsys)


def npy_header(shape, data=b""):
    """The bytes of a .npy file of float64 whose header says this shape."""
    file = io.BytesIO()
    head = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, head)
    return file.getvalue() + data


@pytest.mark.parametrize(
    ("member", "match"),
    [
        (b"", "plain arrays, got d.npz (x: "),
        (b"no array at all", "plain arrays, got d.npz (x: "),
        (npy_header((10**12, 6)), "(x: its header says shape (1000000000000, 6)"),
        (npy_header((10**12, 0)), "an x with at least one sample, none of them empty"),
        (npy_header((3, 6), bytes(8 * 17)), "144 bytes; there are 136"),
        (npy_header((2, 6), bytes(8 * 13)), "96 bytes; there are 104"),
    ],
    ids=["empty", "text", "huge", "huge and empty", "short", "long"],
)
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_member_that_is_no_whole_array_gets_one_line(
    files, capsys, member, match, method
):
    with zipfile.ZipFile(files.folder / "d.npz", "w", method) as archive:
        archive.writestr("x.npy", member)
    tracemalloc.start()
    assert main(files.words) == 2
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**26  # the model and its imports
    assert match in one_line(capsys)


def test_a_single_array_is_refused_before_it_is_read(files, capsys):
    (files.folder / "d.npz").write_bytes(npy_header((10**12, 6)))
    assert main(files.words) == 2
    assert "an .npz archive, got d.npz, a single array" in one_line(capsys)


def test_infinite_values_are_null_in_the_json(files):
    # a constant map has no boundary near: its distance to one is infinite
    constant = {name: torch.zeros_like(value) for name, value in files.state.items()}
    constant["2.bias"] = torch.tensor([1.0, 0.0, -1.0])
    torch.save(constant, files.folder / "w.pt")
    target = files.folder / "r.json"
    assert main([*files.words, "--json", str(target)]) == 0
    text = target.read_text()
    assert "Infinity" not in text
    assert "NaN" not in text
    assert json.loads(text)["at"]["input"]["samples"]["jacobian_norm"] == [0.0] * 8
