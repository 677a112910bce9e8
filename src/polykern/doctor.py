"""Which backends are usable here, and what brings the others."""

from __future__ import annotations

from typing import NamedTuple

from polykern import registry
from polykern.errors import BackendUnavailableError


class Status(NamedTuple):
    """Of one backend: is it usable here, and if not, why, and what installs it."""

    usable: bool
    why: str
    install: str


def backends() -> dict[str, Status]:
    """The status of every backend, built-in or of a third party, by name."""
    found = {}
    for name in registry.paths():
        try:
            registry.load(name)
        except BackendUnavailableError as error:
            found[name] = Status(False, str(error), registry.install(name))
        else:
            found[name] = Status(True, "", "")
    return found
