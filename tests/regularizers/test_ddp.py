"""Two processes on half a batch each, against one on the whole."""

import pytest
import torch
import torch.distributed
import torch.multiprocessing
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from normalign.nn import mlp
from normalign.regularizers import GrokAlign

# By k pull-backs; by d push-forwards; by pull-backs that differ between processes; with
# a push-forward beside them.
PENALTIES = {
    "exact": (lambda seed: GrokAlign(0.5, estimator="exact"), (4, 6, 3)),
    "columns": (lambda seed: GrokAlign(0.5, estimator="exact"), (2, 6, 9)),
    "output": (lambda seed: GrokAlign(0.5, generator=seeded(seed)), (4, 6, 3)),
    "released": (
        lambda seed: GrokAlign.released(0.5, generator=seeded(seed)),
        (4, 6, 3),
    ),
}
MATCHED = ["exact", "columns"]  # no probes: the same numbers in every process
STEPS = 5


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(widths: tuple[int, ...], step: int) -> tuple[Tensor, Tensor]:
    source = seeded(step)
    x = torch.randn(8, widths[0], generator=source, dtype=torch.float64)
    return x, torch.randint(widths[-1], (8,), generator=source)


def trained(model: nn.Module, penalty: GrokAlign, widths, part: slice) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    for step in range(STEPS):
        x, y = batch(widths, step)
        output, value = penalty(model, x[part])
        optimizer.zero_grad()
        (cross_entropy(output, y[part]) + value).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def network(widths: tuple[int, ...]) -> nn.Module:
    return mlp(widths, activation="tanh", generator=seeded(0), dtype=torch.float64)


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2
    )
    half, results = slice(4 * rank, 4 * rank + 4), {}
    for name, (penalty, widths) in PENALTIES.items():
        for unused in (False, True):
            model = DistributedDataParallel(
                network(widths), find_unused_parameters=unused
            )
            found = trained(model, penalty(rank), widths, half)
            results[f"{name}-{unused}"] = found
    torch.save(results, f"{folder}/{rank}.pt")
    # gloo aborts a process, now and then, whose group the other one has left
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    if not torch.distributed.is_gloo_available():
        pytest.skip("needs torch.distributed with gloo")
    folder = tmp_path_factory.mktemp("processes")
    torch.multiprocessing.spawn(work, args=(str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.mark.parametrize("unused", [False, True])
@pytest.mark.parametrize("name", PENALTIES)
def test_both_processes_hold_the_same_finite_parameters(results, name, unused):
    key = f"{name}-{unused}"
    start = network(PENALTIES[name][1]).parameters()
    for here, there, before in zip(
        results[0][key], results[1][key], start, strict=True
    ):
        assert torch.equal(here, there)
        assert torch.isfinite(here).all()
        assert not torch.equal(here, before)


@pytest.mark.parametrize("unused", [False, True])
@pytest.mark.parametrize("name", MATCHED)
def test_two_halves_train_as_one_whole(results, name, unused):
    penalty, widths = PENALTIES[name]
    alone = trained(network(widths), penalty(0), widths, slice(None))
    for together, right in zip(results[0][f"{name}-{unused}"], alone, strict=True):
        # float64; two sums of four samples in the place of one of eight
        torch.testing.assert_close(together, right, rtol=1e-10, atol=1e-12)
