"""`normalign measure --profile`: table, picture, files, and ends before the end."""

import itertools
import json
import re
import shlex
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

import normalign
from normalign.cli import main
from normalign.cli.measuring import _duration
from normalign.geometry import ProfileRun

pytestmark = pytest.mark.usefixtures("ctrl_c", "time_limit")

MODEL = """
import torch
from normalign.nn import resnet18

def build():
    return resnet18(4, width=2, generator=torch.Generator().manual_seed(0))
"""

PLACES = ["input", "layer1", "layer2", "layer3", "layer4"]


@pytest.fixture
def files(tmp_path):
    (tmp_path / "net.py").write_text(MODEL)
    x = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    np.savez(tmp_path / "d.npz", x=x.numpy(), y=np.arange(5) % 4)
    return types.SimpleNamespace(
        x=x, folder=tmp_path,
        words=["measure", "--model", f"{tmp_path / 'net.py'}:build",
               "--data", str(tmp_path / "d.npz"), "--device", "cpu"],
    )  # fmt: skip


def network(files):
    names: dict = {}
    exec((files.folder / "net.py").read_text(), names)
    return names["build"]().eval()


def test_a_profile_is_printed_and_saved(files, capsys):
    target = files.folder / "r.json"
    assert main([*files.words, "--profile", "--json", str(target)]) == 0
    captured = capsys.readouterr()
    assert "Means over 5 samples" in captured.out
    rows = [line.split()[0] for line in captured.out.splitlines() if line.split()]
    assert [row for row in rows if row in PLACES] == PLACES
    assert "measuring 5 samples on cpu at input, layer1" in captured.err
    told = json.loads(target.read_text())
    assert (told["version"], told["automatic"], told["complete"]) == (1, True, True)
    assert list(told["at"]) == PLACES
    y = torch.arange(5) % 4
    expected = normalign.local_geometry(network(files), files.x, y, at="layer3")
    ours = torch.tensor(told["at"]["layer3"]["samples"]["centroid_alignment"])
    # float32 rows of one pass and of another
    torch.testing.assert_close(ours, expected.centroid_alignment, rtol=1e-4, atol=1e-5)


def test_places_that_are_named_join_those_that_are_found(files):
    target = files.folder / "r.json"
    words = ["--profile", "--at", "layer2", "--at", "fc", "--json", str(target)]
    assert main([*files.words, *words]) == 0
    assert list(json.loads(target.read_text())["at"]) == [*PLACES, "fc"]


@pytest.mark.parametrize(
    ("name", "start"), [("p.png", b"\x89PNG"), ("p.svg", b"<?xml"), ("p.PDF", b"%PDF")]
)
def test_a_picture_is_drawn(files, capsys, name, start):
    target = files.folder / name
    assert main([*files.words, "--profile", "--figure", str(target)]) == 0
    assert target.read_bytes().startswith(start)
    assert f"saved {target}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("p.jpg", "--figure must be a .png, .svg or .pdf file, got p.jpg"),
        ("no/p.png", "--figure must be a file in a folder that exists"),
    ],
)
def test_a_wrong_picture_is_refused_before_the_work(files, capsys, name, match):
    assert main([*files.words, "--figure", str(files.folder / name)]) == 2
    captured = capsys.readouterr()
    assert match in captured.err
    assert "measuring" not in captured.err


