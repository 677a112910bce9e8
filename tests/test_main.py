"""The command line, as a user calls it."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import polykern
from polykern import __main__, doctor, registry
from polykern.perf import ceilings, clock
from polykern.perf.ceilings import Ceilings

TINY = {
    "gemm": "8x9x10,gelu",
    "conv2d": "2x3x8x9,4x3x3,2",
    "softmax": "5x7",
    "attention": "1x2x5x4,causal",
}
PEAKS = Ceilings({"float32": 1e9, "float64": 1e9, "int8": 1e9}, {"float32": "a guess"}, 1e9, 1)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time is spent on precision."""
    monkeypatch.setattr(clock, "BUDGET_S", 0.0)
    monkeypatch.setattr(clock, "PAUSE_S", 0.0)
    monkeypatch.setattr(ceilings, "measure", lambda: PEAKS)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("op, shape", TINY.items())
def test_compare_on_every_usable_backend(
    capsys: pytest.CaptureFixture[str], op: str, shape: str
) -> None:
    code = __main__.main(["compare", "--op", op, "--shape", shape, "--json"])
    out = capsys.readouterr().out
    assert code == 0, out
    content = json.loads(out)
    usable = [name for name, status in polykern.backends().items() if status.usable]
    assert [row["backend"] for row in content["rows"]] == usable
    assert {row["status"] for row in content["rows"]} <= {"ok", "refused"}
    assert content["rows"][0]["status"] == "ok"


@pytest.mark.usefixtures("quick")
def test_the_table_is_on_stdout_and_the_progress_on_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = __main__.main(
        ["compare", "--op=softmax", "--shape=5x7", "--shape=6x8", "--backend=numpy", "--seed=5"]
    )
    out, err = capsys.readouterr()
    assert code == 0
    assert "--seed 5\n" in out
    assert "softmax   5x7                     float32\n  numpy/reference" in out
    assert err.splitlines() == [
        "1/5 importing the backends",
        "2/5 peaks of the machine",
        "3/5 softmax 5x7 float32",
        "4/5 softmax 6x8 float32",
        "5/5 peaks again",
    ]


@pytest.mark.usefixtures("quick")
def test_csv(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "compare --op softmax --shape 5x7 --backend numpy --dtype float16,float64 --csv"
    assert __main__.main(arguments.split()) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["dtype"] for row in rows] == ["float16", "float64"]


@pytest.mark.usefixtures("quick")
def test_a_wrong_row_is_marked_and_the_exit_code_is_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    numpy = registry.load("numpy")
    kernel = numpy.kernels[0]

    def build(problem: Any) -> registry.Launch:
        launch = kernel.build(problem)
        return lambda arrays, scalars, out: launch(arrays, scalars, out) * 1.01

    kernels = (registry.Kernel("gemm", "hasty", lambda problem: None, build),)
    wrong = registry.Backend("wrong", kernels, numpy.asarray, numpy.synchronize)
    load = registry.load
    monkeypatch.setattr(registry, "load", lambda name: wrong if name == "wrong" else load(name))
    monkeypatch.setattr(registry, "paths", lambda: {"numpy": "polykern.x", "wrong": "another:x"})
    assert __main__.main(["compare", "--op", "gemm", "--shape", "4x5x6"]) == 1
    out = capsys.readouterr().out
    assert "  numpy/reference" in out
    assert "  wrong/hasty" in out
    assert "    WRONG: its error is " in out


@pytest.mark.usefixtures("quick")
def test_operators_that_do_not_take_a_dtype_are_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = (("gemm", "4x5x6", "float32"), ("softmax", "5x7", "float32"))
    monkeypatch.setattr("polykern.perf.cases._CHOSEN", chosen)
    assert __main__.main(["compare", "--dtype", "int8", "--backend", "numpy"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "gemm 4x5x6 int8 numpy/reference" in words
    assert "left out softmax 5x7 int8: x has dtype int8; softmax takes float64, " in words


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("compare --op gem", "argument --op: no operator 'gem'; did you mean gemm?"),
        (
            "compare --op fft",
            "argument --op: no operator 'fft'; there are: gemm, conv2d, softmax, attention",
        ),
        ("compare --dtype float23", "argument --dtype: no dtype 'float23'; did you mean float32?"),
        ("compare --shape 4x5x6", "--shape needs one operator; add --op NAME"),
        ("compare --op gemm,conv2d --shape 4x5x6", "--shape needs one operator; add --op NAME"),
        (
            "compare --op gemm --shape 4x5",
            "--shape 4x5 is no shape of gemm; it is MxNxK[,activation], such as "
            "1024x1024x1024,gelu",
        ),
        (
            "compare --op gemm --shape 4x5x6,gelo",
            "gemm 4x5x6,gelo float32: activation='gelo'; it is None or one of relu, gelu, "
            "gelu_tanh, silu, sigmoid, tanh",
        ),
        (
            "compare --op softmax --dtype int8",
            "softmax 4096x4096 int8: x has dtype int8; softmax takes float64, float32, float16, "
            "bfloat16",
        ),
        (
            "compare --backend nunba",
            "argument --backend: no backend 'nunba'; did you mean 'numba'?",
        ),
        (
            "compare --backend auto",
            "argument --backend: auto only chooses a backend; name what to compare",
        ),
        ("compare --seed -1", "--seed -1; it is a whole number from 0"),
        ("compare --json --csv", "argument --csv: not allowed with argument --json"),
    ],
)
def test_bad_options_get_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    with pytest.raises(SystemExit) as end:
        __main__.main(arguments.split())
    assert end.value.code == 2
    assert capsys.readouterr().err == f"polykern compare: {message}\n"


