import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normalign.training.history import History

numbers = st.floats(allow_nan=False)


@given(st.lists(numbers, max_size=5), st.booleans(), st.floats(0, 1e6))
def test_json_gives_back_the_same_history(values, interrupted, seconds):
    history = History(interrupted=interrupted, seconds=seconds)
    for epoch, value in enumerate(values):
        history.append({"epoch": epoch, "loss": value})
    text = json.dumps(history.to_dict(), allow_nan=False)
    assert History.from_dict(json.loads(text)) == history


def test_nan_survives_json():
    history = History()
    history.append({"epoch": 0, "loss": math.nan})
    text = json.dumps(history.to_dict(), allow_nan=False)
    assert math.isnan(History.from_dict(json.loads(text))["loss"][0])


def test_rows_and_columns_are_the_same_numbers():
    history = History()
    rows = [{"epoch": e, "loss": 1.0 / (1 + e)} for e in range(3)]
    for row in rows:
        history.append(row)
    assert history.rows() == rows
    assert history["loss"] == [1.0, 0.5, 1 / 3]
    assert len(history) == 3
    assert history.last() == rows[-1]


def test_first_finds_the_earliest_row_or_none():
    history = History({"epoch": [0, 1, 2], "score": [0.1, 0.7, 0.8]})
    found = history.first(lambda row: row["score"] > 0.5)
    assert found == {"epoch": 1, "score": 0.7}
    assert history.first(lambda row: row["score"] > 0.9) is None


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"loss": 1.0}, "one with an epoch"),
        ({"epoch": 2}, "of the columns epoch, loss"),
        ({"epoch": 1, "loss": 0.0}, "later than the last row's"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(row, words):
    history = History({"epoch": [1], "loss": [0.5]})
    with pytest.raises(ValueError, match=words):
        history.append(row)
    assert len(history) == 1


def test_asking_for_what_is_not_there_names_what_is():
    with pytest.raises(ValueError, match="one of epoch, loss, got 'accuracy'"):
        History({"epoch": [1], "loss": [0.5]})["accuracy"]
    with pytest.raises(ValueError, match="non-empty"):
        History().last()
    with pytest.raises(ValueError, match="of one length"):
        History.from_dict(
            {"columns": {"a": [1], "b": []}, "interrupted": False, "seconds": 0}
        )
