"""The first call of a process: loads the backend, and compiles or finds compiled code on disk."""

import os
import subprocess
import sys
import tempfile

from .common import BACKENDS, load

_PROGRAM = """
import sys, time
import numpy as np
from polykern import ops

backend, call = sys.argv[1:]
matrix, image = np.ones((64, 64), "float32"), np.ones((1, 1, 64, 64), "float32")
args = {"gemm": (matrix, matrix), "softmax": (matrix,), "conv2d": (image, image[..., :3, :3]),
        "attention": (image, image, image)}[call]
start = time.perf_counter()
getattr(ops, call)(*args, backend=backend)
print(time.perf_counter() - start)
"""


def first_call(backend, call, folder):
    """Seconds of the first call in a fresh process whose compiled code lives in that folder."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, backend, call],
        env={**os.environ, "POLYKERN_CACHE_DIR": folder},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return float(done.stdout)


class FirstCall:
    params = (BACKENDS, ["gemm", "conv2d", "softmax", "attention"], ["empty", "warm"])
    param_names = ("backend", "call", "cache")

    def setup(self, backend, call, cache):
        kernels = load(backend).kernels
        if not any(kernel.op == call for kernel in kernels):
            raise NotImplementedError(f"{backend} has no {call} kernel")

    def track_seconds(self, backend, call, cache):
        with tempfile.TemporaryDirectory() as folder:
            if cache == "warm":
                first_call(backend, call, folder)
            return first_call(backend, call, folder)

    track_seconds.unit = "s"
