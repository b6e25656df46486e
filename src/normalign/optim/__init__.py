"""Gradient filters: attach one to a torch optimizer, then train as usual."""

from normalign.optim.filter import GradientFilter
from normalign.optim.grokfast import Grokfast, GrokfastWindow
from normalign.optim.orthograd import OrthoGrad

__all__ = ["GradientFilter", "Grokfast", "GrokfastWindow", "OrthoGrad"]
