"""The figure of alignment through the layers (fig. resnet_alignment).

Claim: the centroids of the maps from the inputs of a robust network's stages to its
output align with these inputs, the more the deeper the stage.

Command: ``normalign reproduce layers``; two cores, under half a minute. With ``--full``
on one H200, ten minutes.

The paper's: a ResNet-18 and a ResNet-50 that are robust on CIFAR-10. It obtained them
and does not say whose they are, nor at which images it measured; the file of the
curves' numbers is not among its sources, so that only their shape can be compared.

Ours: networks trained by the decoupled divergence of Cui et al. (2024), ten steps of
2/255 within 8/255, 60 epochs of 12500 images, the first 1250 of each class; one seed;
products in bfloat16; the map from the input of each of the four stages, at the first
1000 training images, not augmented, and at 1000 test images. Beside it the same network
before training, its normalisation given the statistics of the training images: is the
profile due to training at all? And beside the centroids, the gradients of the sum of
the logits, which cross-entropy does not see, the Jacobian's row of the right answer.

What to expect: in one network they rise, in the other they fall. Losses of differences
of logits leave the mean row of the last layer in the direction that it was drawn in
(the page on deep networks says why, and tests show it), and centroids see the last
layer through that row alone. They change sign with it.

Quick: networks of the same form, 4 channels wide, one with a single bottleneck in each
stage, on 200 digits of 14 x 14 pixels, 20 steps of short attacks, two seeds: too few
for what the paper says to be judged.
"""

from __future__ import annotations

from normalign_reproduction.items.capacity.drawing import by_stage
from normalign_reproduction.items.capacity.item import RECIPE
from normalign_reproduction.items.capacity.rows import capacity_rows
from normalign_reproduction.items.layers.claims import (
    LEAST_CORRELATION,
    due_to_training,
    layer_rows,
    rises_with_depth,
)
from normalign_reproduction.spec import (
    Claim,
    Column,
    Figure,
    Item,
    Size,
    Table,
    cross,
)

__all__ = ["ITEM"]

STAGES = ["layer1", "layer2", "layer3", "layer4"]
_HEADS = [
    Column("network", "Network"), Column("place", "Stage"), Column("n", "Seeds", "{:d}")
]  # fmt: skip
_NOTE = (
    "Means over images: training images, not augmented, where nothing else is said. "
    "Untrained: the network before training, its normalisation given the statistics of "
    "the training images. In brackets the least and the greatest seed, where there are "
    "several."
)


def _column(name: str, title: str, form: str = "{:.3f}") -> Column:
    return Column(name, title, form, interval=f"{name}_reach")


ITEM = Item(
    name="layers",
    reference="Figure 4",
    title="Centroid alignment through the layers of robust networks",
    shows="Centroid alignment of the map from a stage's input to the output increases "
    "with the depth of the stage. Its numbers are not published: only shapes compare.",
    experiment="robust_images",
    variants=cross(network=["resnet18", "resnet50"]),
    settings={
        "text": {
            "images": "cifar10", "n_train": 12_500, "n_test": 1000, "n_validation": 0,
            "recipe": {**RECIPE, "epochs": 60}, "n_measured": 1000, "places": STAGES,
            "n_evaluated": 6, "control": True,
            "attack": {"radius": 8 / 255, "n_steps": 20, "n_restarts": 1},
        }
    },
    sizes={
        "quick": Size(
            2,
            {"images": "digits", "pooled": 2, "n_train": 200, "n_test": 50,
             "n_measured": 20, "n_evaluated": 2,
             "attack": {"radius": 0.1, "n_steps": 5, "n_restarts": 1},
             "recipe": {**RECIPE, "epochs": 5, "batch_size": 50, "radius": 0.1,
                        "n_steps": 2, "step_size": 0.1, "averaging": 0.9,
                        "averaged_from": 0.5, "augment": "none",
                        "precision": "float32"}},
            variants=cross(network=["resnet18-w4", "resnet14-w4"]),
            seconds={"cpu": 15.0},
        ),
        "full": Size(1, seconds={"cuda": 610.0}, data="cifar10"),
    },
    tables=[
        Table(
            "layers", "Centroid alignment of the maps from each stage's input",
            layer_rows,
            [
                *_HEADS,
                _column("centroid_alignment_train", "Training images"),
                _column("centroid_alignment_test", "Test images"),
                _column("centroid_alignment_averaged", "Averaged weights"),
                _column("centroid_alignment_untrained", "Untrained"),
            ],
            note=_NOTE,
        ),
        Table(
            "layers-rows", "The right answer's row, normal alignment and rank",
            layer_rows,
            [
                *_HEADS,
                _column("answer_alignment_train", "Right answer's row"),
                _column("answer_alignment_test", "at test images"),
                _column("answer_alignment_untrained", "untrained"),
                _column("normal_alignment_train", "Normal alignment"),
                _column("normal_alignment_untrained", "untrained"),
                _column("effective_rank_train", "Effective rank", "{:.2f}"),
                _column("effective_rank_untrained", "untrained", "{:.2f}"),
            ],
            note="Right answer's row: the cosine of the Jacobian's row of the right "
            f"answer with the input of the stage. {_NOTE}",
        ),
        Table(
            "networks", "How robust the networks are", capacity_rows,
            [
                Column("network", "Network"),
                Column("weights", "Weights"),
                _column("train_accuracy", "Train accuracy (%)", "{:.1f}"),
                _column("test_accuracy", "Test accuracy (%)", "{:.1f}"),
                _column("robust_accuracy", "under attack (%)", "{:.1f}"),
                _column("normal_alignment", "Normal alignment"),
                Column("n", "Seeds", "{:d}"),
            ],
            note="Under 20 steps of PGD on the cross-entropy within 8/255 (quick size: "
            "5 steps within 0.1), at test images. Normal alignment: of the whole "
            "network, at training images, not augmented.",
        ),
    ],
    figures=[
        Figure(
            "stages", by_stage,
            "Centroid alignment, alignment of the Jacobian's row of the right answer, "
            "normal alignment and effective rank of the maps from the input of each "
            "stage to the output. Bands, where there are several "
            "seeds, reach over them.",
            numbers=False,
        )
    ],
    claims=[
        Claim(
            "Centroid alignment increases with depth",
            "For each network Spearman's rank correlation of a stage's number and its "
            f"mean centroid alignment is {LEAST_CORRELATION:g} or more, and that of "
            "the last stage is above that of the first.",
            rises_with_depth,
            sizes=("full",),
        ),
        Claim(
            "It is training that makes it so (beyond the paper)",
            "For each network centroid alignment rises from the first stage to the "
            "last, and by more than in the same network before training.",
            due_to_training,
            sizes=("full",),
        ),
    ],
    needs_digits=lambda settings: settings["images"] == "digits",
    departures=(
        "the paper obtained its networks and does not say whose; ours are trained on "
        "12500 images, for 60 epochs",
        "the paper's curves are in a file that is not published: only their shape is "
        "compared",
        "one seed; products in bfloat16",
        "at the first 1000 training images, not augmented, and at 1000 test images; "
        "the paper does not tell which it took",
    ),
)  # fmt: skip
