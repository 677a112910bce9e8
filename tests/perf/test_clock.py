import gc

import pytest

from polykern.perf import clock


def test_the_calls_take_turns() -> None:
    order = []
    calls = [lambda name=name: order.append(name) for name in "ab"]
    taken = clock.take_turns(calls, turns=2, turn_s=0, pause_s=0)
    assert order == ["a", "b", "a", "b"]
    assert [len(seconds) for seconds in taken if isinstance(seconds, list)] == [2, 2]


def test_the_first_call_of_a_turn_does_not_count_where_more_follow() -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1

    (taken,) = clock.take_turns([call], turns=1, turn_s=1e-3, pause_s=0)
    assert isinstance(taken, list)
    assert len(taken) == calls - 1


def test_a_slow_call_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1

    monkeypatch.setattr(clock, "BUDGET_S", 0.0)
    clock.take_turns([call], turns=9, turn_s=0, pause_s=0)
    assert calls == 1


def test_a_call_that_breaks_leaves_the_others_going() -> None:
    def broken() -> None:
        raise RuntimeError("no more memory")

    first, second = clock.take_turns([broken, lambda: None], turns=3, turn_s=0, pause_s=0)
    assert str(first) == "no more memory"
    assert isinstance(second, list)
    assert len(second) == 3


def test_collection_is_off_inside_and_as_before_after() -> None:
    inside = []
    clock.take_turns([lambda: inside.append(gc.isenabled())], turns=1, turn_s=0, pause_s=0)
    assert inside == [False]
    assert gc.isenabled()
