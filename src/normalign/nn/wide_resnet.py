"""Wide residual networks: pre-activation blocks in three wide stages."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normalign._errors import require
from normalign.nn.layers import convolution, initialise_

__all__ = ["WideBlock", "WideResNet", "wide_resnet28_2", "wide_resnet28_10"]


class WideBlock(nn.Module):
    """Normalise, rectify, convolve, twice, beside a shortcut.

    Where shapes differ the shortcut is a projection of the normalised and rectified
    input; else it is the input as it came.

    Parameters
    ----------
    n_in, n_out : int
        Channels that come in and go out.
    stride : int
        Of the first convolution and of the projection.
    padding : {"both", "end"}
        See :class:`WideResNet`.
    """

    def __init__(
        self, n_in: int, n_out: int, *, stride: int = 1, padding: str = "both"
    ) -> None:
        super().__init__()
        at_end = padding == "end" and stride == 2
        self.norm1 = nn.BatchNorm2d(n_in)
        self.pad = nn.ZeroPad2d((0, 1, 0, 1)) if at_end else nn.Identity()
        self.conv1 = convolution(
            n_in, n_out, kernel=3, stride=stride, padding=0 if at_end else 1
        )
        self.norm2 = nn.BatchNorm2d(n_out)
        self.conv2 = convolution(n_out, n_out, kernel=3)
        self.relu = nn.ReLU()
        self.shortcut: nn.Conv2d | None = None
        if stride != 1 or n_in != n_out:
            self.shortcut = convolution(n_in, n_out, kernel=1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the branch plus the shortcut."""
        active = self.relu(self.norm1(x))
        branch = self.conv1(self.pad(active))
        branch = self.conv2(self.relu(self.norm2(branch)))
        return branch + (x if self.shortcut is None else self.shortcut(active))


class WideResNet(nn.Module):
    """A wide residual network [1]_: a stem, stages ``layer1`` to ``layer3``, a head.

    The stem has 16 channels and stage ``i`` has ``16 * widen * 2**(i - 1)``; the second
    and third stage halve the picture. After them come one more normalisation, ReLU, the
    mean over the picture and ``fc``. Nothing works in place, so Jacobians can be taken
    at any submodule; in ``eval`` mode the network is continuous piecewise affine.

    Parameters
    ----------
    depth : int
        ``6 n + 4`` for ``n`` blocks in each stage.
    widen : int
        The factor on the widths; 1 is a thin network.
    padding : {"both", "end"}
        Where the two 3x3 convolutions that halve the picture see zeros: one row and
        column on ``"both"`` sides, or one at the ``"end"`` only, which some robust
        checkpoints were trained with (see :func:`load_checkpoint`) and which needs
        pictures whose sides are multiples of four.
    generator : torch.Generator, optional
        Source of the initial draws; ``None`` is torch's default generator.

    Raises
    ------
    ValueError
        If the depth is no ``6 n + 4`` or a count is not positive; in ``forward``, if
        ``padding="end"`` meets a picture it cannot halve twice.

    References
    ----------
    .. [1] Zagoruyko and Komodakis, Wide residual networks, 2016.

    Examples
    --------
    >>> network = WideResNet(10, 1, n_classes=7).eval()
    >>> network(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 7])
    """

    def __init__(
        self,
        depth: int,
        widen: int,
        *,
        n_classes: int = 10,
        n_channels: int = 3,
        padding: str = "both",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        fits = isinstance(depth, int) and depth >= 10 and depth % 6 == 4
        require(
            fits, "WideResNet", "depth", "6 n + 4 for a whole n of 1 or more", depth,
            "The usual depths are 10, 16, 22, 28, 34, 40 and 70.",
        )  # fmt: skip
        for name, count in (
            ("widen", widen), ("n_classes", n_classes), ("n_channels", n_channels),
        ):  # fmt: skip
            whole = isinstance(count, int) and count > 0
            require(whole, "WideResNet", name, "a positive whole number", count)
        known = padding in ("both", "end")
        require(known, "WideResNet", "padding", "'both' or 'end'", padding)

        self.padding = padding
        n = (depth - 4) // 6
        widths = [16, 16 * widen, 32 * widen, 64 * widen]
        # As in ResNet: on the meta device the layers draw nothing of their own.
        with torch.device("meta"):
            self.stem = convolution(n_channels, 16, kernel=3)
            self.layer1 = _stage(widths[0], widths[1], n, stride=1, padding=padding)
            self.layer2 = _stage(widths[1], widths[2], n, stride=2, padding=padding)
            self.layer3 = _stage(widths[2], widths[3], n, stride=2, padding=padding)
            self.norm = nn.BatchNorm2d(widths[3])
            self.relu = nn.ReLU()
            self.fc = nn.Linear(widths[3], n_classes)
        self.to_empty(device="cpu")
        initialise_(self, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, (n, n_classes), of pictures (n, n_channels, h, w)."""
        if self.padding == "end":
            height, width = x.shape[-2:]
            require(
                height % 4 == 0 and width % 4 == 0, "WideResNet", "x",
                "pictures with sides that are multiples of four for padding='end'",
                f"{height} x {width}",
            )  # fmt: skip
        x = self.layer3(self.layer2(self.layer1(self.stem(x))))
        return self.fc(self.relu(self.norm(x)).mean(dim=(2, 3)))


def _stage(
    n_in: int, n_out: int, n: int, *, stride: int, padding: str
) -> nn.Sequential:
    """Return ``n`` blocks, of which the first may halve the picture."""
    first = WideBlock(n_in, n_out, stride=stride, padding=padding)
    return nn.Sequential(first, *(WideBlock(n_out, n_out) for _ in range(n - 1)))


def wide_resnet28_2(
    n_classes: int = 10,
    *,
    n_channels: int = 3,
    padding: str = "both",
    generator: torch.Generator | None = None,
) -> WideResNet:
    """Return a WRN-28-2: four blocks a stage, 1,467,610 parameters with ten classes.

    Parameters
    ----------
    padding : {"both", "end"}
        See :class:`WideResNet`.
    generator : torch.Generator, optional
        Source of the initial draws; ``None`` is torch's default generator.

    Examples
    --------
    >>> sum(p.numel() for p in wide_resnet28_2().parameters())
    1467610
    """
    return WideResNet(
        28,
        2,
        n_classes=n_classes,
        n_channels=n_channels,
        padding=padding,
        generator=generator,
    )


def wide_resnet28_10(
    n_classes: int = 10,
    *,
    n_channels: int = 3,
    padding: str = "both",
    generator: torch.Generator | None = None,
) -> WideResNet:
    """Return a WRN-28-10: four blocks a stage, 36,479,194 parameters with ten classes.

    Parameters
    ----------
    padding : {"both", "end"}
        See :class:`WideResNet`.
    generator : torch.Generator, optional
        Source of the initial draws; ``None`` is torch's default generator.

    Examples
    --------
    >>> sum(p.numel() for p in wide_resnet28_10().parameters())
    36479194
    """
    return WideResNet(
        28,
        10,
        n_classes=n_classes,
        n_channels=n_channels,
        padding=padding,
        generator=generator,
    )