def test_without_matplotlib_the_extra_is_named(files, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main([*files.words, "--figure", str(files.folder / "p.png")]) == 2
    assert 'pip install "normalign[plots]"' in capsys.readouterr().err


def ending(monkeypatch, after, error):
    """Let the work end early, after so many steps."""
    original = ProfileRun.__iter__

    def steps(self):
        yield from itertools.islice(original(self), after)
        raise error

    monkeypatch.setattr(ProfileRun, "__iter__", steps)


def test_an_interrupt_keeps_what_is_finished(files, capsys, monkeypatch):
    ending(monkeypatch, 8, KeyboardInterrupt())
    target = files.folder / "r.json"
    words = ["--profile", "--batch-limit", "3", "--json", str(target)]
    assert main([*files.words, *words]) == 130
    captured = capsys.readouterr()
    assert (
        "interrupted; measured: input, layer1, layer2, layer3 (3 of 5 samples), "
        "layer4 (3 of 5 samples)" in captured.err
    )
    assert "Means over the samples that were measured" in captured.out
    told = json.loads(target.read_text())
    assert told["complete"] is False
    assert [place["n"] for place in told["at"].values()] == [5, 5, 5, 3, 3]


def test_an_interrupt_says_which_places_are_missing(files, capsys, monkeypatch):
    ending(monkeypatch, 1, KeyboardInterrupt())
    assert main([*files.words, "--at", "layer1", "--at", "layer2"]) == 130
    assert "not measured: layer1, layer2" in capsys.readouterr().err


def test_an_interrupt_before_anything_is_finished_saves_nothing(
    files, capsys, monkeypatch
):
    ending(monkeypatch, 0, KeyboardInterrupt())
    target = files.folder / "r.json"
    assert main([*files.words, "--json", str(target)]) == 130
    assert not target.exists()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"),
    ],
    ids=["python", "cuda", "cpu"],
)
def test_too_little_memory_gets_the_remedy_and_keeps_the_rest(
    files, capsys, monkeypatch, error
):
    ending(monkeypatch, 1, error)
    target = files.folder / "r.json"
    assert main([*files.words, "--at", "layer4", "--json", str(target)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert "out of memory; measured: input" in lines
    assert lines[-1].startswith("normalign measure: the memory must be enough")
    assert "--batch-limit" in lines[-1]
    assert list(json.loads(target.read_text())["at"]) == ["input"]


def test_long_work_says_how_far_it_is(files, capsys, monkeypatch):
    monkeypatch.setattr("normalign.cli.measuring.SECONDS_BETWEEN_NOTES", 0.0)
    assert main([*files.words, "--at", "layer4", "--batch-limit", "3"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert "input: 3 of 5 samples; in all 3 of 10" in lines
    assert any(
        line.startswith("layer4: 3 of 5 samples; in all 6 of 10, about")
        for line in lines
    )


@pytest.mark.parametrize(
    ("seconds", "told"), [(4.4, "4 s"), (240.0, "4 min"), (9000.0, "2.5 h")]
)
def test_times_are_told_in_round_numbers(seconds, told):
    assert _duration(seconds) == told


def test_a_process_that_is_interrupted_ends_with_130_and_its_files(files):
    """The real signal, in a process of its own, once the first place is done."""
    target = files.folder / "r.json"
    code = (
        "import os, signal, sys\n"
        "from normalign.cli import main\n"
        "from normalign.geometry import ProfileRun\n"
        "steps = ProfileRun.__iter__\n"
        "def watched(self):\n"
        "    for step in steps(self):\n"
        "        yield step\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "ProfileRun.__iter__ = watched\n"
        f"sys.exit(main({[*files.words, '--profile', '--json', str(target)]!r}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert list(json.loads(target.read_text())["at"])[:1] == ["input"]


PAGE = Path(__file__).parents[2] / "docs" / "measure-your-own-network.md"
RUNS = re.compile(r"^```(python|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_command_of_the_page_runs_as_printed(tmp_path, monkeypatch, capsys):
    """The code above the command, then the command, as a reader would."""
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "page"}
    for kind, block in RUNS.findall(PAGE.read_text()):
        if kind == "sh":
            break
        exec(compile(block, str(PAGE), "exec"), names)
    (tmp_path / "profile.json").unlink()  # the page writes one of its own
    program, *words = shlex.split(block.replace("\\\n", " "))
    assert program == "normalign"
    capsys.readouterr()
    assert main(words) == 0
    table = capsys.readouterr().out
    assert all(place in table for place in PLACES)
    told = json.loads((tmp_path / "profile.json").read_text())
    ours = names["profile"].means()
    for place, one in told["at"].items():
        # the same float32 network, loaded from its file
        mean = one["mean"]["centroid_alignment"]
        assert mean == pytest.approx(ours[place]["centroid_alignment"], abs=1e-5)
    assert (tmp_path / "profile.svg").exists()
    assert (tmp_path / "profile.csv").exists()


def test_a_network_of_ours_is_built_in_the_form_of_its_weights(files, capsys):
    torch.save(network(files).state_dict(), files.folder / "w.pt")
    words = ["measure", "--model", "normalign.nn:resnet18", "--device", "cpu",
             "--weights", str(files.folder / "w.pt"), "--data",
             str(files.folder / "d.npz"), "--profile"]  # fmt: skip
    assert main(words) == 0
    assert "layer4" in capsys.readouterr().out
