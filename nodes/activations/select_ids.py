"""Which activations: by preset, by list, by wildcard. And which steps of a run: ``"0, 5-9, 50%,
last"``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from enum import StrEnum
from fnmatch import fnmatchcase

from . import paper_tables
from .activation_spec import ActivationSpec, Kind


class Preset(StrEnum):
    """Values of the ``preset`` input; those named ours and legacy are the paper's sets
    (``paper_tables.SETS``).
    """

    RECOMMENDED = "recommended"
    OURS_V1_5 = "ours_v1_5"
    OURS_XL = "ours_xl"
    OURS_XL_T_SD15 = "ours_xl_t_sd15"
    OURS_XL_T_PLAYGROUND_V2 = "ours_xl_t_playground_v2"
    OURS_XL_T_SEGMENTATION_SDXL = "ours_xl_t_segmentation_sdxl"
    OURS_XL_T_SEGMENTATION_PLAYGROUND_V2 = "ours_xl_t_segmentation_playground_v2"
    LEGACY_V1_5 = "legacy_v1_5"
    LEGACY_XL = "legacy_xl"
    PAPER_FILTER = "paper_filter"
    PAPER_POOL = "paper_pool"
    GENERAL_FILTER = "general_filter"
    ALL_FEATURES = "all_features"
    CROSS_ATTENTION = "cross_attention"
    CROSS_ATTENTION_MEAN = "cross_attention_mean"
    CUSTOM_IDS = "custom_ids"


#: ID of the attention averaged over all layers and heads.
ATTENTION_MEAN = "attn-mean"
_PLACE = re.compile(r"up-level(\d+)-repeat(\d+)-(.+)")
_WILDCARD = re.compile(r"[*?[]")
_SUGGESTIONS = 3
_MAX_PATTERNS = 2000
_DAAM_SKIPPED_SCALE = 8


class NoSuchActivationError(ValueError):
    """A preset, ID or wildcard that matches no activation of the network."""


def select(specs: list[ActivationSpec], preset: str, patterns: str = "") -> list[ActivationSpec]:
    """The specs of a preset, in forward order; ``patterns`` matter for ``Preset.CUSTOM_IDS`` alone.

    Raises NoSuchActivationError when the preset is not for this network or a pattern matches
    nothing.
    """
    if preset == Preset.CUSTOM_IDS:
        ids = set(match_ids([spec.id for spec in specs], patterns))
    else:
        ids = set(preset_ids(specs, preset, paper_tables.architecture(specs)))
    return [spec for spec in specs if spec.id in ids]


def match_ids(ids: list[str], patterns: str) -> list[str]:
    """Those of ``ids`` that any pattern matches, in their order; raises NoSuchActivationError as
    ``select`` does.

    Patterns are IDs with ``*`` and ``?``, separated by commas, spaces or line breaks; ``#`` begins
    a comment.
    """
    lines = (line.split("#", 1)[0] for line in patterns.splitlines())
    wanted = dict.fromkeys(
        pattern for line in lines for pattern in re.split(r"[,\s]+", line) if pattern
    )
    if not wanted:
        raise NoSuchActivationError(
            "No activation is named. Enter IDs or wildcards such as up-level1-*-cross-q."
        )
    if len(wanted) > _MAX_PATTERNS:
        raise NoSuchActivationError(
            f"There are {len(wanted)} IDs and wildcards, and at most {_MAX_PATTERNS} are allowed."
        )
    selected: set[str] = set()
    known = set(ids)
    for pattern in wanted:
        matches = (
            [id_ for id_ in ids if fnmatchcase(id_, pattern)]
            if _WILDCARD.search(pattern)
            else {pattern} & known
        )
        if not matches:
            raise NoSuchActivationError(
                f"No activation matches '{pattern[:80]}'{_suggestion(pattern[:80], ids)}."
            )
        selected.update(matches)
    return [id_ for id_ in ids if id_ in selected]


def _suggestion(pattern: str, ids: list[str]) -> str:
    similar = difflib.get_close_matches(pattern, ids, _SUGGESTIONS, cutoff=0.5)
    if similar:
        return f"; similar: {', '.join(similar)}"
    return "; Activation Catalog lists all IDs of the model" if ids else ""


def preset_ids(specs: list[ActivationSpec], preset: str, architecture: str | None) -> list[str]:
    """IDs of a preset other than ``CUSTOM_IDS``; ``architecture`` as in ``paper_tables``. Raises as
    ``select`` does.
    """
    if preset == Preset.RECOMMENDED:
        return recommended(specs, architecture)
    if preset == Preset.GENERAL_FILTER:
        return general_filter(specs)
    if preset == Preset.ALL_FEATURES:
        return [spec.id for spec in specs if spec.kind != Kind.MAP and not spec.members]
    if preset in (Preset.CROSS_ATTENTION, Preset.CROSS_ATTENTION_MEAN):
        if not any(spec.id == ATTENTION_MEAN for spec in specs):
            raise NoSuchActivationError(
                "The image-to-text attention of this model cannot be read, so there is no "
                f"cross-attention preset. Use '{Preset.RECOMMENDED}' or '{Preset.CUSTOM_IDS}'."
            )
        if preset == Preset.CROSS_ATTENTION and has_stages(specs):
            return daam_maps(specs)
        return [ATTENTION_MEAN]
    if preset in (Preset.PAPER_POOL, Preset.PAPER_FILTER):
        if architecture is None:
            raise NoSuchActivationError(
                f"The paper has no '{preset}' for this model. Use '{Preset.GENERAL_FILTER}' or "
                f"'{Preset.CUSTOM_IDS}'."
            )
        return paper_tables.flagged(
            architecture, "pool" if preset == Preset.PAPER_POOL else "filter"
        )
    owner, ids = paper_tables.SETS[preset]
    if owner != architecture:
        family = {"sd15": "SD1.5", "sdxl": "SDXL"}[owner]
        raise NoSuchActivationError(
            f"'{preset}' is a set for {family}, and this model is not one. Use "
            f"'{Preset.RECOMMENDED}' or '{Preset.CUSTOM_IDS}'."
        )
    return list(ids)


def recommended(specs: list[ActivationSpec], architecture: str | None) -> list[str]:
    """The paper's set for SD1.5 and SDXL; elsewhere a set by analogy.

    By analogy: the residual output of the last repeat of the middle level of the up-stage, and the
    self-attention keys of the first repeat of the last level, which matched points best on the demo
    model when each counts alike, on the images that it was chosen from
    (``studies/activations/joining.py`` separates them). Of a transformer, the output of its middle
    block.
    """
    if architecture:
        return list(
            paper_tables.SETS[Preset.OURS_V1_5 if architecture == "sd15" else Preset.OURS_XL][1]
        )
    places = _places(specs)
    if not places:
        blocks = [
            spec.id
            for spec in specs
            if spec.id.startswith("vit-block") and spec.id.endswith("-out")
        ]
        blocks = [id_ for id_ in blocks if not id_.endswith("attn-out")]
        return [blocks[len(blocks) // 2]]
    last = max(level for level, _, part in places.values() if part == "vit-out")
    middle, repeat = _later_half(places)
    wanted = (
        f"up-level{middle}-repeat{repeat}-res-out",
        f"up-level{last}-repeat0-vit-block0-self-k",
    )
    return [spec.id for spec in specs if spec.id in wanted]


def general_filter(specs: list[ActivationSpec]) -> list[str]:
    """The paper's filter rules (section 5.1) on any U-Net of this scheme; the exact cut is this
    pack's.

    Of the up-stage, without levels that have no transformer: no increments, no ffn-inner, no
    self-v, no maps. Before the last repeat of the middle level: residual, cross-q, block and
    transformer outputs. In that repeat: these and self-q, self-k. After it: self-q and self-k
    alone, whose locality suppresses the diffusion noise.
    """
    places = _places(specs)
    if not places:
        raise NoSuchActivationError(
            f"'{Preset.GENERAL_FILTER}' is for U-Nets, and this model is a transformer. Use "
            f"'{Preset.RECOMMENDED}', '{Preset.ALL_FEATURES}' or '{Preset.CUSTOM_IDS}'."
        )
    with_transformer = {level for level, _, part in places.values() if part == "vit-out"}
    later = _later_half(places)
    kept = []
    for id_, (level, repeat, part) in places.items():
        smooth = part in ("res-out", "vit-out") or bool(
            re.fullmatch(r"vit-block\d+-(cross-q|out)", part)
        )
        local = bool(re.fullmatch(r"vit-block\d+-self-[qk]", part))
        place = (level, repeat)
        if level in with_transformer and (
            (smooth and place <= later) or (local and place >= later)
        ):
            kept.append(id_)
    return kept


def daam_maps(specs: list[ActivationSpec]) -> list[str]:
    """The cross-attention maps of a U-Net that DAAM reads: all but the middle block and an eighth
    of the latent's side.

    DAAM 0.2.0: ``locate_middle_block=False`` and ``factor != 8``.
    """
    return [
        spec.id
        for spec in specs
        if spec.id.endswith("cross-map")
        and not spec.id.startswith("mid")
        and spec.scale != _DAAM_SKIPPED_SCALE
    ]


def has_stages(specs: list[ActivationSpec]) -> bool:
    """Whether the network is a U-Net, to whose up-stage the paper's rules apply."""
    return bool(_places(specs))


