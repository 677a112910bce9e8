import io

from polykern.perf.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_a_line_for_each_part() -> None:
    stream = io.StringIO()
    progress = Progress(stream, 2)
    progress.begin("first")
    progress.begin("second")
    progress.end()
    assert stream.getvalue() == "1/2 first\n2/2 second\n"


def test_a_terminal_gets_one_line_that_ends_clean() -> None:
    stream = Terminal()
    progress = Progress(stream, 2)
    progress.begin("first")
    progress.begin("second")
    progress.end()
    text = stream.getvalue()
    assert "\n" not in text
    drawn = [part.rstrip() for part in text.split("\r")]
    assert drawn == [
        "",
        f"[{'-' * 24}] 0/2 first",
        f"[{'#' * 12}{'-' * 12}] 1/2 second",
        "",
        "",
    ]
    assert text.endswith("\r")


def test_a_long_name_does_not_wrap(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stream = Terminal()
    Progress(stream, 1).begin("x" * 100)
    assert len(stream.getvalue().strip("\r")) == 39
