"""polykern: gemm, conv2d, softmax and attention, with one meaning on several JIT backends."""

from polykern import ops
from polykern.dispatch import report as plan
from polykern.dispatch import use
from polykern.doctor import backends

__all__ = ["backends", "ops", "plan", "use"]
__version__ = "0.1.0"
