import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch import nn

from normalign.nn import mlp
from normalign.plots._centroids import plot_centroids

mpl.use("agg")


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def pictures(figure):
    return [np.asarray(axis.images[0].get_array()) for axis in figure.axes]


def test_the_centroid_of_a_linear_model_is_the_sum_of_its_rows():
    model = nn.Linear(6, 3).double()
    x = torch.rand(2, 6, dtype=torch.float64)
    figure = plot_centroids(model, x, image_shape=(2, 3))
    rows = model.weight.detach().sum(0).reshape(2, 3)
    expected = (rows / rows.abs().max()).numpy()
    shown = pictures(figure)
    for place in (2, 3):
        np.testing.assert_allclose(shown[place], expected, rtol=1e-12)
    np.testing.assert_allclose(
        shown[0], (x[0] / x[0].max()).reshape(2, 3).numpy(), rtol=1e-12
    )


def test_the_cosine_is_written_below_and_is_one_for_an_aligned_model():
    x = torch.tensor([[3.0, 4.0, 0.0, 0.0]])
    figure = plot_centroids(lambda z: z @ x.T * torch.tensor([2.0, 1.0]), x)
    assert figure.axes[1].get_xlabel() == "1.00"
    above, below = pictures(figure)
    np.testing.assert_allclose(above, below, rtol=1e-6)


def test_all_pictures_share_one_scale_around_zero():
    seeded = torch.Generator().manual_seed(0)  # a network without dead samples
    network = mlp([9, 5, 2], generator=seeded)
    figure = plot_centroids(network, torch.rand(3, 9, generator=seeded))
    for axis in figure.axes:
        assert axis.images[0].get_clim() == (-1, 1)
        assert abs(np.asarray(axis.images[0].get_array())).max() == pytest.approx(1)


def test_no_more_inputs_are_drawn_than_wanted_or_there():
    assert len(plot_centroids(mlp([9, 2]), torch.rand(5, 9), n=2).axes) == 4
    assert len(plot_centroids(mlp([9, 2]), torch.rand(3, 9), n=8).axes) == 6


def test_images_with_channels_are_drawn_as_their_mean():
    model = nn.Sequential(nn.Flatten(), nn.Linear(27, 2))
    x = torch.rand(1, 3, 3, 3)
    shown = pictures(plot_centroids(model, x))[0]
    mean = x[0].double().mean(0)
    np.testing.assert_allclose(shown, (mean / mean.max()).numpy(), rtol=1e-6)


def test_the_input_of_a_submodule_can_be_drawn():
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    figure = plot_centroids(model, torch.rand(2, 5), at="2")
    rows = model[2].weight.detach().sum(0).reshape(2, 2)
    np.testing.assert_allclose(
        pictures(figure)[2], (rows / rows.abs().max()).numpy(), rtol=1e-5
    )


def test_a_zero_centroid_is_drawn_blank():
    figure = plot_centroids(lambda z: z @ torch.zeros(4, 2), torch.ones(1, 4))
    assert not pictures(figure)[1].any()


@pytest.mark.parametrize(
    ("x", "options", "words"),
    [
        (torch.rand(2, 5), {}, r"Pass image_shape=\(height, width\)"),
        (torch.rand(2, 5), {"image_shape": (2, 2)}, "of 5 numbers"),
        (torch.rand(2, 5), {"n": 0}, "n must be at least 1"),
        (torch.rand(0, 5), {}, "at least one input"),
    ],
)
def test_wrong_arguments_are_named(x, options, words):
    with pytest.raises(ValueError, match=f"^plot_centroids: .*{words}"):
        plot_centroids(mlp([5, 2]), x, **options)
