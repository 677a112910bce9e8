"""Vectors as values of compiled code: as wide as a register tile, written with ``+ - * /``.

LLVM vectorises plain loops too, but first checks at run time that the arrays do not overlap, and
it keeps no sums in registers across an outer loop. With vectors both are said and not hoped for::

    most = spread(least)
    for line in range(lines):
        most = where_greater(load(x, at), most, load(x, at), most)

The functions here take a number in place of any vector. Places in arrays are counted in elements
from the first one, whatever the strides. Rows and starts need no alignment beyond the element's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

from polykern.backend.numba.simd import columns

READ, WRITE = 0, 1


class Vector(types.Type):  # type: ignore[misc]
    """As many numbers as a register tile has columns."""

    def __init__(self, dtype: types.Type) -> None:
        self.dtype = dtype
        self.lanes = columns(str(dtype))
        super().__init__(f"Vector({dtype} x {self.lanes})")


@register_model(Vector)
class _Model(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Vector) -> None:
        scalar = manager.lookup(kind.dtype).get_value_type()
        super().__init__(manager, kind, ir.VectorType(scalar, kind.lanes))


class _Lowering:
    """The arguments of an intrinsic, each as a value of the common kind."""

    def __init__(self, kind: types.Type, context: Any, builder: Any, signature: Any) -> None:
        self.kind, self.context, self.builder = kind, context, builder
        self.given = signature.args

    def common(self, position: int, value: Any) -> Any:
        """A number becomes a vector of itself, if the kind is a vector."""
        given = self.given[position]
        if given == self.kind:
            return value
        scalar = self.kind.dtype if isinstance(self.kind, Vector) else self.kind
        value = self.context.cast(self.builder, value, given, scalar)
        return self.spread(value) if isinstance(self.kind, Vector) else value

    def spread(self, value: Any) -> Any:
        lanes = self.kind.lanes
        undefined = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
        first = self.builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), lanes), None)
        return self.builder.shuffle_vector(first, undefined, zeros)

    def place(self, position: int, array: Any, start: Any) -> Any:
        """The pointer to a vector in an array."""
        kind = self.given[position]
        data = self.context.make_array(kind)(self.context, self.builder, array).data
        lanes = columns(str(kind.dtype)) if self.kind is types.void else self.kind.lanes
        vector = ir.VectorType(data.type.pointee, lanes)
        return self.builder.bitcast(self.builder.gep(data, [start]), vector.as_pointer())

    def masked(self, name: str, operands: list[Any], count: Any, *rest: Any) -> Any:
        """A load or store of the first `count` lanes."""
        lanes, index = self.kind.lanes, ir.IntType(64)
        numbers = ir.Constant(ir.VectorType(index, lanes), list(range(lanes)))
        mask = self.builder.icmp_signed("<", numbers, self.spread(count))
        align = ir.Constant(ir.IntType(32), self.kind.dtype.bitwidth // 8)
        values = [*operands, align, mask, *rest]
        result = rest[0].type if rest else ir.VoidType()
        function = cgutils.get_or_insert_function(
            self.builder.module,
            ir.FunctionType(result, [value.type for value in values]),
            f"llvm.masked.{name}.v{lanes}f{self.kind.dtype.bitwidth}.p0",
        )
        return self.builder.call(function, values)


def common_kind(*given: types.Type) -> types.Type:
    """The first vector among the types, else the first type."""
    return next((kind for kind in given if isinstance(kind, Vector)), given[0])


def _binary(symbol: Callable[[Any, Any], Any], instruction: str) -> None:
    @intrinsic
    def operation(typingctx, a, b):
        kind = common_kind(a, b)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            lowering = _Lowering(kind, context, builder, signature)
            values = [lowering.common(*pair) for pair in enumerate(args)]
            return getattr(builder, instruction)(*values)

        return kind(a, b), generate

    @overload(symbol)
    def choose(a, b):
        if isinstance(common_kind(a, b), Vector):
            return lambda a, b: operation(a, b)
        return None


_binary(operator.add, "fadd")
_binary(operator.sub, "fsub")
_binary(operator.mul, "fmul")
_binary(operator.truediv, "fdiv")


@intrinsic
def multiply_add(typingctx, x, y, z):
    """``x * y + z``; of floats with one rounding where the processor has it."""
    kind = common_kind(x, y, z)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lowering = _Lowering(kind, context, builder, signature)
        values = [lowering.common(*pair) for pair in enumerate(args)]
        number = values[0].type
        scalar = kind.dtype if isinstance(kind, Vector) else kind
        if isinstance(scalar, types.Integer):
            return builder.add(builder.mul(values[0], values[1]), values[2])
        bits = scalar.bitwidth
        suffix = f"v{kind.lanes}f{bits}" if isinstance(kind, Vector) else f"f{bits}"
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(number, [number] * 3), f"llvm.fmuladd.{suffix}"
        )
        return builder.call(function, values)

    return kind(x, y, z), generate


@intrinsic
def where_greater(typingctx, a, b, then, otherwise):
    """`then` where ``a > b``, else `otherwise`: also where a or b is NaN."""
    kind = common_kind(a, b, then, otherwise)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lowering = _Lowering(kind, context, builder, signature)
        a, b, then, otherwise = (lowering.common(*pair) for pair in enumerate(args))
        return builder.select(builder.fcmp_ordered(">", a, b), then, otherwise)

    return kind(a, b, then, otherwise), generate


@intrinsic
def where_set(typingctx, flags, start, then, otherwise):
    """`then` where the bool in the array is set, else `otherwise`; one of them is a vector."""
    kind = common_kind(then, otherwise)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lowering = _Lowering(kind, context, builder, signature)
        bits = builder.load(lowering.place(0, args[0], args[1]), align=1)
        is_set = builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, None))
        return builder.select(is_set, lowering.common(2, args[2]), lowering.common(3, args[3]))

    return kind(flags, types.int64, then, otherwise), generate


@intrinsic
def load(typingctx, array, start):
    """The vector at that place of the array."""
    kind = Vector(array.dtype)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _Lowering(kind, context, builder, signature).place(0, *args)
        return builder.load(place, align=kind.dtype.bitwidth // 8)

    return kind(array, types.int64), generate


@intrinsic
def store(typingctx, value, array, start):
    """Put the vector at that place of the array."""
    kind = Vector(array.dtype)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lowering = _Lowering(kind, context, builder, signature)
        place = lowering.place(1, args[1], args[2])
        builder.store(lowering.common(0, args[0]), place, align=kind.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(value, array, types.int64), generate


@intrinsic
def load_first(typingctx, array, start, count, otherwise):
    """The vector at that place: its first `count` numbers, and `otherwise` in the other lanes."""
    kind = Vector(array.dtype)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lowering = _Lowering(kind, context, builder, signature)
        place, rest = lowering.place(0, args[0], args[1]), lowering.common(3, args[3])
        return lowering.masked("load", [place], args[2], rest)

    return kind(array, types.int64, types.int64, otherwise), generate


@intrinsic
def store_first(typingctx, value, array, start, count):
    """Put the first `count` numbers of the vector at that place of the array."""
    kind = Vector(array.dtype)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lowering = _Lowering(kind, context, builder, signature)
        place = lowering.place(1, args[1], args[2])
        lowering.masked("store", [lowering.common(0, args[0]), place], args[3])
        return context.get_dummy_value()

    return types.void(value, array, types.int64, types.int64), generate


@intrinsic(prefer_literal=True)
def prefetch(typingctx, array, start, purpose):
    """Ask for the cache line of that place, which may lie outside the array; READ or WRITE it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(array)(context, builder, args[0]).data
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        ask = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag]),
            "llvm.prefetch.p0",
        )
        place = builder.bitcast(builder.gep(data, [args[1]]), byte)
        choices = (purpose.literal_value, 3, 1)  # read or write, into every cache, data
        builder.call(ask, [place, *(ir.Constant(flag, choice) for choice in choices)])
        return context.get_dummy_value()

    return types.void(array, types.int64, purpose), generate


@intrinsic
def spread(typingctx, number):
    """The vector that holds the number in every lane."""
    kind = Vector(number)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _Lowering(kind, context, builder, signature).common(0, args[0])

    return kind(number), generate


@intrinsic
def highest(typingctx, vector):
    """The largest number of the vector, which holds no NaN."""

    def larger(builder: Any, a: Any, b: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", a, b), a, b)

    return vector.dtype(vector), _folding(larger)


@intrinsic
def total(typingctx, vector):
    """The sum of the numbers of the vector."""
    return vector.dtype(vector), _folding(lambda builder, a, b: builder.fadd(a, b))


def _folding(combine: Callable[[Any, Any, Any], Any]) -> Callable[..., Any]:
    """Halves are combined until one number is left."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (value,) = args
        index = ir.IntType(32)
        while (half := value.type.count // 2) >= 1:
            parts = [
                builder.shuffle_vector(
                    value,
                    ir.Constant(value.type, ir.Undefined),
                    ir.Constant(ir.VectorType(index, half), list(range(first, first + half))),
                )
                for first in (0, half)
            ]
            value = combine(builder, *parts)
        return builder.extract_element(value, ir.Constant(index, 0))

    return generate