def _places(specs: list[ActivationSpec]) -> dict[str, tuple[int, int, str]]:
    """Level, repeat and part of the activations of the up-stage, by ID."""
    matches = ((spec.id, _PLACE.fullmatch(spec.id)) for spec in specs)
    return {id_: (int(match[1]), int(match[2]), match[3]) for id_, match in matches if match}


def _later_half(places: dict[str, tuple[int, int, str]]) -> tuple[int, int]:
    """Level and repeat at which the later half of the up-stage begins: the last repeat of the
    middle level.
    """
    pairs = [(level, repeat) for level, repeat, _ in places.values()]
    middle = (max(pairs)[0] + 1) // 2
    return max(pair for pair in pairs if pair[0] == middle)


STEPS_EXAMPLE = "all, steps such as 0, 5-9, last, or fractions of the run such as 25%, 50%"
_NUMBER = re.compile(r"\d+")
_RANGE = re.compile(r"(\d+)\s*-\s*(\d+)")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")

StepPredicate = Callable[[int, int], bool]


def parse_steps(text: str) -> StepPredicate:
    """A predicate of step (from 0) and number of steps: whether the text selects that step.

    A fraction of the run is the step that contains it: 0% the first, 100% the last. Raises
    ValueError for other text.
    """
    predicates = [
        _parse_step(part.strip().lower(), text)
        for part in re.split(r"[,;\n]+", text)
        if part.strip()
    ]
    if not predicates:
        raise ValueError(f"No step is selected. Enter {STEPS_EXAMPLE}.")
    return lambda step, steps: any(selects(step, steps) for selects in predicates)


def _parse_step(part: str, text: str) -> StepPredicate:
    if part == "all":
        return lambda step, steps: True
    if part == "last":
        return lambda step, steps: step == steps - 1
    if _NUMBER.fullmatch(part):
        return lambda step, steps: step == int(part)
    if match := _RANGE.fullmatch(part):
        first = int(match[1])
        last = int(match[2])
        return lambda step, steps: first <= step <= last
    if (match := _PERCENT.fullmatch(part)) and float(match[1]) <= 100:
        fraction = float(match[1]) / 100
        return lambda step, steps: step == min(int(fraction * steps), steps - 1)
    raise ValueError(f"{part!r} in {text.strip()!r} is not a step. Enter {STEPS_EXAMPLE}.")
