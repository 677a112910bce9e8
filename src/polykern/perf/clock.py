"""Honest timing of calls that are to be compared.

Three things make such numbers lie: the machine changes while one candidate runs (so they take
turns), a thread pool that spins after its work slows the next candidate (so there is a pause),
and the first call after a pause wakes threads and fills caches (so it does not count).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

PAUSE_S = 0.06  # BLAS pools spin for tens of milliseconds after their work
TURN_S = 0.03  # what one turn of a fast call lasts
TURNS = 5
BUDGET_S = 1.0  # of timed calls; a slower call is timed once

Call = Callable[[], object]


def time_once(call: Call) -> float:
    """Seconds of one call, without the time that freeing its result takes."""
    start = time.perf_counter()
    result = call()
    seconds = time.perf_counter() - start
    del result
    return seconds


def take_turns(
    calls: Sequence[Call], *, turns: int = TURNS, turn_s: float = TURN_S, pause_s: float = PAUSE_S
) -> list[list[float] | Exception]:
    """Time calls against one another: A B A B, each turn a burst of calls.

    Parameters
    ----------
    calls : sequence of callable
        What to time. A call returns when its work is done.
    turns : int
        Turns of each call, fewer once its calls have taken a second.
    turn_s, pause_s : float
        Seconds of a turn, and of the pause before it.

    Returns
    -------
    list of list of float or Exception
        For each call the seconds of each time it was timed; or what it raised, if it broke.
    """
    taken: list[list[float] | Exception] = [[] for _ in calls]
    with _no_collection():
        for _ in range(turns):
            for number, call in enumerate(calls):
                seconds = taken[number]
                if isinstance(seconds, Exception) or sum(seconds) > BUDGET_S:
                    continue
                time.sleep(pause_s)
                try:
                    seconds += _turn(call, turn_s)
                except Exception as error:  # the others go on
                    taken[number] = error
    return taken


def _turn(call: Call, turn_s: float) -> list[float]:
    first = time_once(call)
    if first >= turn_s:
        return [first]
    end = time.perf_counter() + turn_s
    taken: list[float] = []
    while not taken or time.perf_counter() < end:
        taken.append(time_once(call))
    return taken


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection inside."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
