"""The ``forward`` of a module as a list of operations on tensors.

A thin layer over ``torch.fx``: it says, for each call in a ``forward``, whether it is
affine in its tensors, equivalent to a module of ``torch.nn``, or neither.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg
from torch.fx.proxy import TraceError

from normalign._errors import complaint

__all__ = ["Constant", "Operation", "operations"]


@dataclass(frozen=True)
class Constant:
    """A parameter, buffer or number that the ``forward`` uses."""

    value: Any

    def to(self, device: torch.device) -> Constant:
        """The same constant in float64 on a device."""
        if not isinstance(self.value, Tensor):
            return self
        dtype = torch.float64 if self.value.is_floating_point() else self.value.dtype
        return Constant(self.value.detach().to(device, dtype))


@dataclass(frozen=True)
class Operation:
    """One call in a ``forward``.

    Parameters
    ----------
    kind : {"module", "equivalent", "affine", "same", "other"}
        A call of a submodule; of a function that has a module of the same effect; of
        one that is affine in its tensors; of one that returns its input; of another.
    label : str
        The submodule's or the function's name.
    tensors : tuple of str
        The names of the earlier results that it reads.
    factors : tuple of str
        For a product or quotient: those of the tensors of which no more than one may
        depend on the input if the result is to be affine, with repetition.
    in_place : bool
        Whether the result overwrites the first of the tensors.
    """

    kind: Literal["module", "equivalent", "affine", "same", "other"]
    label: str
    tensors: tuple[str, ...]
    call: Callable[[dict[str, Any]], Any] | None = None
    module: nn.Module | None = None
    factors: tuple[str, ...] = ()
    in_place: bool = False

    def __call__(self, values: list[Any]) -> Tensor:
        """The result for the given values of ``tensors``."""
        if self.call is None:
            raise NotImplementedError(self.label)
        return self.call(dict(zip(self.tensors, values, strict=True)))


class _Tracer(fx.Tracer):
    """Stops at every submodule: each is read, or traced, on its own."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


# By name, since x.flatten(1), torch.flatten(x, 1) and operator forms are one operation.
_AFFINE = {
    "add", "iadd", "sub", "isub", "neg", "flatten", "view", "reshape", "mean", "sum",
    "cat", "concat", "stack", "squeeze", "unsqueeze", "permute", "transpose", "getitem",
    "contiguous", "clone", "pad", "avg_pool1d", "avg_pool2d", "adaptive_avg_pool1d",
    "adaptive_avg_pool2d", "unflatten", "add_", "sub_",
}  # fmt: skip
_BILINEAR = {
    "mul", "imul", "mul_", "truediv", "itruediv", "div", "div_", "matmul", "linear",
    "conv1d", "conv2d",
}  # fmt: skip
# The registers of a network are not overwritten: steps in place become plain ones.
_OUT_OF_PLACE: dict[Any, Any] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
    **{f"{name}_": name for name in ("add", "sub", "mul", "div")},
}
_SHAPES = {"size", "dim", "getattr"}
_MODULES: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "relu_": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "relu6": nn.ReLU6,
    "hardtanh": nn.Hardtanh,
    "hardsigmoid": nn.Hardsigmoid,
    "softshrink": nn.Softshrink,
    "max_pool1d": nn.MaxPool1d,
    "max_pool2d": nn.MaxPool2d,
}


def operations(
    module: nn.Module, name: str
) -> Iterator[tuple[str, Operation | Constant | Literal["input"]]]:
    """Yield the name and nature of every result in the ``forward`` of a module.

    The last one is called ``"output"``.

    Raises
    ------
    TypeError
        If the ``forward`` cannot be traced, takes several inputs, or does not return
        one tensor.
    """
    try:
        graph = _Tracer().trace(module)
    except (TraceError, TypeError) as error:
        text = complaint(
            "partition", name, "a module whose forward can be traced", str(error),
            "Its steps may not depend on the values of the input; build it from "
            "nn.Sequential and normalign.geometry.Residual.",
        )  # fmt: skip
        raise TypeError(text) from error
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    for node in graph.nodes:
        if node.op == "placeholder":
            if node is inputs[0]:
                yield node.name, "input"
            elif node.args:
                yield node.name, Constant(node.args[0])
            else:
                rule, got = "a module of one input", f"another one, {node.target}"
                raise TypeError(complaint("partition", name, rule, got))
        elif node.op == "get_attr":
            yield node.name, Constant(operator.attrgetter(node.target)(module))
        elif node.op == "output":
            if not isinstance(node.args[0], fx.Node):
                rule, got = "a module that returns one tensor", str(node.args[0])
                raise TypeError(complaint("partition", name, rule, got))
            yield "output", Operation("same", "output", (node.args[0].name,))
        elif not _is_shape(node):
            yield node.name, _operation(node)


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else node.target.__name__


def _is_shape(node: fx.Node) -> bool:
    """Whether the result is a size or a number of dimensions, not a tensor."""
    if node.op not in ("call_method", "call_function"):
        return False
    if _name(node) in _SHAPES:
        return True
    arithmetic = node.op == "call_function" and hasattr(operator, _name(node))
    parents = node.all_input_nodes
    return arithmetic and bool(parents) and all(_is_shape(p) for p in parents)


def _operation(node: fx.Node) -> Operation:
    tensors = tuple(dict.fromkeys(source.name for source in _tensors(node)))
    name = _name(node)
    if node.op == "call_module":
        kind = "module" if len(node.all_input_nodes) == 1 else "other"
        return Operation(kind, name, tensors)
    if name == "dropout":
        training = node.kwargs.get("training", (*node.args, 0.5, True)[2])
        return Operation("other" if training else "same", name, tensors)
    if name in _MODULES:
        rest = {key: v for key, v in node.kwargs.items() if key != "input"}
        rest |= {"inplace": True} if name == "relu_" else {}
        return Operation(
            "equivalent", name, tensors, module=_MODULES[name](*node.args[1:], **rest)
        )
    in_place = node.target in _OUT_OF_PLACE
    if name in _AFFINE:
        return Operation("affine", name, tensors, _call(node), in_place=in_place)
    # A quotient is affine in its first argument alone.
    divided = "div" not in name or isinstance(node.args[0], fx.Node)
    if name in _BILINEAR and divided:
        factors: list[str] = []
        map_arg(node.args, lambda source: factors.append(source.name))
        if "div" in name:
            factors += factors[1:]
        return Operation(
            "affine", name, tensors, _call(node),
            factors=tuple(factors), in_place=in_place,
        )  # fmt: skip
    return Operation("other", name, tensors)


def _tensors(node: fx.Node) -> Iterator[fx.Node]:
    """The tensors that a call reads, also those it only reads the shape of."""
    for source in node.all_input_nodes:
        yield from _tensors(source) if _is_shape(source) else (source,)


def _call(node: fx.Node) -> Callable[[dict[str, Any]], Any]:
    """The call as a function of the named tensors."""

    def value(inner: fx.Node, env: dict[str, Any]) -> Any:
        if inner is not node and not _is_shape(inner):
            return env[inner.name]

        def look_up(source: fx.Node) -> Any:
            return value(source, env)

        args = map_arg(inner.args, look_up)
        kwargs = map_arg(inner.kwargs, look_up)
        target: Any = _OUT_OF_PLACE.get(inner.target, inner.target)
        if inner.op == "call_method":
            receiver, *rest = args
            return getattr(receiver, target)(*rest, **kwargs)
        return target(*args, **kwargs)

    return lambda env: value(node, env)
