"""Results of robustly trained networks, written down in place of computed."""

from normalign_reproduction.spec import Record, Run

NUMBERS = {
    "normal_alignment": 0.5, "effective_rank": 2.0, "alignment_ratio": 0.4,
    "centroid_alignment": 0.1, "answer_alignment": 0.2,
    "jacobian_norm": 3.0, "train_accuracy": 0.9,
    "test_accuracy": 0.5, "robust_accuracy": 0.3,
}  # fmt: skip
PARAMETERS = {"wrn10-1": 100, "wrn10-2": 400, "resnet18": 50, "resnet50": 70}


def record(network, *, seed=0, n_train=100, averaged=None, data=None, **numbers):
    """A record: ``averaged`` are the numbers of the averaged weights, if any."""
    settings = {"network": network, "n_train": n_train, "places": []}
    run = Run("robust_images", 1, "quick", "text", "digits_5000", settings, seed)
    result = {
        "n_parameters": PARAMETERS[network], **NUMBERS, **numbers,
        "averaged": averaged and {**NUMBERS, **averaged}, "untrained": None,
        "places": {}, "places_test": {}, **(data or {}),
    }  # fmt: skip
    return Record(run, result)


def layered(network, train, *, test=None, untrained=None, averaged=None, seed=0):
    """A record of a network whose stages have these centroid alignments."""
    names = [f"layer{i + 1}" for i in range(len(train))]
    settings = {"network": network, "n_train": 100, "places": names}
    run = Run("robust_images", 1, "quick", "text", "digits_5000", settings, seed)

    def places(values):
        return {
            name: {**NUMBERS, "centroid_alignment": value}
            for name, value in zip(names, values, strict=True)
        }

    result = {
        "n_parameters": PARAMETERS[network],
        "places": places(train),
        "places_test": places(train if test is None else test),
        "averaged": averaged and {"places": places(averaged)},
        "untrained": untrained and {"places": places(untrained)},
    }
    return Record(run, result)
