"""Sliders of the learned space from two phrases, without labels, as Train Slider trains them: the
rival of directions that are fitted to labels.
"""

from __future__ import annotations

import numpy as np
import torch

from ..common import host
from ..world.autoencoder import CHANNELS
from .people import SEED, person
from .setup import EDITS, Study, prompts

#: Scenes of so many members from the end of the random order, whom no claim is measured on.
SCENES = 12
SETTINGS = {
    "keep": "",
    "rank": 4,
    "steps": 100,
    "learning_rate": 0.0,
    "guidance_scale": 1.0,
    "batch_size": 6,
    "images": 48,
    "sampling_steps": 12,
    "cfg": 3.0,
    "end_percent": 1.0,
    "seed": 1,
    "layers": "",
    "precision": "auto",
    "gradient_checkpointing": False,
    "preview_interval": 0,
    "filename_prefix": "",
    "checkpoint_name": "",
    "checkpoint_interval": 50,
}


def direction_of(edit: str) -> str:
    """The name of an edit's direction from phrases: that from labels may have the phrase's name."""
    return f"{edit} by phrases"


def train(study: Study, edits: list[str]) -> Study:
    """The study with a direction more for each edit, by the phrases of EDITS, all in one
    training.
    """
    order = np.random.default_rng(20261122).permutation(len(study.space.members))
    late = [person(int(number), SEED) for number in order[-SCENES:]]
    scenes = [text.replace("portrait, ", "portrait, WORD, ", 1) for text in prompts(late)]
    pairs = [EDITS[name][2:] for name in edits]
    node = host.pack("nodes.weights.nodes_train_slider").TrainSlider
    output = node.execute(
        model=study.sampler.generator.model,
        clip=study.sampler.generator.clip,
        increase="\n".join(increase for increase, _ in pairs),
        decrease="\n".join(decrease for _, decrease in pairs),
        base_prompt="\n".join(scenes),
        latent={"samples": torch.zeros(1, CHANNELS, 16, 16)},
        space=study.space,
        **SETTINGS,
    )
    *_, report, trained = output.args
    print(report)
    directions = {direction_of(name): trained.directions[EDITS[name][2]] for name in edits}
    space = study.space.with_directions(directions)
    return Study(space, study.sampler, study.network, study.count)
