"""Metadata Schedule on the shipped model: does asking for a small original change only the
sharpness?
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from ..common import host, results
from ..world import captions, dataset, judge
from ..world.measure import sharpness
from ..world.scenes import BACKGROUNDS, Metadata, render
from . import sampled_images

SMALL, FULL = 32, 128
EXPONENTS = (0.0, 1.0, 2.0, 4.0, 8.0)
#: Sizes requested at every step: between the small and the full one, the rivals of the gate; and
#: larger than trained.
MILDER, LARGER = (48, 64, 80, 96, 112), (192, 256, 512)


def scheduled(model, exponent: float, mode: str = "value", fields: str = "original_size"):
    """The MODEL that the node gives out."""
    schedule = host.pack("nodes.conditioning.metadata_schedule").GateSchedule(
        curve="cosine",
        exponent=exponent,
        fields=fields,
        reference_width=0,
        reference_height=0,
        mode=mode,
        apply_to="both",
    )
    return host.pack("nodes.conditioning.metadata_schedule_comfy").gated(
        model, schedule, inside=mode == "embedding"
    )


def measure(quick: bool) -> dict[str, dict]:
    """The paper's figure 2 in numbers, for several exponents, and whether size and mirror are still
    obeyed.

    The gate is also a weaker request, so it is compared with milder sizes at every step, at equal
    blur.
    """
    generator, network = sampled_images.load()
    requested = sampled_images.scenes(6 if quick else 48)
    prompts = sampled_images.encoded(generator, sampled_images.texts(requested))
    full = sampled_images.generated(generator, prompts, height=FULL, width=FULL)
    numbers = _renders(network, requested)
    curve, gated = {}, {}
    for side in MILDER[1::2] if quick else (*MILDER, *LARGER):
        made = sampled_images.generated(generator, prompts, height=side, width=side)
        curve[side] = _with_blur(network, full, made)
        numbers |= _numbers_of(f"stock, size {side}", curve[side])
    settings = [(exponent, "value") for exponent in EXPONENTS] + [
        (2.0, "embedding"),
        (8.0, "embedding"),
    ]
    for exponent, mode in settings[:5:2] if quick else settings:
        model = scheduled(generator.model, exponent, mode)
        blurred = sampled_images.generated(generator, prompts, model, height=SMALL, width=SMALL)
        name = "stock" if exponent == 0 else f"exponent {exponent:g}, {mode}"
        found = _with_blur(network, full, blurred)
        numbers |= _numbers_of(name, found)
        if exponent == 0:
            curve[SMALL] = found
        else:
            gated[name] = found
        numbers[f"{name}: captions obeyed"] = results.bootstrap(
            sampled_images.obeyed(network, blurred, requested),
            f"fraction of requested attributes found at size {SMALL}",
            "fraction",
        )
    milder = [curve[side] for side in sorted(curve) if side < FULL]
    for name, found in gated.items():
        numbers |= _at_equal_blur(name, found, milder)
    return numbers | _mirrors(generator, network, 6 if quick else 40)


def _with_blur(network, full: np.ndarray, made: np.ndarray) -> dict[str, np.ndarray]:
    """What `changes` measures for each image, and its sharpness over that of the full size."""
    return sampled_images.changes(network, full, made) | {"blur": sharpness(made) / sharpness(full)}


def _numbers_of(name: str, found: dict[str, np.ndarray]) -> dict[str, dict]:
    what = sampled_images.CHANGES | {"blur": (f"sharpness over that at size {FULL}", "ratio")}
    return {
        f"{name}: {key}": results.bootstrap(values, *what[key]) for key, values in found.items()
    }


def _at_equal_blur(
    name: str, found: dict[str, np.ndarray], milder: list[dict[str, np.ndarray]]
) -> dict[str, dict]:
    """A gate's changes less those of the milder size at every step that blurs as much, paired by
    image.

    Between two sizes their changes are interpolated by mean blur. ``milder``: from the smallest
    size to the largest; a gate that blurs less than the largest or more than the smallest is left
    out.
    """
    blurs = [float(one["blur"].mean()) for one in milder]
    target = float(found["blur"].mean())
    place = next(
        (i for i, (a, b) in enumerate(pairwise(blurs)) if min(a, b) <= target <= max(a, b)), None
    )
    if place is None:
        return {}
    low, high = milder[place : place + 2]
    weight = (target - blurs[place]) / (blurs[place + 1] - blurs[place])
    return {
        f"{name}: {key}, less a milder size": results.bootstrap(
            found[key] - ((1 - weight) * low[key] + weight * high[key]),
            f"{what}: gated less the size at every step that blurs as much (interpolated), paired "
            "by image",
            unit,
        )
        for key, (what, unit) in sampled_images.CHANGES.items()
    }


def _renders(network, requested: list) -> dict[str, dict]:
    """The same on renders, where nothing but the sharpness differs: the floor of every measure."""
    sides = [
        np.stack([render(replace(scene, metadata=Metadata(original=side))) for scene in requested])
        for side in (FULL, SMALL)
    ]
    numbers = sampled_images.content_change(network, *sides, "renders")
    numbers["renders: blur"] = results.bootstrap(
        sharpness(sides[1]) / sharpness(sides[0]), f"sharpness at size {SMALL} over {FULL}", "ratio"
    )
    return numbers


def _mirrors(generator, network, count: int) -> dict[str, dict]:
    """Whether a mirror is obeyed when it acts from the start, as the paper has it, and when it is
    gated too.
    """
    column, numbers = list(dataset.LABELS).index("mirror"), {}
    grounds = [
        f"portrait, {captions.background_phrase(replace(scene, pattern='split', background=color))}"
        for scene, color in zip(
            sampled_images.scenes(count), list(BACKGROUNDS) * count, strict=False
        )
    ]
    prompts = sampled_images.encoded(generator, grounds)
    for name, fields, exponent in (
        ("stock", "original_size", 0.0),
        ("size gated", "original_size", 8.0),
        ("everything gated", "all", 8.0),
    ):
        model = scheduled(generator.model, exponent, fields=fields)
        mirrored = sampled_images.generated(generator, prompts, model, mirror=1)
        hits = judge.read(network, mirrored)[0][:, column] == 1
        numbers[f"mirror obeyed, {name}"] = results.fraction(
            hits, "judge sees the mirrored side of a split ground"
        )
    return numbers
