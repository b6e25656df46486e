"""The paper's networks, written plainly."""

from normalign.nn.checkpoints import (
    CheckpointReport,
    Normalisation,
    load_checkpoint,
)
from normalign.nn.dense import Quadratic, mlp
from normalign.nn.kernel_logistic import GaussianKernelLogistic
from normalign.nn.layers import Standardise
from normalign.nn.resnet import BasicBlock, Bottleneck, ResNet, resnet18, resnet50
from normalign.nn.transformer import Transformer
from normalign.nn.wide_resnet import WideResNet, wide_resnet28_2, wide_resnet28_10

__all__ = [
    "BasicBlock",
    "Bottleneck",
    "CheckpointReport",
    "GaussianKernelLogistic",
    "Normalisation",
    "Quadratic",
    "ResNet",
    "Standardise",
    "Transformer",
    "WideResNet",
    "load_checkpoint",
    "mlp",
    "resnet18",
    "resnet50",
    "wide_resnet28_2",
    "wide_resnet28_10",
]
