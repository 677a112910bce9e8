"""How far a long command is: a bar on a terminal, a line for each part elsewhere."""

from __future__ import annotations

import shutil
from typing import TextIO

_BAR = 24


class Progress:
    """Tell on a stream which of several parts runs.

    Parameters
    ----------
    stream : text file
        A terminal gets one line that is drawn over and over, anything else a line for each part.
    total : int
        How many parts there are.
    """

    def __init__(self, stream: TextIO, total: int) -> None:
        self._stream, self._total, self._done = stream, total, 0
        self._draws = stream.isatty()

    def begin(self, part: str) -> None:
        """The next part runs now."""
        if self._draws:
            filled = _BAR * self._done // max(1, self._total)
            self._draw(f"[{'#' * filled}{'-' * (_BAR - filled)}] {self._done}/{self._total} {part}")
        else:
            print(f"{self._done + 1}/{self._total} {part}", file=self._stream, flush=True)
        self._done += 1

    def end(self) -> None:
        """All is done: leave a clean line."""
        if self._draws:
            self._draw("")

    def _draw(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1  # the last column would wrap
        self._stream.write(f"\r{text[:width]:<{width}}" if text else f"\r{'':<{width}}\r")
        self._stream.flush()
