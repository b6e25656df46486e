import json
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normalign_reproduction.files import settings_hash, write_bytes, write_json
from normalign_reproduction.provenance import provenance

SETTINGS = st.dictionaries(st.text(), st.integers() | st.text() | st.floats(0, 1))


@given(SETTINGS)
def test_the_hash_does_not_depend_on_the_order(settings):
    turned = dict(reversed(list(settings.items())))
    assert settings_hash(turned) == settings_hash(settings)


def test_any_change_of_a_setting_changes_the_hash():
    one = {"weight": 0.1, "hidden": (200, 200)}
    others = [{**one, "weight": 0.10001}, {**one, "hidden": (200,)}, {**one, "seed": 0}]
    hashes = {settings_hash(settings) for settings in [one, *others]}
    assert len(hashes) == 4


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    write_bytes(path, b"old")

    def broken(source, target):
        raise OSError("disk")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="disk"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_folders_are_made_and_files_are_readable_by_others(tmp_path):
    path = write_json(tmp_path / "a" / "b.json", {"x": [1, 2.5, None]})
    assert json.loads(path.read_text()) == {"x": [1, 2.5, None]}
    assert path.stat().st_mode & 0o044 == 0o044


def test_json_without_a_meaning_elsewhere_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    assert not list(tmp_path.iterdir())


def test_provenance_names_what_made_a_number():
    about = provenance()
    assert about["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    assert about["threads"] == torch.get_num_threads()
    commit = about["commit"]
    assert commit is None or len(commit.removesuffix("+changes")) == 40
