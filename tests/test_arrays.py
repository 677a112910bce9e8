"""The door for arrays: in from any library, back to it, what is copied, what `out` may be."""

from __future__ import annotations

import array
import sys
from typing import Any

import numpy as np
import pytest

import polykern
from polykern import arrays, ops, registry, testing
from polykern.errors import BackendUnavailableError

A = np.arange(-6, 6, dtype="f4").reshape(3, 4)
B = np.arange(8, dtype="f4").reshape(4, 2)
PRODUCT = A.astype("f8") @ B.astype("f8")


def usable() -> list[Any]:
    found = []
    for name in (name for name, path in registry.paths().items() if path.startswith("polykern.")):
        try:
            registry.load(name)
        except BackendUnavailableError as error:
            found.append(pytest.param(name, marks=pytest.mark.skip(reason=str(error))))
        else:
            found.append(name)
    return found


every_backend = pytest.mark.parametrize("backend", usable())


@pytest.fixture(scope="module")
def jax() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "cpu")
        return pytest.importorskip("jax", reason="JAX is not installed")


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch is not installed")


class OnlyDLPack:
    """An array of a library that nobody has heard of."""

    def __init__(self, x: np.ndarray[Any, Any]) -> None:
        self.x = x

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.x.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


@every_backend
def test_jax_arrays(jax: Any, backend: str) -> None:
    """They are read-only for others."""
    a, b, c = (jax.numpy.asarray(x) for x in (A, B, B[0]))
    result = ops.gemm(a, b, c, backend=backend)
    assert isinstance(result, jax.Array)
    assert result.dtype == "float32"
    assert np.array_equal(result, PRODUCT + B[0])
    shares = polykern.plan(ops.gemm, a, b, backend=backend).arrays
    assert np.may_share_memory(shares[0], np.asarray(a))


@every_backend
def test_jax_bfloat16(jax: Any, backend: str) -> None:
    x = jax.numpy.ones((3, 300), "bfloat16")
    result = ops.gemm(x, x.T, backend=backend)
    assert isinstance(result, jax.Array)
    assert result.dtype == "bfloat16"
    assert np.all(np.asarray(result, "f4") == 300)


def test_jax_keeps_float64_or_refuses(jax: Any) -> None:
    before = jax.numpy.ones(1).dtype
    x = jax.numpy.ones((2, 2), "float32")
    with pytest.raises(TypeError, match="jax_enable_x64"):
        ops.gemm(x, x, out_dtype="float64", backend="numpy")
    assert jax.numpy.ones(1).dtype == before


@every_backend
def test_torch_tensors(torch: Any, backend: str) -> None:
    a, b = torch.from_dlpack(A), torch.from_dlpack(B).T.contiguous().T
    result = ops.gemm(a, b, backend=backend)
    assert isinstance(result, torch.Tensor)
    assert result.dtype == torch.float32
    assert np.array_equal(result.numpy(), PRODUCT)
    out = torch.empty(3, 2)
    assert ops.gemm(a, b, out=out, backend=backend) is out
    assert np.array_equal(out.numpy(), PRODUCT)
    value, lse = ops.attention(*[torch.ones(1, 2, 3, 4)] * 3, return_lse=True, backend=backend)
    assert isinstance(value, torch.Tensor)
    assert isinstance(lse, torch.Tensor)


def test_the_first_array_decides_the_library(torch: Any) -> None:
    tensor = torch.from_dlpack(B)
    assert type(ops.gemm(A, tensor, backend="numpy")) is np.ndarray
    assert isinstance(ops.gemm(tensor.T, A.T, backend="numpy"), torch.Tensor)


@every_backend
def test_arrays_with_nothing_but_dlpack(backend: str) -> None:
    result = ops.gemm(OnlyDLPack(A), OnlyDLPack(B), backend=backend)
    assert np.array_equal(result, PRODUCT)
    seen = polykern.plan(ops.gemm, OnlyDLPack(A), B).arrays[0]
    assert np.may_share_memory(seen, A)


@every_backend
def test_nested_lists(backend: str) -> None:
    result = ops.gemm([[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]], backend=backend)
    assert type(result) is np.ndarray
    assert result.tolist() == [[19, 22], [43, 50]]
    assert ops.softmax([0.0, 0.0], backend=backend).tolist() == [0.5, 0.5]


@every_backend
def test_buffers(backend: str) -> None:
    row = array.array("f", [1, 2, 3])
    assert ops.gemm(row, memoryview(row), backend=backend) == 14
    assert ops.softmax(memoryview(np.zeros((2, 2))), backend=backend).tolist() == [[0.5, 0.5]] * 2


def test_python_scalars_are_weak() -> None:
    for dtype in ("f2", "f4", "f8"):
        a = np.ones((2, 2), dtype)
        for c in (1, 0.5):
            result = ops.gemm(a, a, c, a_scale=2, backend="numpy")
            assert result.dtype == dtype
            assert np.all(result == 4 + c)
    assert ops.gemm(np.ones((2, 2), "f4"), B[:2], np.float64(1), backend="numpy").dtype == "f8"
    whole = np.ones((2, 2), "i1")
    assert ops.gemm(whole, whole, 3, backend="numpy").dtype == "int32"
    scaled = ops.gemm(whole, whole, 0.5, a_scale=2, backend="numpy")
    assert (scaled.dtype, scaled[0, 0]) == ("float32", 4.5)


