import torch

from normalign.training.tables import Tables, named_sets, one_each, with_targets
from tests.training.ensembles import chains, ensemble, members, task


def tables():
    return Tables(torch.float64, torch.device("cpu"))


def test_shared_data_are_stored_once_whatever_number_of_members_reads_them():
    data = task()
    training = ensemble(chains(16), data, members())
    groups = training.groups([None] * 16)
    stored = {id(group.stack.data["train"].x) for group in groups}
    assert len(groups) == 8
    assert len(stored) == 1
    assert groups[0].stack.data["train"].x.shape == (1, 24, 6)


def test_methods_that_train_on_the_same_seeds_share_their_data():
    data = [task(seed=0), task(seed=1)]
    training = ensemble(chains(4), data * 2, members("sgd", "adamw"))
    one, other = training.groups([None] * 4)
    assert one.stack.data["train"].x is other.stack.data["train"].x
    assert one.stack.data["train"].x.shape == (2, 24, 6)


def test_inputs_are_shared_where_only_the_targets_differ():
    data = task()
    pairs = [(data.x_train, data.y_train), (data.x_train, data.y_train.flip(0))]
    points = tables().points(pairs)
    assert len(points.x) == 1
    assert torch.equal(points.y, torch.stack([y for _, y in pairs]))


def test_tensors_that_change_places_are_not_taken_for_shared_ones():
    a, b = torch.randn(4, 2).double(), torch.randn(4, 2).double()
    points = tables().points([(a, b), (b, a)])
    assert torch.equal(points.x, torch.stack([a, b]))
    assert torch.equal(points.y, torch.stack([b, a]))
    points = tables().points([(a, a), (a, a)])
    assert points.x.shape == points.y.shape == (1, 4, 2)


def test_real_numbers_take_the_dtype_of_the_networks_and_integers_stay():
    x, y = torch.randn(4, 2, requires_grad=True), torch.arange(4)
    points = tables().points([(x, y)])
    assert points.x.dtype == torch.float64
    assert not points.x.requires_grad
    assert points.y.dtype == torch.int64


def test_what_the_caller_changes_later_does_not_reach_the_ensemble():
    x, y = torch.randn(4, 2).double(), torch.arange(4)
    points = tables().points([(x, y)])
    kept = x.clone()
    x.zero_()
    assert torch.equal(points.x[0], kept)


def test_one_split_serves_all_members_and_several_one_each():
    data = task()
    assert one_each(data, 3) == [data] * 3
    assert one_each([data, data], 2) == [data] * 2


def test_further_sets_are_given_once_or_for_each_member():
    data = task()
    pair, other = (data.x_test, data.y_test), (data.x_train, data.y_train)
    sets = named_sets([data] * 2, {"once": pair, "each": [pair, other]})
    assert list(sets) == ["train", "test", "once", "each"]
    assert sets["once"][1][0] is data.x_test
    assert sets["each"][1][0] is data.x_train


def test_shared_targets_are_prepared_once():
    data = task()
    sets = named_sets([data] * 3, {})
    made = with_targets(sets, "squared_error", 3)
    assert len({id(y) for _, y in made["train"]}) == 1
    assert made["train"][0][1].shape == (24, 3)
