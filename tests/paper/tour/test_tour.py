import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch

from normalign.geometry import local_geometry
from normalign.paper import run_tour
from normalign.paper.tour import runs as tour_runs
from normalign.paper.tour.numbers import ROWS, sentences, text_table
from normalign.paper.tour.runs import TourSettings, digits, trained

SMALL = TourSettings(
    epochs=12, n_train=60, n_test=40, hidden=(24, 24), batch_size=20, n_measured=8,
    init_scale=2.0, learning_rate=3e-4,
)  # fmt: skip


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("out")


@pytest.fixture(scope="module")
def result(out):
    return run_tour(out, seed=3, settings=SMALL, progress=False)


def test_results_hold_every_number_of_the_table(result):
    stored = json.loads(result.results.read_text())
    assert stored["summary"] == result.summary
    assert stored["settings"]["epochs"] == 12
    assert stored["about"]["versions"]["torch"]
    for name, run in stored["runs"].items():
        assert run["columns"]["epoch"][-1] == 12
        final = run["columns"]["test_accuracy"][-1]
        assert result.summary[name]["test_accuracy"] == final
        assert f"{final:.1%}" in result.table


def test_both_runs_start_from_the_same_weights(out, result):
    data = digits(replace(SMALL, seed=3))
    weights = [0.0, tour_runs.RUNS["with penalty"]]
    one, two = (
        trained(replace(SMALL, seed=3, weight=w), data, out / "runs") for w in weights
    )
    for name, value in one.states["start"].items():
        assert torch.equal(value, two.states["start"][name])
    assert not torch.equal(one.states["end"]["0.weight"], two.states["end"]["0.weight"])


def test_stored_networks_give_the_stored_measures(out, result):
    settings = replace(SMALL, seed=3, weight=tour_runs.RUNS["with penalty"])
    data = digits(settings)
    run = trained(settings, data, out / "runs")
    geometry = local_geometry(run.network(), data.x_train[:8], data.y_train[:8])
    last = run.history.last()
    # the same float32 computation with another number of threads
    assert geometry.mean()["normal_alignment"] == pytest.approx(
        last["normal_alignment"], rel=1e-4
    )


def test_a_second_call_trains_nothing(out, result, monkeypatch):
    def never(*arguments, **options):
        raise AssertionError("trained again")

    monkeypatch.setattr(tour_runs, "train", never)
    again = run_tour(out, seed=3, settings=SMALL, progress=False)
    assert again.table == result.table
    with pytest.raises(AssertionError, match="trained again"):
        run_tour(out, seed=4, settings=SMALL, progress=False)


def test_an_interrupted_run_is_not_taken_for_a_finished_one(tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        options["callback"](0, None)
        history = tour_runs.History()
        history.interrupted = True
        return history

    monkeypatch.setattr(tour_runs, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_tour(tmp_path, settings=SMALL, progress=False)
    assert not list(tmp_path.rglob("*.json"))


def test_a_damaged_leftover_is_not_reused(tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / f"{SMALL.key()}.json").write_text("{}")
    run = trained(replace(SMALL, epochs=1), digits(SMALL), folder)
    assert run.history["epoch"] == [0, 1]


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_loads_nothing_and_says_what_was_measured(result):
    source = result.report.read_text()
    page = Page()
    page.feed(source)
    for tag, attributes in page.tags:
        assert tag not in ("script", "iframe")
        for name in ("src", "href", "xlink:href"):
            link = attributes.get(name) or ""
            assert link.startswith(("#", "data:")) or not link
    assert "@import" not in source
    assert not re.search(r"url\((?!#)", source)
    text = " ".join(page.text)
    for sentence in result.sentences.values():
        assert sentence in text
    assert sum(tag == "svg" for tag, _ in page.tags) >= 6 + 2 + 2


def test_names_inside_the_pictures_are_unique(result):
    names = re.findall(r'\bid="([^"]+)"', result.report.read_text())
    assert len(names) == len(set(names))


def test_epochs_must_be_positive(tmp_path):
    with pytest.raises(ValueError, match="run_tour: epochs must be at least 1, got 0"):
        run_tour(tmp_path, epochs=0)


def numbers(**changes):
    run = {key: 0.5 for key in ROWS} | {f"{key}_at_memorisation": 0.25 for key in ROWS}
    return run | changes


REGIONS = {"baseline": 2000, "with penalty": 1000}


def said(without, held, boundaries=None):
    pair = {"baseline": without, "with penalty": held}
    return sentences(pair, TourSettings(), REGIONS, boundaries or REGIONS)


def test_sentences_follow_the_numbers_both_ways():
    less, more = numbers(normal_alignment=0.1), numbers(normal_alignment=0.6)
    assert "alignment ends higher with" in said(less, more)["alignment"]
    assert "alignment ends lower with" in said(more, less)["alignment"]
    assert "alignment ends no higher with" in said(less, less)["alignment"]
    assert "0.600 against 0.100" in said(less, more)["alignment"]


@pytest.mark.parametrize(
    ("late", "soon", "words"),
    [
        (1000, 200, "at epoch 200 with the penalty and at epoch 1000 without, 5.0"),
        (None, 200, "without it, it does not by epoch 1500"),
        (1000, None, "with it, it does not by epoch 1500"),
        (None, None, "Neither run passed 80%"),
        (100, 200, "0.5 times that"),
    ],
)
def test_the_accuracy_sentence_says_which_run_generalised(late, soon, words):
    pair = numbers(generalised=late), numbers(generalised=soon)
    assert words in said(*pair)["accuracy"]


def test_a_run_that_never_memorised_is_called_so():
    never = numbers(memorised=None, centroid_alignment_at_memorisation=None)
    assert "not memorised" in said(never, numbers())["centroids"]
    table = text_table({"baseline": never}, epochs=77)
    assert "not by 77" in table


def test_the_partition_sentence_says_where_the_prediction_changes():
    none = {"baseline": 0, "with penalty": 0}
    one = {"baseline": 3, "with penalty": 0}
    pair = numbers(), numbers()
    assert "same all over" in said(*pair, none)["partition"]
    assert said(*pair, one)["partition"].endswith("square of: baseline.")
    assert "2,000 (baseline) and 1,000 (with" in said(*pair)["partition"]


def test_the_table_is_of_one_width():
    table = text_table({"baseline": numbers(), "with penalty": numbers()}, epochs=9)
    widths = {len(line) for line in table.splitlines()}
    assert len(widths) == 1


def test_evaluated_epochs_are_dense_early_and_even_on_a_logarithmic_axis():
    looked = [epoch for epoch in range(10_001) if tour_runs._is_looked_at(epoch)]
    assert looked[:11] == list(range(11))
    for low, high in ((100, 1000), (1000, 10_000)):
        assert sum(low < epoch <= high for epoch in looked) == 40


def test_the_callers_threads_come_back():
    threads = torch.get_num_threads()
    with tour_runs._quick_arithmetic():
        assert torch.get_num_threads() == 1
        tiny = torch.tensor([1e-30]) * 1e-10
        assert tiny.item() == 0.0 or not torch.set_flush_denormal(True)
    assert torch.get_num_threads() == threads
    assert (torch.tensor([1e-30]) * 1e-10).item() > 0.0
