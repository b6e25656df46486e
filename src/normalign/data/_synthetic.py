"""Synthetic tasks: sparse parity, modular addition, XOR clusters, Gaussian blobs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from normalign._errors import require
from normalign.data._dataset import Dataset

__all__ = [
    "gaussian_blobs",
    "modular_addition",
    "sparse_parity",
    "xor_clusters",
    "xor_noise",
]


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


def sparse_parity(
    *,
    n_parity: int = 3,
    n_noise: int = 40,
    n_samples: int = 2000,
    train_fraction: float = 0.5,
    seed: int = 0,
) -> Dataset:
    r"""Draw distinct bit strings labelled by the parity of their first bits.

    .. math:: y = \Bigl(\sum_{i=1}^{p} x_i\Bigr) \bmod 2, \quad x \in \{0, 1\}^{p + q}

    The defaults are the released ones: 3 parity and 40 noise bits. The paper's text
    says strings of length 40, which is ``n_noise=37``. All strings are distinct, so
    no test string was trained on.

    Parameters
    ----------
    n_parity : int, default=3
        Bits whose parity is the label; they come first.
    n_noise : int, default=40
        Bits that do not matter.
    n_samples : int, default=2000
        Distinct strings, train and test together.
    train_fraction : float, default=0.5
        Share of them in the training set.
    seed : int, default=0
        Seed of the draw.

    Returns
    -------
    Dataset
        ``x`` is float32 in {0, 1}, ``y`` int64 in {0, 1}.

    Raises
    ------
    ValueError
        If a size does not fit: there are only ``2 ** (n_parity + n_noise)`` strings.

    Examples
    --------
    >>> task = sparse_parity(n_parity=2, n_noise=1, n_samples=8)
    >>> len(torch.cat([task.x_train, task.x_test]).unique(dim=0))
    8
    """
    callee = "sparse_parity"
    n_bits = n_parity + n_noise
    require(n_parity >= 1, callee, "n_parity", "at least 1", n_parity)
    require(n_noise >= 0, callee, "n_noise", "at least 0", n_noise)
    require(
        2 <= n_samples <= 2**n_bits, callee, "n_samples",
        f"between 2 and the 2**{n_bits} strings there are", n_samples,
    )  # fmt: skip
    n_train = int(train_fraction * n_samples)
    require(
        0 < n_train < n_samples, callee, "train_fraction",
        "such that neither set is empty", train_fraction,
    )  # fmt: skip
    bits = _distinct_strings(n_samples, n_bits, torch.Generator().manual_seed(seed))
    x, y = bits.to(torch.float32), bits[:, :n_parity].sum(1) % 2
    return Dataset(
        x[:n_train], y[:n_train], x[n_train:], y[n_train:], name="sparse_parity",
        origin=f"parity of {n_parity} of {n_bits} bits, seed {seed}",
    )  # fmt: skip


def _distinct_strings(n: int, n_bits: int, generator: torch.Generator) -> Tensor:
    if n_bits <= 20:  # few enough to number them all
        numbers = torch.randperm(2**n_bits, generator=generator)[:n]
        return (numbers[:, None] >> torch.arange(n_bits)) & 1
    drawn = torch.empty((0, n_bits), dtype=torch.int64)
    # With more than 2**20 strings and any n that fits in memory, a second round is
    # rare; each round keeps the first of equal strings, in the order drawn.
    while len(drawn) < n:
        fresh = torch.randint(0, 2, (n, n_bits), generator=generator)
        drawn = torch.cat([drawn, fresh])
        _, group = torch.unique(drawn, dim=0, return_inverse=True)
        order = torch.argsort(group, stable=True)
        is_first = torch.ones(len(drawn), dtype=torch.bool)
        is_first[order[1:]] = group[order[1:]] != group[order[:-1]]
        drawn = drawn[is_first]
    return drawn[:n]


def modular_addition(
    *,
    modulus: int = 61,
    train_fraction: float = 0.3,
    encoding: str = "one_hot",
    seed: int = 0,
) -> Dataset:
    r"""Return all pairs of residues with their sum, split by a seed.

    .. math:: (a, b) \mapsto (a + b) \bmod p, \quad a, b \in \{0, \dots, p - 1\}

    The defaults are those of Table 1 as released: p = 61, 30 % to train on, the two
    one-hot codes side by side (122 inputs). The paper's text gives the modulus alone.
    The transformer of the centroid-alignment figure reads tokens, and its pipeline
    takes ``modulus=113``.

    Parameters
    ----------
    modulus : int, default=61
        The paper's p; there are ``modulus ** 2`` pairs.
    train_fraction : float, default=0.3
        Share of the pairs in the training set, rounded down.
    encoding : {"one_hot", "tokens"}, default="one_hot"
        Two one-hot codes in one float32 row of length ``2 * modulus``, or the int64
        tokens ``(a, b, modulus)`` whose last stands for the equals sign.
    seed : int, default=0
        Seed of the split.

    Returns
    -------
    Dataset
        ``y`` is the sum, int64.

    Raises
    ------
    ValueError
        If the modulus is below 2, a set would be empty or the encoding is unknown.

    Examples
    --------
    >>> task = modular_addition(modulus=5, train_fraction=0.4, encoding="tokens")
    >>> len(task.x_train), torch.equal(task.y_test, task.x_test[:, :2].sum(1) % 5)
    (10, True)
    """
    callee = "modular_addition"
    require(modulus >= 2, callee, "modulus", "at least 2", modulus)
    require(
        encoding in ("one_hot", "tokens"), callee, "encoding",
        "'one_hot' or 'tokens'", repr(encoding),
    )  # fmt: skip
    n_train = int(train_fraction * modulus**2)
    require(
        0 < n_train < modulus**2, callee, "train_fraction",
        "such that neither set is empty", train_fraction,
    )  # fmt: skip
    residues = torch.arange(modulus)
    pairs = torch.cartesian_prod(residues, residues)
    generator = torch.Generator().manual_seed(seed)
    pairs = pairs[torch.randperm(len(pairs), generator=generator)]
    y = pairs.sum(1) % modulus
    if encoding == "one_hot":
        x = one_hot(pairs, modulus).flatten(1).to(torch.float32)
    else:
        x = torch.cat([pairs, torch.full((len(pairs), 1), modulus)], dim=1)
    return Dataset(
        x[:n_train], y[:n_train], x[n_train:], y[n_train:], name="modular_addition",
        origin=f"addition modulo {modulus}, {encoding}, seed {seed}",
    )  # fmt: skip


def gaussian_blobs(
    *,
    n_samples: int = 1000,
    n_inputs: int = 10,
    n_classes: int = 6,
    std: float = 1.0,
    box: float = 10.0,
    train_fraction: float = 0.8,
    seed: int = 0,
) -> Dataset:
    r"""Draw points around one random centre per class.

    .. math:: x \mid y \sim N(m_y, \sigma^2 I), \quad m_y \sim U[-B, B]^d

    The paper's kernel-logistic-regression figure uses 1000 samples in ten dimensions
    with six, eight or ten classes, 80 % to train on. It gives neither spread nor box;
    the defaults 1 and 10 are the customary ones. Classes are balanced up to one
    sample.

    Parameters
    ----------
    n_samples : int, default=1000
        Train and test together.
    n_inputs : int, default=10
        Dimension of a point.
    n_classes : int, default=6
        Number of blobs.
    std : float, default=1.0
        Standard deviation of every blob.
    box : float, default=10.0
        Half the side of the cube that the centres are drawn from.
    train_fraction : float, default=0.8
        Share of the samples in the training set, rounded down.
    seed : int, default=0
        Seed of centres, points and split.

    Returns
    -------
    Dataset
        ``x`` is float32, ``y`` the blob's number, int64.

    Raises
    ------
    ValueError
        If a size or spread does not fit.

    Examples
    --------
    >>> gaussian_blobs(n_samples=50, n_inputs=3, n_classes=2)
    Dataset(blobs: 40 train, 10 test, inputs (3,) float32, exact)
    """
    callee = "gaussian_blobs"
    require(n_inputs >= 1, callee, "n_inputs", "at least 1", n_inputs)
    require(n_classes >= 1, callee, "n_classes", "at least 1", n_classes)
    require(
        n_samples >= max(2, n_classes), callee, "n_samples",
        "at least 2 and one per class", n_samples,
    )  # fmt: skip
    require(std >= 0, callee, "std", "at least 0", std)
    require(box >= 0, callee, "box", "at least 0", box)
    n_train = int(train_fraction * n_samples)
    require(
        0 < n_train < n_samples, callee, "train_fraction",
        "such that neither set is empty", train_fraction,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    centres = box * (2 * torch.rand((n_classes, n_inputs), generator=generator) - 1)
    y = torch.arange(n_samples) % n_classes
    y = y[torch.randperm(n_samples, generator=generator)]
    x = centres[y] + std * torch.randn((n_samples, n_inputs), generator=generator)
    return Dataset(
        x[:n_train], y[:n_train], x[n_train:], y[n_train:], name="blobs",
        origin=f"{n_classes} Gaussian blobs in {n_inputs} dimensions, seed {seed}",
    )  # fmt: skip
