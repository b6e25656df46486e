"""Atomic writes, checksums and hashes."""

import json
import logging
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normalign_reproduction.files import (
    load_cache,
    read_checked,
    settings_hash,
    write_bytes,
    write_checked,
    write_json,
)

SETTINGS = st.dictionaries(st.text(), st.integers() | st.text() | st.floats(0, 1))
DEEP = 100_000 * "[" + 100_000 * "]"


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
    path = write_bytes(tmp_path / "results.json", b"old")

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


@pytest.mark.parametrize("write", [write_json, write_checked])
def test_nan_is_refused_and_leaves_no_file(tmp_path, write):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write(tmp_path / "a.json", {"x": float("nan")})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"{}",
        b"null",
        b"\xff\xfe",
        b'{"x": NaN, "sha256": ""}',
        b'{"x": 1e999, "sha256": "0"}',
        DEEP.encode(),
        f'{{"sha256": {DEEP}}}'.encode(),
        b'{"x": 1, "sha256": "0"}',
    ],
    ids=range(12),
)
def test_a_damaged_file_is_named_and_a_cache_ignores_it(tmp_path, caplog, content):
    path = tmp_path / "name.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"name\.json is damaged: "):
        read_checked(path)
    with caplog.at_level(logging.WARNING):
        assert load_cache(path) is None
    assert "name.json is damaged" in caplog.text
    write_checked(path, {"x": 1})
    assert load_cache(path) == {"x": 1}
    assert load_cache(tmp_path / "none.json") is None
