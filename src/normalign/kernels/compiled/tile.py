r"""The innermost product, as vector instructions: one tile that stays in registers.

.. math:: C_{ij} \leftarrow \pm C_{ij} \pm \sum_p A_{pi} B_{pj}

All that costs time in a small machine (the kernel's distances, the factor, the
gradients) is sums of this form. A compiler does not find the fast form of it by itself,
so it is spelled out here: as many accumulators as a processor has registers for, each a
vector of ``C``, updated by a broadcast number of ``A`` times a vector of ``B``. That
runs at the speed at which the processor can multiply.

Tables lie in *strips*, as wide as a tile: all rows of the first few columns, then all
rows of the next. So ``B`` and ``C`` of a tile are each one run of memory, and the
numbers of ``A`` that a row ``p`` needs stand beside each other. *Turned*, ``A`` is read
along its rows instead, from strip to strip, and strips may be of different lengths.
Arrays are flat, places are counted in entries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import overload

from normalign.kernels.compiled.compiling import instruction

__all__ = [
    "HEIGHT",
    "add_narrow",
    "add_tile",
    "add_turned",
    "columns",
    "divide_tile",
    "factorise_tile",
    "lanes",
    "set_narrow",
    "set_tile",
    "solve_narrow",
    "subtract_narrow",
    "subtract_tile",
    "vector_lanes",
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


def vector_lanes(itemsize: int) -> int:
    """Numbers of a vector, and columns of a narrow tile."""
    return _BYTES // itemsize


def columns(itemsize: int) -> int:
    """Columns of a tile, and of a strip: what its vectors hold."""
    return _VECTORS * vector_lanes(itemsize)


def width(table: Any) -> int:
    """Columns of a strip of a table; compiled code knows it as a constant."""
    return columns(table.dtype.itemsize)


def lanes(table: Any) -> int:
    """Numbers of a vector of a table; compiled code knows it as a constant."""
    return vector_lanes(table.dtype.itemsize)


def _constant(count: Callable[[int], int]) -> Callable[[Any], Any]:
    def chosen(table: Any) -> Any:
        constant = count(table.dtype.bitwidth // 8)

        def implementation(table: Any) -> Any:
            return constant

        return implementation

    return chosen


overload(width)(_constant(columns))
overload(lanes)(_constant(vector_lanes))


def _product(keep: str, *, vectors: int = _VECTORS, turned: bool = False) -> Any:
    """An instruction that multiplies one tile; ``keep`` says what becomes of ``C``.

    Its arguments are three arrays and the places of the tile in each, then the
    distance between rows ``p`` of ``A``, of rows of ``B`` and of rows of ``C``, then
    the first row ``p`` and where they end. Turned, instead of the first distance there
    is an array of where strips of ``A`` begin.
    """

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        tile = _Tile(context, builder, signature, args, vectors)
        *_, first, end = args
        tile.finish(tile.kept(keep, tile.sums(first, end, turned=turned)))
        return context.get_dummy_value()

    def product(
        typing: Any, a: Any, b: Any, c: Any, at_a: Any, at_b: Any, at_c: Any,
        step_a: Any, step_b: Any, step_c: Any, first: Any, end: Any,
    ) -> Any:  # fmt: skip
        places, left = [types.intp] * 3, step_a if turned else types.intp
        return types.void(a, b, c, *places, left, *[types.intp] * 4), code

    return instruction(product)


set_tile = _product("nothing")
add_tile = _product("plus")
subtract_tile = _product("minus")
add_turned = _product("plus", turned=True)
set_narrow = _product("nothing", vectors=1)
add_narrow = _product("plus", vectors=1)
subtract_narrow = _product("minus", vectors=1, turned=True)


@instruction
def divide_tile(
    typing: Any, a: Any, b: Any, c: Any, at_a: Any, at_b: Any, at_c: Any,
    step_a: Any, step_b: Any, step_c: Any, first: Any, end: Any,
    triangles: Any, at_triangle: Any,
) -> Any:  # fmt: skip
    """``C <- T^{-T} (C - A^T B)`` for one tile.

    ``T`` is an upper triangle, ``HEIGHT`` numbers a row, with the inverses of its
    diagonal in place of it.
    """
    return types.void(a, b, c, *[types.intp] * 8, triangles, types.intp), _divide


@instruction
def factorise_tile(
    typing: Any, block: Any, triangles: Any, at_block: Any, at_triangle: Any, step: Any,
    count: Any,
) -> Any:  # fmt: skip
    """Factorise ``HEIGHT`` rows and columns of a block, as :func:`divide_tile` wants.

    What is below the diagonal is not looked at. False if one of the first ``count``
    pivots is not positive.
    """
    return types.boolean(block, triangles, *[types.intp] * 4), _factorise


@instruction
def solve_narrow(
    typing: Any, a: Any, c: Any, at_a: Any, at_c: Any, step_a: Any, step_c: Any
) -> Any:
    """``C <- U^{-1} C`` for a narrow tile; ``U`` is the upper triangle at ``at_a``."""
    return types.void(a, c, *[types.intp] * 4), _solve


def _divide(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    tile = _Tile(context, builder, signature, args, _VECTORS)
    rows = tile.kept("minus", tile.sums(args[9], args[10]))
    triangle = tile.data(signature.args[11], args[11])
    for i, row in enumerate(rows):
        for p in range(i):
            factor = tile.broadcast(triangle, args[12], p * HEIGHT + i)
            minus = builder.fneg(factor)
            row = [tile.fused(minus, x, y) for x, y in zip(rows[p], row, strict=True)]
        inverse = tile.broadcast(triangle, args[12], i * HEIGHT + i)
        rows[i] = [builder.fmul(inverse, x) for x in row]
    tile.finish(rows)
    return context.get_dummy_value()


def _factorise(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    code = _Code(context, builder, signature.args[0].dtype, HEIGHT)
    block, triangles = (code.data(signature.args[i], args[i]) for i in range(2))
    rows = [code.load(block, code.moved(args[2], i, args[4])) for i in range(HEIGHT)]
    root = builder.module.declare_intrinsic("llvm.sqrt", [code.scalar])
    one, zero = ir.Constant(code.scalar, 1.0), ir.Constant(code.scalar, 0.0)
    fine = ir.Constant(ir.IntType(1), 1)
    for i in range(HEIGHT):
        pivot = code.lane(rows[i], i)
        behind = builder.icmp_signed(">=", code.number(i), args[5])
        positive = builder.fcmp_ordered(">", pivot, zero)
        fine = builder.and_(fine, builder.or_(positive, behind))
        inverse = builder.fdiv(one, builder.call(root, [pivot]))
        rows[i] = builder.fmul(code.everywhere(inverse), rows[i])
        for p in range(i + 1, HEIGHT):
            minus = builder.fneg(code.everywhere(code.lane(rows[i], p)))
            rows[p] = code.fused(minus, rows[i], rows[p])
        rows[i] = builder.insert_element(rows[i], inverse, code.index(i))
        code.store(triangles, code.shifted(args[3], i * HEIGHT), rows[i])
    return fine


def _solve(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    element = signature.args[0].dtype
    code = _Code(context, builder, element, vector_lanes(element.bitwidth // 8))
    a, c = (code.data(signature.args[i], args[i]) for i in range(2))
    places = [code.moved(args[3], i, args[5]) for i in range(HEIGHT)]
    rows = [code.load(c, place) for place in places]
    one = ir.Constant(code.scalar, 1.0)
    for i in reversed(range(HEIGHT)):
        row = code.moved(args[2], i, args[4])
        for p in range(i + 1, HEIGHT):
            minus = builder.fneg(code.broadcast(a, row, p))
            rows[i] = code.fused(minus, rows[p], rows[i])
        pivot = builder.load(code.address(a, code.shifted(row, i)))
        rows[i] = builder.fmul(code.everywhere(builder.fdiv(one, pivot)), rows[i])
        code.store(c, places[i], rows[i])
    return context.get_dummy_value()


class _Code:
    """Instructions on vectors of one kind, as they are written into a function."""

    def __init__(self, context: Any, builder: Any, element: Any, count: int) -> None:
        self.context, self.builder, self.count = context, builder, count
        self.scalar = context.get_value_type(element)
        self.size = element.bitwidth // 8
        self.vector = ir.VectorType(self.scalar, count)
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        name = f"llvm.fmuladd.v{count}f{element.bitwidth}"
        self.fuse = cgutils.get_or_insert_function(builder.module, kind, name)

    def data(self, kind: Any, value: Any) -> Any:
        """Where an array's entries begin."""
        return self.context.make_array(kind)(self.context, self.builder, value).data

    def fused(self, x: Any, y: Any, z: Any) -> Any:
        """``x y + z``, rounded once where the processor can."""
        return self.builder.call(self.fuse, [x, y, z])

    def number(self, value: int) -> Any:
        return ir.Constant(ir.IntType(64), value)

    def index(self, value: int) -> Any:
        """Of a lane."""
        return ir.Constant(ir.IntType(32), value)

    def shifted(self, place: Any, more: int) -> Any:
        return self.builder.add(place, self.number(more)) if more else place

    def moved(self, place: Any, count: int, step: Any) -> Any:
        """Some steps on from a place."""
        return self.builder.add(place, self.builder.mul(self.number(count), step))

    def address(self, base: Any, place: Any) -> Any:
        return self.builder.gep(base, [place])

    def load(self, base: Any, place: Any) -> Any:
        return self.builder.load(self._vector_at(base, place), align=self.size)

    def store(self, base: Any, place: Any, value: Any) -> None:
        self.builder.store(value, self._vector_at(base, place), align=self.size)

    def _vector_at(self, base: Any, place: Any) -> Any:
        return self.builder.bitcast(self.address(base, place), self.vector.as_pointer())

    def lane(self, vector: Any, i: int) -> Any:
        return self.builder.extract_element(vector, self.index(i))

    def everywhere(self, number: Any) -> Any:
        """One number in all lanes."""
        undefined = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(undefined, number, self.index(0))
        kind = ir.VectorType(ir.IntType(32), self.count)
        return self.builder.shuffle_vector(first, undefined, ir.Constant(kind, None))

    def broadcast(self, base: Any, place: Any, more: int) -> Any:
        """A number of an array in all lanes."""
        return self.everywhere(
            self.builder.load(self.address(base, self.shifted(place, more)))
        )


