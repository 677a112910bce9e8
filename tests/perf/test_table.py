import csv
import io
import json

from polykern import doctor
from polykern.perf import session, table
from polykern.perf.ceilings import Ceilings
from polykern.perf.compare import Row
from polykern.perf.session import Candidate, Session

PEAKS = Ceilings(
    {"float32": 232.4e9, "float64": 117e9, "int8": 871e9},
    {"float32": "multiply-adds", "float64": "multiply-adds", "int8": "dot products"},
    24.2e9,
    2,
)
GEMM = ("gemm", "1024x1024x1024", "float32")
ROWS = [
    Row(
        *GEMM,
        "numpy",
        "reference",
        time_s=0.0119,
        calls=40,
        gflop_per_s=180.46,
        gbyte_per_s=1.06,
        bound="compute",
        peak_share=0.776,
        times_numpy=1.0,
        error_share=0.0311,
        checked_share=1.0,
        first_call_s=0.0125,
    ),
    Row(
        *GEMM,
        "numba",
        "packed",
        time_s=0.01,
        calls=45,
        gflop_per_s=214.7,
        gbyte_per_s=1.26,
        bound="compute",
        peak_share=0.924,
        times_numpy=1.19,
        error_share=0.025,
        checked_share=1.0,
        first_call_s=3.2,
        compiled=True,
    ),
    Row(*GEMM, "cupy", status="refused", reason="cupy has no gemm kernel"),
    Row(
        "softmax",
        "4096x4096",
        "float32",
        "numba",
        "rows",
        status="wrong",
        reason="its error is inf times what is allowed",
        time_s=0.0101234,
        calls=15,
        gflop_per_s=8.3,
        gbyte_per_s=13.29,
        bound="memory",
        peak_share=0.549,
        error_share=float("inf"),
        checked_share=0.0625,
        first_call_s=0.02,
        compiled=False,
    ),
    Row(
        "gemm",
        "64x64x64",
        "int8",
        "numpy",
        "reference",
        time_s=1e-6,
        calls=9,
        gflop_per_s=524.3,
        gbyte_per_s=2.0,
        times_numpy=1.0,
        error_share=0.0,
        checked_share=1.0,
        first_call_s=0.001,
    ),
]
TABLE = """\
operator  shape                   dtype
                       time                % of  times  % of   first
  backend/kernel         ms GFLOP/s  GB/s  peak  NumPy bound  call s
---------------------------------------------------------------------
gemm      1024x1024x1024          float32
  numpy/reference    11.900   180.5        77.6   1.00   3.1   0.013
  numba/packed       10.000   214.7        92.4   1.19   2.5   3.200*
  cupy            refused: cupy has no gemm kernel
softmax   4096x4096               float32
  numba/rows         10.123          13.3  54.9      -   inf   0.020
    WRONG: its error is inf times what is allowed
gemm      64x64x64                int8
  numpy/reference     0.001   524.3           -   1.00 exact   0.001"""
FACTS = {
    "polykern": "0.1.0",
    "date": "2026-12-01 15:20+00:00",
    "seed": 7,
    "cpu": "Some CPU with a name that is long enough to reach the end of a line, 3.2 GHz",
    "cores": 2,
    "load": 0.1,
    "platform": "Linux x86_64",
    "python": "3.11.7",
    "numpy": "2.4.6",
    "blas": "scipy-openblas 0.3.31",
    "threads": {"OMP_NUM_THREADS": "1"},
}
FOUND = (
    Candidate("numpy", doctor.Status(True, "", ""), "2.4.6", 0.0),
    Candidate("numba", doctor.Status(True, "", ""), "0.68.1", 1.31),
    Candidate(
        "cupy",
        doctor.Status(False, "no module named cupy", "pip install 'polykern[cupy]'"),
        "",
        0.1,
    ),
)
LEFT_OUT = (("softmax 4096x4096 int8", "x has dtype int8; softmax takes float64"),)
SESSION = Session(FACTS, FOUND, PEAKS, ROWS, LEFT_OUT)


def test_the_table() -> None:
    assert "\n".join(line.rstrip() for line in table.table(ROWS)) == TABLE


def test_a_long_reason_is_cut() -> None:
    row = Row(*GEMM, "numba", status="failed", reason="no such name " * 100)
    lines = list(table.table([row]))[5:]
    assert len(lines) == 6
    assert lines[0].startswith("  numba           failed: no such name no such name ")
    assert lines[-1].endswith(" ...")


def test_no_line_is_longer_than_80_columns_and_all_is_ascii() -> None:
    page = table.render(SESSION)
    assert page.isascii()
    assert max(map(len, page.splitlines())) <= 80


def test_the_page_tells_machine_seed_cache_and_what_is_missing() -> None:
    words = " ".join(table.render(SESSION).split())
    for expected in (
        "polykern 0.1.0 compare, 2026-12-01 15:20+00:00, --seed 7",
        "threads all 2 usable cores, OMP_NUM_THREADS=1 python",
        "python 3.11.7, NumPy 2.4.6 with scipy-openblas 0.3.31",
        "backends numpy 2.4.6, numba 0.68.1; missing: cupy peaks",
        "peaks float32 232, float64 117 GFLOP/s, int8 871 GOP/s, memory 24.2 GB/s",
        "cache cold for 1 of 2 rows of compiling backends; these have a *",
        "float32 and float64 by multiply-adds; int8 by dot products; memory by a copy",
        "Importing came before, once: numba 1.3 s.",
        "left out softmax 4096x4096 int8: x has dtype int8; softmax takes float64",
        "missing cupy: pip install 'polykern[cupy]'",
    ):
        assert expected in words


def test_the_page_tells_when_the_machine_is_busy() -> None:
    busy = SESSION._replace(facts={**FACTS, "load": 1.84})
    assert "but other programs ran (load 1.8 at the start): times and ratios mislead" in " ".join(
        table.render(busy).split()
    )


def test_json_round_trip() -> None:
    content = json.loads(session.to_json(SESSION))
    rows = [Row(**row) for row in content["rows"]]
    assert rows[3].error_share is None
    rows[3].error_share = float("inf")  # JSON has none
    assert rows == ROWS
    assert content["seed"] == 7
    assert content["backends"]["cupy"]["install"] == "pip install 'polykern[cupy]'"
    assert content["peaks"]["bandwidth"] == 24.2e9
    assert content["left_out"][0]["case"] == "softmax 4096x4096 int8"


def test_csv_round_trip() -> None:
    text = session.to_csv(SESSION)
    records = list(csv.DictReader(io.StringIO(text)))
    assert len(records) == len(ROWS)
    for record, row in zip(records, ROWS, strict=True):
        for name, value in record.items():
            expected = getattr(row, name)
            assert value == ("" if expected is None else str(expected))
            if isinstance(expected, float):
                assert float(value) == expected
