from dataclasses import fields, replace

import pytest

from normalign_reproduction.spec import Cell, Claim, Run, Size, cross
from tests import tiny

RUN = Run("tiny", 1, "quick", "released", "mnist", {"group": 1, "steps": 4}, 0)
OTHERS = {
    "experiment": "small", "version": 2, "size": "full", "preset": "text",
    "data": "digits_5000", "settings": {"group": 1, "steps": 5}, "seed": 1,
}  # fmt: skip


def test_each_part_of_a_run_changes_its_key():
    assert set(OTHERS) == {field.name for field in fields(Run)}
    keys = {replace(RUN, **{name: value}).key for name, value in OTHERS.items()}
    assert len(keys | {RUN.key}) == len(OTHERS) + 1


def test_a_key_does_not_depend_on_the_order_of_settings_nor_on_tuples():
    turned = replace(RUN, settings={"steps": 4, "group": 1})
    assert turned.key == RUN.key
    one = replace(RUN, settings={"widths": (4, 2)})
    assert one.key == replace(RUN, settings={"widths": [4, 2]}).key


def test_a_run_that_was_written_down_is_the_same_run():
    assert Run(**RUN.to_dict()) == RUN
    assert Run(**RUN.to_dict()).key == RUN.key


def test_a_setting_that_is_none_is_refused_by_name():
    assert RUN["steps"] == 4
    with pytest.raises(ValueError, match="a setting must be one of group, steps"):
        RUN["width"]


def test_crossed_variants_are_all_combinations():
    assert cross(a=[1, 2], b="xy") == (
        {"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"},
    )  # fmt: skip


def test_a_size_and_then_a_variant_have_the_last_word_on_settings():
    item = tiny.item(
        settings={"released": {"steps": 1, "pause": 0.0}},
        variants=[{"group": 0}, {"group": 1, "steps": 3}],
        sizes={"quick": Size(2, {"steps": 2})},
    )
    runs = item.runs(size="quick", preset="released", digits="mnist")
    assert [(run["group"], run["steps"], run.seed) for run in runs] == [
        (0, 2, 0), (0, 2, 1), (1, 3, 0), (1, 3, 1),
    ]  # fmt: skip
    fewer = item.runs(size="quick", preset="released", digits="mnist", seeds=1)
    assert [run.seed for run in fewer] == [0, 0]


def test_a_preset_without_settings_of_its_own_shares_the_runs_of_the_other():
    item = tiny.item()
    released, text = (
        item.runs(size="quick", preset=preset, digits="mnist")
        for preset in ("released", "text")
    )
    assert [run.key for run in released] == [run.key for run in text]
    assert item.presets() == ("released",)


def test_only_items_that_need_digits_depend_on_them():
    words = {"size": "quick", "preset": "released"}
    for needs, expected in ((True, "digits_5000"), (False, "synthetic")):
        item = tiny.item(needs_digits=needs)
        runs = item.runs(**words, digits="digits_5000")
        assert {run.data for run in runs} == {expected}


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ({"size": "huge", "preset": "text"}, "steady.runs: size must be one of quick"),
        ({"size": "quick", "preset": "own"}, "steady.runs: preset must be 'released'"),
    ],
)
def test_what_is_no_size_or_preset_is_refused(words, match):
    with pytest.raises(ValueError, match=match):
        tiny.item().runs(**words, digits="mnist")


def test_constants_written_down_elsewhere_are_part_of_the_key():
    def constants(preset, settings):
        return {"rate": 0.1 * settings["group"]}

    words = {"size": "quick", "preset": "released", "digits": "mnist"}
    plain, more = (tiny.item(constants=given).runs(**words)[0].key
                   for given in (None, constants))  # fmt: skip
    assert plain != more


def test_a_claim_holds_for_all_sizes_and_presets_unless_it_says_so():
    claim = Claim("goes on", "it does", lambda records: [Cell("all", "", "", True)])
    assert claim.sizes == ("quick", "full")
    assert claim.presets == ("released", "text")


def test_departures_are_none_by_default_and_change_no_key():
    asked = {"size": "quick", "preset": "released", "digits": "mnist"}
    item = tiny.item()
    assert item.departures == ()
    other = replace(item, departures=("no warm-up",))
    assert [run.key for run in other.runs(**asked)] == [
        run.key for run in item.runs(**asked)
    ]
