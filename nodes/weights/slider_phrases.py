"""The phrases of sliders as a person writes them: one slider a line, base prompts and preserved
concepts one a line (Concept Sliders, arXiv 2311.12092, section 4.1).
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile, zip_longest

_LONGEST_SLUG = 40
_LONGEST_LABEL = 80
#: The key of a slider file's labels in its header.
LABELS = "glassbox_slider"
#: Where phrases stand in a base prompt.
PLACE = re.compile(r"\bWORD\b")


@dataclass(frozen=True, kw_only=True)
class SliderPhrases:
    """What strength 1 moves towards and what strength -1 moves towards; either may be empty."""

    increase: str
    decrease: str

    @property
    def name(self) -> str:
        """The slider's name in reports."""
        return " / ".join(filter(None, [self.increase, self.decrease])) or "slider"

    @property
    def slug(self) -> str:
        """The slider's name in file names: letters, digits and underscores."""
        words = re.sub(r"[^\w]+", "_", self.increase or self.decrease).strip("_")
        return words[:_LONGEST_SLUG].strip("_") or "slider"

    def header(self) -> dict[str, str]:
        """The labels of both ends for the header of the slider's file."""
        return {LABELS: json.dumps({"increase": self.increase, "decrease": self.decrease})}


def lines_of(text: str) -> list[str]:
    """The lines of a text that are not empty."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def parse_sliders(increase: str, decrease: str) -> list[SliderPhrases]:
    """The sliders of two texts, line by line; a missing or empty line of ``decrease`` stands for
    the base prompt alone.

    Raises ValueError without any phrase, and for more lines of ``decrease`` than of ``increase``.
    """
    first = [line.strip() for line in increase.rstrip().splitlines()]
    second = [line.strip() for line in decrease.rstrip().splitlines()]
    # Empty lines above the first phrase are no sliders; empty partners go with them.
    above = len(list(takewhile(operator.not_, first)))
    of_partners = len(list(takewhile(operator.not_, second[:above])))
    first, second = first[above:], second[of_partners:]
    if not any(first):
        raise ValueError(
            "There is no phrase: write into increase what strength 1 shall move towards, such as "
            "old, wrinkled; or connect before and after."
        )
    if len(second) > len(first) or not all(first):
        raise ValueError(
            f"Phrases in increase: {sum(map(bool, first))}, lines in decrease: {len(second)}: "
            "write one slider a line, and both phrases of a slider in the same line."
        )
    pairs = zip_longest(first, second, fillvalue="")
    return [SliderPhrases(increase=plus, decrease=minus) for plus, minus in pairs]


def with_phrase(prompt: str, phrase: str) -> str:
    """A prompt with a phrase in the place of each WORD."""
    return PLACE.sub(lambda _: phrase, prompt)


def prompt_of(base_prompt: str, *phrases: str) -> str:
    """A base prompt with phrases, separated by commas, in the place of WORD, or else at its end;
    empty ones are left out.
    """
    inserted = ", ".join(filter(None, phrases))
    if not PLACE.search(base_prompt):
        return ", ".join(filter(None, [base_prompt, inserted]))
    prompt = with_phrase(base_prompt, inserted)
    if inserted:
        return prompt
    pieces = [" ".join(piece.split()) for piece in prompt.split(",")]
    return ", ".join(filter(None, pieces))


def labels_of(metadata: Mapping[str, str]) -> SliderPhrases | None:
    """The labels in the header of a slider's file; None where there are no readable ones."""
    try:
        labels = json.loads(metadata.get(LABELS, ""))
        pair = [labels["increase"], labels["decrease"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not all(isinstance(label, str) for label in pair):
        return None
    increase, decrease = (" ".join(label.split())[:_LONGEST_LABEL] for label in pair)
    return SliderPhrases(increase=increase, decrease=decrease)


def prompts_of(
    base_prompts: Sequence[str], sliders: Sequence[SliderPhrases], preserved: Sequence[str]
) -> list[str]:
    """Every prompt that a training from phrases evaluates, each once."""
    prompts = [prompt_of(base) for base in base_prompts]
    for slider in sliders:
        for base in base_prompts:
            for concept in preserved:
                prompts.append(prompt_of(base, concept, slider.increase))
                prompts.append(prompt_of(base, concept, slider.decrease))
    return list(dict.fromkeys(prompts))
