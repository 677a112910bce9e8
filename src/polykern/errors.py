"""The exceptions of polykern, each a subclass of the builtin one would catch anyway."""


class BackendNotFoundError(ValueError):
    """No backend has that name."""


class BackendUnavailableError(ImportError):
    """The backend exists but cannot be used here; the message holds the line that installs it."""


class UnsupportedError(NotImplementedError):
    """No kernel takes this call; the message lists each reason."""
