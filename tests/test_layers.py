"""The architecture as a test: who may import whom, who may read what, how long a file may be."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import polykern

SOURCE = Path(polykern.__file__).parent

# Imports go to a line above only, or stay in their room; rooms on one line do not see each other.
# The facade is the package itself; what tells about the installation needs its version.
LAYERS = (
    ("errors",),
    ("dtypes",),
    ("arrays", "registry"),
    ("policy",),
    ("dispatch",),
    ("ops",),
    ("backend.numpy", "backend.numba"),
    ("facade",),
    ("testing", "perf"),
    ("__main__",),
)
LAYER = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
FACADE = ("", "doctor", "backend")  # `backend` is only the folder's own __init__.py

# Beside the standard library and NumPy.
LIBRARIES = {
    "dtypes": {"ml_dtypes"},
    "backend.numba": {"numba", "llvmlite", "ml_dtypes"},
    "testing": {"pytest"},
    "perf": {"numba", "llvmlite"},
}
MOST_LINES = 500


def room(module: str) -> str:
    """The room of a module, given without ``polykern.``: ``backend.numba.jit`` -> backend.numba."""
    if module in FACADE:
        return "facade"
    parts = module.split(".")
    return ".".join(parts[: 2 if parts[0] == "backend" else 1])


def modules() -> dict[str, ast.Module]:
    """Each module by its name without ``polykern.``, parsed."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def imported(tree: ast.Module) -> Iterator[str]:
    """What a module imports, in functions too; names from packages of polykern as modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            assert node.module
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                path = SOURCE.parent.joinpath(*inner.split("."))
                is_module = path.is_dir() or path.with_suffix(".py").is_file()
                yield inner if is_module else node.module


def wrong_imports(name: str, tree: ast.Module) -> list[str]:
    here = room(name)
    if here not in LAYER:
        return [f"{name or 'polykern'} is in no layer"]
    wrong = []
    for target in imported(tree):
        library, _, inner = target.partition(".")
        if library == "polykern":
            there = room(inner)
            if there != here and LAYER.get(there, len(LAYERS)) >= LAYER[here]:
                wrong.append(f"{name} imports {target}")
        elif library not in sys.stdlib_module_names | {"numpy"} | LIBRARIES.get(here, set()):
            wrong.append(f"{name} imports {target}")
    return wrong


def reads_environment(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
        for node in ast.walk(tree)
    )


def test_imports_go_up() -> None:
    assert [wrong for name, tree in modules().items() for wrong in wrong_imports(name, tree)] == []


@pytest.mark.parametrize(
    "name, line",
    [
        ("errors", "from polykern import dtypes"),
        ("arrays", "from polykern import registry"),
        ("policy", "import polykern.dispatch"),
        ("dispatch", "def late():\n    from polykern.ops.gemm import Gemm"),
        ("ops.gemm", "from polykern.backend.numpy import BACKEND"),
        ("backend.numba.jit", "from polykern.backend import numpy"),
        ("backend.numba.jit", "from polykern import backends"),
        ("testing.case", "from polykern.perf import clock"),
        ("dispatch", "import torch"),
        ("ops.gemm", "import numba"),
        ("utensils", "import math"),
    ],
)
def test_a_planted_import_is_found(name: str, line: str) -> None:
    assert len(wrong_imports(name, ast.parse(line))) == 1


def test_environment_is_read_in_one_place() -> None:
    """And reported in another; measurements note what they ran under."""
    readers = {room(name) for name, tree in modules().items() if reads_environment(tree)}
    assert readers <= {"policy", "facade", "perf"}
    assert reads_environment(ast.parse("import os\nos.environ['X']"))


def test_files_are_short() -> None:
    lengths = {
        str(path.relative_to(SOURCE)): len(path.read_text(encoding="utf-8").splitlines())
        for path in SOURCE.rglob("*.py")
    }
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


def test_files_have_a_subject() -> None:
    names = {path.stem for path in SOURCE.rglob("*.py")}
    assert not names & {"utils", "util", "helpers", "helper", "common", "misc", "tools"}
