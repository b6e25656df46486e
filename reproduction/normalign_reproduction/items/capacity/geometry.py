"""The geometry of a network at images, from its input and from its stages' inputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from normalign.geometry import centroid_alignment, layer_profile

__all__ = ["ANSWER", "GEOMETRY", "answer_alignments", "geometry_by_place"]

GEOMETRY = (
    "normal_alignment",
    "effective_rank",
    "alignment_ratio",
    "centroid_alignment",
    "jacobian_norm",
)
ANSWER = "answer_alignment"
_BATCH_SIZE = 100


def geometry_by_place(
    network: nn.Module, x: Tensor, y: Tensor, *, places: Sequence[str | None]
) -> dict[str | None, dict[str, float]]:
    """Return means over images of the map from each place's input to the output.

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
    r"""Return cosines of each place's input and the gradient of the right logit, (n,).

    .. math:: \cos\big(\nabla_z f_y, z\big)

    Cross-entropy does not depend on the sum of the logits, whose gradient is the
    centroid. It does depend on this row of the Jacobian, and at the paper's optimum
    (Eq. ci_ce) the cosine is 1.

    Examples
    --------
    >>> linear = nn.Linear(2, 2, bias=False)
    >>> _ = linear.weight.data.copy_(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
    >>> x, y = torch.tensor([[3.0, 0.0]]), torch.tensor([0])
    >>> answer_alignments(linear, x, y, places=[None])[None].tolist()
    [1.0]
    """
    inputs: dict[str | None, Tensor] = {}

    def hook(at: str):
        return lambda module, arguments: inputs.update({at: arguments[0]})

    handles = [
        network.get_submodule(at).register_forward_pre_hook(hook(at))
        for at in places
        if at is not None
    ]
    found: dict[str | None, list[Tensor]] = {at: [] for at in places}
    try:
        for images, classes in zip(
            x.split(_BATCH_SIZE), y.split(_BATCH_SIZE), strict=True
        ):
            inputs[None] = images.detach().requires_grad_()
            with torch.enable_grad():
                logits = network(inputs[None]).gather(1, classes[:, None])
            here = [inputs[at] for at in places]
            gradients = torch.autograd.grad(logits.sum(), here)
            for at, z, gradient in zip(places, here, gradients, strict=True):
                cosine = centroid_alignment(gradient.flatten(1), z.detach().flatten(1))
                found[at].append(cosine)
    finally:
        for handle in handles:
            handle.remove()
    return {at: torch.cat(parts) for at, parts in found.items()}
