"""Tables of the benchmarks of deep networks: robust training, and profiles."""

from __future__ import annotations

from typing import Any

_NETWORKS = {"wrn28-10": "WideResNet-28-10", "wrn28-2": "WideResNet-28-2"}


def robust_training(result: dict[str, Any]) -> list[str]:
    """Seconds of an epoch, by network."""
    lines = [
        "| an epoch | plain loop, `pgd` | ours, `pgd` | faster | ours, `dkl` | first epoch of ours |",  # noqa: E501
        "|---|---|---|---|---|---|",
    ]
    for record in result["records"]:
        plain, pgd, dkl = (
            record["seconds"][name] for name in ("plain, pgd", "ours, pgd", "ours, dkl")
        )
        name = _NETWORKS.get(record["network"], record["network"])
        lines.append(
            f"| {name}, {record['images']} images | {plain['median']:.2f} s "
            f"| {pgd['median']:.2f} s | **{record['ratio']:.1f}x** "
            f"| {dkl['median']:.2f} s | {pgd['first']:.1f} s |"
        )
    return lines


def layer_profile(result: dict[str, Any]) -> list[str]:
    """Seconds and memory of a profile, by route."""
    together, apart = (result["records"][name] for name in ("shared", "separate"))
    ratio = apart["seconds"] / together["seconds"]
    stages = len(result["places"])
    return [
        f"| {stages} stages of a ResNet-50, {result['images']} images | time | peak |",
        "|---|---|---|",
        f"| `layer_profile`, all from the same passes | {together['seconds']:.1f} s, "
        f"**{ratio:.1f}x** faster | {together['megabytes'] / 1000:.1f} GB |",
        f"| `local_geometry(at=...)`, stage by stage | {apart['seconds']:.1f} s "
        f"| {apart['megabytes'] / 1000:.1f} GB |",
    ]
