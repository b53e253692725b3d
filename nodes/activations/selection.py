"""Which activations: by preset, by list, by wildcard."""

from __future__ import annotations

import difflib
import re
from fnmatch import fnmatchcase

from . import published, words
from .entries import Entry

LIST = "the list below"
BEST = "best for this model"
POOL, FILTER, RULE = "paper's pool", "paper's filter", "general filter (ours)"
ALL_BUT_MAPS, WORDS = "all but attention maps", "attention to words"
PRESETS = (BEST, *published.SETS, FILTER, POOL, RULE, ALL_BUT_MAPS, WORDS, LIST)

_PLACE = re.compile(r"up-level(\d+)-repeat(\d+)-(.+)")
_SUGGESTIONS = 3


class NoSuchActivationError(ValueError):
    """A wish that no activation of the network fulfils."""


def select(entries: list[Entry], preset: str, patterns: str = "") -> list[Entry]:
    """The entries of a preset of ``PRESETS``, in forward order; ``patterns`` matter for ``LIST`` alone.

    Raises NoSuchActivationError with a sentence when the preset does not belong to this network or a pattern matches
    nothing.
    """
    if preset == LIST:
        return matching(entries, patterns)
    wanted = set(_preset(entries, preset))
    missing = sorted(wanted - {entry.id for entry in entries})
    if missing:
        raise NoSuchActivationError(
            f"'{preset}' names {missing[0]}, which this model does not have: choose '{BEST}' or a list."
        )
    return [entry for entry in entries if entry.id in wanted]


def matching(entries: list[Entry], patterns: str) -> list[Entry]:
    """Entries that any pattern matches: IDs with ``*`` and ``?``, apart by commas, spaces or lines; ``#`` comments."""
    ids = match_ids([entry.id for entry in entries], patterns)
    return [entry for entry in entries if entry.id in ids]


def match_ids(ids: list[str], patterns: str) -> list[str]:
    """Those of ``ids`` that any pattern matches, in their order; raises NoSuchActivationError as ``select`` does."""
    lines = (line.split("#", 1)[0] for line in patterns.splitlines())
    wishes = [wish for line in lines for wish in re.split(r"[,\s]+", line) if wish]
    if not wishes:
        raise NoSuchActivationError("No activation is named: write IDs or wildcards such as up-level1-*-cross-q.")
    for wish in wishes:
        if not any(fnmatchcase(id_, wish) for id_ in ids):
            raise NoSuchActivationError(f"No activation matches '{wish}'{_suggestion(wish, ids)}.")
    return [id_ for id_ in ids if any(fnmatchcase(id_, wish) for wish in wishes)]


def _suggestion(wish: str, ids: list[str]) -> str:
    near = difflib.get_close_matches(wish, ids, _SUGGESTIONS, cutoff=0.5)
    if near:
        return f"; near it: {', '.join(near)}"
    return "; Activation Catalog lists all IDs of the model" if ids else ""


def _preset(entries: list[Entry], preset: str) -> list[str]:
    architecture = published.architecture(entries)
    if preset == BEST:
        return best(entries)
    if preset == RULE:
        return general_filter(entries)
    if preset == ALL_BUT_MAPS:
        return [entry.id for entry in entries if entry.kind != "map" and not entry.members]
    if preset == WORDS:
        if not any(entry.id == words.SOURCE for entry in entries):
            raise NoSuchActivationError(
                "The attention of this model's picture to its text cannot be read, so there is no attention to words: "
                f"choose '{BEST}' or a list."
            )
        return [words.SOURCE]
    if preset in (POOL, FILTER):
        if architecture is None:
            raise NoSuchActivationError(f"The paper gives no {preset[8:]} for this model: choose '{RULE}' or a list.")
        return published.flagged(architecture, "pool" if preset == POOL else "filter")
    owner, ids = published.SETS[preset]
    if owner != architecture:
        family = {"sd15": "SD1.5", "sdxl": "SDXL"}[owner]
        raise NoSuchActivationError(
            f"'{preset}' is a set for {family}, and this model is none: choose '{BEST}' or a list."
        )
    return list(ids)


def best(entries: list[Entry]) -> list[str]:
    """The paper's set for SD1.5 and SDXL; elsewhere ours by analogy.

    By analogy: cross-q and block output in the first repeat of the middle level of the up-stage, the residual output of
    its last repeat, and the self-attention keys of the first repeat of the last level. Of a transformer, the output of
    its middle block.
    """
    architecture = published.architecture(entries)
    if not _places(entries):
        blocks = [entry.id for entry in entries if entry.id.startswith("vit-block") and entry.id.endswith("-out")]
        blocks = [id_ for id_ in blocks if not id_.endswith("attn-out")]
        return [blocks[len(blocks) // 2]]
    if architecture:
        return list(published.SETS["Ours-v1.5" if architecture == "sd15" else "Ours-XL"][1])
    last = _last_level(entries)
    middle, repeat = _later_half(entries)
    wishes = (
        f"up-level{middle}-repeat0-vit-block0-cross-q",
        f"up-level{middle}-repeat0-vit-block0-out",
        f"up-level{middle}-repeat{repeat}-res-out",
        f"up-level{last}-repeat0-vit-block0-self-k",
    )
    return [entry.id for entry in entries if entry.id in wishes]


def general_filter(entries: list[Entry]) -> list[str]:
    """The paper's filter rules (section 5.1) on any U-Net of this scheme. The exact cut is ours.

    Of the up-stage, without levels that have no transformer: no increments, no ffn-inner, no self-v, no maps. Before
    the last repeat of the middle level: residual, cross-q, block and transformer outputs. In that repeat: these and
    self-q, self-k. After it: self-q and self-k alone, whose locality holds the diffusion noise down.
    """
    if not _places(entries):
        raise NoSuchActivationError(f"'{RULE}' is about U-Nets, and this is a transformer: choose '{BEST}' or a list.")
    with_transformer = {level for level, _, part in _places(entries).values() if part == "vit-out"}
    later = _later_half(entries)
    kept = []
    for id_, (level, repeat, part) in _places(entries).items():
        smooth = part in ("res-out", "vit-out") or bool(re.fullmatch(r"vit-block\d+-(cross-q|out)", part))
        local = bool(re.fullmatch(r"vit-block\d+-self-[qk]", part))
        place = (level, repeat)
        if level in with_transformer and ((smooth and place <= later) or (local and place >= later)):
            kept.append(id_)
    return kept


def _places(entries: list[Entry]) -> dict[str, tuple[int, int, str]]:
    found = ((entry.id, _PLACE.fullmatch(entry.id)) for entry in entries)
    return {id_: (int(match[1]), int(match[2]), match[3]) for id_, match in found if match}


def _last_level(entries: list[Entry]) -> int:
    return max(level for level, _, part in _places(entries).values() if part == "vit-out")


def _later_half(entries: list[Entry]) -> tuple[int, int]:
    """Level and repeat at which the later half of the up-stage begins: the last repeat of the middle level."""
    places = [(level, repeat) for level, repeat, _ in _places(entries).values()]
    middle = (max(places)[0] + 1) // 2
    return max(place for place in places if place[0] == middle)
