r"""The innermost product, as vector instructions: one tile that stays in registers.

.. math:: C_{ij} \leftarrow C_{ij} - \sum_p A_{pi} B_{pj}

All that costs time in a small machine (the kernel's distances, the factor, the
gradients) is sums of this form over rows ``p`` that lie side by side in memory. A
compiler does not find the fast form of it by itself, so it is spelled out here: as
many accumulators as a processor has registers for, each a vector of ``C``, updated by
a broadcast number of ``A`` times a vector of ``B``. That runs at the speed at which the
processor can multiply.

Tables lie in *strips*, as wide as a tile: all rows of the first few columns, then all
rows of the next. So ``B`` and ``C`` of a tile are each one run of memory. ``A`` is
packed narrower, the ``HEIGHT`` numbers of a row ``p`` beside each other, row after row.
Arrays are flat, places are counted in entries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import overload

from normalign.kernels.compiled.compiling import instruction

__all__ = [
    "HEIGHT",
    "columns",
    "copy_head",
    "copy_turned",
    "divide_tile",
    "dot_strip",
    "subtract_tile",
    "width",
]


def _features() -> Mapping[str, bool]:
    """What the processor that is compiled for has; numba may be told another one."""
    told = getattr(config, "CPU_FEATURES")  # noqa: B009, made at run time
    if told is None:
        return llvm.get_host_cpu_features()
    return {word[1:]: word[0] == "+" for word in told.split(",") if word}


def _shape() -> tuple[int, int, int]:
    """Bytes of a vector, rows of a tile and vectors of its row, as registers allow."""
    features = _features()
    if features.get("avx512f"):
        return 64, 8, 2  # 16 sums, a row of B and a number of A in 32 registers
    if features.get("avx2"):
        return 32, 4, 2  # 8 sums in 16 registers
    return (16, 4, 4) if features.get("neon") else (16, 4, 2)


_BYTES, HEIGHT, _VECTORS = _shape()


def columns(itemsize: int) -> int:
    """Columns of a tile, and of a strip: what its vectors hold."""
    return _VECTORS * _BYTES // itemsize


def width(table: Any) -> int:
    """The same for a table; compiled code knows it as a constant."""
    return columns(table.dtype.itemsize)


@overload(width)
def _width(table: Any) -> Any:
    constant = columns(table.dtype.bitwidth // 8)

    def implementation(table: Any) -> Any:
        return constant

    return implementation


@instruction
def copy_head(
    typing: Any, source: Any, target: Any, at_source: Any, at_target: Any
) -> Any:
    """Copy as many numbers as a tile has rows."""
    return types.void(source, target, types.intp, types.intp), _copy


@instruction
def copy_turned(
    typing: Any, source: Any, target: Any, at_source: Any, at_target: Any, stride: Any
) -> Any:
    """Copy a square of ``HEIGHT`` rows and columns, turned: its rows become columns.

    Rows of the source are ``stride`` apart, those of the target follow each other.
    """
    return types.void(source, target, *[types.intp] * 3), _copy_turned


@instruction
def dot_strip(typing: Any, a: Any, b: Any, at_a: Any, at_b: Any) -> Any:
    """The sum of products of two runs as long as a strip is wide."""
    return a.dtype(a, b, types.intp, types.intp), _dot_strip


@instruction
def subtract_tile(
    typing: Any, a: Any, b: Any, c: Any,
    at_a: Any, at_b: Any, at_c: Any, stride_b: Any, stride_c: Any, depth: Any,
) -> Any:  # fmt: skip
    """``C -= A^T B`` for one tile."""
    return types.void(a, b, c, *[types.intp] * 6), _subtract


@instruction
def divide_tile(
    typing: Any, a: Any, b: Any, c: Any,
    at_a: Any, at_b: Any, at_c: Any, stride_b: Any, stride_c: Any, depth: Any,
    triangles: Any, at_triangle: Any,
) -> Any:  # fmt: skip
    """``C <- T^{-T} (C - A^T B)`` for one tile.

    ``T`` is an upper triangle, ``HEIGHT`` numbers a row, with the inverses of its
    diagonal in place of it.
    """
    return types.void(a, b, c, *[types.intp] * 6, triangles, types.intp), _divide


def _copy(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    source, target = _vectors(context, builder, signature, args, HEIGHT)
    target.store(args[3], source.load(args[2]))
    return context.get_dummy_value()


def _copy_turned(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    source, target = _vectors(context, builder, signature, args, HEIGHT)
    number = partial(ir.Constant, ir.IntType(64))
    rows = [
        source.load(builder.add(args[2], builder.mul(number(r), args[4])))
        for r in range(HEIGHT)
    ]
    # Halves of two rows change places, then quarters, ..., until all are turned.
    half = HEIGHT // 2
    while half:
        for r in range(HEIGHT):
            if not r & half:
                lanes = range(HEIGHT)
                first = [i if not i & half else HEIGHT + i - half for i in lanes]
                second = [i + half if not i & half else HEIGHT + i for i in lanes]
                pair = rows[r], rows[r + half]
                rows[r], rows[r + half] = (
                    builder.shuffle_vector(*pair, _lanes(chosen))
                    for chosen in (first, second)
                )
        half //= 2
    for r, row in enumerate(rows):
        target.store(builder.add(args[3], number(r * HEIGHT)), row)
    return context.get_dummy_value()


def _dot_strip(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    lanes = _BYTES * 8 // signature.args[0].dtype.bitwidth
    left, right = _vectors(context, builder, signature, args, lanes)
    number = partial(ir.Constant, ir.IntType(64))
    total = None
    for v in range(_VECTORS):
        x = left.load(builder.add(args[2], number(v * lanes)))
        y = right.load(builder.add(args[3], number(v * lanes)))
        product = builder.fmul(x, y)
        total = product if total is None else builder.fadd(total, product)
    while lanes > 1:
        lanes //= 2
        parts = [range(lanes), range(lanes, 2 * lanes)]
        total = builder.fadd(
            *(builder.shuffle_vector(total, total, _lanes(part)) for part in parts)
        )
    return builder.extract_element(total, ir.Constant(ir.IntType(32), 0))


def _lanes(chosen: Sequence[int]) -> Any:
    return ir.Constant(ir.VectorType(ir.IntType(32), len(chosen)), list(chosen))


class _Vectors:
    """An array of which vectors are read and written."""

    def __init__(self, builder: Any, data: Any, kind: Any, align: int) -> None:
        self.builder, self.data, self.kind, self.align = builder, data, kind, align

    def at(self, place: Any) -> Any:
        address = self.builder.gep(self.data, [place])
        return self.builder.bitcast(address, self.kind.as_pointer())

    def load(self, place: Any) -> Any:
        return self.builder.load(self.at(place), align=self.align)

    def store(self, place: Any, value: Any) -> None:
        self.builder.store(value, self.at(place), align=self.align)


def _vectors(
    context: Any, builder: Any, signature: Any, args: Any, lanes: int, arrays: int = 2
) -> list[_Vectors]:
    """The first arguments, which are arrays of the same numbers."""
    element = signature.args[0].dtype
    kind = ir.VectorType(context.get_value_type(element), lanes)
    return [
        _Vectors(
            builder,
            context.make_array(signature.args[i])(context, builder, args[i]).data,
            kind,
            element.bitwidth // 8,
        )
        for i in range(arrays)
    ]


def _subtract(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    tile = _Tile(context, builder, signature, args)
    tile.store(tile.difference())
    return context.get_dummy_value()


def _divide(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    tile = _Tile(context, builder, signature, args)
    rows = tile.difference()
    triangle = tile.data(signature.args[9], args[9])
    for i, row in enumerate(rows):
        for p in range(i):
            factor = tile.broadcast(triangle, args[10], p * HEIGHT + i)
            minus = builder.fneg(factor)
            row = [tile.fused(minus, x, y) for x, y in zip(rows[p], row, strict=True)]
        inverse = tile.broadcast(triangle, args[10], i * HEIGHT + i)
        rows[i] = [builder.fmul(inverse, x) for x in row]
    tile.store(rows)
    return context.get_dummy_value()


class _Tile:
    """One tile's instructions, as they are written into a function."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any) -> None:
        self.context, self.builder = context, builder
        self.element = signature.args[2].dtype
        self.scalar = context.get_value_type(self.element)
        self.size = self.element.bitwidth // 8
        self.lanes = _BYTES // self.size
        self.vector = ir.VectorType(self.scalar, self.lanes)
        self.a, self.b, self.c = (
            self.data(kind, value)
            for kind, value in zip(signature.args[:3], args[:3], strict=True)
        )
        self.at_a, self.at_b, self.at_c = args[3:6]
        self.stride_b, self.stride_c, self.depth = args[6:9]
        name = f"llvm.fmuladd.v{self.lanes}f{self.element.bitwidth}"
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        self.fuse = cgutils.get_or_insert_function(builder.module, kind, name)

    def data(self, kind: Any, value: Any) -> Any:
        """Where an array's entries begin."""
        return self.context.make_array(kind)(self.context, self.builder, value).data

    def fused(self, x: Any, y: Any, z: Any) -> Any:
        """``x y + z``, rounded once where the processor can."""
        return self.builder.call(self.fuse, [x, y, z])

    def number(self, value: int) -> Any:
        return ir.Constant(ir.IntType(64), value)

    def address(self, base: Any, place: Any, more: int = 0) -> Any:
        place = self.builder.add(place, self.number(more)) if more else place
        return self.builder.gep(base, [place])

    def vector_at(self, base: Any, place: Any, index: int) -> Any:
        address = self.address(base, place, index * self.lanes)
        return self.builder.bitcast(address, self.vector.as_pointer())

    def broadcast(self, base: Any, place: Any, more: int) -> Any:
        """One number in all lanes."""
        builder, undefined = self.builder, ir.Constant(self.vector, ir.Undefined)
        number = builder.load(self.address(base, place, more))
        first = builder.insert_element(
            undefined, number, ir.Constant(ir.IntType(32), 0)
        )
        kind = ir.VectorType(ir.IntType(32), self.lanes)
        return builder.shuffle_vector(first, undefined, ir.Constant(kind, None))

    def rows(self, make: Callable[[int, int], Any]) -> list[list[Any]]:
        return [[make(i, v) for v in range(_VECTORS)] for i in range(HEIGHT)]

    def sums(self) -> list[list[Any]]:
        """The loop over the depth: all sums of the tile, from zero."""
        builder = self.builder
        before = builder.block
        loop = builder.append_basic_block("depth")
        after = builder.append_basic_block("sums")
        zero = ir.Constant(self.vector, None)
        some = builder.icmp_signed(">", self.depth, self.number(0))
        builder.cbranch(some, loop, after)

        builder.position_at_end(loop)
        row = builder.phi(ir.IntType(64))
        held = self.rows(lambda i, v: builder.phi(self.vector))
        place = builder.add(self.at_b, builder.mul(row, self.stride_b))
        right = [
            builder.load(self.vector_at(self.b, place, v), align=self.size)
            for v in range(_VECTORS)
        ]
        place = builder.add(self.at_a, builder.mul(row, self.number(HEIGHT)))
        left = [self.broadcast(self.a, place, i) for i in range(HEIGHT)]
        added = self.rows(lambda i, v: self.fused(left[i], right[v], held[i][v]))
        following = builder.add(row, self.number(1))
        more = builder.icmp_signed("<", following, self.depth)
        builder.cbranch(more, loop, after)
        row.add_incoming(self.number(0), before)
        row.add_incoming(following, loop)

        builder.position_at_end(after)
        total = self.rows(lambda i, v: builder.phi(self.vector))
        for i in range(HEIGHT):
            for v in range(_VECTORS):
                held[i][v].add_incoming(zero, before)
                held[i][v].add_incoming(added[i][v], loop)
                total[i][v].add_incoming(zero, before)
                total[i][v].add_incoming(added[i][v], loop)
        return total

    def difference(self) -> list[list[Any]]:
        """The tile of C less the sums."""
        sums, builder = self.sums(), self.builder
        return self.rows(
            lambda i, v: builder.fsub(
                builder.load(self.place(i, v), align=self.size), sums[i][v]
            )
        )

    def place(self, i: int, v: int) -> Any:
        """Of a vector of the tile of C."""
        offset = self.builder.mul(self.number(i), self.stride_c)
        return self.vector_at(self.c, self.builder.add(self.at_c, offset), v)

    def store(self, rows: list[list[Any]]) -> None:
        """Overwrite the tile of C."""
        for i, row in enumerate(rows):
            for v, value in enumerate(row):
                self.builder.store(value, self.place(i, v), align=self.size)
