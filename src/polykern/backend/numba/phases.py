"""Zero-padded pieces of images, split by stride, in which each tap of a filter is a plain offset.

Of a tile of result pixels (`lines` rows, counted on through all images, by `width` columns), the
pixels of x that its filters see are copied, with the padding as zeros. A stride of s reads every
s-th pixel, so the copy holds an image for each residue ("phase") of rows and of columns that the
taps need. Copied pixel [image, channel, phase h, phase w, i, j] is that of the first result pixel
plus (i, j) strides; result pixel (p, q) meets tap (r, s) at a distance that is the same for all
pixels, and neighbours in q are neighbours in memory whatever the stride.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types

from polykern.backend.numba import jit
from polykern.backend.numba.pack import GROUP, STEP, transpose
from polykern.backend.numba.rows import copy, line_from, row_from
from polykern.ops.conv2d import Conv2d

Array = np.ndarray[Any, Any]


class Phases(NamedTuple):
    """The layout of the copies for tiles of one size."""

    lines: int
    width: int
    images: int  # that a tile can touch
    height: int  # rows of a phase image
    row: int  # columns of a phase image
    plane: int  # the distance of two channels
    stride_h: int
    stride_w: int
    top: int
    left: int
    residues_h: Array  # one a phase of rows
    residues_w: Array
    taps: Array  # the distance of each in a copied channel


_INDICES = types.Array(types.int64, 1, "C")
PHASES = types.NamedTuple([types.int64] * 10 + [_INDICES] * 3, Phases)


def plan(problem: Conv2d, lines: int, width: int) -> Phases:
    """The layout for tiles of that many lines and columns of the result."""
    P = problem.result[2]
    residues_h, phase_h, down = _split(problem, 0)
    residues_w, phase_w, across = _split(problem, 1)
    height, row = min(lines, P) + int(down.max()), width + int(across.max())
    image = phase_h[:, None] * residues_w.size + phase_w
    return Phases(
        lines=lines,
        width=width,
        images=-(-(lines - 1) // P) + 1,
        height=height,
        row=row,
        plane=residues_h.size * residues_w.size * height * row,
        stride_h=problem.stride[0],
        stride_w=problem.stride[1],
        top=problem.padding[0][0],
        left=problem.padding[1][0],
        residues_h=residues_h,
        residues_w=residues_w,
        taps=((image * height + down[:, None]) * row + across).ravel(),
    )


def _split(problem: Conv2d, axis: int) -> tuple[Array, Array, Array]:
    """The residues that taps have along an axis; of each tap the residue's index and quotient."""
    at = np.arange(problem.filters[2 + axis]) * problem.dilation[axis]
    residues, which = np.unique(at % problem.stride[axis], return_inverse=True)
    return residues, which, at // problem.stride[axis]


@jit.device
def copy_phases(x, first_line, lines, P, first_q, channel, channels, phases, copied):
    """Fill `copied` for the tile of that many lines, from a range of channels of x."""
    H, W = x.shape[2], x.shape[3]
    distance = phases.plane
    together = x.strides[1] == x.itemsize and channels >= STEP  # the channels, as in NHWC
    reach = phases.height - min(phases.lines, P)
    n, p, place = first_line // P, first_line % P, 0
    while lines > 0:
        rows = min(lines, P - p) + reach
        for phase_h in range(phases.residues_h.size):
            h = p * phases.stride_h + phases.residues_h[phase_h] - phases.top
            i0, i1 = inside(h, phases.stride_h, rows, H)
            for phase_w in range(phases.residues_w.size):
                w = first_q * phases.stride_w + phases.residues_w[phase_w] - phases.left
                j0, j1 = inside(w, phases.stride_w, phases.row, W)
                at = (
                    place
                    + (phase_h * phases.residues_w.size + phase_w) * phases.height * phases.row
                )
                if i1 - i0 < rows or j1 - j0 < phases.row:
                    for c in range(channels):
                        image = row_from(copied, (at + c * distance,), rows * phases.row)
                        for i in range(image.size):
                            image[i] = 0
                done = 0
                if together:
                    done = channels // STEP * STEP
                    _copy_together(
                        x, n, channel, done, h, w, phases, copied, at, distance, i0, i1, j0, j1
                    )
                for c in range(done, channels):
                    _copy_image(
                        x, n, channel + c, h, w, phases, copied, at + c * distance, i0, i1, j0, j1
                    )
        lines -= P - p
        n, p, place = n + 1, 0, place + channels * distance


@jit.device
def inside(first, step, count, length):
    """The range of i < count for which ``0 <= first + i * step < length``."""
    start = min(max(0, (step - 1 - first) // step), count)
    return start, max(start, min(count, (length - first + step - 1) // step))


@jit.device
def _copy_image(x, n, c, h, w, phases, copied, at, i0, i1, j0, j1):
    """One channel of one phase."""
    count, step = j1 - j0, phases.stride_w
    if count == 0:
        return
    for i in range(i0, i1):
        place = at + i * phases.row + j0
        line = line_from(x, (n, c, h + i * phases.stride_h, w + j0 * step), count)
        if x.strides[3] == x.itemsize and step == 1:
            source = row_from(line, (0,), count)
            copy(row_from(copied, (place,), count), source)
        else:
            for j in range(count):
                copied[place + j] = line[j * step]


@jit.device
def _copy_together(x, n, channel, channels, h, w, phases, copied, at, distance, i0, i1, j0, j1):
    """One phase of several channels that lie together in x; their number is a multiple of STEP."""
    step = phases.stride_w
    pitch = x.strides[3] // x.itemsize * step
    grouped = j0 + (j1 - j0) // GROUP * GROUP
    for i in range(i0, i1):
        index = h + i * phases.stride_h
        place = at + i * phases.row
        for j in range(j0, grouped, GROUP):
            pixel = row_from(x, (n, channel, index, w + j * step), channels)
            for c in range(0, channels, STEP):
                transpose(pixel, c, pitch, copied, place + c * distance + j, distance, GROUP)
        for j in range(grouped, j1):
            pixel = row_from(x, (n, channel, index, w + j * step), channels)
            for c in range(channels):
                copied[place + c * distance + j] = pixel[c]
