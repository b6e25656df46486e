import json
import os

import numpy as np
import pytest

from normalign_reproduction.data import (
    METRICS,
    load_tabarena,
    tabarena_facts,
    tabarena_names,
)
from tests.data.tabarena_files import pd, toy_entry, toy_frame, write_tabarena

pytest.importorskip("pyarrow")
DATA = os.environ.get("NORMALIGN_DATA", "")
pytestmark = pytest.mark.usefixtures("offline_and_empty")


def load(folder):
    return load_tabarena("toy", data_dir=folder, download=False)


def test_there_are_51_tasks():
    facts = tabarena_facts()
    facts.clear()  # does not change the next result
    facts = tabarena_facts()
    assert len(facts) == 51
    for ids in ("openml_dataset_id", "openml_task_id"):
        assert len({getattr(task, ids) for task in facts.values()}) == 51
    for name, task in facts.items():
        assert task.name == name
        assert task.licence
        assert task.metric == METRICS[task.problem_type]
        kind = {None: "regression", 2: "binary"}.get(task.n_classes, "multiclass")
        assert task.problem_type == kind


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
    assert repr(table) == (
        "TabArenaTable(toy: 6 rows, 3 columns (2 categorical), 2 classes, roc_auc, "
        "as TabArena's)"
    )


def test_text_becomes_categories_and_a_numeric_target_float64(tmp_path):
    frame = toy_frame().astype({"colour": "object"})
    frame["bought"] = np.arange(6, dtype=np.int8)
    write_tabarena(tmp_path, frame, problem_type="regression", n_classes=None)
    table = load(tmp_path)
    assert table.X["colour"].dtype.name == "category"
    assert table.categorical == ("colour", "word")
    assert table.y.dtype == np.float64
    assert table.y.tolist() == [0, 1, 2, 3, 4, 5]
    assert (table.metric, table.n_classes) == ("rmse", None)


def test_booleans_with_gaps_are_categories_and_without_gaps_numbers(tmp_path):
    for values, expected in (
        ([True, False, None] * 2, ("colour", "word")),
        ([True, False] * 3, ("colour",)),
    ):
        write_tabarena(tmp_path, toy_frame().assign(word=values))
        assert load(tmp_path).categorical == expected


def test_a_partial_table_says_so(tmp_path):
    write_tabarena(tmp_path, matches_tabarena=False, note="half of the rows")
    table = load(tmp_path)
    assert (table.matches_tabarena, table.note) == (False, "half of the rows")
    assert repr(table).endswith("not as TabArena's)")


def test_notes_of_pandas_and_names_of_folders_change_no_columns(tmp_path):
    folder = tmp_path / "year=2024"  # like the partition of a data set
    write_tabarena(folder, toy_frame().set_index("age"))
    assert sorted(load(folder).X.columns) == ["age", "colour", "word"]


def test_a_file_with_its_own_entry_goes_before_the_manifest(tmp_path):
    place = write_tabarena(tmp_path, note="from the list", n_rows=5)
    (place / "toy.json").write_text(json.dumps(toy_entry(note="its own")))
    (place / "other.json").write_text("not about a table")
    assert load(tmp_path).note == "its own"


def test_the_first_folder_that_has_a_table_gives_it(tmp_path, monkeypatch):
    assert tabarena_names(data_dir=tmp_path) == []
    place = write_tabarena(tmp_path / "cache", note="cache")
    listed = [toy_entry(note="cache"), toy_entry(name="gone", file="gone.parquet")]
    (place / "manifest.json").write_text(json.dumps(listed))
    assert tabarena_names() == ["toy"]
    assert load(tmp_path).note == "cache"
    write_tabarena(tmp_path / "shared", note="shared")
    monkeypatch.setenv("NORMALIGN_DATA", str(tmp_path / "shared"))
    assert load(tmp_path).note == "shared"
    write_tabarena(tmp_path, note="mine")
    assert load(tmp_path).note == "mine"


