"""The geometry of a network at images: from its input, and from its stages' inputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from normalign.geometry import centroid_alignment, layer_profile

__all__ = ["ANSWER", "GEOMETRY", "answer_alignments", "geometry_by_place"]

GEOMETRY = (
    "normal_alignment", "effective_rank", "alignment_ratio", "centroid_alignment",
    "jacobian_norm",
)  # fmt: skip
ANSWER = "answer_alignment"
_AT_ONCE = 100


def geometry_by_place(
    network: nn.Module, x: Tensor, y: Tensor, *, places: Sequence[str | None]
) -> dict[str | None, dict[str, float]]:
    """Return means over images of the maps from each place's input to the output.

    Parameters
    ----------
    network : nn.Module
        In evaluation mode.
    x : Tensor of shape (n, c, h, w)
    y : int64 Tensor of shape (n,)
    places : sequence of str or None
        Submodules; ``None`` is the network's own input.
    """
    answers = answer_alignments(network, x, y, places=places)
    profile = layer_profile(network, x, places=places).means()
    found: dict[str | None, dict[str, float]] = {}
    for at, means in zip(places, profile.values(), strict=True):
        found[at] = {name: means[name] for name in GEOMETRY}
        found[at][ANSWER] = float(answers[at].double().mean())
    return found


def answer_alignments(
    network: nn.Module, x: Tensor, y: Tensor, *, places: Sequence[str | None]
) -> dict[str | None, Tensor]:
    r"""Return how the right answer's row of each Jacobian lies to the input, (n,).

    .. math:: \cos\big(\nabla_z f_y, z\big)

    with z the input of a place. Cross-entropy does not see the sum of the logits, whose
    gradient the centroid is; this row it does see, and at the paper's own optimum for
    it (Eq. ci_ce) the cosine is 1. One pass serves all places.

    Examples
    --------
    >>> linear = nn.Linear(2, 2, bias=False)
    >>> _ = linear.weight.data.copy_(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
    >>> x, y = torch.tensor([[3.0, 0.0]]), torch.tensor([1])
    >>> answer_alignments(linear, x, 1 - y, places=[None])[None].tolist()
    [1.0]
    """
    parts = [
        _answers(network, images, classes, places)
        for images, classes in zip(x.split(_AT_ONCE), y.split(_AT_ONCE), strict=True)
    ]
    return {at: torch.cat([part[at] for part in parts]) for at in places}


def _answers(
    network: nn.Module, x: Tensor, y: Tensor, places: Sequence[str | None]
) -> dict[str | None, Tensor]:
    seen: dict[str | None, Tensor] = {None: x.detach().requires_grad_()}

    def listener(at: str):
        def remember(module: nn.Module, given: tuple[Tensor, ...]) -> None:
            seen[at] = given[0]

        return remember

    handles = [
        network.get_submodule(at).register_forward_pre_hook(listener(at))
        for at in places
        if at is not None
    ]
    try:
        with torch.enable_grad():
            right = network(seen[None]).gather(1, y[:, None]).sum()
            slopes = torch.autograd.grad(right, [seen[at] for at in places])
    finally:
        for handle in handles:
            handle.remove()
    return {
        at: centroid_alignment(slope.flatten(1), seen[at].detach().flatten(1))
        for at, slope in zip(places, slopes, strict=True)
    }
