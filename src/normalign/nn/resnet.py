"""Residual networks with batch normalisation, in CIFAR form and ImageNet form."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normalign._errors import require
from normalign.nn.layers import convolution, initialise_

__all__ = ["BasicBlock", "Bottleneck", "ResNet", "resnet18", "resnet50"]


def _shortcut(n_in: int, n_out: int, *, stride: int) -> nn.Module:
    """Return the identity where shapes agree and a projection where they do not."""
    if stride == 1 and n_in == n_out:
        return nn.Identity()
    projection = convolution(n_in, n_out, kernel=1, stride=stride)
    return nn.Sequential(projection, nn.BatchNorm2d(n_out))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut: the block of ResNet-18.

    Parameters
    ----------
    n_in : int
        Channels that come in.
    width : int
        Channels of the block; it puts out ``width * expansion``.
    stride : int
        Of the first convolution and of the shortcut.
    """

    expansion = 1

    def __init__(self, n_in: int, width: int, *, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = convolution(n_in, width, kernel=3, stride=stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width, kernel=3)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = _shortcut(n_in, width, stride=stride)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return ``relu(branch(x) + shortcut(x))``."""
        branch = self.relu(self.bn1(self.conv1(x)))
        branch = self.bn2(self.conv2(branch))
        return self.relu(branch + self.shortcut(x))


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1 convolutions: the block of ResNet-50.

    The stride sits on the 3x3 convolution, which sees the whole input; on the first
    1x1 it would drop three pixels in four unread.

    Parameters
    ----------
    n_in : int
        Channels that come in.
    width : int
        Channels of the inner convolutions; it puts out ``width * expansion``.
    stride : int
        Of the 3x3 convolution and of the shortcut.
    """

    expansion = 4

    def __init__(self, n_in: int, width: int, *, stride: int = 1) -> None:
        super().__init__()
        n_out = width * self.expansion
        self.conv1 = convolution(n_in, width, kernel=1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width, kernel=3, stride=stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = convolution(width, n_out, kernel=1)
        self.bn3 = nn.BatchNorm2d(n_out)
        self.shortcut = _shortcut(n_in, n_out, stride=stride)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return ``relu(branch(x) + shortcut(x))``."""
        branch = self.relu(self.bn1(self.conv1(x)))
        branch = self.relu(self.bn2(self.conv2(branch)))
        branch = self.bn3(self.conv3(branch))
        return self.relu(branch + self.shortcut(x))


class ResNet(nn.Module):
    """A residual network: a stem, four stages ``layer1`` to ``layer4``, a linear head.

    Stage ``i`` has ``width * 2**(i - 1)`` inner channels, and all but the first halve
    the picture. No operation works in place, so Jacobians can be taken at any
    submodule. In ``eval`` mode the network is continuous piecewise affine; in
    ``train`` mode batch normalisation couples the samples of a batch and there is no
    Jacobian per sample.

    Parameters
    ----------
    block : {BasicBlock, Bottleneck}
    depths : tuple of four int
        Blocks per stage.
    stem : {"cifar", "imagenet"}
        ``"cifar"``: one 3x3 convolution at full size, for pictures of 32x32.
        ``"imagenet"``: a 7x7 convolution with stride 2 and max pooling, for 224x224.
    generator : torch.Generator, optional
        Source of the initial draws; ``None`` is torch's default generator.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: tuple[int, int, int, int],
        *,
        n_classes: int = 10,
        width: int = 64,
        stem: str = "cifar",
        n_channels: int = 3,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        for name, count in (
            ("n_classes", n_classes), ("width", width), ("n_channels", n_channels),
        ):  # fmt: skip
            require(count > 0, "ResNet", name, "positive", count)
        known = stem in ("cifar", "imagenet")
        require(known, "ResNet", "stem", "'cifar' or 'imagenet'", stem)

        # On the meta device the layers' own initialisation draws nothing from the
        # global generator; initialise_ fills every tensor afterwards.
        with torch.device("meta"):
            n_out = [width * 2**stage * block.expansion for stage in range(4)]
            self.stem = _stem(stem, n_channels, width)
            self.layer1 = _stage(block, width, width, depths[0], stride=1)
            self.layer2 = _stage(block, n_out[0], 2 * width, depths[1], stride=2)
            self.layer3 = _stage(block, n_out[1], 4 * width, depths[2], stride=2)
            self.layer4 = _stage(block, n_out[2], 8 * width, depths[3], stride=2)
            self.fc = nn.Linear(n_out[3], n_classes)
        self.to_empty(device="cpu")
        initialise_(self, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, (n, n_classes), of pictures (n, n_channels, h, w)."""
        x = self.stem(x)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean(dim=(2, 3)))


def _stem(form: str, n_channels: int, width: int) -> nn.Sequential:
    if form == "cifar":
        layers = [convolution(n_channels, width, kernel=3)]
        return nn.Sequential(*layers, nn.BatchNorm2d(width), nn.ReLU())
    return nn.Sequential(
        convolution(n_channels, width, kernel=7, stride=2),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
    )


def _stage(
    block: type[BasicBlock] | type[Bottleneck],
    n_in: int,
    width: int,
    depth: int,
    *,
    stride: int,
) -> nn.Sequential:
    """Return ``depth`` blocks, of which the first may halve the picture."""
    first = block(n_in, width, stride=stride)
    rest = [block(width * block.expansion, width) for _ in range(depth - 1)]
    return nn.Sequential(first, *rest)


def resnet18(
    n_classes: int = 10,
    *,
    width: int = 64,
    stem: str = "cifar",
    n_channels: int = 3,
    generator: torch.Generator | None = None,
) -> ResNet:
    """Return a ResNet-18: two basic blocks in each of the four stages.

    In CIFAR form with ten classes and width 64 it has 11,173,962 parameters, in
    ImageNet form with a thousand classes 11,689,512. ``width`` scales every stage;
    smaller widths make small networks of the same shape.

    Parameters
    ----------
    stem : {"cifar", "imagenet"}
    generator : torch.Generator, optional
        Source of the initial draws; ``None`` is torch's default generator.

    Examples
    --------
    >>> network = resnet18(width=4).eval()
    >>> network(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    return ResNet(
        BasicBlock,
        (2, 2, 2, 2),
        n_classes=n_classes,
        width=width,
        stem=stem,
        n_channels=n_channels,
        generator=generator,
    )


def resnet50(
    n_classes: int = 10,
    *,
    width: int = 64,
    stem: str = "cifar",
    n_channels: int = 3,
    generator: torch.Generator | None = None,
) -> ResNet:
    """Return a ResNet-50: bottleneck blocks, 3, 4, 6 and 3 in the four stages.

    In CIFAR form with ten classes and width 64 it has 23,520,842 parameters, in
    ImageNet form with a thousand classes 25,557,032.

    Parameters
    ----------
    stem : {"cifar", "imagenet"}
    generator : torch.Generator, optional
        Source of the initial draws; ``None`` is torch's default generator.

    Examples
    --------
    >>> network = resnet50(width=4).eval()
    >>> network(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    return ResNet(
        Bottleneck,
        (3, 4, 6, 3),
        n_classes=n_classes,
        width=width,
        stem=stem,
        n_channels=n_channels,
        generator=generator,
    )
