"""The operators."""

from polykern.ops.attention import attention
from polykern.ops.conv2d import conv2d
from polykern.ops.gemm import gemm
from polykern.ops.softmax import softmax

__all__ = ["attention", "conv2d", "gemm", "softmax"]
