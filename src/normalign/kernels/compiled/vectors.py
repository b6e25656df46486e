"""Vectors as values of compiled code, for passes that a compiler leaves to numbers.

Two arrays might overlap, for all a compiler knows, so of a loop over both it makes one
number at a time. Here a loop says that it means vectors::

    for p in range(0, len(x), lanes(x)):
        write(y, p, fused(read(x, p), factor, read(y, p)))
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import models, overload, register_model

from normalign.kernels.compiled.compiling import compiled, instruction
from normalign.kernels.compiled.tile import lanes, vector_lanes

__all__ = ["clear", "copy", "everywhere", "fused", "least", "read", "write"]


class _Vector(types.Type):
    """As many numbers as the processor takes at once."""

    def __init__(self, element: Any) -> None:
        self.element, self.count = element, vector_lanes(element.bitwidth // 8)
        super().__init__(name=f"Vector({element})")


@register_model(_Vector)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        scalar = manager.lookup(kind.element).get_value_type()
        super().__init__(manager, kind, ir.VectorType(scalar, kind.count))


def _address(context: Any, builder: Any, array: Any, value: Any, place: Any) -> Any:
    data = context.make_array(array)(context, builder, value).data
    kind = context.get_value_type(_Vector(array.dtype))
    return builder.bitcast(builder.gep(data, [place]), kind.as_pointer())


@instruction
def read(typing: Any, table: Any, place: Any) -> Any:
    """The vector at a place of a flat array."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _address(context, builder, table, *args)
        return builder.load(address, align=table.dtype.bitwidth // 8)

    return _Vector(table.dtype)(table, types.intp), code


@instruction
def write(typing: Any, table: Any, place: Any, vector: Any) -> Any:
    """Overwrite what stands at a place of a flat array."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _address(context, builder, table, *args[:2])
        builder.store(args[2], address, align=table.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(table, types.intp, vector), code


@instruction
def everywhere(typing: Any, number: Any) -> Any:
    """A vector of one number."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = context.get_value_type(signature.return_type)
        empty, zero = ir.Constant(kind, ir.Undefined), ir.Constant(ir.IntType(32), 0)
        first = builder.insert_element(empty, args[0], zero)
        none = ir.Constant(ir.VectorType(ir.IntType(32), kind.count), None)
        return builder.shuffle_vector(first, empty, none)

    return _Vector(number)(number), code


def _called(name: str, count: int) -> Callable[..., Any]:
    """The code of an operation that the processor has for vectors."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = signature.return_type
        kind = context.get_value_type(vector)
        full = f"llvm.{name}.v{vector.count}f{vector.element.bitwidth}"
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(kind, [kind] * count), full
        )
        return builder.call(function, args)

    return code


@instruction
def fused(typing: Any, x: Any, y: Any, z: Any) -> Any:
    """``x y + z``, rounded once where the processor can."""
    return x(x, x, x), _called("fmuladd", 3)


@instruction
def least(typing: Any, x: Any, y: Any) -> Any:
    """The smaller of every two numbers; the other, where one is NaN."""
    return x(x, x), _called("minnum", 2)


def _operation(name: str) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return getattr(builder, name)(*args)

    def operation(typing: Any, x: Any, y: Any) -> Any:
        return x(x, x), code

    return instruction(operation)


def _provide(symbol: Callable[[Any, Any], Any], name: str) -> None:
    """Let an operator of Python mean an operation on vectors."""
    operation = _operation(name)

    def implementation(x: Any, y: Any) -> Any:
        return operation(x, y)

    def chosen(x: Any, y: Any) -> Any:
        return implementation if isinstance(x, _Vector) and x == y else None

    overload(symbol)(chosen)


_provide(operator.add, "fadd")
_provide(operator.sub, "fsub")
_provide(operator.mul, "fmul")


@compiled
def clear(table: Any, start: int, count: int) -> None:
    """Put zeros into an array, whole vectors of them."""
    nothing = everywhere(table.dtype.type(0))
    for p in range(start, start + count, lanes(table)):
        write(table, p, nothing)


@compiled
def copy(source: Any, target: Any, at_source: int, at_target: int, count: int) -> None:
    """Copy numbers from one array to another, whole vectors of them."""
    for p in range(0, count, lanes(source)):
        write(target, at_target + p, read(source, at_source + p))
