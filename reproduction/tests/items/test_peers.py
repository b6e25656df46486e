"""The item of the peers: its runs, and those it shares with Table 2."""

from normalign_reproduction.items.peers.item import ITEM
from normalign_reproduction.items.peers.rows import TITLES
from normalign_reproduction.items.table2.data import BUNDLED, TABLES
from normalign_reproduction.items.table2.item import ITEM as TABLE2


def runs_of(item, size):
    return item.runs(size=size, preset="released", digits="mnist")


def test_runs_of_rfam_and_rfm_are_those_of_table_2():
    for size, tables in (("quick", BUNDLED), ("full", TABLES)):
        known = {run.key for run in runs_of(TABLE2, size)}
        machines = [run for run in runs_of(ITEM, size) if run["method"] == "rfam"]
        assert len(machines) == 2 * len(tables)
        assert {run.key for run in machines} <= known


def test_every_method_meets_every_table_once():
    for size in ITEM.sizes:
        runs = runs_of(ITEM, size)
        assert len({run.key for run in runs}) == len(runs)
        by_method = {}
        for run in runs:
            name = run["method"], run.settings.get("identity_weight")
            by_method.setdefault(name, set()).add(run["dataset"])
        tables = {run["dataset"] for run in runs}
        assert all(met == tables for met in by_method.values())


def test_every_peer_has_a_title_and_none_leaks():
    runs = runs_of(ITEM, "full")
    assert {run["method"] for run in runs} == set(TITLES) - {"rfm", "validated"}
    assert {run["protocol"] for run in runs} == {"leak-free"}
    assert not ITEM.claims  # the paper has no peers


def test_the_item_speaks_where_nothing_was_run_yet():
    assert "no table" in ITEM.finding([])
    assert all(table.rows([]) == [] for table in ITEM.tables)
