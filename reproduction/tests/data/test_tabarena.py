import json
import math
import os

import numpy as np
import pytest

from normalign_reproduction.data import (
    TabArenaTable,
    load_tabarena,
    tabarena_facts,
    tabarena_names,
)
from tests.data.tabarena_files import pd, toy_entry, toy_frame, write_tabarena

pytest.importorskip("pyarrow")


@pytest.fixture(autouse=True)
def empty_shelves(monkeypatch, tmp_path):
    monkeypatch.delenv("NORMALIGN_DATA", raising=False)
    monkeypatch.setenv("NORMALIGN_CACHE", str(tmp_path / "cache"))


def load(folder) -> TabArenaTable:
    return load_tabarena("toy", data_dir=folder, download=False)


# tasks


def test_there_are_51_tasks_with_ids_of_their_own():
    facts = tabarena_facts()
    assert len(facts) == 51
    for ids in ("openml_dataset_id", "openml_task_id"):
        assert len({getattr(task, ids) for task in facts.values()}) == 51
    for name, task in facts.items():
        assert task.name == name
        assert task.licence
        assert (task.n_classes is None) == (task.problem_type == "regression")
        assert (task.n_classes == 2) == (task.problem_type == "binary")


def test_the_metric_follows_the_kind_of_task():
    metrics = {task.problem_type: task.metric for task in tabarena_facts().values()}
    assert metrics == {
        "binary": "roc_auc", "multiclass": "log_loss", "regression": "rmse"
    }  # fmt: skip


def test_the_tasks_cannot_be_changed_by_a_caller():
    tabarena_facts().clear()
    assert len(tabarena_facts()) == 51


# the local form


def test_a_table_is_read_with_its_target_apart(tmp_path):
    write_tabarena(tmp_path)
    table = load(tmp_path)
    frame = toy_frame()
    pd.testing.assert_frame_equal(table.X, frame.drop(columns="bought"))
    assert table.y.tolist() == ["no", "yes"] * 3
    assert table.y.dtype.name == "category"
    assert table.categorical == ("colour", "word")
    assert (table.metric, table.n_classes) == ("roc_auc", 2)
    assert table.missing_fraction == pytest.approx(3 / 18)
    assert repr(table) == (
        "TabArenaTable(toy: 6 rows, 3 columns (2 categorical), 2 classes, roc_auc, "
        "as TabArena's)"
    )
    assert "OpenML 7" in table.origin


def test_text_becomes_categories_and_a_real_target_float64(tmp_path):
    frame = toy_frame().astype({"colour": "object"})
    frame["bought"] = np.arange(6, dtype=np.int8)
    write_tabarena(tmp_path, frame, problem_type="regression", n_classes=None)
    table = load(tmp_path)
    assert table.X["colour"].dtype.name == "category"
    assert table.categorical == ("colour", "word")
    assert table.y.dtype == np.float64
    assert table.y.tolist() == [0, 1, 2, 3, 4, 5]
    assert (table.metric, table.n_classes) == ("rmse", None)


def test_a_partial_table_says_so(tmp_path):
    write_tabarena(tmp_path, matches_tabarena=False, note="half of the rows")
    table = load(tmp_path)
    assert not table.matches_tabarena
    assert repr(table).endswith("not as TabArena's)")
    assert table.origin.endswith("not as TabArena has it: half of the rows")


def test_what_pandas_noted_in_the_file_is_not_looked_at(tmp_path):
    # pandas would make an index of the column that its note names
    write_tabarena(tmp_path, toy_frame().set_index("age"))
    assert sorted(load(tmp_path).X.columns) == ["age", "colour", "word"]


def test_folders_named_like_partitions_are_no_columns(tmp_path):
    write_tabarena(tmp_path / "year=2024")
    assert load(tmp_path / "year=2024").X.shape == (6, 3)


def test_a_file_with_an_entry_of_its_own_goes_before_the_manifest(tmp_path):
    place = write_tabarena(tmp_path, note="from the list", n_rows=5)
    (place / "toy.json").write_text(json.dumps(toy_entry(note="its own")))
    (place / "other.json").write_text("not about a table")
    assert load(tmp_path).note == "its own"


