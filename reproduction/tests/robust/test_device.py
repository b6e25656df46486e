"""On a GPU: a recorded step equals the eager one, and runs are resumed."""

import copy
import warnings

import pytest
import torch

import normalign as na
from normalign.nn import WideResNet
from normalign_reproduction.robust import Recipe, RobustTrainer
from normalign_reproduction.robust._draws import Draws
from normalign_reproduction.robust._graph import RecordedFunction
from normalign_reproduction.robust._step import Batch, Step

pytestmark = pytest.mark.cuda

VARIANTS = {
    "dkl": {},
    "released": {"perturbation": 0.005, "perturbed_from": 1},
    "pgd": {"objective": "pgd"},
    "penalised": {"objective": "plain", "penalty_weight": 0.01, "penalty_every": 1},
}


def images(n=40):
    generator = torch.Generator().manual_seed(0)
    return torch.rand(n, 3, 16, 16, generator=generator), torch.arange(n) % 10


def small():
    return WideResNet(10, 1, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_of_a_recorded_step_are_those_of_the_cpu(name):
    recipe = Recipe(**VARIANTS[name], n_steps=1)
    found = {}
    # TF32 would be compared with float32 otherwise.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for device in ("cpu", "cuda"):
            network = small().to(device).train()
            step = Step(network, recipe, compile=False)
            x, y = (t.to(device) for t in images())
            draws = Draws(recipe, seed=0, device=torch.device(device))
            table = torch.full((10, 10), 0.1, device=device)
            for _ in range(2):  # the second is a replay
                loss, right, sums = step.gradients(
                    Batch(x, x.flip(0), y, table, draws.probes(x, 10, 3)),
                    perturbed=recipe.perturbation > 0,
                    penalised=recipe.penalty_weight > 0,
                )  # fmt: skip
            slopes = [p.grad.cpu() for p in network.parameters()]
            buffers = [b.cpu() for b in network.buffers()]
            found[device] = [loss.cpu(), right.cpu(), sums.cpu(), *slopes, *buffers]
    for one, other in zip(*found.values(), strict=True):
        # Sums of float32 in another order, through ten layers.
        torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-4)


def test_recording_leaves_statistics_as_they_were():
    network = small().cuda().train()
    before = copy.deepcopy(network.state_dict())
    x = images()[0].cuda()
    recorded = RecordedFunction(lambda z: [network(z)], [x], network=network)
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]), name
    recorded(x)
    assert int(network.norm.num_batches_tracked) == 1


def short(network, **changes):
    x, y = images()
    recipe = Recipe(epochs=3, batch_size=16, n_steps=1, augment="none", **changes)
    return RobustTrainer(network, x, y, recipe, seed=0, device="cuda")


def test_a_measurement_between_two_recordings_disturbs_neither():
    x = images()[0].cuda()
    trainer = short(small(), perturbation=0.005, perturbed_from=2)

    def measure(network):
        return {"alignment": na.local_geometry(network, x).mean()["normal_alignment"]}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.train(evaluate=lambda epoch: epoch == 1, measure=measure)


def test_a_step_that_cannot_be_recorded_is_run_with_a_warning():
    recorded, plain = short(small()).train(), small().cuda()
    kept = plain(images()[0].cuda()).sum()  # forbids to record what follows
    with pytest.warns(UserWarning, match="could not be recorded"):
        run = short(plain).train()
    assert kept.requires_grad
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert run["loss"] == pytest.approx(recorded["loss"], rel=1e-2)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_run_on_an_accelerator_learns_and_is_resumed(precision, tmp_path):
    x, y = images()
    recipe = Recipe("pgd", epochs=40, batch_size=16, n_steps=2, augment="none",
                    precision=precision, learning_rate=0.05)  # fmt: skip
    trainer = RobustTrainer(small(), x, y, recipe, seed=0, device="cuda")
    path = tmp_path / "run.safetensors"
    options = {"evaluate": lambda epoch: True, "checkpoint": path}
    history = trainer.train(**options, checkpoint_seconds=0)
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    again = RobustTrainer(small(), x, y, recipe, seed=0, device="cuda")
    assert again.train(**options)["loss"][:40] == history["loss"]


def test_a_replayed_attack_takes_a_new_radius():
    """The graph must not contain the first radius: a ramp changes it."""
    recipe = Recipe("pgd", n_steps=2, ramp=True)
    step = Step(small().cuda().train(), recipe, compile=False)
    x, y = (t.cuda() for t in images())
    inside = 0.2 + 0.6 * x  # away from the ends of [0, 1]
    for radius in (0.02, 0.1, 0.05):
        start = torch.zeros_like(x)
        found = step.attack(inside, y, start, radius, radius)
        assert float((found - inside).abs().max()) == pytest.approx(radius, rel=1e-4)


def test_a_replayed_step_takes_new_class_weights():
    recipe, found = Recipe(soft_weight=0.0), {}
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for device in ("cpu", "cuda"):
            network = small().to(device).train()
            step = Step(network, recipe, compile=False)
            x, y = (t.to(device) for t in images())
            probes = torch.zeros(1, len(x), 10, device=device)
            found[device] = []
            for sharpness in (0.0, 3.0, 9.0):
                table = (sharpness * torch.eye(10, device=device)).softmax(1)
                loss, _, _ = step.gradients(
                    Batch(x, x.flip(0), y, table, probes),
                    perturbed=False, penalised=False,
                )  # fmt: skip
                found[device].append(float(loss))
    assert found["cuda"] == pytest.approx(found["cpu"], rel=1e-3)
    assert len({round(loss, 2) for loss in found["cpu"]}) == 3
