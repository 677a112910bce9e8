"""The text reader of the examples against ONNX Runtime: the same model, the same picture."""

import importlib
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
import pytest

import polykern

for module in ("onnx", "onnxruntime", "PIL"):
    pytest.importorskip(module)
try:
    metadata.distribution("rapidocr-onnxruntime")
except metadata.PackageNotFoundError:
    pytest.skip("no rapidocr-onnxruntime, which has the model", allow_module_level=True)

TEXT = "Let us first determine markers of the coins and the"
FOLDER = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def read_text() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield importlib.import_module("read_text")


@pytest.fixture(scope="module")
def pixels(read_text: ModuleType) -> np.ndarray:
    return read_text.picture(read_text.PICTURE)


@pytest.fixture(scope="module")
def expected(read_text: ModuleType, pixels: np.ndarray) -> np.ndarray:
    """What ONNX Runtime makes of the picture, (T, L)."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(read_text.model_path(), options)
    return session.run(None, {session.get_inputs()[0].name: pixels})[0][0]


def rounding_bound(reader: Any, probabilities: np.ndarray) -> float:
    """How far the logarithms of the probabilities of two float32 evaluations may be apart.

    Each sum of K products rounds K times, and roundings add up like a random walk: n of them in a
    row, over all layers with weights, give ``sqrt(n) u`` relative to the largest logit. That is
    allowed to each of the two.
    """
    network = reader.network
    weights = [
        network.constants[node.inputs[1]]
        for node in network.nodes
        if node.op_type in ("Conv", "MatMul") and node.inputs[1] in network.constants
    ]
    n = sum(w[0].size if w.ndim == 4 else w.shape[0] for w in weights)
    unit_roundoff = 2.0**-24
    return 2 * np.sqrt(n) * unit_roundoff * np.abs(np.log(probabilities)).max()


@pytest.fixture(params=["numpy", "numba"])
def backend(request: pytest.FixtureRequest) -> str:
    status = polykern.backends()[request.param]
    if not status.usable:
        pytest.skip(status.why)
    return request.param


def test_agrees_with_onnx_runtime(
    backend: str, read_text: ModuleType, pixels: np.ndarray, expected: np.ndarray
) -> None:
    """The same text, and each of the 94 x 6625 probabilities, from 1e-16 to 1, to float32 accuracy.

    The bound is 4.4e-4, relative to each probability. Measured: 5.7e-5 on numpy, 1.4e-4 on numba;
    as an absolute difference 8.1e-6 and 2.8e-5.
    """
    reader = read_text.load(backend)
    probabilities = reader.distributions(pixels)
    text, confidence = reader.decode(probabilities)
    assert text == reader.decode(expected)[0] == TEXT
    assert confidence > 0.9
    np.testing.assert_allclose(
        probabilities, expected, rtol=rounding_bound(reader, expected), atol=0
    )


def test_decode_joins_repeats_that_no_blank_parts(read_text: ModuleType) -> None:
    reader = read_text.Reader(network=None, letters=["", "a", "b"])
    blank, a, b = np.array([[0.6, 0.2, 0.2], [0.1, 0.7, 0.2], [0.0, 0.1, 0.9]])
    text, confidence = reader.decode(np.array([blank, a, a, blank, a, b, b, blank]))
    assert text == "aab"
    assert confidence == pytest.approx((0.7 + 0.7 + 0.9) / 3)
    assert reader.decode(blank[None]) == ("", 0.0)


def test_picture_is_blue_first_and_filled_up_with_grey(
    read_text: ModuleType, tmp_path: Path
) -> None:
    from PIL import Image

    Image.new("RGB", (20, 24), (255, 0, 0)).save(tmp_path / "red.png")
    pixels = read_text.picture(tmp_path / "red.png")
    assert pixels.shape == (1, 3, 48, 320)
    assert pixels.dtype == np.float32
    np.testing.assert_array_equal(pixels[0, :, 7, :40].T, np.tile([-1, -1, 1], (40, 1)))
    assert not pixels[..., 40:].any()


def test_program_prints_the_text(read_text: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    read_text.main(["--backend", "numpy"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == TEXT
    assert re.fullmatch(
        r"mean confidence 0\.9\d\d, on numpy: [\d.]+ s at first, [\d.]+ s once compiled", lines[-1]
    )


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--backend", "nunpy"], "no backend 'nunpy'; did you mean 'numpy'?"),
        (["absent.png"], "A file cannot be read ([Errno 2] No such file"),
        ([__file__], "A file cannot be read (cannot identify image file"),
    ],
)
def test_program_refuses_in_one_line(
    arguments: list[str], message: str, read_text: ModuleType
) -> None:
    with pytest.raises(SystemExit) as stop:
        read_text.main(arguments)
    assert stop.value.code.startswith(message)


@pytest.mark.parametrize("missing", ["onnx", "PIL", "rapidocr-onnxruntime"])
def test_program_says_how_to_install_what_is_missing(
    missing: str, read_text: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(name: str) -> NoReturn:
        raise metadata.PackageNotFoundError(name)

    if missing == "rapidocr-onnxruntime":
        monkeypatch.setattr(metadata, "distribution", find)
    else:
        monkeypatch.setitem(sys.modules, missing, None)
        monkeypatch.delitem(sys.modules, "onnx_graph", raising=False)
    with pytest.raises(SystemExit) as stop:
        read_text.main([])
    assert f"\n  {read_text.INSTALL}" in stop.value.code


def test_walker_names_the_operator_that_it_lacks(read_text: ModuleType, tmp_path: Path) -> None:
    from onnx import TensorProto, helper, save

    graph_module = importlib.import_module("onnx_graph")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Erf", ["x"], ["y"])], "one_node", [x], [y])
    path = tmp_path / "erf.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)]), path)
    with pytest.raises(NotImplementedError, match=r"erf\.onnx: no function for Erf; .*Conv"):
        graph_module.Graph(path)


def test_walker_lets_go_of_each_value_once(read_text: ModuleType) -> None:
    network = read_text.load().network
    made = {*network.inputs, *network.constants, *(node.output for node in network.nodes)}
    released = [name for node in network.nodes for name in node.last_reads]
    assert len(released) == len(set(released))
    assert made - set(released) == set(network.outputs)