def test_names_are_those_of_files_that_are_there(tmp_path, monkeypatch):
    assert tabarena_names(data_dir=tmp_path) == []
    place = write_tabarena(tmp_path / "shared")
    listed = [toy_entry(), toy_entry(name="gone", file="gone.parquet")]
    (place / "manifest.json").write_text(json.dumps(listed))
    monkeypatch.setenv("NORMALIGN_DATA", str(tmp_path / "shared"))
    assert tabarena_names() == ["toy"]


def test_the_first_folder_that_has_a_table_gives_it(tmp_path, monkeypatch):
    write_tabarena(tmp_path / "cache", note="cache")
    assert load(tmp_path).note == "cache"
    write_tabarena(tmp_path / "shared", note="shared")
    monkeypatch.setenv("NORMALIGN_DATA", str(tmp_path / "shared"))
    assert load(tmp_path).note == "shared"
    write_tabarena(tmp_path, note="mine")
    assert load(tmp_path).note == "mine"


def test_a_table_that_is_nowhere_says_where_it_looked_and_how_to_fetch_it(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        load_tabarena("credit-g", data_dir=tmp_path / "mine", download=False)
    text = str(caught.value)
    assert text.startswith("load_tabarena: data_dir must be a folder with tabar")
    for word in ("mine", "cache", "normalign data fetch tabarena --task credit-g"):
        assert word in text


def test_an_unknown_name_is_refused_before_anything_is_asked_for(tmp_path):
    with pytest.raises(ValueError, match=r"one of the 51 tasks .*'credit-h'.*facts"):
        load_tabarena("credit-h", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"n_rows": 7}, r"7 rows of 3 inputs and a target, got 6 rows of 3"),
        ({"n_features": 4}, r"6 rows of 4 inputs and a target, got 6 rows of 3"),
        ({"n_classes": 3}, r"a table of 3 classes, got 2"),
        ({"target": "sold"}, r"the target 'sold', got one without it"),
        ({"problem_type": "regression", "n_classes": None}, "numbers in 'bought'"),
        ({"problem_type": "ranking"}, "problem_type in manifest.json must be one of"),
        ({"n_classes": None}, "null for regression and a count otherwise"),
        ({"n_rows": "6"}, "n_rows in manifest.json must be of the kind int, got '6'"),
        ({"n_rows": True}, "n_rows in manifest.json must be of the kind int, got True"),
        ({"matches_tabarena": 1}, "matches_tabarena in manifest.json must be"),
        ({"licence": None}, "licence in manifest.json must be of the kind str"),
    ],
)
def test_a_table_that_is_not_what_is_said_of_it_is_refused(tmp_path, changes, match):
    write_tabarena(tmp_path, **changes)
    with pytest.raises(ValueError, match=f"^load_tabarena: .*{match}"):
        load(tmp_path)


KNOWN = {
    "name": "credit-g", "target": "good_or_bad_customer", "n_rows": 1000,
    "n_features": 20,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (
            {"n_rows": 6},
            r"matches_tabarena of credit-g .* \(1000, 20, 2\), got true of",
        ),
        ({"n_features": 3}, r"true of \(1000, 3, 2\)"),
        ({"target": "bought"}, "must be binary with the target 'good_or_bad_customer'"),
        ({"problem_type": "multiclass"}, "got multiclass with 'good_or_bad_customer'"),
    ],
)
def test_what_is_called_a_task_of_tabarena_must_be_it(tmp_path, changes, match):
    write_tabarena(tmp_path, **KNOWN | changes)
    with pytest.raises(ValueError, match=match):
        tabarena_names(data_dir=tmp_path)
    write_tabarena(tmp_path, **KNOWN | {"n_rows": 6, "matches_tabarena": False})
    assert tabarena_names(data_dir=tmp_path) == ["credit-g"]


