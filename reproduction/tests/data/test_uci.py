import pytest
import torch

from normalign_reproduction.data import UCICollection, load_uci
from tests.data.uci_files import uci_indices, uci_members, uci_rows, write_tar


def archive(tmp_path, *members, **special):
    together = {name: raw for part in members for name, raw in part.items()}
    return write_tar(tmp_path / "uci/data.tar.gz", together, **special)


@pytest.fixture
def folder(tmp_path, offline_and_empty):
    archive(tmp_path, uci_members("toy"), uci_members("abc", n=12, d=3, n_test=5))
    return tmp_path


def test_a_table_is_read_with_its_split_and_its_folds(folder):
    table = load_uci("toy", data_dir=folder)
    assert (table.name, table.n_classes) == ("toy", 2)
    value = torch.arange(8, dtype=torch.float64)
    torch.testing.assert_close(table.x, torch.stack([value, value + 0.5], 1))
    assert table.y.tolist() == [0, 1] * 4
    train, validation = table.split
    assert (train.tolist(), validation.tolist()) == ([0, 2, 4, 6], [1, 3, 5, 7])
    tested = [test.tolist() for _, test in table.folds]
    assert tested == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert table.folds[1][0].tolist() == [0, 2, 3, 4, 6, 7]
    assert (table.x_test.shape, table.y_test.shape) == ((0, 2), (0,))


def test_a_test_file_is_apart_from_the_rows_that_are_split(folder):
    table = load_uci("abc", data_dir=folder)
    assert table.x.shape == (12, 3)
    assert table.x_test[:, 0].tolist() == [100, 101, 102, 103, 104]
    assert table.y_test.tolist() == [0, 1, 0, 1, 0]
    assert repr(table) == "UCITable(abc: 12 rows, 3 columns, 2 classes, 5 test rows)"


def test_a_collection_gives_any_table_from_one_pass(folder):
    collection = UCICollection.locate(folder)
    assert collection.names == ("abc", "toy")
    assert repr(collection) == "UCICollection(data.tar.gz: 2 tables)"
    collection.path.unlink()
    assert sorted(folder.rglob("*")) == [folder / "uci"]  # nothing was written
    assert [table.name for table in collection] == ["abc", "toy"]
    collection.table("toy").x.zero_()
    assert collection.table("toy").x.sum() > 0
    with pytest.raises(ValueError, match=r"^UCICollection\.table: .*of the 2 .*'irsi'"):
        collection.table("irsi")


def test_incomplete_tables_have_no_name(tmp_path):
    partial = uci_members("lost")
    del partial["./lost/lost_R.dat"]
    path = archive(tmp_path, uci_members(), partial, {"./notes/readme.txt": b"hello"})
    collection = UCICollection(path)
    assert collection.names == ("toy",)
    with pytest.raises(ValueError, match=r"all files of lost, got one without lost_R"):
        collection.table("lost")


@pytest.mark.parametrize("prefix", ["", "./", "data/"])
def test_tables_may_lie_in_a_folder_and_among_other_files(tmp_path, prefix):
    members = uci_members(folder=prefix)
    members[f"{prefix}toy/toy.arff"] = b"@relation toy"
    members[f"{prefix}toy/other_R.dat"] = b"not of this table"
    (table,) = UCICollection(archive(tmp_path, members))
    assert len(table.x) == 8


def test_without_an_archive_it_says_where_it_looked_and_where_to_get_it(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("NORMALIGN_DATA", str(tmp_path / "shared"))
    monkeypatch.setenv("NORMALIGN_CACHE", str(tmp_path / "cache"))
    with pytest.raises(FileNotFoundError) as caught:
        UCICollection.locate(tmp_path / "mine")
    text = str(caught.value)
    assert text.startswith("UCICollection.locate: data_dir must hold uci/data.tar.gz")
    for word in ("mine", "shared", "cache", "citius.usc.es"):
        assert word in text


@pytest.mark.parametrize(
    "name", ["../evil.dat", "/etc/evil.dat", "a/../../evil", "..\\evil", "C:evil"]
)
def test_an_archive_that_reaches_outside_is_refused(tmp_path, name):
    path = archive(tmp_path, uci_members(), {name: b"boo"})
    with pytest.raises(ValueError, match="must have paths inside it"):
        UCICollection(path)


def test_links_are_not_followed(tmp_path):
    members = uci_members()
    del members["./toy/toy_R.dat"]
    path = archive(tmp_path, members, **{"./toy/toy_R.dat": "/etc/passwd"})
    with pytest.raises(ValueError, match=r"one without toy_R\.dat"):
        UCICollection(path).table("toy")


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("_MEMBER_LIMIT", "members of at most 100 bytes"),
        ("_TOTAL_LIMIT", "at most 100"),
    ],
)
def test_an_oversized_archive_is_refused(tmp_path, monkeypatch, limit, message):
    monkeypatch.setattr(f"normalign_reproduction.data._uci.{limit}", 100)
    with pytest.raises(ValueError, match=message):
        UCICollection(archive(tmp_path, uci_members(n=400)))


