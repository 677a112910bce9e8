"""Attention: full and causal, with shared key heads, with a window, and one query of a decoder."""

from polykern import ops

from .common import BACKENDS, Bench, normal

# (Hq, Hkv, Sq, Skv, D), the dtype, and what differs from the defaults
CASES = {
    "full": ((8, 8, 512, 512, 64), "float32", {}),
    "causal": ((8, 8, 512, 512, 64), "float32", {"is_causal": True}),
    "causal, bfloat16": ((8, 8, 512, 512, 64), "bfloat16", {"is_causal": True}),
    "4 queries a key head": ((8, 2, 512, 512, 64), "float32", {"is_causal": True}),
    "window of 128": ((8, 8, 512, 512, 64), "float32", {"is_causal": True, "window": (127, 0)}),
    "decode": ((8, 8, 1, 8192, 64), "float32", {}),
}


class Attention(Bench):
    params = (
        BACKENDS,
        ["full", "causal", "causal, bfloat16", "4 queries a key head", "window of 128", "decode"],
    )
    param_names = ("backend", "case")

    def call(self, case):
        (Hq, Hkv, Sq, Skv, D), dtype, options = CASES[case]
        q = normal((1, Hq, Sq, D), dtype)
        k, v = (normal((1, Hkv, Skv, D), dtype, seed) for seed in (1, 2))
        return ops.attention, (q, k, v), dict(options)

    def time_warm(self, *_):
        self.run()

    def track_gflops(self, *_):
        return self.problem.flops / self.best_time() / 1e9

    track_gflops.unit = "GFLOP/s"
