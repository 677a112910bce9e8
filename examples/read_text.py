"""Read a line of text in a photograph: a convolution network, its heavy layers through polykern.

    python examples/read_text.py my_line.png --backend numba

The network is the recogniser of PP-OCRv4: 38 convolutions, two blocks of self-attention and one
distribution over 6625 letters, most of them Chinese, for every 8 columns of pixels. `onnx_graph.py`
walks it; here are the picture before it and the letters after it. The model comes with a package
(15 MB, Apache-2.0), of which only the files are used; nothing is downloaded when the program runs::

    python -m pip install onnx Pillow && \\
    python -m pip install --no-deps --ignore-requires-python rapidocr-onnxruntime==1.4.4

Without a picture it reads `text_line.png`, a part of a photographed page that scikit-image carries
as sample data (`skimage.data.page`; copyright 2009-2022 the scikit-image team, BSD-3-Clause, text
in `text_line.png.license`): 378 by 24 pixels, grey, cut out and otherwise as it was.

Letters in the shapes: ``H W`` pixels, ``T`` steps along the line, ``L`` letters and the blank.
"""

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import polykern
from polykern.errors import BackendNotFoundError, BackendUnavailableError, UnsupportedError

if TYPE_CHECKING:
    from onnx_graph import Graph

INSTALL = (
    "python -m pip install onnx Pillow && "
    "python -m pip install --no-deps --ignore-requires-python rapidocr-onnxruntime==1.4.4"
)
PICTURE = Path(__file__).with_name("text_line.png")
HEIGHT = 48  # of a line, in the pixels that the network was trained with
SHORTEST = 320  # width of the lines that it was trained with; shorter ones were filled up with grey


@dataclass(frozen=True)
class Reader:
    """The network, and the letter that each of its classes stands for; class 0 is the blank."""

    network: "Graph"
    letters: list[str]

    def distributions(self, pixels: np.ndarray) -> np.ndarray:
        """The probability of each letter at each step, (T, L)."""
        (probabilities,) = self.network(pixels)
        return probabilities[0]

    def decode(self, probabilities: np.ndarray) -> tuple[str, float]:
        """The text of (T, L) by the likeliest class of each step; its letters' mean probability.

        As in all connectionist temporal classification, a letter may fill several steps in a row,
        and where the same letter comes twice a blank stands between.
        """
        best = probabilities.argmax(axis=-1)
        starts = (best != 0) & (np.diff(best, prepend=0) != 0)
        text = "".join(self.letters[i] for i in best[starts])
        return text, float(probabilities.max(axis=-1)[starts].mean()) if text else 0.0


def model_path() -> Path:
    """The file of the network. Its package is not imported, since that would import OpenCV."""
    package = metadata.distribution("rapidocr-onnxruntime")
    file = package.locate_file("rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx")
    return Path(str(file))


def load(backend: str | None = None) -> Reader:
    """The reader with the packaged model (float32), on that backend (None: polykern's choice)."""
    from onnx_graph import Graph

    network = Graph(model_path(), backend)
    return Reader(network, ["", *network.metadata["character"].split("\n"), " "])


def picture(path: str | Path) -> np.ndarray:
    """The picture as the network wants it: (1, 3, 48, W), blue first, from -1 to 1."""
    from PIL import Image

    with Image.open(path) as image:
        width = math.ceil(image.width * HEIGHT / image.height)
        scaled = image.convert("RGB").resize((width, HEIGHT), Image.Resampling.BILINEAR)
    rgb = np.asarray(scaled, np.float32) / 255
    pixels = np.zeros((1, 3, HEIGHT, max(width, SHORTEST)), np.float32)
    pixels[0, :, :, :width] = (rgb[:, :, ::-1].transpose(2, 0, 1) - 0.5) / 0.5
    return pixels


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the text of a picture of one line."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("picture", nargs="?", default=PICTURE, help="default: a line that is here")
    parser.add_argument("--backend", help="default: polykern's choice")
    options = parser.parse_args(arguments)
    seconds: list[float] = []
    backends: set[str] = set()
    try:
        reader = load(options.backend)
        pixels = picture(options.picture)
        with polykern.use(trace=lambda report: backends.add(report.plan.backend)):
            for _ in range(2):  # the first pass also pays for compilation
                start = time.perf_counter()
                probabilities = reader.distributions(pixels)
                seconds.append(time.perf_counter() - start)
    except (BackendNotFoundError, BackendUnavailableError, UnsupportedError) as error:
        sys.exit(str(error))
    except ImportError as error:
        sys.exit(f"This example needs a package that is not here ({error}). Install:\n  {INSTALL}")
    except OSError as error:
        sys.exit(f"A file cannot be read ({error}).")

    text, confidence = reader.decode(probabilities)
    print(text)
    print(
        f"\nmean confidence {confidence:.3f}, on {' and '.join(sorted(backends))}: "
        f"{seconds[0]:.3f} s at first, {seconds[1]:.3f} s once compiled"
    )


if __name__ == "__main__":
    main()
