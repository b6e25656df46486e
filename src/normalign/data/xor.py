"""XOR clusters: two inputs decide, thousands of small ones distract."""

from __future__ import annotations

import torch
from torch import Tensor

from normalign._errors import require
from normalign.data.dataset import Dataset

__all__ = ["xor_clusters", "xor_noise"]


def xor_clusters(
    *,
    n_train: int = 400,
    n_test: int = 400,
    n_inputs: int = 40000,
    amplitude: float = 0.05,
    seed: int = 0,
) -> Dataset:
    r"""Draw the XOR cluster data of the paper's Table 1.

    .. math::
        x = (x_1, x_2, \tilde x), \quad x_1, x_2 \in \{\pm 1\}, \quad
        \tilde x_i \in \{\pm\epsilon\}, \quad y = x_1 x_2

    Every entry is drawn uniformly and independently. Text and released code agree on
    the data; the defaults are theirs, and take 128 MB.

    Parameters
    ----------
    n_train, n_test : int, default=400
        Samples in each set.
    n_inputs : int, default=40000
        Length of ``x``.
    amplitude : float, default=0.05
        The paper's epsilon.
    seed : int, default=0
        Seed of the draw; the training set does not depend on `n_test`.

    Returns
    -------
    Dataset
        ``y`` is -1.0 or 1.0, float32: the target of a scalar output.

    Raises
    ------
    ValueError
        If a size is too small or the amplitude negative.

    Examples
    --------
    >>> task = xor_clusters(n_train=3, n_test=1, n_inputs=5)
    >>> torch.equal(task.y_train, task.x_train[:, 0] * task.x_train[:, 1])
    True
    """
    for argument, value, least in (
        ("n_train", n_train, 1),
        ("n_test", n_test, 1),
        ("n_inputs", n_inputs, 2),
    ):
        require(value >= least, "xor_clusters", argument, f"at least {least}", value)
    require(amplitude >= 0, "xor_clusters", "amplitude", "at least 0", amplitude)
    generator = torch.Generator().manual_seed(seed)

    def sample(n: int) -> tuple[Tensor, Tensor]:
        signs = torch.randint(
            0, 2, (n, n_inputs), generator=generator, dtype=torch.int8
        )
        x = signs.to(torch.float32).mul_(2).sub_(1)
        x[:, 2:] *= amplitude
        return x, x[:, 0] * x[:, 1]

    return Dataset(
        *sample(n_train), *sample(n_test), name="xor",
        origin=f"XOR clusters, {n_inputs} inputs, amplitude {amplitude}, seed {seed}",
    )  # fmt: skip


def xor_noise(x: Tensor, *, std: float = 0.2, seed: int = 0) -> Tensor:
    r"""Return the inputs with Gaussian noise on all but the two that decide.

    .. math:: (x_1, x_2, \tilde x + \xi), \quad \xi \sim N(0, \sigma^2 I)

    The accuracy on noisy test data is half of the paper's criterion for having
    grokked the XOR task (there called adversarial accuracy). Noise of 0.2 is four
    times the amplitude of what it is added to.

    Parameters
    ----------
    x : Tensor of shape (n, d)
        Inputs; not changed.
    std : float, default=0.2
        Standard deviation of the noise.
    seed : int, default=0
        Seed of the noise, drawn on the CPU so that it is the same on every device.

    Returns
    -------
    Tensor of shape (n, d)
        On the device and in the dtype of `x`.

    Raises
    ------
    ValueError
        If `x` is not 2-D with at least two columns, or `std` is negative.
    """
    require(
        x.ndim == 2 and x.shape[1] >= 2, "xor_noise", "x", "of shape (n, d >= 2)", x
    )
    require(std >= 0, "xor_noise", "std", "at least 0", std)
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn((len(x), x.shape[1] - 2), generator=generator)
    return torch.cat([x[:, :2], x[:, 2:] + std * noise.to(x)], dim=1)
