"""What is installed and usable here: backends and what brings them, versions, cache, settings."""

from __future__ import annotations

import os
import platform
import sys
import textwrap
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polykern import policy, registry
from polykern.errors import BackendNotFoundError, BackendUnavailableError

_VARIABLES = ("POLYKERN_BACKEND", "POLYKERN_CACHE_DIR")
_INDENT = " " * 18


class Status(NamedTuple):
    """Of one backend: is it usable here, and if not, why, and what installs it."""

    usable: bool
    why: str
    install: str


def backends() -> dict[str, Status]:
    """The status of every backend, built-in or of a third party, by name."""
    return {name: status(name) for name in registry.paths()}


def status(name: str) -> Status:
    """The status of the backend of that canonical name; this imports it."""
    try:
        registry.load(name)
    except BackendUnavailableError as error:
        return Status(False, str(error), _install(name))
    except Exception as error:  # a library that is there but broken may raise anything
        why = f"backend {name!r} breaks on import ({type(error).__name__}: {error})"
        return Status(False, why, _install(name))
    return Status(True, "", "")


def _install(name: str) -> str:
    """What installs a built-in backend; what installs one of another package is not known."""
    return registry.install(name) if registry.paths()[name].startswith("polykern.") else ""


def version(distribution: str) -> str:
    """The version of an installed distribution; "" if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def cpu_model() -> str:
    """What the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def blas() -> str:
    """The name and version of the library behind NumPy's matrix products."""
    built: Any = np.show_config(mode="dicts")
    found = built.get("Build Dependencies", {}).get("blas", {})
    return f"{found.get('name', 'unknown')} {found.get('version', '')}".strip()


def _cpu_features() -> list[str]:
    built: Any = np.show_config(mode="dicts")
    extensions = built.get("SIMD Extensions", {})
    return [*extensions.get("baseline", []), *extensions.get("found", [])]


def examine() -> dict[str, Any]:
    """What ``polykern doctor`` tells, but for the version of polykern, as values for JSON.

    Returns
    -------
    dict
        Keys ``python``, ``numpy``, ``platform``, ``cpu``, ``ml_dtypes``, ``cache``,
        ``environment`` and ``backends``.
    """
    return {
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "executable": sys.executable,
        },
        "numpy": {"version": np.__version__, "blas": blas()},
        "platform": platform.platform(),
        "cpu": {"model": cpu_model(), "cores": cores(), "features": _cpu_features()},
        "ml_dtypes": version("ml_dtypes"),
        "cache": _cache(policy.cache_folder()),
        "environment": _environment(),
        "backends": {
            name: {**found._asdict(), "version": version(name)}
            for name, found in backends().items()
        },
    }


def _cache(folder: Path) -> dict[str, Any]:
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return {
        "folder": str(folder),
        "writable": writable(folder),
        "files": len(sizes),
        "bytes": sum(sizes),
    }


def writable(folder: Path) -> bool:
    """Whether a file can be made in the folder, or in the parent that it would be made in."""
    import tempfile  # `import polykern` does without

    there = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError:
        return False
    return True


def _environment() -> dict[str, dict[str, str]]:
    """Of each POLYKERN_* variable: its value, and what is wrong with it or ""."""
    found = {}
    for name in sorted(os.environ):
        if name.startswith("POLYKERN_"):
            found[name] = {"value": os.environ[name], "problem": _problem(name, os.environ[name])}
    return found


def _problem(name: str, value: str) -> str:
    if name not in _VARIABLES:
        return f"no such setting; there are: {', '.join(_VARIABLES)}"
    if name == "POLYKERN_BACKEND" and value:
        try:
            registry.check(value)
        except BackendNotFoundError as error:
            return str(error)
    return ""


def render(facts: dict[str, Any]) -> str:
    """The page that ``polykern doctor`` prints.

    Parameters
    ----------
    facts : dict
        As `examine` returns them, and the version of polykern under ``polykern``.

    Returns
    -------
    str
    """
    python, numpy, cpu, cache = (facts[key] for key in ("python", "numpy", "cpu", "cache"))
    writes = "" if cache["writable"] else "NOT "
    settings = [
        f"{name}={given['value']}" + (f": {given['problem']}" if given["problem"] else "")
        for name, given in facts["environment"].items()
    ]
    labelled = {
        "polykern": [facts["polykern"]],
        "python": [f"{python['version']} ({python['implementation']}), {python['executable']}"],
        "platform": [facts["platform"]],
        "cpu": [
            f"{cpu['model']}, {cpu['cores']} usable cores",
            f"vector extensions that NumPy can use: {' '.join(cpu['features']) or 'unknown'}",
        ],
        "numpy": [f"{numpy['version']} with {numpy['blas']}"],
        "ml_dtypes": [facts["ml_dtypes"] or "no: bfloat16 and float8 need pip install ml_dtypes"],
        "cache": [
            cache["folder"],
            f"{writes}writable; files: {cache['files']}, {cache['bytes'] / 1e6:.1f} MB",
        ],
        "environment": settings or ["no POLYKERN_ variable is set"],
    }
    lines = [
        f"{'' if number else label:<12} {text}"
        for label, texts in labelled.items()
        for number, text in enumerate(texts)
    ]
    lines += ["", "backend      usable"]
    for name, found in facts["backends"].items():
        lines.append(
            f"{name:<12} {'yes' if found['usable'] else 'no '}  {found['version']}".rstrip()
        )
        if not found["usable"]:
            lines += textwrap.wrap(
                found["why"], 80, initial_indent=_INDENT, subsequent_indent=_INDENT
            )
            if found["install"] and found["install"] not in found["why"]:
                lines.append(f"{_INDENT}try: {found['install']}")
    return "\n".join(lines)
