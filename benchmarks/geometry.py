"""`local_geometry` against the plain way: vmap(jacrev) and a batched SVD.

    python benchmarks/geometry.py                 every case, about 10 minutes
    python benchmarks/geometry.py a b             some of them
    python benchmarks/geometry.py --device cuda   with ResNet-50, n = 512, as case b

Each route of each case runs in a process of its own, first on one sample (imports,
first calls), then timed on all, so that its peak memory is its own. Both see the same
weights and inputs. Printed: seconds, peak memory above what the process held before,
their ratios, and the largest error of any measure against the plain way: relative for
norms, ranks and radii, absolute for cosines. The last line is JSON.

The plain way in (c) and (d) would need tens of GB in one piece; it gets the chunk size
that it needs to run at all.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import jacrev, vmap

from normalign import local_geometry
from normalign.nn import Transformer, mlp, resnet18, resnet50
from normalign_reproduction.provenance import commit

COSINES = ("normal_alignment", "alignment_ratio", "centroid_alignment")
COMPARED = (*COSINES, "effective_rank", "jacobian_norm", "offset_norm", "radius")


@dataclass(frozen=True)
class Case:
    title: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]
    at: str | None = None
    rows_at_once: int | None = None  # chunk size of the plain way
    n_steps: int = 0  # training steps before measuring
    device: str = "cpu"
    memory_budget: int = 2**31  # of ours, on a CPU


def pictures(n: int, size: int) -> Tensor:
    """Smooth random pictures: coarse noise, enlarged."""
    coarse = torch.randn(n, 3, 7, 7, generator=seeded(1))
    return F.interpolate(coarse, size=size, mode="bicubic")


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


CASES = {
    "a": Case(
        "MLP 784-512-512-10, n = 1024",
        lambda: mlp([784, 512, 512, 10], generator=seeded(0)),
        lambda: torch.randn(1024, 784, generator=seeded(1)),
    ),
    "b": Case(
        "ResNet-18, 3x32x32, n = 64, k = 10",
        lambda: resnet18(generator=seeded(0)),
        lambda: pictures(64, 32),
    ),
    "c": Case(
        "ResNet-18, 3x112x112, n = 4, k = 1000, 20 steps trained",
        lambda: resnet18(1000, stem="imagenet", generator=seeded(0)),
        lambda: pictures(4, 112),
        rows_at_once=40,
        n_steps=20,
    ),
    "c0": Case(
        "the same, untrained",
        lambda: resnet18(1000, stem="imagenet", generator=seeded(0)),
        lambda: pictures(4, 112),
        rows_at_once=40,
    ),
    "d": Case(
        "transformer, 16 tokens of width 128, vocabulary 32000, n = 4",
        lambda: Transformer(32000, 32000, context=16, n_layers=2, generator=seeded(0)),
        lambda: torch.randint(0, 32000, (4, 16), generator=seeded(1)),
        at="blocks",
        rows_at_once=1000,
    ),
}
ON_CUDA = {
    "b": Case(
        "ResNet-50, 3x32x32, n = 512, k = 10",
        lambda: resnet50(generator=seeded(0)),
        lambda: pictures(512, 32),
        device="cuda",
        rows_at_once=None,
    ),
    **{
        name: Case(**{**vars(CASES[name]), "device": "cuda"})
        for name in ("a", "c", "c0", "d")
    },
}


def prepared(case: Case) -> dict[str, Tensor]:
    """Weights after the case's training steps, each picture a class of its own."""
    model = case.build()
    if case.n_steps:
        size = case.inputs().shape[-1]
        classes = pictures(1000, size)
        optimizer, draw = torch.optim.AdamW(model.parameters(), 1e-3), seeded(2)
        model.train().to(case.device)
        for _ in range(case.n_steps):
            y = torch.randint(0, 1000, (32,), generator=draw)
            noise = 0.1 * torch.randn(32, 3, size, size, generator=draw)
            logits = model((classes[y] + noise).to(case.device))
            loss = F.cross_entropy(logits, y.to(case.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return {name: value.cpu() for name, value in model.state_dict().items()}


def plain(model: nn.Module, x: Tensor, case: Case) -> dict[str, Tensor]:
    """The plain way: every Jacobian, and every singular value and vector of it."""
    point, function = x, model
    if case.at is not None:  # the transformer's blocks see embedded tokens
        point = model.embed(x) + model.pos[: x.shape[1]]
        function = lambda h: model.unembed(model.blocks(h)[:, -1])  # noqa: E731

    def single(one: Tensor) -> Tensor:
        return function(one.unsqueeze(0)).squeeze(0)

    jacobian = vmap(jacrev(single, chunk_size=case.rows_at_once))(point).flatten(2)
    output, flat = function(point), point.flatten(1)
    _, s, vh = torch.linalg.svd(jacobian, full_matrices=False)
    jx = torch.einsum("nkd,nd->nk", jacobian, flat)
    mu, offset, length = jacobian.sum(1), output - jx, flat.norm(dim=1)
    norm = s.square().sum(1).sqrt()
    return {
        "normal_alignment": (vh[:, 0] * flat).sum(1).abs() / length,
        "effective_rank": norm.square() / s[:, 0].square(),
        "alignment_ratio": jx.norm(dim=1) / (norm * length),
        "centroid_alignment": (mu * flat).sum(1) / (mu.norm(dim=1) * length),
        "jacobian_norm": norm,
        "offset_norm": offset.norm(dim=1),
        "radius": mu.square().sum(1) + 2 * offset.sum(1),
    }


def ours(model: nn.Module, x: Tensor, case: Case) -> dict[str, Tensor]:
    budget = case.memory_budget if case.device == "cpu" else None
    return local_geometry(model, x, at=case.at, memory_budget=budget).measures()


ROUTES = {"plain": plain, "ours": ours}


def work(case: Case, route: str, folder: Path) -> None:
    """Time one route, in a process that does nothing else."""
    model = case.build()
    model.load_state_dict(torch.load(folder / "weights.pt", weights_only=True))
    model.eval().to(case.device)
    x = case.inputs().to(case.device)
    # Errors of TF32 would hide those of the method.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with torch.no_grad():
        ROUTES[route](model, x[:1], case)
        if case.device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
            held = memory("VmRSS")
        start = time.perf_counter()
        measures = ROUTES[route](model, x, case)
        if case.device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    cuda = case.device == "cuda"
    peak = torch.cuda.max_memory_allocated() if cuda else memory("VmHWM")
    kept = {name: measures[name].double().cpu() for name in COMPARED}
    torch.save(kept, folder / f"{route}.pt")
    print(json.dumps({"seconds": seconds, "megabytes": (peak - held) / 2**20}))


def memory(row: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(row))
    return 1024 * int(line.split()[1])


def errors(folder: Path) -> dict[str, float]:
    expected = torch.load(folder / "plain.pt", weights_only=True)
    found = torch.load(folder / "ours.pt", weights_only=True)
    result = {}
    for name, value in expected.items():
        scale = torch.ones_like(value) if name in COSINES else value.abs()
        result[name] = float(((found[name] - value).abs() / scale).max())
    return result


def measured(name: str, case: Case) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        torch.save(prepared(case), folder / "weights.pt")
        record: dict[str, Any] = {"case": name, "title": case.title}
        for route in ROUTES:
            command = [sys.executable, __file__, name, "--worker", route, temporary]
            command += ["--device", case.device]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                record[route] = {"failed": done.stderr.strip().splitlines()[-1:]}
                continue
            record[route] = json.loads(done.stdout.splitlines()[-1])
        if all("seconds" in record[route] for route in ROUTES):
            plain_, ours_ = record["plain"], record["ours"]
            record["faster"] = plain_["seconds"] / ours_["seconds"]
            record["leaner"] = plain_["megabytes"] / max(ours_["megabytes"], 1)
            record["errors"] = errors(folder)
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--save", type=Path, help="write the JSON to this file too")
    parser.add_argument("--commit", help="what is measured, where git cannot tell")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = CASES if options.device == "cpu" else ON_CUDA
    if options.worker:
        route, folder = options.worker
        work(cases[options.cases[0]], route, Path(folder))
        return
    print(f"{'case':66}{'plain s':>9}{'ours s':>9}{'faster':>8}"
          f"{'plain MB':>10}{'ours MB':>9}{'leaner':>8}{'error':>10}")  # fmt: skip
    records = []
    for name in options.cases:
        record = measured(name, cases[name])
        records.append(record)
        line = f"({name}) {record['title']}".ljust(66)
        if "faster" in record:
            a, b = record["plain"], record["ours"]
            worst = max(record["errors"].values())
            line += (f"{a['seconds']:9.2f}{b['seconds']:9.2f}{record['faster']:7.1f}x"
                     f"{a['megabytes']:10.0f}{b['megabytes']:9.0f}"
                     f"{record['leaner']:7.1f}x{worst:10.1e}")  # fmt: skip
        else:
            line += f"  {record['plain']} {record['ours']}"
        print(line, flush=True)
    cuda = options.device == "cuda"
    where = torch.cuda.get_device_name() if cuda else platform.machine()
    result = {
        "benchmark": "geometry", "device": where, "threads": torch.get_num_threads(),
        "cores": os.cpu_count(), "torch": torch.__version__,
        "python": platform.python_version(), "commit": options.commit or commit(),
        "records": records,
    }  # fmt: skip
    if options.save:
        options.save.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
