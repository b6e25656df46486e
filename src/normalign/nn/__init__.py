"""The paper's networks, written plainly."""

from normalign.nn.kernel_logistic import GaussianKernelLogistic
from normalign.nn.mlp import Quadratic, mlp
from normalign.nn.resnet import ResNet, resnet18, resnet50
from normalign.nn.transformer import Transformer

__all__ = [
    "GaussianKernelLogistic",
    "Quadratic",
    "ResNet",
    "Transformer",
    "mlp",
    "resnet18",
    "resnet50",
]
