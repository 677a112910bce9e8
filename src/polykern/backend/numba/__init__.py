"""Kernels for CPUs, compiled by Numba: every core, vector registers, packed tiles."""

from __future__ import annotations

import numpy as np

from polykern.backend.numba import (
    attention_flash,
    conv2d_direct,
    conv2d_implicit,
    gemm_packed,
    softmax_rows,
)
from polykern.registry import Backend

BACKEND = Backend(
    name="numba",
    kernels=(
        gemm_packed.KERNEL,
        conv2d_direct.KERNEL,
        conv2d_implicit.KERNEL,
        softmax_rows.KERNEL,
        attention_flash.KERNEL,
    ),
    asarray=np.asarray,
    synchronize=lambda: None,
)