def test_a_missing_table_says_where_it_looked_and_how_to_fetch_it(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        load_tabarena("credit-g", data_dir=tmp_path / "mine", download=False)
    text = str(caught.value)
    assert text.startswith("load_tabarena: data_dir must hold tabarena/credit-g.parq")
    for word in ("mine", "cache", "normalign data fetch tabarena --task credit-g"):
        assert word in text


def test_an_unknown_name_is_refused_without_asking_the_network(tmp_path):
    with pytest.raises(ValueError, match=r"one of the 51 tasks .*'credit-h'.*facts"):
        load_tabarena("credit-h", data_dir=tmp_path)


KNOWN = {
    "name": "credit-g",
    "target": "good_or_bad_customer",
    "n_rows": 1000,
    "n_features": 20,
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_rows": 7}, r"7 rows of 3 inputs and a target, got 6 rows of 3"),
        ({"n_features": 4}, r"6 rows of 4 inputs and a target, got 6 rows of 3"),
        ({"n_classes": 3}, r"must have 3 classes, got 2"),
        ({"n_classes": None}, r"must have None classes, got 2"),
        ({"target": "sold"}, r"the target 'sold', got none"),
        ({"problem_type": "regression", "n_classes": None}, "numbers in 'bought'"),
        ({"problem_type": "ranking"}, "manifest.json: problem_type must be one of"),
        ({"n_rows": "6"}, "manifest.json: n_rows must be of type int, got '6'"),
        ({"n_rows": True}, "n_rows must be of type int, got True"),
        ({"matches_tabarena": 1}, "matches_tabarena must be of type bool"),
        ({"licence": None}, "licence must be of type str"),
        (KNOWN | {"n_rows": 6}, r"matches_tabarena .* \(1000, 20, 2\), got true for"),
        (KNOWN | {"n_features": 3}, r"got true for \(1000, 3, 2\)"),
        (KNOWN | {"target": "bought"}, "must be binary with the target 'good_or_bad_c"),
        (KNOWN | {"problem_type": "multiclass"}, "got multiclass with the target"),
        *(
            ({"file": file}, r"name of a \.parquet file beside it, got")
            for file in ("../toy.parquet", "/etc/toy.parquet", "a/toy.parquet",
                         "..\\toy.parquet", "C:toy.parquet", "toy.pkl", "toy\0.parquet")
        ),
    ],
)  # fmt: skip
def test_a_table_that_contradicts_its_manifest_is_refused(tmp_path, changes, message):
    write_tabarena(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_a_partial_copy_of_a_task_is_listed(tmp_path):
    write_tabarena(tmp_path, **KNOWN | {"n_rows": 6, "matches_tabarena": False})
    assert tabarena_names(data_dir=tmp_path) == ["credit-g"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "must be JSON"),
        ("{}", "must be a list"),
        ("[3]", "must contain objects"),
        ("[{}]", "name must be of type str, got None"),
        (json.dumps([toy_entry(), toy_entry()]), "must name 'toy' once"),
    ],
)
def test_a_bad_manifest_is_named(tmp_path, text, message):
    (write_tabarena(tmp_path) / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=f"tabarena/manifest.json:? {message}"):
        load(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        *(lambda raw, keep=keep: raw[:keep] for keep in (0, 3, 40, -1, -200)),
        lambda raw: raw[:4] + os.urandom(len(raw) - 12) + raw[-8:],
    ],
)
def test_a_damaged_file_is_named(tmp_path, damage):
    path = write_tabarena(tmp_path) / "toy.parquet"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"/toy\.parquet must be a whole parquet file"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("bought", [*["no", "yes"] * 2, None, "yes"], "no missing .* 'bought', got 1"),
        ("word", pd.date_range("2020-01-01", periods=6), "datetime64 in the column 'w"),
        ("word", [[1], [2]] * 3, "in the column 'word'"),
        ("word", [b"a", b"b"] * 3, "bytes in the column 'word'"),
    ],
)
def test_columns_that_no_table_of_tabarena_has_are_refused(
    tmp_path, column, values, message
):
    write_tabarena(tmp_path, toy_frame().assign(**{column: values}))
    with pytest.raises(ValueError, match=f"^toy.parquet .*{message}"):
        load(tmp_path)


@pytest.mark.data
def test_the_tables_on_this_machine_are_what_their_manifest_says(monkeypatch):
    monkeypatch.setenv("NORMALIGN_DATA", DATA)
    if not tabarena_names():
        pytest.skip("no TabArena tables in $NORMALIGN_DATA")
    with open(f"{DATA}/tabarena/manifest.json", encoding="utf-8") as stream:
        listed = {entry["name"]: entry for entry in json.load(stream)}
    for name in tabarena_names():
        table, entry = load_tabarena(name, download=False), listed[name]
        n, d = table.X.shape
        assert (len(table.y), len(table.categorical)) == (n, entry["n_categorical"])
        # the manifest counts the target's column too, to five decimals
        missing = table.X.isna().to_numpy().mean() * d / (d + 1)
        assert missing == pytest.approx(entry["missing_fraction"], abs=1e-5), name
        if task := tabarena_facts().get(name):
            shape = n, d, None if task.n_classes is None else table.y.nunique()
            same = shape == (task.n_rows, task.n_inputs, task.n_classes)
            assert same == table.matches_tabarena, name
