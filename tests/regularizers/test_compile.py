import copy
import shutil
import warnings

import pytest
import torch
from torch import Tensor, nn

from normalign.nn import mlp
from normalign.nn.transformer import Transformer
from normalign.regularizers import GrokAlign
from tests.regularizers.penalties import generator, normal

RECENT = pytest.mark.skipif(
    torch.__version__ < (2, 11),
    reason="torch 2.9 cannot compile it: the penalty says so, and runs eagerly",
)
TOKENS = torch.tensor([[1, 2, 0], [3, 3, 6], [5, 0, 4], [2, 6, 1]])


@pytest.fixture(autouse=True)
def no_compilations_of_others():
    torch.compiler.reset()


def pair(**settings):
    """The same penalty twice: eager, and compiled by torch's tracing backend."""
    backend = settings.pop("compile", "aot_eager")
    eager = GrokAlign(0.5, generator=generator(), **settings)
    return eager, GrokAlign(0.5, generator=generator(), compile=backend, **settings)


def agree(model: nn.Module, x: Tensor, eager, compiled, *, calls: int = 3) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # which a fallback gives
        for _ in range(calls):
            for right, found in zip(eager(model, x), compiled(model, x), strict=True):
                torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-6)
    wanted = list(model.parameters())
    right, found = (
        torch.autograd.grad(p(model, x)[1], wanted, allow_unused=True)
        for p in (eager, compiled)
    )
    for a, b in zip(right, found, strict=True):
        if a is not None and b is not None:
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-6)
        else:  # one of them may leave out a gradient that is zero
            assert not any(g is not None and g.any() for g in (a, b))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"n_probes": 2, "power": 1},
        {"power": "ratio"},
        {"estimator": "input"},
        pytest.param({"estimator": "nuclear"}, marks=RECENT),
        {"estimator": "exact"},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())) or "default",
)
def test_the_compiled_penalty_is_the_eager_one(settings):
    model = mlp([5, 7, 6, 3], activation="gelu", generator=generator())
    agree(model, normal(4, 5).float(), *pair(**settings))


@RECENT
def test_tokens_are_penalised_from_a_place_in_a_compiled_model():
    model = Transformer(7, 5, width=4, n_heads=2, hidden=6, generator=generator())
    agree(model, TOKENS, *pair(at="blocks"))


def test_a_compiled_model_is_compiled_anew_with_its_penalty():
    model, x = mlp([5, 7, 3], activation="tanh"), torch.ones(4, 5)
    eager, compiled = pair()
    wrapped = torch.compile(model, backend="aot_eager")
    expected = [eager(model, x)[1] for _ in range(2)]
    for right in expected:
        torch.testing.assert_close(compiled(wrapped, x)[1], right)


def test_autocast_is_part_of_what_is_compiled():
    model, x = mlp([5, 7, 3], activation="tanh", generator=generator()), normal(4, 5)
    eager, compiled = pair()
    agree(model, x.float(), eager, compiled, calls=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(2):
            right, found = eager(model, x.float()), compiled(model, x.float())
            assert found[0].dtype == torch.bfloat16
            assert found[1].dtype == torch.float32
            torch.testing.assert_close(found[1], right[1], rtol=0.03, atol=0.0)


def test_a_gradient_reaches_what_comes_before_the_compiled_model():
    encoder, model = nn.Linear(4, 5), mlp([5, 7, 3], activation="tanh")
    eager, compiled = pair()
    for _ in range(2):
        right, found = (
            torch.autograd.grad(p(model, encoder(torch.ones(2, 4)))[1], encoder.weight)
            for p in (eager, compiled)
        )
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-7)


def test_every_size_of_batch_is_compared_and_compiled():
    model = mlp([5, 7, 3], activation="tanh")
    eager, compiled = pair()
    for n in (4, 3, 4, 3):
        agree(model, torch.ones(n, 5), eager, compiled, calls=1)


def test_models_alike_share_a_compilation_and_others_do_not():
    eager, compiled = pair(compile="eager")
    widths = [[3, 4, 2], [3, 4, 2], [3, 4, 2], [3, 5, 2]]
    models = [mlp(w, activation="tanh") for w in widths]
    with torch._dynamo.config.patch(recompile_limit=2):
        for model in models:
            agree(model, torch.ones(4, 3), eager, compiled, calls=1)
        another = mlp([3, 6, 2], activation="tanh")
        with pytest.warns(UserWarning, match="recompile_limit"):
            compiled(another, torch.ones(4, 3))
        # Another penalty starts afresh.
        agree(another, torch.ones(4, 3), *pair(compile="eager"), calls=1)


