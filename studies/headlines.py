"""The numbers of README.md and docs/figures.md, their rivals, and where settings were fitted.

A headline is what a method does at the settings that are named, beside the best rival on the same
units. `python run.py study rivals` lists them; a test fails on a number of these pages that is
neither a headline nor the rival of one.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Fitted(enum.StrEnum):
    """The units that settings of a method or rival were fitted on."""

    NONE = "none"  # defaults of a paper or of ComfyUI, or no settings at all
    OTHERS = "others"
    SAME = "the same units"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A number of studies/results/RESULT.json; ``settings`` says how its settings were found."""

    result: str
    key: str
    fitted: Fitted
    settings: str


@dataclass(frozen=True, kw_only=True)
class Headline:
    """A number that a page states, with its rivals; ``no_rival`` says why there is none."""

    number: Measured
    rivals: tuple[Measured, ...] = ()
    no_rival: str = ""


_GUIDED = "positive side to 60 %"
_END_OF_GUIDANCE = "end of the guidance chosen on other members of the collected space"
_LORA = "steps up to the rows of the node, and rate, on ten other people; 400 of 720 are best"
_GAP = "a rule without a setting; ranking chosen on the other five names, both ways the same"
_STRENGTH = "strength and denoise set before"
_IMG2IMG = "best two of four denoises on the same captions"


def _member(key: str, settings: str, fitted: Fitted) -> Measured:
    return Measured(result="weights_learned", key=key, fitted=fitted, settings=settings)


def _inverted(key: str, *, named: str = "the node's defaults") -> Measured:
    """A number of W2W Invert or of a rival on the same forty people."""
    settings = {
        "the node's defaults": (Fitted.OTHERS, f"the node's defaults; {_END_OF_GUIDANCE}"),
        "LoRA, one image": (Fitted.OTHERS, _LORA),
    }
    fitted, text = settings.get(named, (Fitted.NONE, "no settings of its own"))
    return Measured(result="weights_invert", key=key, fitted=fitted, settings=text)


def _planted(way: str, measure: str) -> Measured:
    """A number of a way to find planted neurons, on the same ten names."""
    settings = {
        "gradient": (Fitted.OTHERS, _GAP),
        "NeMo": (Fitted.NONE, "the paper's settings and target"),
        "|z| > 5": (Fitted.NONE, "the threshold that the paper's search begins with"),
    }
    fitted, text = settings.get(way, (Fitted.NONE, "nothing to fit"))
    return Measured(result="neurons_known", key=f"{way}: {measure}", fitted=fitted, settings=text)


def _stopped(key: str, fitted: Fitted, settings: str) -> Measured:
    """A number of where to stop, on the ten planted names."""
    return Measured(result="neurons_stopping", key=key, fitted=fitted, settings=settings)


def _edited(key: str, settings: str = _STRENGTH) -> Measured:
    return Measured(result="activations_words", key=key, fitted=Fitted.NONE, settings=settings)


def _layout(key: str, fitted: Fitted, settings: str) -> Measured:
    return Measured(
        result="noise_layouts", key=f"photograph, {key}", fitted=fitted, settings=settings
    )


def _larger(way: str, settings: str) -> Measured:
    """One face in images of twice the trained size."""
    key = f"{way}: one face"
    return Measured(result="conditioning_enlarging", key=key, fitted=Fitted.NONE, settings=settings)


def _joined(key: str, settings: str) -> Measured:
    return Measured(result="activations_joining", key=key, fitted=Fitted.OTHERS, settings=settings)


def _digits(mode: str, steps: int) -> Measured:
    key = f"digits, {mode} over vanilla, {steps} Euler steps, step 500"
    settings = "training settings common to all modes"
    return Measured(result="noise_digits", key=key, fitted=Fitted.NONE, settings=settings)


def _soft(measure: str) -> Measured:
    return _layout(
        f"soft: {measure}", Fitted.SAME, "soft was chosen beside firm on the same captions"
    )


_COLLECTED = _member(f"collected, {_GUIDED}: identity", _END_OF_GUIDANCE, Fitted.OTHERS)
_UNADAPTED = _member("base model: identity", "nothing to fit", Fitted.NONE)
_LORA_IDENTITY = _inverted(f"LoRA, one image, {_GUIDED}: identity", named="LoRA, one image")
_LORA_SCENE = _inverted(f"LoRA, one image, {_GUIDED}: scene", named="LoRA, one image")
_NAMED = _inverted(
    f"the base model, each attribute named, {_GUIDED}: identity", named="the base model"
)
_PROMPT = _edited("existing, all: prompt: reached")
_PROMPT_CFG = _edited("existing, all: prompt at CFG 6: reached", "CFG 6 set before")
_PROMPT_DENOISE = _edited("existing, all: prompt at denoise .8: reached", "denoise .8 set before")


def _flow_edit(measure: str) -> Measured:
    return Measured(
        result="noise_edits",
        key=f"existing: FlowEdit: {measure}",
        fitted=Fitted.SAME,
        settings="the best of four settings on the same faces",
    )


_FLOW_EDIT = _flow_edit("reached")

_COST = "a cost on one machine, not a claim over a rival"


def _cost(result: str, key: str) -> Measured:
    """A time, a number of bytes, or a count of trials."""
    return Measured(result=result, key=key, fitted=Fitted.NONE, settings="nothing to fit")


