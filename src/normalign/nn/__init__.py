"""The paper's networks, written plainly."""

from normalign.nn._forms import network_for, network_form
from normalign.nn._state_files import StateFile, read_state_dict
from normalign.nn.dense import Quadratic, mlp
from normalign.nn.kernel_logistic import GaussianKernelLogistic
from normalign.nn.layers import Standardise
from normalign.nn.resnet import BasicBlock, Bottleneck, ResNet, resnet18, resnet50
from normalign.nn.transformer import Transformer
from normalign.nn.wide_resnet import WideResNet, wide_resnet28_2, wide_resnet28_10

__all__ = [
    "BasicBlock",
    "Bottleneck",
    "GaussianKernelLogistic",
    "Quadratic",
    "ResNet",
    "Standardise",
    "StateFile",
    "Transformer",
    "WideResNet",
    "mlp",
    "network_for",
    "network_form",
    "read_state_dict",
    "resnet18",
    "resnet50",
    "wide_resnet28_2",
    "wide_resnet28_10",
]
