"""Records of the experiment ``tabular`` written by hand."""

from normalign_reproduction.spec import Record, Run

RADII = [0.1, 1.0, 2.0]


def record(
    table, weight, *, accuracy, asr=50.0, alignment=0.3, seed=0, protocol="released",
    validation=None, data="uci", folds=None, **more,
):  # fmt: skip
    """A run: accuracy a share, ``asr`` in percent at radius 1, or at all three."""
    rates = list(asr) if isinstance(asr, list | tuple) else [asr / 2, asr, asr]
    known = [None if rate is None else accuracy * (1 - rate / 100) for rate in rates]
    attacked = [0.0 if value is None else value for value in known]
    settings = {
        "dataset": table, "rows": 100, "method": "rfam", "protocol": protocol,
        "identity_weight": weight, "radii": RADII,
    }  # fmt: skip
    result = {
        "n_rows": 100, "n_inputs": 4, "n_classes": 2, "accuracy": accuracy,
        "attacked": attacked, "attack_success": rates, "strong_success": rates,
        "normal_alignment": alignment,
        "effective_rank": 1.5, "participation_rank": 1.8, "alignment_ratio": 0.2,
        "validation": accuracy if validation is None else validation,
        "folds": folds or [fold(accuracy, attacked, validation)] * 4, **more,
    }  # fmt: skip
    run = Run("tabular", 1, "full", "released", data, settings, seed)
    return Record(run, result)


def fold(accuracy, attacked, validation=None):
    """One of a run's four folds."""
    scored = accuracy if validation is None else validation
    return {"accuracy": accuracy, "attacked": list(attacked), "validation": scored}


def twins(table, rfm, rfam, **more):
    """RFM and RFAM on a table, each as (accuracy, attack success, alignment)."""
    return [
        record(table, weight, accuracy=a, asr=s, alignment=n, **more)
        for weight, (a, s, n) in ((1.0, rfm), (0.0, rfam))
    ]
