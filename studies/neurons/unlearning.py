"""Adversarial unlearning as a LoRA beside NeMo's masks: is the image gone under attack, and what
stays of the rest?
"""

from __future__ import annotations

import functools

import numpy as np
import torch

from ..common import results
from ..world import captions
from ..world.scenes import random_scene, render
from .audit import as_image, attacked
from .masks import alignment
from .world import CFG, LAYERS, World

ATTACK_STEPS = 2
#: Verbatim names after the first, on which the settings were chosen; surrogates of one name,
#: ordinary prompts that the LoRA keeps, and captions that the judge reads.
NAMES, SURROGATES, KEPT, READ = 6, 4, 16, 10
TRAINING = {
    "steps": 75,
    "learning_rate": 0.004,
    "batch_size": 4,
    "keep": 2.0,
    "noise_samples": 4,
    "restart": 50,
    "rank": 8,
    "layers": "attn2",
    "sampling_steps": 12,
    "cfg": CFG,
    "seed": 1,
    "gradient_checkpointing": False,
}
MASK, UNLEARNING, PLAIN = "NeMo mask", "unlearning", "plain fine-tuning"
CONTROL = "control image"


def measure(quick: bool) -> dict[str, dict]:
    """Similarity to the memorized image by mitigation, with and without attack, and how captions
    are followed.
    """
    world = World(seeds=2 if quick else 4, ordinary=24 if quick else 60)
    names = world.names["verbatim"][1 : 2 if quick else 1 + NAMES]
    statistics, rng = world.statistics(LAYERS), np.random.default_rng(99)
    controls = {text: render(random_scene(rng)) for text in names}
    untouched = alignment(world, world.model, 4 if quick else READ).mean()
    settings = TRAINING | {
        "attack_steps": ATTACK_STEPS,
        "surrogates": SURROGATES,
        "kept": KEPT,
        "read": READ,
    }
    kept = results.Rows("neurons_unlearning" + ("_quick" if quick else ""), settings)
    rows = [
        kept.row(text, functools.partial(of_name, world, text, statistics, controls[text], quick))
        for text in names
    ]
    kept.finished()
    numbers = {}
    for when, place in (("without an attack", 0), ("under attack", 1)):
        values = {
            name: np.array([row[name][place] for row in rows]) for name in (MASK, UNLEARNING, PLAIN)
        }
        if place:
            values[CONTROL] = np.array([row[CONTROL][0] for row in rows])
        for name, of_names in values.items():
            numbers[f"similarity {when}, {name}"] = results.bootstrap(
                of_names, "median SSIM over seeds", "SSIM"
            )
        for rival in (name for name in values if name != UNLEARNING):
            numbers[f"difference {when}, {UNLEARNING} less {rival}"] = results.bootstrap(
                values[UNLEARNING] - values[rival], "of the similarities, paired by name", "SSIM"
            )
    numbers["prompt alignment, nothing"] = results.bootstrap(
        np.array([untouched]), "requested attributes found", "fraction"
    )
    for name in (UNLEARNING, PLAIN):
        found = np.array([row[name][2] for row in rows])
        numbers[f"prompt alignment, {name}"] = results.bootstrap(
            found, "requested attributes found", "fraction"
        )
        numbers[f"prompt alignment, {name} less nothing"] = results.bootstrap(
            found - untouched, "difference on the same captions", "fraction"
        )
    return numbers


def of_name(
    world: World, text: str, statistics, control: np.ndarray, quick: bool
) -> dict[str, list[float]]:
    """For each mitigation, similarity before and after the attack, and of a LoRA alignment; for the
    control after.
    """
    found = {MASK: attacked(world, world.masked(world.localize(text, statistics)), text, quick)}
    for name, attack_steps in ((UNLEARNING, ATTACK_STEPS), (PLAIN, 0)):
        model = trained(world, text, attack_steps, quick)
        before, after, *of_control = attacked(
            world, model, text, quick, control if attack_steps else None
        )
        found[name] = [before, after, float(alignment(world, model, 4 if quick else READ).mean())]
        if attack_steps:
            found[CONTROL] = of_control
    print(
        text,
        {name: [round(value, 3) for value in values] for name, values in found.items()},
        flush=True,
    )
    return found


def trained(world: World, text: str, attack_steps: int, quick: bool):
    """The model with the LoRA of Adversarial Unlearning; surrogates are images of ordinary
    captions.
    """
    rng = np.random.default_rng(11)
    texts = [
        captions.caption(random_scene(rng), rng) for _ in range(SURROGATES + (2 if quick else KEPT))
    ]
    images = [
        world.generate(world.model, world.encode(one), 1, seed=4000) for one in texts[:SURROGATES]
    ]
    return world.run(
        "AdversarialUnlearning",
        model=world.model,
        vae=world.vae,
        clip=world.clip,
        positive=world.encode(text),
        image=as_image(world.originals[text]),
        surrogates=torch.cat([as_image(image[0]) for image in images]),
        prompts="\n".join(texts[SURROGATES:]),
        attack_steps=attack_steps,
        precision="fp32",  # so that the numbers are of one arithmetic on every machine
        **(TRAINING | ({"steps": 4} if quick else {})),
    )[0]