def test_booleans_with_gaps_are_categories_and_without_gaps_numbers(tmp_path):
    gaps = toy_frame().assign(word=[True, False, None] * 2)
    write_tabarena(tmp_path, gaps)
    assert load(tmp_path).categorical == ("colour", "word")
    write_tabarena(tmp_path, toy_frame().assign(word=[True, False] * 3))
    assert load(tmp_path).categorical == ("colour",)


@pytest.mark.parametrize(
    "file",
    ["../toy.parquet", "/etc/toy.parquet", "a/toy.parquet", "..\\toy.parquet",
     "C:toy.parquet", "toy.pkl", "toy\0.parquet"],
)  # fmt: skip
def test_a_manifest_that_reaches_outside_its_folder_is_refused(tmp_path, file):
    write_tabarena(tmp_path, file=file)
    with pytest.raises(ValueError, match=r"name of a \.parquet file beside it"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[", "manifest.json must be JSON"),
        ("{}", "manifest.json must be a list"),
        ("[3]", "manifest.json must be of objects"),
        (
            json.dumps([toy_entry(), toy_entry()]),
            "manifest.json must be a list of distinct names",
        ),
        ("[{}]", "name in manifest.json must be of the kind str, got nothing"),
    ],
)
def test_a_bad_manifest_gets_a_house_error(tmp_path, text, match):
    (write_tabarena(tmp_path) / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=f"^load_tabarena: {match}"):
        load(tmp_path)


@pytest.mark.parametrize("keep", [0, 3, 40, -1, -200])
def test_a_truncated_file_gets_a_house_error(tmp_path, keep):
    path = write_tabarena(tmp_path) / "toy.parquet"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"^load_tabarena: toy.parquet .*a whole parq"):
        load(tmp_path)


def test_a_file_damaged_within_gets_a_house_error(tmp_path):
    path = write_tabarena(tmp_path) / "toy.parquet"
    raw = bytearray(path.read_bytes())
    raw[4:-8] = os.urandom(len(raw) - 12)
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=r"^load_tabarena: toy.parquet must be a parq"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("column", "values", "match"),
    [
        (
            "bought",
            ["no", "yes"] * 2 + [None, "yes"],
            "without gaps in 'bought', got 1",
        ),
        ("word", pd.date_range("2020-01-01", periods=6), "datetime64 in the column 'w"),
        ("word", [[1], [2]] * 3, "in the column 'word'"),
        ("word", [b"a", b"b"] * 3, "bytes in the column 'word'"),
    ],
)
def test_columns_that_no_table_of_tabarena_has_are_refused(
    tmp_path, column, values, match
):
    write_tabarena(tmp_path, toy_frame().assign(**{column: values}))
    with pytest.raises(ValueError, match=f"^load_tabarena: toy.parquet .*{match}"):
        load(tmp_path)


# the files at hand


@pytest.fixture
def real(monkeypatch, request):
    monkeypatch.setenv("NORMALIGN_DATA", REAL)
    if not tabarena_names():
        pytest.skip("no TabArena tables in $NORMALIGN_DATA")


REAL = os.environ.get("NORMALIGN_DATA", "")


@pytest.mark.data
@pytest.mark.usefixtures("real")
def test_the_tables_at_hand_are_what_is_said_of_them():
    with open(f"{REAL}/tabarena/manifest.json", encoding="utf-8") as stream:
        listed = {entry["name"]: entry for entry in json.load(stream)}
    facts = tabarena_facts()
    for name in tabarena_names():
        table, entry = load_tabarena(name, download=False), listed[name]
        n, d = table.X.shape
        assert len(table.y) == n
        assert len(table.categorical) == entry["n_categorical"], name
        # the manifest counts the target's column too, to five decimals
        missing = table.missing_fraction * d / (d + 1)
        assert math.isclose(missing, entry["missing_fraction"], abs_tol=1e-5), name
        if name in facts:
            task = facts[name]
            assert (table.target, table.problem_type, table.openml_task_id) == (
                task.target, task.problem_type, task.openml_task_id
            )  # fmt: skip
            same = (n, d, table.n_classes) == (
                task.n_rows, task.n_inputs, task.n_classes
            )  # fmt: skip
            assert same == table.matches_tabarena, name
