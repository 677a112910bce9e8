"""Packing: a block of a matrix as the zero-padded panels that ``simd.tile_product`` reads.

The block is ``source[t, k, x]``; panel p holds, for each k in turn, the values of
x = p * width ... (p + 1) * width - 1, and starts at ``panel_start(p, depth, width)``. The matrix A
is packed as its transpose. An axis of unit stride is read by vectors, in groups of x that stay in
one panel; what is left over goes singly.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from polykern.backend.numba import jit, vector
from polykern.backend.numba.rows import row_from
from polykern.backend.numba.simd import ROWS, VECTOR_BYTES, tile_product

GROUP = 8 if VECTOR_BYTES >= 32 else 4  # divides columns(dtype) for each dtype
STEP = 8  # values of k that a transposing group holds in registers


@jit.inlined
def panel_start(panel, depth, width):
    """Panels lie an odd number of k apart: power-of-two distances would share few cache sets."""
    return panel * (depth | 1) * width


@jit.device
def pack_panels(source, t, first_k, depth, first, count, packed, width):
    """``source[t, first_k : first_k + depth, first : first + count]`` into `packed`.

    The width is ROWS or ``columns(dtype)``.
    """
    group = ROWS if width == ROWS else GROUP
    by_x = source.strides[2] == source.itemsize
    by_k = source.strides[1] == source.itemsize and not by_x
    grouped = count // group * group if by_x or by_k else 0
    stepped = depth // STEP * STEP if by_k else 0
    if by_x:
        whole = count // width * width if width != ROWS else 0
        # Along the rows of the source: a panel at a time would touch a page for each k.
        for k in range(depth):
            row = row_from(source, (t, first_k + k, first), count)
            for x in range(0, whole, width):
                place = panel_start(x // width, depth, width) + k * width
                vector.store(vector.load(row, x), packed, place)
            for x in range(whole, grouped, group):
                panel = x // width
                place = panel_start(panel, depth, width) + k * width + x - panel * width
                if width == ROWS:
                    move(row, x, packed, place, ROWS)
                else:
                    move(row, x, packed, place, GROUP)
    elif by_k:
        pitch = source.strides[2] // source.itemsize
        for x in range(0, grouped, group):
            row = row_from(source, (t, first_k, first + x), depth)
            panel = x // width
            place = panel_start(panel, depth, width) + x - panel * width
            for k in range(0, stepped, STEP):
                if width == ROWS:
                    transpose(row, k, pitch, packed, place + k * width, width, ROWS)
                else:
                    transpose(row, k, pitch, packed, place + k * width, width, GROUP)
        _pack_singly(source, t, first_k, stepped, depth, first, 0, grouped, packed, width)
    _pack_singly(source, t, first_k, 0, depth, first, grouped, count, packed, width)
    panel = count // width
    filled = count - panel * width
    if filled:
        place = panel_start(panel, depth, width)
        for k in range(depth):
            for x in range(filled, width):
                packed[place + k * width + x] = 0


@jit.device
def _pack_singly(source, t, first_k, k0, depth, first, x0, x1, packed, width):
    for x in range(x0, x1):
        panel = x // width
        place = panel_start(panel, depth, width) + x - panel * width
        for k in range(k0, depth):
            packed[place + k * width] = source[t, first_k + k, first + x]


@jit.device
def multiply_panels(depth, a, rows, b, count, width, sums, first, pitch):
    """``sums[first + i * pitch + j] += A[i, k] B[k, j]`` of packed blocks, padding included."""
    for panel_b in range((count + width - 1) // width):
        b_start = panel_start(panel_b, depth, width)  # this panel stays in the L1 cache
        for panel_a in range((rows + ROWS - 1) // ROWS):
            place = first + panel_a * ROWS * pitch + panel_b * width
            a_start = panel_start(panel_a, depth, ROWS)
            tile_product(depth, a, a_start, b, b_start, sums, place, pitch)


@intrinsic(prefer_literal=True)
def move(typingctx, row, x, target, place, size):
    """``target[place : place + size] = row[x : x + size]`` for a literal size."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointers = _Pointers(context, builder, signature, args)
        values = pointers.load(0, args[1], size.literal_value)
        pointers.store(values, 2, args[3])
        return context.get_dummy_value()

    return types.void(row, types.int64, target, types.int64, size), generate


@intrinsic(prefer_literal=True)
def transpose(typingctx, row, k, pitch, target, place, width, size):
    """``target[place + j * width + i] = row[k + j + i * pitch]``, j < STEP, i < size, a literal."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointers = _Pointers(context, builder, signature, args)
        _, at, pitch, _, place, width, _ = args
        rows = []
        for _ in range(size.literal_value):
            rows.append(pointers.load(0, at, STEP))
            at = builder.add(at, pitch)
        for column in _transposed(builder, rows):
            pointers.store(column, 3, place)
            place = builder.add(place, width)
        return context.get_dummy_value()

    number = types.int64
    return types.void(row, number, number, target, number, number, size), generate


class _Pointers:
    """Vectors at places, counted in elements, of the arrays among an intrinsic's arguments."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any) -> None:
        self.builder = builder
        self.data = {
            position: context.make_array(kind)(context, builder, args[position]).data
            for position, kind in enumerate(signature.args)
            if isinstance(kind, types.Array)
        }

    def _at(self, position: int, place: Any, vector: ir.VectorType) -> Any:
        first = self.builder.gep(self.data[position], [place])
        return self.builder.bitcast(first, vector.as_pointer())

    def load(self, position: int, place: Any, size: int) -> Any:
        scalar = self.data[position].type.pointee
        vector = ir.VectorType(scalar, size)
        return self.builder.load(self._at(position, place, vector), align=_bytes(scalar))

    def store(self, value: Any, position: int, place: Any) -> None:
        self.builder.store(
            value, self._at(position, place, value.type), align=_bytes(value.type.element)
        )


def _bytes(scalar: Any) -> int:
    return 8 if isinstance(scalar, ir.DoubleType) else 4


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """STEP vectors of len(rows) lanes from at most STEP vectors of STEP lanes."""

    def pick(first: Any, second: Any, lanes: list[int]) -> Any:
        kind = ir.VectorType(ir.IntType(32), len(lanes))
        return builder.shuffle_vector(first, second, ir.Constant(kind, lanes))

    size = len(rows)
    half = STEP // 2
    rows = rows + [ir.Constant(rows[0].type, ir.Undefined)] * (STEP - size)
    interleaved = [lane // 2 + STEP * (lane % 2) for lane in range(2 * STEP)]
    for _ in range(STEP.bit_length() - 1):  # each round pairs row i with row i + half
        rows = [
            pick(rows[i], rows[i + half], interleaved[part : part + STEP])
            for i in range(half)
            for part in (0, STEP)
        ]
    return [pick(row, row, list(range(size))) for row in rows]
