"""The right panel of the figure of data sparsity (fig. data_sparsity).

Claim: a network of more capacity aligns more to the same images, and the more images
there are, the less a network aligns to them.

Command: ``normalign reproduce capacity``; two cores, under half a minute. With
``--full`` on one H200, 13 minutes, and 25 for preset ``text``; ``--full --only
n_train=10000 --seeds 1`` is a larger subset, which no other command runs.

The paper's: WideResNet-28-2 and WideResNet-28-10 on subsets of CIFAR-10, the first
images of each class, by the adversarial training of Cui et al. (2024) with its
``basic`` augmentation and all other defaults. The file of the curves' numbers is not
among its sources, so that only their shape can be compared.

Those defaults are two things. Preset ``text`` is what the command line of Cui et al.
declares: ten steps of 2/255 within 8/255. Preset ``released`` is what their scripts do:
two steps, each as long as a radius that grows from 0 to 8/255 over the epochs, and
weights perturbed adversarially from epoch 10 on. Both: 200 epochs, batches of 128, SGD
from a rate of 0.1, weights averaged over the last quarter.

Ours, where the paper is silent: subsets of 100, 300, 1000 and 3000; one seed; products
in bfloat16; alignment at the first 1000 training images, or all of them, not augmented;
both the weights at the end and their average; robust accuracy by 20 steps of PGD on the
cross-entropy within 8/255 at 1000 test images.

Quick: a network of depth 10, and one twice as wide, on 20 and 80 digits of 14 x 14
pixels, 16 steps of short attacks, two seeds. So few steps train none of them to its
end, so that what the paper says is judged at full size alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from normalign_reproduction.items.capacity.drawing import by_images
from normalign_reproduction.items.capacity.rows import (
    MOST_CORRELATION,
    capacity_rows,
    falls_with_images,
    wider_aligns_more,
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

__all__ = ["ITEM", "RECIPE"]

SIZES = (100, 300, 1000, 3000)
LARGER = (10_000,)  # run where seeds are asked for
RADIUS = 8 / 255

# What both presets share; that of the command line is the first.
RECIPE = {
    "objective": "dkl", "epochs": 200, "batch_size": 128, "learning_rate": 0.1,
    "momentum": 0.9, "weight_decay": 5e-4, "radius": RADIUS, "n_steps": 10,
    "step_size": 2 / 255, "ramp": False, "augment": "basic", "soft_weight": 4.0,
    "square_weight": 20.0, "temperature": 4.0, "perturbation": 0.0,
    "averaging": 0.9996, "averaged_from": 0.75, "precision": "bf16",
}  # fmt: skip
_RELEASED = {
    **RECIPE, "n_steps": 2, "step_size": RADIUS, "ramp": True, "perturbation": 0.005,
    "perturbed_from": 10,
}  # fmt: skip
_SETTINGS = {
    "images": "cifar10", "n_test": 1000, "n_validation": 0, "n_measured": 1000,
    "places": [], "n_evaluated": 5,
    "attack": {"radius": RADIUS, "n_steps": 20, "n_restarts": 1},
}  # fmt: skip


def _on_digits(settings: Mapping[str, Any]) -> bool:
    return settings["images"] == "digits"


def _seeds(variant: Mapping[str, Any]) -> int:
    return 0 if variant["n_train"] in LARGER else 1


ITEM = Item(
    name="capacity",
    reference="Figure 1, right",
    title="A wider network aligns more; more images, less",
    shows=(
        "For a fixed number of training images of CIFAR-10 a wider network exhibits "
        "more normal alignment. Its numbers are not published: only shapes compare."
    ),
    experiment="robust_images",
    variants=cross(network=["wrn28-2", "wrn28-10"], n_train=[*SIZES, *LARGER]),
    settings={
        "released": {**_SETTINGS, "recipe": _RELEASED},
        "text": {**_SETTINGS, "recipe": RECIPE},
    },
    sizes={
        "quick": Size(
            2,
            {"images": "digits", "pooled": 2, "n_test": 50, "n_measured": 20,
             "n_evaluated": 2,
             "attack": {"radius": 0.1, "n_steps": 5, "n_restarts": 1},
             "shortened": {"steps": 16, "batch_size": 20, "radius": 0.1, "n_steps": 2,
                           "step_size": 0.1, "perturbed_from": 3, "averaging": 0.9,
                           "averaged_from": 0.5, "augment": "none",
                           "precision": "float32"}},
            variants=cross(network=["wrn10-1", "wrn10-2"], n_train=[20, 80]),
            seconds={"cpu": 15.0},
        ),
        "full": Size(1, seconds={"cuda": 800.0}, data="cifar10", seeds_of=_seeds),
    },
    tables=[
        Table(
            "capacity", "At the end of training, by network and number of images",
            capacity_rows,
            [
                Column("network", "Network"),
                Column("n_train", "Images", "{:d}"),
                Column("weights", "Weights"),
                *(
                    Column(name, title, form, interval=f"{name}_reach")
                    for name, title, form in (
                        ("normal_alignment", "Normal alignment", "{:.3f}"),
                        ("effective_rank", "Effective rank", "{:.2f}"),
                        ("train_accuracy", "Train accuracy (%)", "{:.1f}"),
                        ("test_accuracy", "Test accuracy (%)", "{:.1f}"),
                        ("robust_accuracy", "under attack (%)", "{:.1f}"),
                    )
                ),
                Column("n", "Seeds", "{:d}"),
            ],
            note="Final: the weights after the last step. Averaged: their moving "
            "average over the last part of training; of few images there are few steps "
            "in it, and it is little more than the weights that it began with. "
            "Alignment and rank are means over "
            "training images, not augmented. In brackets the least and the greatest "
            "seed, where there are several.",
        )
    ],
    figures=[
        Figure(
            "alignment", by_images,
            "Normal alignment and effective rank at training images, and accuracy at "
            "test images, at the end of robust training on nested subsets. Accuracies "
            "are of the final weights. Bands, where there are several seeds, reach "
            "over them.",
            numbers=False,
        )
    ],
    claims=[
        Claim(
            "The wider network aligns more to the same images",
            "At each number of images the mean normal alignment of the widest network "
            "is above that of the narrowest, for the final and for the averaged "
            "weights.",
            wider_aligns_more,
            sizes=("full",),
        ),
        Claim(
            "The more images, the less alignment",
            "For each network Spearman's rank correlation of the number of images and "
            f"mean normal alignment is {MOST_CORRELATION:g} or less, and alignment at "
            "the most images is below that at the fewest.",
            falls_with_images,
            sizes=("full",),
        ),
    ],
    needs_digits=_on_digits,
    departures=(
        "the paper's curves are in a file that is not published: only their shape is "
        "compared",
        "subsets of 100, 300, 1000 and 3000 images; the paper does not name its own",
        "one seed; products in bfloat16",
        "200 epochs of every subset, so that fewer images are fewer steps: 200 of 100 "
        "images, 4800 of 3000",
        "alignment at the first 1000 training images, not augmented, of both final and "
        "averaged weights; the paper tells neither",
    ),
)  # fmt: skip
