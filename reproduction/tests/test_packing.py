"""Archives say once what records share, and give everything back."""

from hypothesis import given
from hypothesis import strategies as st

from normalign_reproduction.spec import Record, Run
from normalign_reproduction.store import _to_columns, pack_archive, unpack_archive

SIMPLE = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
JSON = st.recursive(
    SIMPLE,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=12,
)
MADE = st.fixed_dictionaries(
    {"commit": st.sampled_from(["x", "y"])},
    optional={"batch": st.sampled_from(["p", "q"]), "seconds": st.integers(0, 2)},
)


def run_of(seed, **settings):
    return Run("tabular", 1, "full", "released", "uci", {"n_iter": 4, **settings}, seed)


RECORDS = st.lists(
    st.builds(
        lambda seed, weight, result, made: Record(
            run_of(seed, weight=weight), {"value": result}, made
        ),
        st.integers(0, 3), st.sampled_from([0, 1]), JSON, MADE,
    ),
    max_size=6,
)  # fmt: skip


@given(RECORDS)
def test_everything_comes_back(records):
    entries = unpack_archive(pack_archive(records))
    assert [entry["key"] for entry in entries] == [r.run.key for r in records]
    assert [entry["run"] for entry in entries] == [r.run.to_dict() for r in records]
    assert [entry["result"] for entry in entries] == [r.result for r in records]
    assert [entry["made"] for entry in entries] == [r.made for r in records]


def test_what_is_shared_is_said_once():
    made = {"commit": "x", "batch": "p", "seconds": 3.0}
    records = [
        Record(run_of(seed, weight=seed), {"folds": [{"a": 1}, {"a": seed}]}, made)
        for seed in (0, 1)
    ]
    packed = pack_archive(records)
    assert packed["run"]["settings"] == {"n_iter": 4}
    assert packed["made"] == made
    first, second = packed["records"]
    assert second["run"] == {"settings": {"weight": 1}, "seed": 1}
    assert second["made"] == {}
    assert first["result"] == {"folds": {"by column": {"a": [1, 0]}}}


def test_what_made_a_batch_is_said_once():
    made = [{"batch": b, "seconds": s} for b, s in (("p", 1), ("p", 1), ("q", 2))]
    records = [Record(run_of(seed), {}, one) for seed, one in enumerate(made)]
    packed = pack_archive(records)
    assert packed["batches"] == {"p": made[0], "q": made[2]}
    assert [one["batch"] for one in packed["records"]] == ["p", "p", "q"]
    assert not any("made" in one for one in packed["records"])


def test_lists_that_are_not_alike_stay_as_they_are():
    for value in ([{"a": 1}], [{"a": 1}, {"b": 1}], [{}, {}], [1, {"a": 1}]):
        assert _to_columns(value) == value
