"""`layer_profile` of a ResNet-50: seconds and peak memory, all four stages.

    python benchmarks/layer_profile.py                      CIFAR form, 16 images
    python benchmarks/layer_profile.py --device cuda --images 1000
    python benchmarks/layer_profile.py --form imagenet --images 1

Two routes, each in a process of its own: `shared`, the places measured together by
`layer_profile`, and `separate`, `local_geometry` at each place in turn. In CIFAR form
each is warmed up on two images; in ImageNet form (224x224, 1000 classes) only `shared`
is run unless both are asked for. Peak memory is what the process held at most, and on a
GPU what torch had allocated. TF32 is off unless asked for. The network is untrained,
which for 1000 classes is the hardest case: its Jacobians are of high rank, and their
norms need a pass for each class. The last line is JSON.
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
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from normalign import local_geometry
from normalign.geometry import layer_profile
from normalign.nn import resnet50
from normalign_reproduction.provenance import commit

STAGES = ["layer1", "layer2", "layer3", "layer4"]
FORMS = {"cifar": (10, 32), "imagenet": (1000, 224)}
COSINES = ("normal_alignment", "alignment_ratio", "centroid_alignment")


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(n: int, size: int) -> Tensor:
    """Smooth random pictures: coarse noise, enlarged."""
    coarse = torch.randn(n, 3, 7, 7, generator=seeded(1))
    return F.interpolate(coarse, size=size, mode="bicubic")


def shared(model: Any, x: Tensor, places: list[str]) -> dict[str, Any]:
    return dict(layer_profile(model, x, places=places))


def separate(model: Any, x: Tensor, places: list[str]) -> dict[str, Any]:
    inner = {place: None if place == "input" else place for place in places}
    return {place: local_geometry(model, x, at=at) for place, at in inner.items()}


ROUTES = {"shared": shared, "separate": separate}


def work(options: argparse.Namespace) -> None:
    """Time one route, in a process that does nothing else."""
    route, kept = options.worker
    cuda = options.device == "cuda"
    torch.backends.cuda.matmul.allow_tf32 = options.tf32
    torch.backends.cudnn.allow_tf32 = options.tf32
    k, size = FORMS[options.form]
    model = resnet50(k, width=options.width, stem=options.form, generator=seeded(0))
    model.eval().to(options.device)
    x = pictures(options.images, size).to(options.device)
    if options.form == "cifar":
        ROUTES[route](model, x[:2], options.places)
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    found = ROUTES[route](model, x, options.places)
    if cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated() if cuda else resident_peak()
    measures = {
        place: {name: v.double().cpu() for name, v in geometry.measures().items()}
        for place, geometry in found.items()
    }
    torch.save(measures, kept)
    print(json.dumps({
        "seconds": seconds, "megabytes": peak / 2**20,
        "methods": {place: geometry.method for place, geometry in found.items()},
        "means": {place: geometry.mean() for place, geometry in found.items()},
    }))  # fmt: skip


def resident_peak() -> int:
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def timed(route: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    kept = folder / f"{route}.pt"
    command = [sys.executable, __file__, *sys.argv[1:]]
    done = subprocess.run(
        [*command, "--worker", route, str(kept)], capture_output=True, text=True
    )
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1:]}
    return json.loads(done.stdout.splitlines()[-1])


def difference(folder: Path) -> float | None:
    """Largest difference of any measure: of cosines absolute, of others relative."""
    kept = [folder / f"{route}.pt" for route in ROUTES]
    if not all(path.exists() for path in kept):
        return None
    one, two = (torch.load(path, weights_only=True) for path in kept)
    largest = 0.0
    for place, measures in one.items():
        for name, value in measures.items():
            gap = (value - two[place][name]).abs()
            # Means over samples: a radius may be near zero for one of them.
            scale = 1.0 if name in COSINES else float(value.abs().mean())
            largest = max(largest, float(gap.max()) / max(scale, 1e-30))
    return largest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--device", default="cpu", choices=["cpu", "cuda"])
    add("--form", default="cifar", choices=list(FORMS))
    add("--images", type=int, default=16)
    add("--width", type=int, default=64, help="64 is ResNet-50; smaller to try it out")
    add("--places", nargs="+", default=STAGES)
    add("--routes", nargs="+", choices=list(ROUTES))
    add("--tf32", action="store_true", help="let the GPU round products to TF32")
    add("--save", type=Path, help="write the JSON to this file too")
    add("--commit", help="what is measured, where git cannot tell")
    add("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return
    routes = options.routes or (ROUTES if options.form == "cifar" else ["shared"])
    print(f"ResNet-50, {options.form} form, {options.images} images, on "
          f"{options.device}: {', '.join(options.places)}")  # fmt: skip
    records: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for route in routes:
            records[route] = record = timed(route, options, folder)
            if "failed" in record:
                print(f"{route:10} failed: {record['failed']}", flush=True)
                continue
            each = record["seconds"] / options.images
            print(f"{route:10}{record['seconds']:9.2f} s {1000 * each:9.1f} ms an image"
                  f"{record['megabytes']:9.0f} MB", flush=True)  # fmt: skip
        differs = difference(folder)
    cuda = options.device == "cuda"
    result = {
        "benchmark": "layer_profile", "form": options.form, "images": options.images,
        "width": options.width, "places": options.places, "tf32": options.tf32,
        "device": torch.cuda.get_device_name() if cuda else platform.machine(),
        "threads": torch.get_num_threads(), "cores": os.cpu_count(),
        "torch": torch.__version__, "python": platform.python_version(),
        "commit": options.commit or commit(), "records": records, "differs": differs,
    }  # fmt: skip
    if options.save:
        options.save.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
