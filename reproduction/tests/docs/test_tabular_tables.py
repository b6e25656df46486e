"""What the pages on tables show is made of records, and of nothing else."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from normalign_reproduction.items.table2.data import TABLES
from normalign_reproduction.spec import Record, Run
from tests.items.tables_by_hand import record, twins

sys.path.insert(0, str(Path(__file__).parents[3] / "docs"))
import paper_tables
import tables
import tabular_tables

SMALL = sorted(TABLES, key=lambda table: (table.rows, table.name))[:3]

MADE = {
    "batch": "x", "seconds": 2.0, "device": "GPU", "versions": {"torch": "9"},
    "commit": "a" * 9,
}  # fmt: skip


def cells(text):
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def outcome(records, *, runs=None):
    """What a kind is given of an item."""
    return SimpleNamespace(
        records=records, runs=runs or [one.run for one in records], size="full"
    )


def both_protocols(table, rfm, rfam):
    return [
        one
        for protocol in ("released", "leak-free")
        for one in twins(table, rfm, rfam, protocol=protocol)
    ]


def test_means_stand_beside_the_papers_by_the_released_protocol_alone():
    found = outcome(both_protocols("a", (0.9, 60.0, 0.3), (0.8, 50.0, 0.4)))
    _, _, *rows = cells(tabular_tables.means(found))
    assert rows[0] == ["released", "RFM", "90.0 (84.9)", "60.0 (71.6)", "0.30 (0.31)"]
    assert rows[3] == ["leak-free", "RFAM", "80.0", "50.0", "0.40"]


def test_the_tables_that_gain_most_come_first_with_their_share():
    calm = twins("calm", (0.9, 60.0, 0.5), (0.9, 59.0, 0.55))
    wild = twins("wild", (0.9, 60.0, 0.1), (0.6, 51.0, 0.2))
    metrics = tabular_tables.METRICS
    alignment, attack = (
        tabular_tables.extreme_rows(
            [*calm, *wild], metric, protocol="released", n=1
        )[0]
        for metric in (metrics[1], metrics[2])
    )  # fmt: skip
    assert alignment["table"] == attack["table"] == "wild"
    assert alignment["share"] == pytest.approx(1.0 / 1.1)  # + 100 % of + 110 %
    assert attack["share"] == pytest.approx(0.9)  # - 9 of - 10 points


def test_both_attacks_are_compared_at_every_radius():
    found = [
        *both_protocols("a", (0.9, 60.0, 0.3), (0.8, 50.0, 0.4)),
        *both_protocols("b", (0.9, 60.0, 0.3), (0.8, 52.0, 0.4)),
    ]
    rows = tabular_tables.attack_rows(found)
    assert len(rows) == 2 * 3 * 2
    at_1 = [row for row in rows if row["radius"] == "1"]
    assert all(row["mean"] == pytest.approx(-9.0) for row in at_1)


def test_a_table_without_all_methods_is_no_part_of_the_standing():
    pair = twins("a", (0.9, 60.0, 0.3), (0.8, 50.0, 0.4), protocol="leak-free")
    alone = [record("b", 0.0, accuracy=0.9, protocol="leak-free")]
    missing = record("b", 1.0, accuracy=0.9, protocol="leak-free").run
    runs = [*(one.run for one in (*pair, *alone)), missing]
    found = outcome([*pair, *alone], runs=runs)
    assert {r["dataset"] for r in tabular_tables.whole_tables(found)} == {"a"}
    assert tabular_tables.peers(outcome(alone, runs=[alone[0].run, missing])) == ""


def peer(one, method, accuracy):
    settings = {
        "dataset": one["dataset"], "rows": one["rows"], "method": method,
        "protocol": "leak-free",
    }  # fmt: skip
    run = Run("tabular", 1, "full", "released", "uci", settings, 0)
    return Record(run, {**one.result, "accuracy": accuracy, "seconds": 1.0}, MADE)


def test_the_section_on_peers_says_on_which_tables_and_who_leads():
    found = []
    for place, facts in enumerate(SMALL):
        for weight, accuracy in ((0.0, 0.8), (1.0, 0.7 + place / 100)):
            one = record(facts.name, weight, accuracy=accuracy, protocol="leak-free")
            settings = {**one.run.settings, "rows": facts.rows}
            found.append(Record(replace(one.run, settings=settings), one.result))
        found.append(peer(found[-1], "catboost", 0.9))
    text = tabular_tables.peers(outcome(found))
    most = SMALL[-1].rows
    assert f"the 3 tables of up to {most} rows" in text
    assert f'"rows<={most}"' in text
    _, _, first, *_ = cells(text)
    assert first[:2] == ["CatBoost", "90.0%"]
    assert first[3:6] == ["0", "0", "3"]
    assert "The others: 3 runs, 2 s on GPU" in text


def test_runs_on_two_devices_are_counted_apart():
    runs = twins("a", (0.9, 60.0, 0.3), (0.8, 50.0, 0.4))
    on = [
        Record(one.run, one.result, {**MADE, "device": device, "batch": device})
        for one, device in zip(runs, ("GPU", "CPU"), strict=True)
    ]
    one = "1 runs, 2 s on GPU, torch 9, commit aaaaaaa."
    assert paper_tables.made(outcome(on[:1])) == one
    both = "2 runs, 1 on GPU and 1 on CPU, 4 s together, torch 9, commit aaaaaaa."
    assert paper_tables.made(outcome(on)) == both


def test_a_single_number_is_filled_in_and_nothing_around_it(monkeypatch):
    monkeypatch.setattr(tables, "numbers", lambda: {"gain": "-2.1"})
    page = "by <!--v:gain-->0<!--/v--> points, <!--n:gain-->1<!--/n-->\n"
    filled = tables.filled(page)
    assert filled == "by <!--v:gain-->-2.1<!--/v--> points, <!--n:gain-->1<!--/n-->\n"
    assert tables.filled(filled) == filled
    with pytest.raises(KeyError):
        tables.filled("by <!--v:unheard_of--><!--/v-->")


def test_the_p_of_alignment_is_scipys_paired_test_of_the_stored_values():
    found = {1.0: {}, 0.0: {}}
    archive = paper_tables.ARCHIVES / "table2-full-released.json"
    for one in json.loads(archive.read_text())["records"]:
        settings = one["run"]["settings"]
        if settings["protocol"] == "released":
            by_table = found[settings["identity_weight"]]
            values = by_table.setdefault(settings["dataset"], [])
            values.append(one["result"]["normal_alignment"])
    names = sorted(found[1.0])
    rfm, rfam = ([np.mean(found[w][name]) for name in names] for w in (1.0, 0.0))
    p = stats.ttest_rel(rfam, rfm, alternative="greater").pvalue
    numbers = tables.numbers()
    assert numbers["normal_alignment_released_p"] == f"{p:.2g}"
    changes = np.array(rfam) / rfm - 1
    p = stats.ttest_1samp(changes, 0, alternative="greater").pvalue
    assert numbers["normal_alignment_released_p_changes"] == f"{p:.2g}"


def test_the_tables_on_tables_are_whole():
    assert paper_tables.full("tabarena").complete
    assert paper_tables.full("table2").complete
