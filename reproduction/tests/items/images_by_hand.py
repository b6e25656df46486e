"""Records of the experiment ``robust_images`` written by hand."""

from normalign_reproduction.spec import Record, Run

DECAY = 5e-4


def record(
    method, *, n_train=100, seed=0, decay=None, weight=0.0, clean=0.5, robust=0.1,
    nearby=0.3, validation=None, validation_robust=None, alignment=0.2, rank=2.0,
    seconds=10.0,
):  # fmt: skip
    """A run: accuracies are shares; those of validation are the test's by default."""
    decays = {"baseline": 0.0}
    recipe = {
        "objective": "pgd" if method == "pgd" else "plain",
        "weight_decay": decays.get(method, DECAY) if decay is None else decay,
        "penalty_weight": weight,
    }  # fmt: skip
    settings = {"method": method, "n_train": n_train, "recipe": recipe}
    result = {
        "test_accuracy": clean, "robust_accuracy": robust, "nearby_accuracy": nearby,
        "validation_accuracy": clean if validation is None else validation,
        "validation_robust_accuracy": robust
        if validation_robust is None else validation_robust,
        "normal_alignment": alignment, "effective_rank": rank, "seconds": seconds,
    }  # fmt: skip
    run = Run("robust_images", 1, "full", "text", "cifar10", settings, seed)
    return Record(run, result)


def study(*, sizes=(100, 300), seeds=(0, 1), grokalign=None, pgd=None, noise=0.0):
    """All methods at all sizes: GrokAlign and PGD training as told, by weight.

    ``noise`` is added to seed 1 of GrokAlign and taken from it at the next size.
    """
    grokalign = grokalign or {0.01: {"clean": 0.5}}
    made = []
    for place, size in enumerate(sizes):
        for seed in seeds:
            at = {"n_train": size, "seed": seed}
            made += [
                record("baseline", clean=0.4, **at),
                record("decay", clean=0.5, **at),
                record("decay", decay=5e-3, clean=0.45, **at),
                record("pgd", **{"seconds": 100.0, "robust": 0.3, **(pgd or {})}, **at),
            ]
            shift = noise * seed * (-1) ** place
            for weight, told in grokalign.items():
                moved = {"clean": told.get("clean", 0.5) + shift,
                         "robust": told.get("robust", 0.1) + shift,
                         "nearby": told.get("nearby", 0.3) + shift,
                         "alignment": told.get("alignment", 0.2) + shift}  # fmt: skip
                one = {**{"seconds": 20.0}, **told, **moved}
                made.append(record("grokalign", weight=weight, **one, **at))
    return made
