"""Numbers of README.md and docs/figures.md stand beside their rivals in studies/headlines.py."""

import dataclasses
import re

import pytest
import repository

from studies import rivals
from studies.headlines import HEADLINES, Fitted, Headline, Measured
from tools import docs_numbers

PAGES = (repository.ROOT / "README.md", repository.ROOT / "docs" / "figures.md")
#: A number with two decimals outside of the markers, as results are written; settings have one.
_TYPED = re.compile(r"(?<![\d.])0?\.\d\d(?![\d.])")
_F1 = Measured(result="neurons_known", key="NeMo: F1", fitted=Fitted.NONE, settings="the paper's")


def stated() -> set[tuple[str, str]]:
    """Result and key of each number of the pages."""
    return {
        (marker["result"], marker["name"].replace("\\|", "|"))
        for page in PAGES
        for marker in docs_numbers.VALUE.finditer(page.read_text("utf-8"))
    }


def test_every_number_has_its_rivals():
    assert rivals.problems(HEADLINES, stated()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_result_is_typed_by_hand(page):
    text = docs_numbers.VALUE.sub("", page.read_text("utf-8"))
    assert [number for number in _TYPED.findall(text) if number not in SETTINGS] == []


#: Settings with two decimals: denoises of img2img.
SETTINGS = {".85", "0.85"}


@pytest.mark.parametrize(
    ("headlines", "pages", "problem"),
    [
        ([], {("neurons_known", "NeMo: F1")}, "is on a page and not in"),
        ([Headline(number=_F1)], {("neurons_known", "NeMo: F1")}, "no rival and no reason"),
        ([Headline(number=_F1, no_rival="alone")], set(), "on no page"),
        (
            [Headline(number=dataclasses.replace(_F1, key="no such"), no_rival="alone")],
            {("neurons_known", "no such")},
            "no such does not exist",
        ),
        (
            [Headline(number=_F1, rivals=(dataclasses.replace(_F1, result="no_file"),))],
            {("neurons_known", "NeMo: F1")},
            "no_file: NeMo: F1 does not exist",
        ),
        (
            [Headline(number=dataclasses.replace(_F1, settings=""), no_rival="alone")],
            {("neurons_known", "NeMo: F1")},
            "say how the settings",
        ),
    ],
)
def test_a_wrong_declaration_is_a_problem(headlines, pages, problem):
    (line,) = rivals.problems(headlines, pages)
    assert problem in line


def test_a_declaration_with_a_reason_is_no_problem():
    assert rivals.problems([Headline(number=_F1, no_rival="alone")], {(_F1.result, _F1.key)}) == []


def test_numbers_are_listed_with_n_unit_and_fit(capsys):
    assert rivals.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    numbers = [line for line in lines if not line.startswith(" ")]
    assert len(numbers) == len(HEADLINES)
    assert all(" n " in line and "fitted on " in line for line in numbers)
    (search,) = {line.strip() for line in lines if "neurons_known: NeMo: F1" in line}
    assert search == (
        "rival neurons_known: NeMo: F1 = 0.678 (0.583 to 0.781) fraction, n 10, "
        "fitted on none: the paper's settings and target"
    )