#: What a move of a slider, a build, a heat map and a search take, and trials beside other packs.
_COSTS = (
    Headline(
        number=_cost("bench_weights_sliders", "SDXL learned, slider, this pack"),
        rivals=(_cost("bench_weights_sliders", "SDXL learned, slider, stock LoRA load"),),
    ),
    Headline(number=_cost("weights_sdxl_journey", "build: time"), no_rival=_COST),
    Headline(number=_cost("weights_sdxl_journey", "build: memory"), no_rival=_COST),
    Headline(
        number=_cost("bench_nodes", "TokenHeatMap, SDXL: takes"),
        rivals=(_cost("bench_nodes", "TokenHeatMap, SDXL: rival"),),
    ),
    Headline(number=_cost("bench_nodes", "TokenHeatMap, SDXL: memory"), no_rival=_COST),
    Headline(
        number=_cost("bench_neurons_width", "random SD1.5, 320 channels, latent 8: seconds, exact"),
        rivals=(
            _cost(
                "bench_neurons_width",
                "random SD1.5, 320 channels, latent 8: seconds, official schedule",
            ),
        ),
    ),
    Headline(
        number=_cost(
            "bench_neurons_gradient", "SD1.5, latent 32, forward and backward, peak memory"
        ),
        rivals=(_cost("bench_neurons_gradient", "SD1.5, latent 32, forward, peak memory"),),
    ),
    Headline(
        number=_cost("robustness_calls", "calls: wrong"),
        no_rival="the aim is none; how often other packs err was not measured",
    ),
)

HEADLINES = (
    *_COSTS,
    Headline(
        number=_larger("higher resolution", "the node's defaults"),
        rivals=(
            _larger("stock", "nothing to fit"),
            _larger("enlarged", "nothing to fit"),
            _larger("two passes", "denoise .5 set before"),
        ),
    ),
    Headline(
        number=_member(f"learned, {_GUIDED}: identity", _END_OF_GUIDANCE, Fitted.OTHERS),
        rivals=(_COLLECTED, _UNADAPTED),
    ),
    Headline(
        number=_inverted(f"the node's defaults, {_GUIDED}: identity"),
        rivals=(_LORA_IDENTITY, _NAMED),
    ),
    Headline(
        number=_inverted(f"the node's defaults less LoRA, one image, {_GUIDED}: identity"),
        rivals=(_LORA_IDENTITY,),
    ),
    Headline(
        number=_inverted(f"the node's defaults, {_GUIDED}: scene"),
        rivals=(
            _LORA_SCENE,
            _inverted(f"the base model, {_GUIDED}: scene", named="the base model"),
        ),
    ),
    Headline(
        number=_joined("recommended, equal", "set selected on other images"),
        rivals=(
            _joined(
                "best single activation of the selection images (up-level1-upsampler-out), equal",
                "best of all activations on other images",
            ),
            _joined("legacy set, equal", "the outputs between blocks that earlier papers used"),
        ),
    ),
    Headline(
        number=_stopped("the node's defaults: F1", Fitted.OTHERS, _GAP),
        rivals=(
            _planted("NeMo", "F1"),
            _planted("|z| > 5", "F1"),
            _stopped(
                "search, target chosen on the other half, by order: F1",
                Fitted.OTHERS,
                "target chosen on the other five names",
            ),
        ),
    ),
    Headline(
        number=_stopped("the node's defaults: rows", Fitted.OTHERS, _GAP),
        rivals=(_planted("NeMo", "rows"),),
    ),
    Headline(
        number=_stopped(
            "attribution to the search's target: F1", Fitted.NONE, "the search's own target"
        ),
        rivals=(_planted("NeMo", "F1"),),
    ),
    Headline(
        number=_stopped(
            "attribution to the search's target: rows", Fitted.NONE, "the search's own target"
        ),
        rivals=(_planted("NeMo", "rows"),),
    ),
    Headline(
        number=_planted("gradient", "similarity"),
        rivals=(_planted("NeMo", "similarity"), _planted("generic prompt", "similarity")),
    ),
    Headline(
        number=_planted("gradient", "confidence"),
        rivals=(
            _planted("planted neurons", "confidence"),
            _planted("generic prompt", "confidence"),
            _planted("untouched", "confidence"),
        ),
    ),
    Headline(
        number=_planted("gradient", "distance to generic"),
        rivals=(
            _planted("planted neurons", "distance to generic"),
            _planted("generic prompt", "distance to generic"),
        ),
    ),
    Headline(
        number=_planted("gradient", "captions"),
        rivals=(_planted("NeMo", "captions"), _planted("untouched", "captions")),
    ),
    Headline(
        number=_edited("existing, all: edit 2 in the prompt: reached"),
        rivals=(_PROMPT, _PROMPT_CFG, _PROMPT_DENOISE, _FLOW_EDIT),
    ),
    Headline(
        number=_edited("existing: edit 2 in the prompt minus prompt: reached"),
        rivals=(_PROMPT,),
    ),
    Headline(
        number=_edited("existing: edit 2, own noise minus random noise: others kept"),
        rivals=(
            _edited("existing, all: edit 2 in the prompt: others kept"),
            _flow_edit("others kept"),
        ),
    ),
    Headline(
        number=_soft("layout"),
        rivals=(
            _layout("img2img 0.8: layout", Fitted.SAME, _IMG2IMG),
            _layout("img2img 0.85: layout", Fitted.SAME, _IMG2IMG),
        ),
    ),
    Headline(
        number=_soft("captions lost"),
        rivals=(
            _layout("img2img 0.8: captions lost", Fitted.SAME, _IMG2IMG),
            _layout("img2img 0.85: captions lost", Fitted.SAME, _IMG2IMG),
        ),
    ),
    Headline(number=_digits("assign", 2), rivals=(_digits("nearest 2", 2),)),
    Headline(number=_digits("assign", 20), rivals=(_digits("nearest 2", 20),)),
)
