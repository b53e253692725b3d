"""A text beside its tokens: work grows with the length of any text, and ordinary texts are read as
by one search.
"""

import sys
from difflib import SequenceMatcher

import pytest
from glassbox.nodes.common import prompt_words

ORDINARY = [
    ("portrait, short brown hair, blue hoodie", "portrait, short brown hair, blue hoodie"),
    ("a \u201cred\u201d fox", 'a "red" fox'),
    ("it\u2019s a dog\u2019s life, isn\u2019t it", "it's a dog's life, isn't it"),
    ("caf\u00e9 na\u00efve", "cafe\u0301 naive"),
    ("a \U0001f600 face and \U0001f600\U0001f600 more", "a <unk> face and <unk><unk> more"),
    ("beginning lost", "lost"),
    ("", "start"),
    ("text", ""),
]


def _letters(text):
    return [letter for letter in text if letter != " "]


def _as_before(first, second):
    return [
        tuple(block)
        for block in SequenceMatcher(None, first, second, autojunk=False).get_matching_blocks()
    ]


def _joined(matches):
    """Pairs of places, which say the same however runs are cut."""
    return {
        (begin + step, other + step) for begin, other, length in matches for step in range(length)
    }


@pytest.mark.parametrize(("text", "tokens"), ORDINARY)
def test_ordinary_texts_match_as_in_one_search(text, tokens):
    first, second = _letters(text), _letters(tokens)
    assert _joined(prompt_words._matches(first, second)) == _joined(_as_before(first, second))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("the same same word word", "the same word word word"), ("abcabc", "cababc")],
)
def test_where_several_readings_fit_no_fewer_letters_match(text, tokens):
    first, second = _letters(text), _letters(tokens)
    found = _joined(prompt_words._matches(first, second))
    assert len(found) >= len(_joined(_as_before(first, second)))
    assert all(first[begin] == second[other] for begin, other in found)


def test_a_long_text_with_marks_that_are_straightened(monkeypatch):
    """Over the limit of one search: windows find what a search of the whole does."""
    sentence = "the fox\u2019s quick brown tail \u201cjumps\u201d over a lazy dog\u2014twice, "
    first = _letters(sentence * 12)
    second = _letters(
        sentence.replace("\u2019", "'").replace("\u201c", '"').replace("\u201d", '"') * 12
    )
    monkeypatch.setattr(prompt_words, "_SEARCHED_AT_ONCE", 0)
    assert _joined(prompt_words._matches(first, second)) == _joined(_as_before(first, second))


def _lines(work) -> int:
    """How many lines of Python run in the module and in the matcher."""
    count = 0
    files = (prompt_words.__file__, sys.modules[SequenceMatcher.__module__].__file__)

    def trace(frame, event, _argument):
        nonlocal count
        if frame.f_code.co_filename not in files:
            return None
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return count


HOSTILE = {
    "equal letters": ("a", "a"),
    "combining marks": ("\u0301", "\u0301"),
    "straightened marks": ("it\u2019s ", "it's "),
    "only other letters": ("a", "b"),
    "letters in turn": ("ab", "ba"),
    "one letter less each time": ("aab", "ab"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_work_grows_with_the_length(kind):
    """Between other letters at both ends, which hide the common beginning and end."""
    text, token = HOSTILE[kind]

    def lines(count):
        pieces = [
            (0, b"x"),
            *((1 + place, token.encode()) for place in range(count)),
            (count + 1, b"y"),
        ]
        return _lines(lambda: prompt_words.align(f"p{text * count}q", pieces))

    small, large = lines(200), lines(800)
    assert large < 5 * small + 20_000
    assert large < 800 * len(text) * 1_500