def fall_back(model: nn.Module, words: str, **settings) -> None:
    """Expect one warning with these words, and the eager numbers ever after."""
    x = torch.randn(4, 5, generator=generator(1))
    eager, compiled = pair(**settings)
    twin = copy.deepcopy(model)
    torch.manual_seed(0)
    right = [eager(twin, x)[1].detach() for _ in range(3)]
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match=words) as caught:
        found = [compiled(model, x)[1].detach() for _ in range(3)]
    said = [w for w in caught if "not compiled" in str(w.message)]
    assert len(said) == 1
    assert said[0].filename == __file__  # the user's line, not ours
    assert right == found


def test_batch_statistics_are_not_compiled():
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    fall_back(model, "BatchNorm1d '1' in training mode takes its statistics")


def test_dropout_is_not_compiled():
    model = nn.Sequential(nn.Linear(5, 6), nn.Dropout(), nn.Linear(6, 3))
    fall_back(model, "Dropout '1' in training mode draws random numbers")
    agree(model.eval(), torch.ones(4, 5), *pair())


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        return self.linear(x).tanh()


def test_a_model_that_changes_its_buffers_is_not_compiled():
    fall_back(Counting(), "changes its buffers")


class Untraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return self.linear(x).tanh()


def test_what_torch_cannot_compile_runs_eagerly_with_its_reason():
    fall_back(Untraceable(), "torch.compile says: ")


def test_a_backend_that_torch_does_not_know_is_an_error():
    with pytest.raises(ValueError, match=r"^GrokAlign: compile must be .*'nonesuch'"):
        GrokAlign(compile="nonesuch")(mlp([5, 4, 3]), torch.ones(2, 5))


def wrong_by_a_little(graph, inputs):
    """A backend with a mistake in its numbers."""

    def run(*args):
        return tuple(
            1.001 * out if isinstance(out, Tensor) and out.ndim else out
            for out in graph(*args)
        )

    return run


def test_compiled_numbers_that_differ_are_not_used():
    torch._dynamo.register_backend(wrong_by_a_little, name="wrong_by_a_little")
    model = mlp([5, 4, 3], activation="tanh")
    fall_back(model, "the outputs differ", compile="wrong_by_a_little")


def wrong_gradient(graph, inputs):
    """A backend whose forward pass is right and whose derivative is not."""

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value.clone()

        @staticmethod
        def backward(ctx, gradient):
            return 1.01 * gradient

    def run(*args):
        outputs = graph(*args)
        return tuple(
            Wrong.apply(o) if isinstance(o, Tensor) and o.requires_grad else o
            for o in outputs
        )

    return run


def test_compiled_gradients_that_differ_are_not_used():
    torch._dynamo.register_backend(wrong_gradient, name="wrong_gradient")
    model = mlp([5, 4, 3], activation="tanh")
    fall_back(model, "the gradients differ", compile="wrong_gradient")


def test_a_plain_function_runs_eagerly():
    model, x = mlp([5, 4, 3], activation="tanh"), torch.ones(4, 5)
    eager, compiled = pair()
    for _ in range(2):
        right = eager(model, x)[1]
        torch.testing.assert_close(compiled(lambda z: model(z), x)[1], right)


def test_training_by_the_compiled_route_is_training_by_the_eager_one():
    x, y = normal(12, 5).float(), torch.arange(12) % 3
    trained = []
    for penalty in pair():
        model = mlp([5, 8, 3], activation="tanh", generator=generator(2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
        for _ in range(10):
            output, value = penalty(model, x)
            optimizer.zero_grad()
            (nn.functional.cross_entropy(output, y) + value).backward()
            optimizer.step()
        trained.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(trained[1], trained[0], rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_inductor_gives_the_eager_numbers():
    model = mlp([5, 7, 3], activation="gelu", generator=generator())
    # The ratio takes a pull-back and a push-forward.
    agree(model, normal(4, 5).float(), *pair(compile=True, power="ratio"))


@pytest.mark.cuda
@pytest.mark.parametrize("how", [True, "reduce-overhead"])
def test_on_a_gpu_the_compiled_route_trains_as_the_eager_one(how):
    x, y = normal(64, 20).float().cuda(), (torch.arange(64) % 3).cuda()
    trained = []
    for penalty in pair(compile=how):
        model = mlp([20, 32, 3], activation="tanh", generator=generator(2)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
        for _ in range(10):
            output, value = penalty(model, x)
            optimizer.zero_grad()
            (nn.functional.cross_entropy(output, y) + value).backward()
            optimizer.step()
        trained.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(trained[1], trained[0], rtol=1e-3, atol=1e-4)