def test_subclasses_of_ndarray_become_arrays() -> None:
    class Sub(np.ndarray[Any, Any]):
        def __array_finalize__(self, *_: Any) -> None: ...

    result = ops.gemm(A.view(Sub), B, backend="numpy")
    assert type(result) is np.ndarray
    assert np.array_equal(result, PRODUCT)


def test_only_what_must_be_copied_is() -> None:
    for name, layout in testing.layout.LAYOUTS.items():
        report = polykern.plan(ops.gemm, layout(A), layout(B), backend="numpy")
        reason = {"unaligned": "unaligned", "field": "unaligned", "swapped-bytes": "byte order"}
        copies = [("a", 48, reason[name]), ("b", 32, reason[name])] if name in reason else []
        assert list(report.copies) == copies, name
        for x in report.arrays[:2]:
            assert x.dtype.isnative
            assert x.flags.aligned


def test_small_arrays_copied_for_alignment_keep_their_dtype() -> None:
    for dtype in ("i1", "?", ">f2", ">i8"):
        x = np.zeros(3, dtype)
        assert arrays.into(x).dtype == np.dtype(dtype).newbyteorder("=")


@pytest.mark.parametrize("op", ["gemm", "conv2d", "softmax", "attention"])
@every_backend
def test_every_operator_takes_lists_and_gives_numpy(op: str, backend: str) -> None:
    x = [[[[0.0, 1.0], [1.0, 0.0]]]]
    args = {"softmax": (x,), "attention": (x, x, x)}.get(op, (x, x))
    result = getattr(ops, op)(*args, backend=backend)
    assert type(result) is np.ndarray
    assert result.dtype == "float64"


class OnGpu:
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {}


def test_what_is_no_array_is_refused() -> None:
    for bad, why in (
        (np.ma.masked_array(A), "a is a masked array, whose mask would be lost; fill it first"),
        (OnGpu(), "a lives on a GPU; no backend here takes GPU arrays"),
        ([[1.0], [1.0, 2.0]], "a is no array: setting an array element with a sequence"),
    ):
        with pytest.raises(TypeError) as caught:
            ops.gemm(bad, B)
        assert str(caught.value).startswith(why)


def out_like(shape: tuple[int, ...], **kwargs: Any) -> np.ndarray[Any, Any]:
    return np.full(shape, 7, "f4", **kwargs)


@every_backend
def test_out_of_any_layout(backend: str) -> None:
    expected = ops.gemm(A, B, backend=backend)
    wide = out_like((6, 8))
    for out in (out_like((3, 2)), out_like((3, 2), order="F"), wide[::-2, 1::4], wide[:2, :3].T):
        assert ops.gemm(A, B, out=out, backend=backend) is out
        assert np.array_equal(out, expected)
    assert np.all(wide[::-2, ::4][0] == 7)


def test_out_that_overlaps_an_input() -> None:
    memory = out_like((10, 10))
    square = memory[:4, :4]
    for out, args, name in (
        (square, (square, square.copy()), "a"),
        (square, (square.copy(), square), "b"),
        (memory[1:5, :4], (square, square.copy()), "a"),
        (square.T, (np.eye(4, dtype="f4"), np.eye(4, dtype="f4"), square), "c"),
        (memory[:4, 1:5], (np.eye(4, dtype="f4"), np.eye(4, dtype="f4"), square), "c"),
    ):
        before = memory.copy()
        with pytest.raises(ValueError, match=f"out overlaps {name}; give an array of its own"):
            ops.gemm(*args, out=out)
        assert np.array_equal(memory, before)


def test_out_between_the_elements_of_an_input() -> None:
    """Interleaved memory does not overlap."""
    memory = np.ones((4, 8), "f4")
    ops.gemm(memory[:, ::2], np.eye(4, dtype="f4"), out=memory[:, 1::2], backend="numpy")
    assert np.array_equal(memory, np.ones((4, 8)))


def test_out_in_place_where_elements_are_read_before_they_are_written() -> None:
    x = np.random.default_rng(0).standard_normal((40, 50)).astype("f4")
    expected = ops.softmax(x)
    with pytest.raises(ValueError, match="out overlaps x"):
        ops.softmax(x[:, :40], out=x[:, :40].T)
    assert ops.softmax(x, out=x) is x
    assert np.array_equal(x, expected)
    q = np.ones((1, 1, 4, 4), "f4")
    with pytest.raises(ValueError, match="out overlaps q"):
        ops.attention(q, q.copy(), q.copy(), out=q)


def test_overlap_that_is_too_hard_to_rule_out_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_hard(*_: Any, **__: Any) -> bool:
        raise np.exceptions.TooHardError

    monkeypatch.setattr(np, "shares_memory", too_hard)
    memory = np.ones((4, 8), "f4")
    with pytest.raises(ValueError, match="out overlaps x"):
        ops.softmax(memory[:, ::2], out=memory[:, 1::2])


@every_backend
def test_inputs_survive_a_failing_call(backend: str) -> None:
    a, out = A.copy(), out_like((3, 3))
    with pytest.raises(ValueError, match="out has shape"):
        ops.gemm(a, B, out=out, backend=backend)
    assert np.array_equal(a, A)
    assert np.all(out == 7)


def test_result_goes_back_to_its_library_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A type of an unknown library gets NumPy's arrays; none is imported for it."""
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert type(ops.softmax(OnlyDLPack(A), backend="numpy")) is np.ndarray
    assert arrays.back(A, A) is A
