import pytest
import torch
from torch import nn

from normalign import optim
from normalign.training.rules import SGD, AdamW, Grokfast, OrthoGrad, StackedRule

SHAPES = [(3, 4), (4,), (1,)]
SIZES = [12, 4, 1]

OPTIMIZERS = {
    "sgd": [SGD(0.1), SGD(0.05, momentum=0.9, weight_decay=0.1), SGD(0.2, 0.2, 0.01)],
    "adamw": [
        AdamW(),
        AdamW(1e-2, beta2=0.99, eps=1e-25, weight_decay=1.0),
        AdamW(1e-3, beta1=0.8, beta2=0.9, eps=1e-3, weight_decay=0.0),
    ],
    "one adamw for all": [AdamW(1e-2, beta2=0.99, eps=1e-25, weight_decay=1.0)] * 3,
}
FILTERS = {
    "none": [None, None, None],
    "grokfast": [Grokfast(), Grokfast(0.8, 0.1), Grokfast(0.5, 1.0)],
    "orthograd": [OrthoGrad(), OrthoGrad(), OrthoGrad()],
}


def torch_optimizer(rule, parameters):
    if isinstance(rule, SGD):
        return torch.optim.SGD(
            parameters, rule.learning_rate, rule.momentum,
            weight_decay=rule.weight_decay,
        )  # fmt: skip
    return torch.optim.AdamW(
        parameters, rule.learning_rate, (rule.beta1, rule.beta2), rule.eps,
        rule.weight_decay,
    )  # fmt: skip


def attach(rule, optimizer):
    if isinstance(rule, Grokfast):
        optim.Grokfast(optimizer, decay=rule.decay, strength=rule.strength)
    elif isinstance(rule, OrthoGrad):
        optim.OrthoGrad(optimizer)


def gradients(step, rows):
    """Some gradients that depend on the parameters, as real ones do."""
    source = torch.Generator().manual_seed(step)
    return torch.randn(rows.shape, generator=source, dtype=rows.dtype) + rows.sin()


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("n_steps", [1, 4])
def test_twenty_steps_are_those_of_torch_for_every_member(kind, filters, n_steps):
    start = torch.randn(3, 17, dtype=torch.float64)
    rows = start.clone()
    rules = OPTIMIZERS[kind], FILTERS[filters]
    rule = StackedRule(*rules, sizes=SIZES, like=rows)
    for step in range(20):
        if step % n_steps == 0:
            rule.begin(n_steps)
        rule.update(rows, gradients(step, rows), step % n_steps)

    for i, (optimizer, gradient_filter) in enumerate(zip(*rules, strict=True)):
        parts = start[i].split(SIZES)
        weights = [
            nn.Parameter(part.reshape(shape).clone())
            for part, shape in zip(parts, SHAPES, strict=True)
        ]
        theirs = torch_optimizer(optimizer, weights)
        attach(gradient_filter, theirs)
        for step in range(20):
            row = torch.cat([w.detach().reshape(-1) for w in weights])
            # The draw covers all members; this one's row of it.
            whole = start.clone()
            whole[i] = row
            mine = gradients(step, whole)[i].split(SIZES)
            for weight, gradient in zip(weights, mine, strict=True):
                weight.grad = gradient.reshape(weight.shape).clone()
            theirs.step()
        row = torch.cat([w.detach().reshape(-1) for w in weights])
        torch.testing.assert_close(rows[i], row, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_dropping_members_leaves_the_course_of_the_others(kind):
    rules = OPTIMIZERS[kind], FILTERS["grokfast"]
    rows = torch.randn(3, 17, dtype=torch.float64)
    few = rows.clone()
    whole = StackedRule(*rules, sizes=SIZES, like=rows)
    part = StackedRule(*rules, sizes=SIZES, like=few)
    for step in range(6):
        if step == 3:
            kept = torch.tensor([2, 0])
            part.keep(kept)
            few = few[kept]
        for rule, these in ((whole, rows), (part, few)):
            rule.begin(1)
            grown = gradients(step, torch.zeros(3, 17, dtype=torch.float64))
            rule.update(these, grown[[2, 0]] if len(these) == 2 else grown, 0)
    torch.testing.assert_close(few, rows[[2, 0]], rtol=0, atol=1e-14)


def test_bias_corrections_keep_float64_precision_in_float32():
    rows = torch.ones(1, 1)
    rule = StackedRule([AdamW(0.1, weight_decay=0.0)], [None], sizes=[1], like=rows)
    rule.begin(1)
    rule.update(rows, torch.full((1, 1), 1e-3), 0)
    # The first step of Adam is the learning rate, whatever the gradient.
    assert abs(float(rows) - 0.9) < 1e-6


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: SGD(-0.1), "SGD: learning_rate must be a finite number"),
        (lambda: AdamW(beta2=1.0), r"AdamW: beta2 must be in \[0, 1\), got 1.0"),
        (lambda: Grokfast(decay=1.5), "Grokfast: decay must be in"),
        (lambda: AdamW(weight_decay=float("nan")), "AdamW: weight_decay must be"),
    ],
)
def test_illegal_numbers_are_refused(make, text):
    with pytest.raises(ValueError, match=text):
        make()


@pytest.mark.cuda
@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_cuda_sweep_takes_the_steps_of_the_cpu(kind, filters, dtype):
    # Several blocks, and a tensor within one. None of one number: nothing of its
    # gradient is orthogonal to it, and Adam makes a step of what rounding leaves.
    sizes = [3000, 5]
    start = torch.randn(3, 3005, dtype=torch.float64)
    ends = []
    for device, precision in (("cpu", torch.float64), ("cuda", dtype)):
        rows = start.to(device, precision, copy=True)
        rule = StackedRule(OPTIMIZERS[kind], FILTERS[filters], sizes=sizes, like=rows)
        for step in range(20):
            if step % 4 == 0:
                rule.begin(4)
            given = gradients(step, rows.cpu().double()).to(rows)
            rule.update(rows, given, step % 4)
        ends.append(rows.cpu().double())
    # Adam with no eps to speak of turns a rounding of the gradient into a step.
    close = 1e-11 if dtype == torch.float64 else 1e-3
    torch.testing.assert_close(ends[1], ends[0], rtol=close, atol=close)
