"""Whether GrokAlign pays with few images.

Beyond the paper, which trains no network on CIFAR-10 with GrokAlign. The question: with
100 to 3000 images, what does GrokAlign bring beside weight decay and beside training
on attacked images, in accuracy, robust accuracy and alignment, and what does it cost?

Command: ``normalign reproduce small_cifar``; two cores, well under a minute on embedded
digits. With ``--full``, 48 runs of a ResNet-18, about six minutes on one H200; four
fifths are training, the rest attacks and measures.

Every run has 720 steps: batches of 128 at most, so that 100 images make 720 epochs and
3000 make 30. SGD, rate 0.05 with a cosine to 0, momentum 0.9, crop and flip. Ways: no
decay; weight decay of three strengths; PGD training (8/255, 10 steps of 2/255, decay
0.0005); GrokAlign with three weights on every fourth step, decay 0.0005. That decay
alone is GrokAlign's control; it is not tuned, and tuned decay is there beside it.
Decays and weights are chosen on 500 validation images, by accuracy and, in a second
table, by robust accuracy at 2/255; numbers are of 1000 test images. Robust accuracy is
under 20 steps of PGD at 8/255, where a network that was never attacked may well have
none, and under 10 steps at 2/255.

The images are a part of CIFAR-10 wherever the whole is not at hand; a part decoded from
JPEG is not bit-exact. Quick: 60 and 200 digits of 14x14 pixels, a residual network of
ten layers and 4 channels, 20 steps, radius 0.05; too little to say anything by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normalign_reproduction.items.small_cifar.claims import CLAIMS
from normalign_reproduction.items.small_cifar.drawing import by_images
from normalign_reproduction.items.small_cifar.rows import (
    cost_rows,
    difference_rows,
    grid_rows,
    method_rows,
)
from normalign_reproduction.spec import Column, Figure, Item, Size, Table

__all__ = ["ITEM"]

SIZES = (100, 500, 3000)
STEPS, BATCH = 720, 128  # 1, 4 and 24 steps are an epoch: 720 are whole epochs in all
DECAY = 5e-4  # of GrokAlign, of its control, and of PGD training
DECAYS = (DECAY, 2e-3, 8e-3)
WEIGHTS = (1e-5, 1e-4, 1e-3)  # as many as decays: none is tuned harder than the other
RATE = 0.05  # at 0.1, with a weight of 0.003, the penalised steps diverge
RADIUS = 8 / 255


def variants(
    sizes: Sequence[int],
    *,
    steps: int,
    decays: Sequence[float],
    weights: Sequence[float],
    **shared: Any,
) -> list[dict[str, Any]]:
    """Return every method at every number of images, with the same steps for all.

    Parameters
    ----------
    shared
        What else a recipe has, the same for all methods.
    """
    plain = {"objective": "plain", "weight_decay": 0.0, "penalty_weight": 0.0}
    methods = [
        ("baseline", plain),
        *(("decay", {**plain, "weight_decay": decay}) for decay in decays),
        ("pgd", {**plain, "objective": "pgd", "weight_decay": DECAY}),
        *(
            ("grokalign", {**plain, "weight_decay": DECAY, "penalty_weight": weight})
            for weight in weights
        ),
    ]
    return [
        {
            "method": method, "n_train": size,
            "recipe": {
                **shared, **own, "epochs": steps // -(-size // shared["batch_size"]),
            },
        }
        for size in sizes
        for method, own in methods
    ]  # fmt: skip


RECIPE = {
    "batch_size": BATCH, "learning_rate": RATE, "momentum": 0.9, "augment": "basic",
    "radius": RADIUS, "n_steps": 10, "step_size": 2 / 255, "penalty_every": 4,
    "averaging": 0.0, "precision": "bf16",
}  # fmt: skip
QUICK_RECIPE = {
    **RECIPE, "batch_size": 100, "augment": "none", "radius": 0.05, "n_steps": 2,
    "step_size": 0.05, "precision": "float32",
}  # fmt: skip

_SEEDS = (
    "In brackets the least and the greatest seed. Robust accuracy is under 20 steps of "
    "PGD at 8/255 and 10 steps at 2/255 (quick size: 5 steps at 0.05 and at 0.0125)."
)


def _means(title: str, name: str, note: str) -> Table:
    return Table(
        name.replace(" ", "_"), title, method_rows(name),
        [
            Column("n_train", "Images", "{:d}"),
            Column("method", "Method"),
            Column("strength", "Chosen"),
            Column("test_accuracy", "Test accuracy (%)", "{:.1f}",
                   interval="test_accuracy_seeds"),
            Column("nearby_accuracy", "at 2/255 (%)", "{:.1f}",
                   interval="nearby_accuracy_seeds"),
            Column("robust_accuracy", "at 8/255 (%)", "{:.1f}",
                   interval="robust_accuracy_seeds"),
            Column("normal_alignment", "Normal alignment", "{:.3f}",
                   interval="normal_alignment_seeds"),
            Column("effective_rank", "Effective rank", "{:.2f}",
                   interval="effective_rank_seeds"),
            Column("n", "Seeds", "{:d}"),
        ],
        note=f"{note} {_SEEDS} Alignment and rank are means over training images, not "
        "augmented.",
    )  # fmt: skip


ITEM = Item(
    name="small_cifar",
    reference="Beyond the paper",
    title="Few images: does GrokAlign pay?",
    shows="Nothing: it trains no network on CIFAR-10 with GrokAlign.",
    experiment="robust_images",
    variants=variants(SIZES, steps=STEPS, decays=DECAYS, weights=WEIGHTS, **RECIPE),
    settings={
        "text": {
            "network": "resnet18", "images": "cifar10", "n_test": 1000,
            "n_validation": 500, "n_measured": 100, "places": [], "n_evaluated": 1,
            "attack": {"radius": RADIUS, "n_steps": 20, "n_restarts": 1},
            "nearby": {"radius": RADIUS / 4, "n_steps": 10, "n_restarts": 1},
        }
    },
    sizes={
        "quick": Size(
            seeds=2,
            settings={
                "network": "resnet10-w4", "images": "digits", "pooled": 2,
                "n_test": 50, "n_validation": 50, "n_measured": 10, "n_evaluated": 1,
                "attack": {"radius": 0.05, "n_steps": 5, "n_restarts": 1},
                "nearby": {"radius": 0.0125, "n_steps": 5, "n_restarts": 1},
            },
            variants=variants(
                (60, 200), steps=20, decays=(DECAY,), weights=(1e-4, 1e-3),
                **QUICK_RECIPE,
            ),
            seconds={"cpu": 20.0},
        ),
        "full": Size(seeds=2, seconds={"cuda": 360.0}, data="cifar10"),
    },
    tables=[
        _means(
            "Tuned by validation accuracy", "accuracy",
            "Decays and weights chosen by accuracy on validation images, for each "
            "number of images and seed.",
        ),
        _means(
            "Tuned by validation robust accuracy", "robust accuracy",
            "The same, chosen by robust accuracy at 2/255 on validation images; where "
            "none is robust at all, by accuracy. What is not tuned is as above.",
        ),
        Table(
            "differences", "GrokAlign less the others, in pairs", difference_rows,
            [
                Column("by", "Tuned by"),
                Column("reference", "GrokAlign less"),
                Column("n_train", "Images"),
                Column("test_accuracy", "Test accuracy (points)", "{:+.1f}",
                       interval="test_accuracy_interval"),
                Column("nearby_accuracy", "at 2/255 (points)", "{:+.1f}",
                       interval="nearby_accuracy_interval"),
                Column("robust_accuracy", "at 8/255 (points)", "{:+.1f}",
                       interval="robust_accuracy_interval"),
                Column("normal_alignment", "Normal alignment", "{:+.3f}",
                       interval="normal_alignment_interval"),
                Column("effective_rank", "Effective rank", "{:+.2f}",
                       interval="effective_rank_interval"),
            ],
            note="Of runs with the same images and seed. Brackets: 95 % intervals by "
            "the noise of seeds within a number of images, pooled over these numbers "
            "as if it were the same at each and independent between them; the test "
            "images are the same throughout.",
        ),
        Table(
            "grid", "Every decay and every weight", grid_rows,
            [
                Column("n_train", "Images", "{:d}"),
                Column("method", "Method"),
                Column("strength", "Decay or weight", "{:g}"),
                Column("validation_accuracy", "Validation accuracy (%)", "{:.1f}"),
                Column("validation_robust_accuracy", "robust (%)", "{:.1f}"),
                Column("test_accuracy", "Test accuracy (%)", "{:.1f}"),
                Column("robust_accuracy", "robust (%)", "{:.1f}"),
                Column("normal_alignment", "Normal alignment", "{:.3f}"),
                Column("effective_rank", "Effective rank", "{:.2f}"),
            ],
            note="Means over seeds. A choice at the end of its grid says that the grid "
            "is too short.",
        ),
        Table(
            "cost", "Seconds of training", cost_rows,
            [
                Column("n_train", "Images", "{:d}"),
                Column("method", "Method"),
                Column("seconds", "Seconds", "{:.1f}"),
                Column("relative", "Times its decay's alone", "{:.2f}"),
                Column("with_tuning", "with its whole grid", "{:.2f}"),
                Column("n", "Seeds", "{:d}"),
            ],
            note="Training alone, without evaluations but with what recording and "
            "compiling its steps takes; of a tuned method the mean over its grid, and "
            "in the last column the sum. Seeds: those whose runs did not share a GPU. "
            "Those without decay come first of their kind in a process, and bear what "
            "that costs.",
            repeatable=False,
        ),
    ],
    figures=[
        Figure(
            "images", by_images,
            "Test accuracy, accuracy under attack and normal alignment to the training "
            "images against their number. Solid: decay and weight chosen by validation "
            "accuracy; dashed: by validation robust accuracy. Bands reach over seeds.",
            numbers=False,
        )
    ],
    claims=CLAIMS,
    needs_digits=lambda settings: settings["images"] == "digits",
    departures=(
        "all of it: the paper has no such comparison",
        "where CIFAR-10 is a part decoded from JPEG, its images are not bit-exact",
    ),
)  # fmt: skip
