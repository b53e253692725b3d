"""Labels of a space's members without typing them: from their images by CLIP, or from their files'
names and tags.

Every line of the words names alternatives that exclude each other, such as ``beard / shaven``. Of
images, a label is CLIP's zero-shot probability of the alternative (Radford et al., arXiv
2103.00020, section 3.1): the softmax over the line's cosines times 100. Of names and tags it is 1
where the alternative is named, 0 where another one is.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from ..common.headers import LARGEST_SIDE, HeaderError, Section

_SCALE = 100.0  # CLIP's largest logit scale


def parse_lines(text: str) -> list[tuple[str, ...]]:
    """The alternatives of every line; raises ValueError for names that an edit could not hold, or
    that come twice.
    """
    lines = [
        tuple(part.strip() for part in line.split("/"))
        for line in text.splitlines()
        if line.strip()
    ]
    names = [name for line in lines for name in line]
    if not names:
        raise ValueError(
            "There are no words: write a line for each attribute, such as beard / shaven."
        )
    times = Counter(names)
    for name in names:
        if not name or re.search(r"[,;:]", name):
            raise ValueError(
                f"{name!r} cannot name a direction: write words without commas, colons and "
                "semicolons."
            )
        if times[name] > 1:
            raise ValueError(f"{name!r} appears twice: name each alternative once.")
    return lines


def from_cosines(
    lines: Sequence[tuple[str, ...]], cosines: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Labels float32 (n,) from the agreement (n,) of each alternative: probabilities, and of a lone
    word the cosine.

    Of two alternatives the first alone is a label, the second being its complement.
    """
    labels: dict[str, torch.Tensor] = {}
    for line in lines:
        scores = torch.stack([cosines[name].float() for name in line], dim=1)
        values = scores if len(line) == 1 else (_SCALE * scores).softmax(dim=1)
        labels |= dict(zip(_named(line), values.T, strict=False))
    return labels


def from_counts(
    lines: Sequence[tuple[str, ...]], texts: Sequence[Mapping[str, int]]
) -> dict[str, torch.Tensor]:
    """Labels float32 (n,) from what names each member: phrases and how often each occurs.

    1 where the alternative occurs most often, 0 where another one does, NaN where none or two of
    them do; a lone word is 1 where it occurs and 0 elsewhere.
    """
    labels: dict[str, torch.Tensor] = {}
    for line in lines:
        counts = torch.tensor(
            [[_occurrences(name, text) for name in line] for text in texts], dtype=torch.float32
        )
        most = counts.max(dim=1, keepdim=True).values
        found = (counts == most) & (most > 0)
        values = found.float()
        if len(line) > 1:
            values[found.sum(dim=1) != 1] = float("nan")
        labels |= dict(zip(_named(line), values.T, strict=False))
    return labels


def tags_of(metadata: Mapping[str, str]) -> dict[str, int]:
    """Phrases of a LoRA file's metadata with their counts: kohya's ss_tag_frequency, modelspec's
    tags and title.
    """
    tags: dict[str, int] = {}
    with contextlib.suppress(HeaderError):  # not as kohya writes it
        datasets = Section(metadata, "the file").parsed("ss_tag_frequency", default=Section({}, ""))
        for dataset in datasets:
            counts = datasets.section(dataset)
            for tag in counts:
                tags[tag] = tags.get(tag, 0) + counts.integer(tag, high=LARGEST_SIDE)
    for key in ("modelspec.tags", "modelspec.title"):
        tags |= {tag: 1 for tag in metadata.get(key, "").split(",") if tag.strip()}
    return tags


def describe(labels: Mapping[str, torch.Tensor], what: str) -> str:
    """What the labels are, and for each how many members have it, lack it, and are unknown."""
    lines = [f"Labels: {what}."]
    for name, values in labels.items():
        known = values[values.isfinite()]
        low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
        with_it = int((known > ((low + high) / 2 if low < high else 0.5)).sum())
        lines.append(
            f"{name}: {with_it} members with it, {len(known) - with_it} without, "
            f"{len(values) - len(known)} unknown (values {low:.3g} to {high:.3g})."
        )
    return "\n".join(lines)


def _named(line: tuple[str, ...]) -> tuple[str, ...]:
    return line[:1] if len(line) == 2 else line


def _occurrences(name: str, text: Mapping[str, int]) -> int:
    """How often the phrases occur that hold all words of a name."""
    wanted = _words(name)
    return sum(count for phrase, count in text.items() if wanted <= _words(phrase))


def _words(text: str) -> set[str]:
    return set(re.findall(r"[^\W_]+", text.lower()))
