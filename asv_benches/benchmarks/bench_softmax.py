"""Softmax: short, middling and long rows, and an axis that is not the last."""

from polykern import ops

from .common import BACKENDS, Bench, normal


class Softmax(Bench):
    params = (
        BACKENDS,
        [
            ((64, 128), -1, "float32"),
            ((4096, 1024), -1, "float32"),
            ((4096, 1024), -1, "bfloat16"),
            ((64, 50257), -1, "float32"),
            ((16, 128, 1024), 1, "float32"),
        ],
    )
    param_names = ("backend", "shape, axis, dtype")

    def call(self, case):
        shape, axis, dtype = case
        return ops.softmax, (normal(shape, dtype), axis), {}

    def time_warm(self, *_):
        self.run()

    def track_gbytes(self, *_):
        return self.problem.nbytes / self.best_time() / 1e9

    track_gbytes.unit = "GB/s"
