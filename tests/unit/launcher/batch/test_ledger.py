"""What is shown of a job while it runs."""

import csv
import io

from tools.launcher.batch.job import Piece
from tools.launcher.batch.ledger import FAILURES, Ledger


class _Clock:
    now = 0.0

    def __call__(self):
        return self.now


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_bar_says_rate_time_left_and_failures(tmp_path):
    clock = _Clock()
    ledger = Ledger(100, tmp_path, _Terminal(), clock)
    for _ in range(10):
        ledger.reused()
    for _ in range(20):
        clock.now += 2
        ledger.finished()
    ledger.skipped(Piece(5, "k", {"prompt": "x"}), "why")
    line = ledger.line()
    assert "31/100" in line and "10 found" in line and "1 failed" in line
    assert "1.9 s each" in line and "2 min 11 s left" in line


def test_the_rate_is_that_of_the_last_minutes(tmp_path):
    clock = _Clock()
    ledger = Ledger(10_000, tmp_path, io.StringIO(), clock)
    for seconds in [10] * 100 + [1] * 1000:
        clock.now += seconds
        ledger.finished()
    assert 0.9 < ledger.rate < 1.1


def test_failures_are_written_as_they_come_and_those_of_an_earlier_run_are_gone(tmp_path):
    (tmp_path / FAILURES).write_text("old")
    ledger = Ledger(2, tmp_path, io.StringIO())
    assert not (tmp_path / FAILURES).exists()
    ledger.skipped(Piece(1, "k1", {"prompt": "a, b"}), "It fails.")
    ledger.skipped(Piece(2, "k2", {"prompt": "c"}), "Too.")
    rows = list(csv.reader((tmp_path / FAILURES).open()))
    assert rows == [
        ["piece", "key", "reason", "prompt"],
        ["1", "k1", "It fails.", "a, b"],
        ["2", "k2", "Too.", "c"],
    ]