def test_a_backend_that_is_not_usable_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = doctor.Status(False, "backend 'numba' cannot be imported", "")
    real = doctor.status
    monkeypatch.setattr(doctor, "status", lambda name: broken if name == "numba" else real(name))
    with pytest.raises(SystemExit) as end:
        __main__.main(["compare", "--backend", "numba"])
    assert end.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "polykern compare: backend 'numba' cannot be imported"
    )


@pytest.mark.usefixtures("quick")
def test_an_interrupt_ends_it_without_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(clock, "take_turns", interrupted)
    assert __main__.main(["compare", "--op=softmax", "--shape=5x7", "--backend=numpy"]) == 130
    assert capsys.readouterr().out == ""


def test_alone_it_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main([]) == 0
    out = capsys.readouterr().out
    assert "\n    compare   run the operators on every usable backend, print one table\n" in out
    assert "\n    doctor    tell what is installed and usable, and what brings the rest\n" in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        __main__.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"polykern {polykern.__version__}\n"


def test_doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("POLYKERN_")]:
        monkeypatch.delenv(name)
    assert __main__.main(["doctor"]) == 0
    out = capsys.readouterr().out
    for label in ("polykern", "python", "platform", "cpu", "numpy", "ml_dtypes", "cache"):
        assert f"\n{label} " in f"\n{out}"
    assert "environment  no POLYKERN_ variable is set\n" in out
    assert "\nnumpy        yes" in out


def test_doctor_tells_what_is_wrong_with_the_settings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POLYKERN_BACKEND", "nunba/packed")
    monkeypatch.setenv("POLYKERN_BAKEND", "numba")
    monkeypatch.setenv("POLYKERN_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "code").write_bytes(b"1234")
    assert __main__.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert (
        "environment  POLYKERN_BACKEND=nunba/packed: no backend 'nunba'; did you mean 'numba'?\n"
        "             POLYKERN_BAKEND=numba: no such setting; there are: POLYKERN_BACKEND, "
        "POLYKERN_CACHE_DIR\n"
        f"             POLYKERN_CACHE_DIR={tmp_path / 'cache'}\n"
    ) in out
    assert f"cache        {tmp_path / 'cache'}\n             writable; files: 1, 0.0 MB\n" in out


def test_doctor_tells_what_installs_a_missing_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> registry.Backend:
        raise OSError("no libllvm")

    monkeypatch.setattr(registry, "load", load)
    monkeypatch.setattr(
        registry, "paths", lambda: {"numba": "polykern.backend.numba", "theirs": "package:BACKEND"}
    )
    page = doctor.render({"polykern": "0.1.0", **doctor.examine()})
    why = "breaks on import (OSError: no libllvm)"
    assert page.endswith(
        f"numba        no   {doctor.version('numba')}".rstrip()
        + f"\n                  backend 'numba' {why}"
        + "\n                  try: pip install 'polykern[numba]'"
        + f"\ntheirs       no\n                  backend 'theirs' {why}"
    )


def test_doctor_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["doctor", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["polykern"] == polykern.__version__
    assert content["backends"]["numpy"]["usable"] is True
    assert set(content["cache"]) == {"folder", "writable", "files", "bytes"}


def test_a_folder_that_cannot_be_made_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert doctor.writable(tmp_path)
    assert doctor.writable(tmp_path / "new" / "folder")
    assert not doctor.writable(tmp_path / "file" / "folder")


def test_as_a_module_in_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "polykern", "compare", "--op", "softmax", "--shape", "5x7"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [*command, "--backend", "numpy"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "numpy/reference" in done.stdout
