"""Which objective learns faster: v prediction with zero terminal signal, or flow matching, in
paired short runs.

Both start from the same weights and see the same images and captions at every step.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..common import results
from . import captions, denoiser, judge, progress
from .__main__ import FOLDER

STEPS, QUICK_STEPS = 300, 40


def measure(quick: bool) -> dict[str, dict]:
    """Error of the clean latent at equal noise levels, and requested attributes found, after
    equally many steps.
    """
    steps, numbers = QUICK_STEPS if quick else STEPS, {}
    data, scenes = denoiser.Data(FOLDER), progress.unseen(24 if quick else 96)
    # The learning rate is that of the first steps of a long run.
    plan = replace(denoiser.PLAN, steps=steps * 10)
    for name in denoiser.OBJECTIVES:
        objective = denoiser.Objective(name)
        network = denoiser.make(
            FOLDER, None, None, name, plan, f"objective_{name}_{steps}", watch=False, until=steps
        )
        reader = progress.Progress(FOLDER, name, data, objective)
        reader.network = network
        for level in progress.LEVELS:
            numbers[f"{name}, error at noise {level:g}"] = {
                "value": reader.error(level),
                "n": 64,
                "unit": "squared error",
                "what": (
                    f"clean latent (unit variance) predicted at noise over signal {level:g}, "
                    f"{steps} steps"
                ),
            }
        rows = data.words.rows([captions.full_caption(scene) for scene in scenes])
        latents = denoiser.sample(network, objective, rows, data.empty, progress.SEED)
        images = progress.autoencoder.decode(progress.load_autoencoder(FOLDER), latents)
        predicted, _ = judge.read(progress.load_judge(FOLDER), images)
        truth = np.array([progress.dataset.labels(scene) for scene in scenes])
        each = judge.followed(predicted, truth)
        what = f"requested attributes found after {steps} steps"
        numbers[f"{name}, followed"] = results.bootstrap(each, what, "fraction")
    return numbers
