"""Which slider LoRAs a text of strengths names: `old: 0.8, details/film: -0.5`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..common import named_strengths
from .slider_phrases import SliderPhrases, labels_of

_ENDING = re.compile(r"\.(safetensors|sft|ckpt|pt2?|bin|pth)$", re.IGNORECASE)
#: What `next_file` appends to a name.
_COUNTER = re.compile(r"_\d{5}_?$")
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class SliderFile:
    """A LoRA file as a slider: its name in the text of strengths, and the labels of its ends.

    ``labels``: None where the file has none, as any LoRA of another trainer.
    """

    name: str
    path: Path
    labels: SliderPhrases | None


@dataclass(frozen=True, kw_only=True)
class NamedStrength:
    """A slider of a text: its name there, its strength, and its file in ComfyUI's list ("" for a
    slider that comes by wire).
    """

    name: str
    file: str
    strength: float


def outline(name: str, labels: SliderPhrases | None) -> dict[str, str]:
    """What the panel shows of a slider."""
    if labels is None:
        return {"name": name}
    return {"name": name, "increase": labels.increase, "decrease": labels.decrease}


def short_name(file: str) -> str:
    """The name of a LoRA file in a text: without its ending, with forward slashes."""
    return _ENDING.sub("", file.replace("\\", "/"))


def resolve_name(name: str, names: Mapping[str, str]) -> str | None:
    """What a name stands for among ``names``, with or without a file's ending; None for nothing,
    and where several differ from it in their case alone.
    """
    for candidate in (name, short_name(name)):
        match = named_strengths.matching_name(candidate, names)
        if match is not None:
            return names[match]
    return None


def names_of(files: Sequence[str]) -> dict[str, str]:
    """The files of ComfyUI's list by their short names; of two with one name the first."""
    return {short_name(file): file for file in reversed(files)}


def wired_sliders(
    paths: Sequence[Path], read_metadata: Callable[[Path], Mapping[str, str]]
) -> list[SliderFile]:
    """The sliders of files that come by wire, named by their phrase, else by the file without its
    number; a name that is taken gets a number.
    """
    sliders: list[SliderFile] = []
    taken: set[str] = set()
    numbers: dict[str, int] = {}
    for path in paths:
        labels = labels_of(read_metadata(path))
        wanted = _COUNTER.sub("", short_name(path.name)) if labels is None else labels.slug
        name = wanted
        while name in taken:
            numbers[wanted] = numbers.get(wanted, 1) + 1
            name = f"{wanted}_{numbers[wanted]}"
        taken.add(name)
        sliders.append(SliderFile(name=name, path=path, labels=labels))
    return sliders


def strengths_of(
    text: str, wired: Sequence[SliderFile], files: Sequence[str]
) -> list[NamedStrength]:
    """Each named slider with its strength, in the order of the text; the strengths of one that is
    named twice add up.

    ``files``: ComfyUI's list of LoRAs. Raises ValueError for a name that is neither of a wired
    slider nor of a file.
    """
    wired_names = {slider.name: slider.name for slider in wired}
    listed = names_of(files)
    strengths: dict[tuple[str, str], float] = {}
    for name, strength in named_strengths.parse(text):
        slider = resolve_name(name, wired_names)
        file = "" if slider is not None else resolve_name(name, listed)
        if file is None:
            raise ValueError(_missing(name, [*wired_names, *listed]))
        key = (slider or short_name(file), file)
        strengths[key] = strengths.get(key, 0.0) + strength
    return [
        NamedStrength(name=name, file=file, strength=strength)
        for (name, file), strength in strengths.items()
    ]


def _missing(name: str, names: Sequence[str]) -> str:
    examples = f", such as {', '.join(names[:_SHOWN])}" if names else ""
    return (
        f"There is no LoRA {name[:60]!r} in models/loras: name a file without its ending"
        f"{examples}, or connect files."
    )
