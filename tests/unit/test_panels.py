"""The panels show names of files, prompts and people as text: nothing of them is read as HTML or as
a program.
"""

import re

import pytest
import repository

SCRIPTS = sorted(
    path for ending in ("js", "mjs") for path in (repository.ROOT / "web").rglob(f"*.{ending}")
)
_READ_AS_CODE = re.compile(
    r"\.(inner|outer)HTML|insertAdjacentHTML|createContextualFragment|DOMParser|srcdoc|document\.write"
    r"|\beval\s*\(|new\s+Function\b|set(Timeout|Interval)\s*\(\s*['\"`]|javascript:"
)


def test_there_are_scripts():
    assert len(SCRIPTS) > 20


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_nothing_is_read_as_html_or_code(path):
    found = [line for line in path.read_text("utf-8").splitlines() if _READ_AS_CODE.search(line)]
    assert not found


@pytest.mark.parametrize(
    "line",
    [
        "a.innerHTML = name",
        "a.insertAdjacentHTML('x', name)",
        "eval(text)",
        "new Function(text)",
        "setTimeout('x()')",
    ],
)
def test_the_rule_finds_it(line):
    assert _READ_AS_CODE.search(line)
