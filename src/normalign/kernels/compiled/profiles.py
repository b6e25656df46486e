r"""Kernel values and slopes of a row of squared distances, without branches.

Written so that a compiler makes vectors of it: the exponential is a polynomial around
the nearest power of two, whose exponent is put together from bits.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import overload

from normalign.kernels.compiled import LAPLACE
from normalign.kernels.compiled.compiling import compiled, instruction

__all__ = ["profile_row"]


@instruction
def _power_of_two(typing: Any, large: Any) -> Any:
    r""":math:`2^k`, for the integer ``k`` in the lowest bits of a number's fraction."""
    single = large == types.float32
    size, bias, fraction = (32, 127, 23) if single else (64, 1023, 52)

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        integer = ir.IntType(size)
        bits = builder.bitcast(args[0], integer)
        exponent = builder.add(bits, ir.Constant(integer, bias))
        shifted = builder.shl(exponent, ir.Constant(integer, fraction))
        return builder.bitcast(shifted, args[0].type)

    return large(large), code


def _exponential(x: Any) -> Any:
    r""":math:`e^x` for ``x <= 0``, to a rounding error or two; NaN stays NaN.

    :math:`x = k \ln 2 + f` with :math:`|f| \le \ln 2 / 2`. Adding a large number
    rounds ``x / ln 2`` to the integer ``k``, which then stands in the lowest bits.
    Below the smallest normal number it stays there.
    """
    return math.exp(x)  # what is meant; compiled code takes the overload below


@overload(_exponential)
def _exponential_of(x: Any) -> Any:
    if x == types.float32:
        return _single_exponential
    return _double_exponential


def _double_exponential(x: Any) -> Any:
    x = -708.0 if x < -708.0 else x
    large = x * 1.4426950408889634 + 6755399441055744.0
    k = large - 6755399441055744.0
    f = x - k * 0.6931471805598903  # of ln 2 the leading bits, then the rest
    f = f - k * 5.497923018708371e-14
    p = 1.6059043836821613e-10
    p = p * f + 2.08767569878681e-09
    p = p * f + 2.505210838544172e-08
    p = p * f + 2.755731922398589e-07
    p = p * f + 2.7557319223985893e-06
    p = p * f + 2.48015873015873e-05
    p = p * f + 0.0001984126984126984
    p = p * f + 0.001388888888888889
    p = p * f + 0.008333333333333333
    p = p * f + 0.041666666666666664
    p = p * f + 0.16666666666666666
    p = p * f + 0.5
    p = p * f + 1.0
    p = p * f + 1.0
    return p * _power_of_two(large)


def _single_exponential(x: Any) -> Any:
    single = types.float32
    x = single(-87.0) if x < single(-87.0) else x
    large = x * single(1.4426950408889634) + single(12582912.0)
    k = large - single(12582912.0)
    f = x - k * single(0.693145751953125)
    f = f - k * single(1.428606765330187e-06)
    p = single(0.0001984126984126984)
    p = p * f + single(0.001388888888888889)
    p = p * f + single(0.008333333333333333)
    p = p * f + single(0.041666666666666664)
    p = p * f + single(0.16666666666666666)
    p = p * f + single(0.5)
    p = p * f + single(1.0)
    p = p * f + single(1.0)
    return p * _power_of_two(large)


@compiled
def profile_row(profile: int, values: Any, slopes: Any) -> None:
    r"""Turn squared distances into values, and write the slopes beside them.

    The slope is :math:`-2 \kappa'(u)`, zero where :math:`u` is zero. It is negative
    where points only differ by rounding, see :mod:`~normalign.kernels.compiled.near`:
    then the value is that of its size, and the slope is zero, too.
    """
    zero, half = values.dtype.type(0), values.dtype.type(0.5)
    if profile == LAPLACE:
        for j in range(len(values)):
            u = values[j]
            r = math.sqrt(abs(u))
            v = _exponential(-r)
            values[j] = v
            slopes[j] = v / r if u > zero else zero
    else:
        for j in range(len(values)):
            u = values[j]
            v = _exponential(-half * abs(u))
            values[j] = v
            slopes[j] = v if u > zero else zero