class _Tile(_Code):
    """One tile's instructions."""

    def __init__(
        self, context: Any, builder: Any, signature: Any, args: Any, vectors: int
    ) -> None:
        element = signature.args[2].dtype
        count = vector_lanes(element.bitwidth // 8)
        super().__init__(context, builder, element, count)
        self.vectors, self.strip = vectors, _VECTORS * count
        self.a, self.b, self.c = (
            self.data(kind, value)
            for kind, value in zip(signature.args[:3], args[:3], strict=True)
        )
        self.at_a, self.at_b, self.at_c = args[3:6]
        self.step_a, self.step_b, self.step_c = args[6:9]
        self.starts = signature.args[6]  # the type of an array, if ``A`` is turned

    def rows(self, make: Callable[[int, int], Any]) -> list[list[Any]]:
        return [[make(i, v) for v in range(self.vectors)] for i in range(HEIGHT)]

    def sums(self, first: Any, end: Any, *, turned: bool = False) -> list[list[Any]]:
        """The loop over rows ``p``: all sums of the tile, from zero."""
        builder = self.builder
        before = builder.block
        loop = builder.append_basic_block("rows")
        after = builder.append_basic_block("sums")
        zero = ir.Constant(self.vector, None)
        builder.cbranch(builder.icmp_signed("<", first, end), loop, after)

        builder.position_at_end(loop)
        row = builder.phi(ir.IntType(64))
        held = self.rows(lambda i, v: builder.phi(self.vector))
        place = builder.add(self.at_b, builder.mul(row, self.step_b))
        right = [
            self.load(self.b, self.shifted(place, v * self.count))
            for v in range(self.vectors)
        ]
        left = self._turned(row) if turned else self._straight(row)
        added = self.rows(lambda i, v: self.fused(left[i], right[v], held[i][v]))
        following = builder.add(row, self.number(1))
        builder.cbranch(builder.icmp_signed("<", following, end), loop, after)
        row.add_incoming(first, before)
        row.add_incoming(following, loop)

        builder.position_at_end(after)
        total = self.rows(lambda i, v: builder.phi(self.vector))
        for i in range(HEIGHT):
            for v in range(self.vectors):
                held[i][v].add_incoming(zero, before)
                held[i][v].add_incoming(added[i][v], loop)
                total[i][v].add_incoming(zero, before)
                total[i][v].add_incoming(added[i][v], loop)
        return total

    def _straight(self, row: Any) -> list[Any]:
        """The numbers of ``A`` that a row needs, which stand beside each other."""
        place = self.builder.add(self.at_a, self.builder.mul(row, self.step_a))
        return [self.broadcast(self.a, place, i) for i in range(HEIGHT)]

    def _turned(self, row: Any) -> list[Any]:
        """The same from the rows of ``A``: one below the other in a strip."""
        builder, strip = self.builder, self.number(self.strip)
        starts = self.data(self.starts, self.step_a)
        start = builder.load(self.address(starts, builder.udiv(row, strip)))
        place = builder.add(self.at_a, builder.add(start, builder.urem(row, strip)))
        return [self.broadcast(self.a, place, i * self.strip) for i in range(HEIGHT)]

    def kept(self, keep: str, sums: list[list[Any]]) -> list[list[Any]]:
        """What becomes of the tile of C: nothing, or the sums are added or taken."""
        if keep == "nothing":
            return sums
        change = self.builder.fadd if keep == "plus" else self.builder.fsub
        return self.rows(
            lambda i, v: change(self.load(self.c, self.place(i, v)), sums[i][v])
        )

    def place(self, i: int, v: int) -> Any:
        """Of a vector of the tile of C."""
        return self.shifted(self.moved(self.at_c, i, self.step_c), v * self.count)

    def finish(self, rows: list[list[Any]]) -> None:
        """Overwrite the tile of C."""
        for i, row in enumerate(rows):
            for v, value in enumerate(row):
                self.store(self.c, self.place(i, v), value)
