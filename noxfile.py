"""The checks of the project, the same here and in CI; ``nox --list`` names them.

``nox`` runs the default ones with the Python that runs nox. ``nox -s tests`` runs the tests with
every supported Python that is installed, ``nox -s "tests-3.12(numba)" -- -k softmax`` a few of
them. What a session installs stands in pyproject.toml.
"""

import platform
import shutil

import nox
from packaging.requirements import Requirement

nox.needs_version = ">=2025.11.12"
nox.options.default_venv_backend = "virtualenv"  # pip: uv cannot install a package against its word
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False  # skipped, and the log says so

PYPROJECT = nox.project.load_toml()
DEPENDENCIES = PYPROJECT["project"]["dependencies"]
EXTRAS = PYPROJECT["project"]["optional-dependencies"]

HERE = platform.python_version().rpartition(".")[0]
PYTHONS = list(dict.fromkeys([*nox.project.python_versions(PYPROJECT), HERE]))

# The extras in all-cpu are the backends that any machine can test; numpy needs none.
CPU_BACKENDS = sorted(Requirement(EXTRAS["all-cpu"][0]).extras)

# The tests come last, so that their summary is what a log ends with.
nox.options.sessions = ["lint", "types", "bench", "examples", f"tests-{HERE}"]


def group(*names: str) -> tuple[str, ...]:
    """The requirements of dependency groups."""
    return nox.project.dependency_groups(PYPROJECT, *names)


@nox.session
def lint(session: nox.Session) -> None:
    """Style and likely mistakes, by ruff."""
    session.install(*group("lint"))
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session
def types(session: nox.Session) -> None:
    """Type annotations, by mypy."""
    session.install(*DEPENDENCIES, *group("types", "test"))
    session.run("mypy")


@nox.session
def bench(session: nox.Session) -> None:
    """One quick round of a few benchmarks, to see that they run: its times mean nothing."""
    session.install(".[all-cpu]", *group("bench"))
    config = "--config=asv_benches/asv.conf.json"
    home = {"HOME": session.create_tmp()}  # where asv keeps what it knows of the machine
    session.run("asv", "machine", "--yes", config, env=home, silent=True)
    quick = ("--quick", "--dry-run", "--python=same", "--show-stderr")
    cases = r"37, 513|depthwise|64, 128|'full'|'softmax'\)|'softmax', 'warm'"  # one of each suite
    few = ("Dispatch", "Import", rf"'numba'.*({cases})")
    chosen = session.posargs or [f"--bench={pattern}" for pattern in few]
    session.run("asv", "run", config, *quick, *chosen, env=home)


@nox.session
def examples(session: nox.Session) -> None:
    """The examples against the programs that they agree with."""
    session.install(".[all-cpu]", *group("test", "examples"))
    session.install("--no-deps", "--ignore-requires-python", *group("models"))
    session.run("pytest", "tests/examples", *session.posargs)


@nox.session(python=PYTHONS)
@nox.parametrize("backend", ["numpy", *CPU_BACKENDS], ids=["numpy", *CPU_BACKENDS])
def tests(session: nox.Session, backend: str) -> None:
    """The tests, against the built wheel, with one backend and NumPy or with NumPy alone."""
    extra = "" if backend == "numpy" else f"[{backend}]"
    session.install(f".{extra}", *group("test"))
    session.run("pytest", "--ignore=tests/examples", *session.posargs)


@nox.session(python=PYTHONS[0])
def minimums(session: nox.Session) -> None:
    """The tests, with the oldest version of each package that pyproject.toml allows."""
    backends = [requirement for name in CPU_BACKENDS for requirement in EXTRAS[name]]
    allowed = [*DEPENDENCIES, *backends, *group("test")]
    session.install(".[all-cpu]", *[line.replace(">=", "==") for line in allowed])
    session.run("pytest", "--ignore=tests/examples", *session.posargs)


@nox.session(default=False)
@nox.parametrize("extra", ["cuda12", "cuda13"], ids=["cuda12", "cuda13"])
def gpu(session: nox.Session, extra: str) -> None:
    """The tests that need a GPU, with the libraries of one CUDA major."""
    if shutil.which("nvidia-smi") is None:
        session.skip("no NVIDIA driver here")
    session.install(f".[{extra}]", *group("test"))
    session.run("pytest", "-m", "gpu", *session.posargs)
