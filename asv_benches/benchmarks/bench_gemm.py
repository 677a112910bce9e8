"""Matrix products: square, one row, ragged; the types of each arithmetic; a fused epilogue."""

from polykern import ops

from .common import BACKENDS, Bench, normal


class Gemm(Bench):
    params = (
        BACKENDS,
        [
            ((1024, 1024, 1024), "float32"),
            ((1024, 1024, 1024), "bfloat16"),
            ((512, 512, 512), "float64"),
            ((512, 512, 512), "int8"),
            ((1, 4096, 4096), "float32"),
            ((1000, 37, 513), "float32"),
        ],
    )
    param_names = ("backend", "(M, N, K), dtype")

    def call(self, case):
        (M, N, K), dtype = case
        return ops.gemm, (normal((M, K), dtype), normal((K, N), dtype, 1)), {}

    def time_warm(self, *_):
        self.run()

    def track_gflops(self, *_):
        return self.problem.flops / self.best_time() / 1e9

    track_gflops.unit = "GFLOP/s"


class GemmBiasGelu(Gemm):
    params = (BACKENDS, [((4096, 256, 1024), "float32")])

    def call(self, case):
        operator, operands, _ = super().call(case)
        N = case[0][1]
        return operator, (*operands, normal((N,), "float32", 2)), {"activation": "gelu"}
