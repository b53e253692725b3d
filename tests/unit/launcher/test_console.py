"""The progress bar and the table."""

import io

from tools.launcher.console import ProgressLine, table


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _last_line(stream: io.StringIO) -> str:
    return stream.getvalue().split("\r")[-1].rstrip()


def test_the_bar_grows_with_nodes_and_steps():
    line = ProgressLine("demo_a", 4, terminal := _Terminal())
    line.update("1", "Load", 0, 0)
    assert _last_line(terminal) == "  [------------------------]   0%  demo_a: Load"
    line.update("2", "Sample", 10, 20)
    assert _last_line(terminal) == "  [#########---------------]  38%  demo_a: Sample 10/20"
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


def test_a_file_gets_no_bar():
    line = ProgressLine("demo_a", 1, plain := io.StringIO())
    line.update("1", "Load", 1, 1)
    line.clear()
    assert plain.getvalue() == ""


def test_columns_are_aligned():
    text = table(("name", "s"), [("a", "10.5"), ("longer", "1")])
    assert text.splitlines() == ["name    s", "------  ----", "a       10.5", "longer  1"]
