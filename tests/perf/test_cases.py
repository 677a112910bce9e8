import re

import numpy as np
import pytest

from polykern.perf import cases

FORMS = {
    "gemm": "MxNxK[,activation], such as 1024x1024x1024,gelu",
    "conv2d": "NxCxHxW,KxRxS[,stride[,groups]], such as 8x64x56x56,64x3x3",
    "softmax": "RxC[,axis], such as 4096x4096",
    "attention": "BxHxS[/Skv]xD[,causal], such as 1x8x1024x64",
}


@pytest.mark.parametrize(
    "op, shape, inputs, options, result",
    [
        ("gemm", "2x3x4", ((2, 4), (4, 3)), {}, (2, 3)),
        ("gemm", "2X3X4,gelu", ((2, 4), (4, 3), (3,)), {"activation": "gelu"}, (2, 3)),
        ("conv2d", "2x3x8x9,4x3x3", ((2, 3, 8, 9), (4, 3, 3, 3)), {}, (2, 4, 8, 9)),
        ("conv2d", "2x3x8x9,4x3x1,2", ((2, 3, 8, 9), (4, 3, 3, 1)), {"stride": 2}, (2, 4, 4, 5)),
        (
            "conv2d",
            "2x6x8x9,6x3x3,1,6",
            ((2, 6, 8, 9), (6, 1, 3, 3)),
            {"groups": 6},
            (2, 6, 8, 9),
        ),
        ("softmax", "5x7", ((5, 7),), {"axis": 1}, (5, 7)),
        ("softmax", "5x7,0", ((5, 7),), {"axis": 0}, (5, 7)),
        ("attention", "1x2x5x4", ((1, 2, 5, 4),) * 3, {}, (1, 2, 5, 4)),
        (
            "attention",
            "1x2x1/9x4",
            ((1, 2, 1, 4), (1, 2, 9, 4), (1, 2, 9, 4)),
            {},
            (1, 2, 1, 4),
        ),
        ("attention", "1x2x5x4,causal", ((1, 2, 5, 4),) * 3, {"is_causal": True}, (1, 2, 5, 4)),
    ],
)
def test_shapes(op: str, shape: str, inputs: object, options: dict, result: object) -> None:
    case = cases.parse(op, shape)
    assert case.inputs == inputs
    assert options.items() <= case.options.items()
    assert case.problem().results[0] == (result, "float32")


@pytest.mark.parametrize(
    "op, shape",
    [
        ("gemm", ""),
        ("gemm", "12"),
        ("gemm", "2x3"),
        ("gemm", "2x3x4x5"),
        ("gemm", "2x3x-4"),
        ("gemm", "2x3x0"),
        ("gemm", "2x3x4.5"),
        ("gemm", "2x3x4,"),
        ("gemm", "2,3,4"),
        ("gemm", "2x3x4\n"),
        ("conv2d", "2x3x8x9"),
        ("conv2d", "2x3x8,4x3x3"),
        ("conv2d", "2x3x8x9,4x3"),
        ("conv2d", "2x3x8x9,4x3x3,0"),
        ("conv2d", "2x3x8x9,4x3x3,1,1,1"),
        ("softmax", "5"),
        ("softmax", "5x7x9"),
        ("softmax", "5x7,2"),
        ("attention", "1x2x5"),
        ("attention", "1x2x5x4,full"),
        ("attention", "1x2x5/x4"),
        ("attention", "1x2/1x5x4"),
    ],
)
def test_a_bad_shape_is_refused_with_the_form(op: str, shape: str) -> None:
    message = f"--shape {shape} is no shape of {op}; it is {FORMS[op]}"
    with pytest.raises(ValueError, match=rf"^{re.escape(message)}$"):
        cases.parse(op, shape)


def test_what_only_the_operator_knows_is_its_own_error() -> None:
    with pytest.raises(ValueError, match=r"^groups=4; it must divide the 6 channels of x and"):
        cases.parse("conv2d", "2x6x8x9,6x3x3,1,4").problem()
    with pytest.raises(ValueError, match=r"^activation='gelo'; it is None or one of relu,"):
        cases.parse("gemm", "2x3x4,gelo").problem()
    with pytest.raises(TypeError, match=r"^x has dtype int8; softmax takes "):
        cases.parse("softmax", "5x7", "int8").problem()


def test_the_chosen_cases_are_valid_and_of_every_operator() -> None:
    chosen = cases.chosen()
    assert {case.op for case in chosen} == set(cases.OPERATORS)
    assert len(set(map(str, chosen))) == len(chosen)
    for case in chosen:
        assert case.problem().flops > 0


def test_one_dtype_for_all_leaves_each_shape_once() -> None:
    chosen = cases.chosen(("gemm",), "float64")
    assert {case.dtype for case in chosen} == {"float64"}
    assert len({case.shape for case in chosen}) == len(chosen)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8", "uint8"])
def test_inputs_are_random_of_their_dtype_and_the_same_for_a_seed(dtype: str) -> None:
    case = cases.parse("gemm", "4x5x6", dtype)
    first, second, other = case.arrays(1), case.arrays(1), case.arrays(2)
    assert [x.dtype.name for x in first] == [dtype, dtype]
    assert all(np.array_equal(x, y) for x, y in zip(first, second, strict=True))
    assert not all(np.array_equal(x, y) for x, y in zip(first, other, strict=True))


@pytest.mark.parametrize(
    "op, shape",
    [
        ("gemm", "12x5x6"),
        ("gemm", "12x5x6,relu"),
        ("conv2d", "12x4x5x6,8x3x3,2,2"),
        ("softmax", "12x5"),
        ("softmax", "5x12,0"),
        ("attention", "1x12x5x4,causal"),
        ("attention", "1x12x3/7x4,causal"),
    ],
)
def test_a_sample_gives_that_part_of_the_result(
    monkeypatch: pytest.MonkeyPatch, op: str, shape: str
) -> None:
    case = cases.parse(op, shape, "float64")
    entries = int(np.prod(case.problem().results[0][0]))
    monkeypatch.setattr(cases, "_CHECKED_ENTRIES", entries // 3)
    arrays = case.arrays(0)
    sampled, chosen = case.sample(arrays, 0)
    assert len(chosen) == 4
    part = case.function(*sampled, **case.options, backend="numpy")
    whole = case.function(*arrays, **case.options, backend="numpy")
    expected = np.take(whole, chosen, case.result_cut)
    np.testing.assert_allclose(part, expected, rtol=1e-12, atol=1e-12)
