"""Convolutions: the first and a middle layer of an image network, 1x1, depthwise."""

from polykern import ops

from .common import BACKENDS, Bench, normal

# x, w, the layout, and what differs from the defaults
LAYERS = {
    "7x7 of 3, stride 2": ((2, 3, 112, 112), (64, 3, 7, 7), "NCHW", {"stride": 2, "padding": 3}),
    "3x3 of 64": ((2, 64, 56, 56), (64, 64, 3, 3), "NCHW", {"padding": 1}),
    "3x3 of 64, channels last": ((2, 64, 56, 56), (64, 64, 3, 3), "NHWC", {"padding": 1}),
    "1x1 of 256": ((2, 256, 14, 14), (256, 256, 1, 1), "NCHW", {}),
    "3x3 depthwise": ((2, 96, 56, 56), (96, 1, 3, 3), "NCHW", {"padding": 1, "groups": 96}),
}


class Conv2d(Bench):
    params = (
        BACKENDS,
        [
            "7x7 of 3, stride 2",
            "3x3 of 64",
            "3x3 of 64, channels last",
            "1x1 of 256",
            "3x3 depthwise",
        ],
    )
    param_names = ("backend", "layer")

    def call(self, layer):
        x, w, layout, options = LAYERS[layer]
        x, w = normal(x, "float32"), normal(w, "float32", 1)
        if layout == "NHWC":
            x, w = (array.transpose(0, 2, 3, 1).copy() for array in (x, w))
        return ops.conv2d, (x, w), {**options, "layout": layout}

    def time_warm(self, *_):
        self.run()

    def track_gflops(self, *_):
        return self.problem.flops / self.best_time() / 1e9

    track_gflops.unit = "GFLOP/s"
