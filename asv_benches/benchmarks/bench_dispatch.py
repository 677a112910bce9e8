"""What polykern itself costs: a call up to the launch, and the plan of a shape not seen before."""

import itertools

import numpy as np

import polykern
from polykern import ops, registry

from .common import BACKENDS, load

_RESULT = np.zeros((1, 1), "float32")


def _build(problem):
    return lambda arrays, scalars, out: _RESULT


# A backend whose kernels do nothing: what a call to it takes is the way to the launch.
BACKEND = registry.Backend(
    name="empty",
    kernels=tuple(
        registry.Kernel(op, "empty", lambda problem: None, _build)
        for op in ("gemm", "conv2d", "softmax", "attention")
    ),
    asarray=np.asarray,
    synchronize=lambda: None,
)
registry.paths()["empty"] = f"{__name__}:BACKEND"

_MATRIX, _IMAGE = np.zeros((2, 2), "float32"), np.zeros((1, 1, 2, 2), "float32")
CALLS = {
    "gemm": (ops.gemm, (_MATRIX, _MATRIX)),
    "gemm with bias": (ops.gemm, (_MATRIX, _MATRIX, _MATRIX[0])),
    "conv2d": (ops.conv2d, (_IMAGE, _IMAGE)),
    "softmax": (ops.softmax, (_MATRIX,)),
    "attention": (ops.attention, (_IMAGE, _IMAGE, _IMAGE)),
}


class Dispatch:
    """From the call to the launch, planned before."""

    params = (["gemm", "gemm with bias", "conv2d", "softmax", "attention"],)
    param_names = ("call",)

    def setup(self, call):
        self.operator, self.args = CALLS[call]
        self.time_call()

    def time_call(self, *_):
        self.operator(*self.args, backend="empty")


class NewShape:
    """The report of a call with a shape that no call had before; nothing is compiled."""

    params = (BACKENDS, ["gemm", "conv2d", "softmax", "attention"])
    param_names = ("backend", "call")
    number, repeat = 20, 5  # each a new shape

    def setup(self, backend, call):
        self.lengths = itertools.count(2)
        self.operator, self.args = CALLS[call]
        load(backend)
        self.time_plan(backend, call)

    def time_plan(self, backend, call):
        # longer along the axis that must not agree with another argument's
        first, *others = self.args
        axis = 2 if call in ("conv2d", "attention") else 0
        shape = list(first.shape)
        shape[axis] = next(self.lengths)
        longer = np.broadcast_to(first[(0,) * first.ndim], shape)
        polykern.plan(self.operator, longer, *others, backend=backend)
