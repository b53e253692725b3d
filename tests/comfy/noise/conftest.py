"""Train LoRA (Exact Resume) on a small model."""

import pytest
import reduced
from trainer_inputs import DEFAULTS, encoded, noise_images


@pytest.fixture(scope="module")
def parts(app):
    """MODEL, CLIP and VAE of SD1.5 in miniature: two levels and random weights."""
    return reduced.checkpoint(
        "sd15",
        channel_mult=[1, 2],
        num_res_blocks=[1, 1],
        transformer_depth=[1, 0],
        transformer_depth_middle=1,
        transformer_depth_output=[1, 1, 0, 0],
    )


@pytest.fixture(scope="module")
def captions(app, parts):
    return encoded(app, parts[1])


@pytest.fixture(scope="module")
def latents():
    return noise_images(4)


@pytest.fixture(scope="module")
def trained(app, parts, captions, latents):
    """The node with small settings; keywords replace them. Returns its outputs by name."""

    def run(**changed):
        linked = {"model": [parts[0]], "latents": latents, "positive": captions}
        given = {name: [value] for name, value in DEFAULTS.items()}
        for name, value in changed.items():
            given[name] = value if isinstance(value, list) else [value]
        outputs = app.run("GBX_TrainLoraImmiscible", **(linked | given))
        names = ("model", "lora", "loss_map", "steps", "figure", "images", "report", "clip")
        return dict(zip(names, outputs, strict=True))

    return run
