"""The progress bar and the table."""

import io
import itertools

import pytest

from tools.launcher.console import Durations, ProgressLine, duration, table


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _last_line(stream: io.StringIO) -> str:
    return stream.getvalue().split("\r")[-1].rstrip()


def test_the_bar_grows_with_nodes_and_steps():
    line = ProgressLine("demo_a", 4, terminal := _Terminal(), clock=itertools.count(0, 30).__next__)
    line.update("1", "Load", 0, 0)
    assert _last_line(terminal) == "  [------------------------]   0%  demo_a: Load, 30 s"
    line.update("2", "Sample", 10, 20)
    assert (
        _last_line(terminal)
        == "  [#########---------------]  38%  demo_a: Sample, step 10 of 20, 1 min 0 s"
    )
    line.update("2", "Sample", 30, 20)
    assert "  50%  " in _last_line(terminal)


def test_nodes_made_while_running_do_not_overflow_the_bar():
    line = ProgressLine("demo_a", 1, terminal := _Terminal())
    for node in "12345":
        line.update(node, "Load", 1, 1)
    assert " 100%  " in _last_line(terminal)


def test_nothing_is_left_of_the_bar():
    line = ProgressLine("demo_a", 1, terminal := _Terminal())
    line.update("1", "Load", 1, 1)
    line.clear()
    assert _last_line(terminal) == ""


def test_a_file_gets_a_line_every_twenty_seconds():
    times = iter([0, 1, 19, 20, 39, 45, 50])
    line = ProgressLine("demo_a", 2, plain := io.StringIO(), clock=lambda: next(times))
    line.update("1", "Load", 0, 0)
    for step in range(1, 6):
        line.update("2", "Sample", step, 10)
    line.clear()
    assert plain.getvalue().splitlines() == [
        "     60%  demo_a: Sample, step 2 of 10, 20 s",
        "     70%  demo_a: Sample, step 4 of 10, 45 s",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (245, "4 min 5 s"),
        (3600, "1 h 0 min"),
        (3725, "1 h 2 min"),
    ],
)
def test_seconds_as_a_person_says_them(seconds, text):
    assert duration(seconds) == text


def test_durations_are_those_of_the_last_run(tmp_path):
    durations = Durations(tmp_path / "folder" / "durations.json")
    assert durations.last("a") == ""
    durations.keep("a", 13.4)
    durations.keep("b", 60)
    durations.keep("a", 12.6)
    again = Durations(tmp_path / "folder" / "durations.json")
    assert again.last("a") == " (took 13 s last time)"
    assert again.last("a", "b") == " (took 1 min 13 s last time)"
    assert again.last("a", "c") == again.last() == ""


@pytest.mark.parametrize("content", ["", "[]", '{"a": "x"}', '{"a": null}', "\udcff"])
def test_a_broken_file_of_durations_knows_nothing(tmp_path, content):
    path = tmp_path / "durations.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    durations = Durations(path)
    assert durations.last("a") == ""
    durations.keep("a", 1)
    assert Durations(path).last("a") == " (took 1 s last time)"


def test_columns_are_aligned():
    text = table(("name", "s"), [("a", "10.5"), ("longer", "1")])
    assert text.splitlines() == ["name    s", "------  ----", "a       10.5", "longer  1"]