@pytest.mark.parametrize(
    ("file", "raw", "message"),
    [
        ("toy_R.dat", uci_rows(range(7), 2), "8 rows of a number, 2 inputs"),
        ("toy_R.dat", uci_rows(range(8), 3), "got 8 rows of 5"),
        ("toy_R.dat", b"\tf1\tf2\tclase\n", "a header and rows, got no rows"),
        ("toy_R.dat", b"h\n" + b"1 2 3 x\n" * 8, "a table of numbers"),
        ("toy_R.dat", b"h\n" + b"1 2 nan 0\n" * 8, "finite"),
        ("toy_R.dat", b"h\n" + b"1 2 3 2\n" * 8, "classes 0 to 1, got 2 to 2"),
        ("toy_R.dat", b"h\n" + b"1 2 3 0.5\n" * 8, "classes 0 to 1"),
        ("conxuntos.dat", uci_indices([[0, 1], [2, 8]]), "distinct row numbers below"),
        ("conxuntos.dat", uci_indices([[0, 1], [1, 2]]), "4 numbers, 3 of them dist"),
        ("conxuntos.dat", uci_indices([[0, 1]]), "2 lines, got 1"),
        ("conxuntos.dat", b"0 1\n2 -3\n", "row numbers, got something else"),
        ("conxuntos.dat", b"0 1\n2 " + b"9" * 40 + b"\n", "row numbers"),
        ("conxuntos_kfold.dat", uci_indices([[0], [1]] * 3), "8 lines, got 6"),
        ("toy.txt", b"n_entradas= 2\nn_clases= two\n", "n_clases must be a count"),
        ("toy.txt", b"n_entradas= 2\nn_clases= 2\nn_patrons1= 8\n", "fich1 must be a"),
    ],
)
def test_a_bad_file_is_named(tmp_path, file, raw, message):
    path = archive(tmp_path, {**uci_members(), f"./toy/{file}": raw})
    with pytest.raises(ValueError, match=f"^toy/{file}.*{message}"):
        UCICollection(path).table("toy")


@pytest.mark.parametrize("keep", [0, 2, 30, -300])
def test_a_truncated_archive_is_refused(tmp_path, keep):
    path = archive(tmp_path, uci_members(n=4000))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"data\.tar\.gz must be a whole \.tar\.gz"):
        UCICollection(path)


@pytest.mark.data
def test_the_tables_of_the_collection_keep_its_promises():
    collection = UCICollection.locate()
    # 121 in the collection; a copy may lack one or two data files
    assert 118 <= len(collection) <= 121
    for table in collection:
        n = len(table.x)
        every = torch.cat([table.y, table.y_test])
        assert every.unique().tolist() == list(range(table.n_classes)), table.name
        for pair in (table.split, *table.folds):
            assert torch.cat(pair).sort().values.tolist() == list(range(n)), table.name
        train, validation = table.split
        assert abs(len(train) - len(validation)) <= 0.1 * n + 2, table.name
        for _, test in table.folds:
            # 3 to 1, to a row of every class
            assert abs(len(test) - n / 4) <= table.n_classes + 1, table.name
    iris, monks = collection.table("iris"), collection.table("monks-1")
    assert iris.x.shape == (150, 4)
    assert iris.y.bincount().tolist() == [50, 50, 50]
    assert (len(monks.x), len(monks.x_test)) == (124, 432)
    zero = torch.zeros(4, dtype=torch.float64)  # standardised by the authors
    torch.testing.assert_close(iris.x.mean(0), zero, atol=1e-4, rtol=0)
