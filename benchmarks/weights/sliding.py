"""A step of Train Slider beside the passes that it needs: `python run.py bench weights
--slider-step`.

On the demo model in float32, four images a step, one slider or four from two phrases each. The
floor is the bare network with PEFT's LoRA on the same layers: the frozen model's answers without
gradients (one row an image, and two for each slider), and forward and backward of two rows for each
slider. In turns; the processor's time on one thread.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch

from studies.common import host
from studies.common.turns import times, timing_numbers

IMAGES, RANK = 4, 4
SLIDERS = (1, 4)
_PASSES, _OURS = "the passes alone", "Train Slider"


def measure(turns: int = 24) -> dict[str, dict]:
    """Milliseconds of a step and of its passes, and the step over the passes."""
    numbers: dict[str, dict] = {}
    for sliders in SLIDERS:
        measured = _measured(sliders, turns)
        where = f"demo model, {sliders} slider{'s' * (sliders > 1)}"
        what = f"{IMAGES} images a step, rank {RANK}, float32"
        numbers |= timing_numbers(where, measured, _PASSES, what)
    return numbers


def _measured(sliders: int, turns: int) -> dict:
    from studies.world.autoencoder import CHANNELS
    from studies.world.generate import Generator
    from studies.world.release import WORLD

    generator = Generator.load(WORLD)
    training = host.pack("nodes.weights.slider_training")
    comfy_half = host.pack("nodes.weights.slider_training_comfy")
    learned = host.pack("nodes.weights.learned_space_comfy")
    trainer = host.pack("nodes.host.training.trainer")
    layers = comfy_half.trained_layers(generator.model, "")
    layout, _ = learned.layout_of(generator.model, layers, RANK)
    draws = torch.Generator().manual_seed(0)
    latents = [torch.randn(1, CHANNELS, 16, 16, generator=draws) for _ in range(IMAGES)]
    data = training.PhraseData(
        scenes=[0] * IMAGES,
        neutral=[0],
        concepts=[training.Concept(increase=[[1]], decrease=[[2]])] * sliders,
        kinds=["text"] * 3,
    )
    settings = training.SliderSettings(steps=1, learning_rate=1e-4, batch_size=IMAGES)
    texts = ("portrait", "portrait, majestic beard", "portrait, shaven")
    conditions = [generator.condition([text]) for text in texts]
    found: dict = {}

    def work(session) -> None:
        factors = training.SliderFactors(layout, sliders, 0, generator.model.load_device)
        run = training.SliderTraining(factors, data, settings)

        def step() -> None:
            run.losses.clear()
            with learned.changed(layers, factors):
                run.run(session, lambda done: None)

        floor = _passes(generator, layers, sliders, conditions)
        found.update(times({_OURS: step, _PASSES: floor}, turns, alone=True))

    with torch.inference_mode(False):
        trainer.run(generator.model, {}, latents, conditions, work, dtype=torch.float32)
    return found


def _passes(generator, layers: dict, sliders: int, conditions: list) -> Callable[[], None]:
    """The frozen network's answers, and forward and backward with PEFT's LoRA."""
    from peft import LoraConfig, inject_adapter_in_model

    network = generator.model.model.diffusion_model
    paths = {id(layer): path for path, layer in network.named_modules()}
    bare = copy.deepcopy(network).requires_grad_(False).float()
    names = [paths[id(layer)] for layer in layers.values()]
    frozen = copy.deepcopy(bare)
    adapted = inject_adapter_in_model(
        LoraConfig(r=RANK, lora_alpha=RANK, target_modules=names), bare
    )
    trained = [weight for weight in adapted.parameters() if weight.requires_grad]
    channels = network.in_channels
    vector = generator.model.model.encode_adm()
    context = conditions[0][0][0].clone()

    def inputs(rows: int) -> tuple[torch.Tensor, ...]:
        return (
            torch.randn(rows, channels, 16, 16),
            torch.full((rows,), 500.0),
            context.expand(rows, -1, -1),
            vector.expand(rows, -1),
        )

    without, with_gradients = inputs(IMAGES * (1 + 2 * sliders)), inputs(2 * IMAGES * sliders)

    def passes() -> None:
        with torch.no_grad():
            frozen(*without)
        torch.autograd.grad(adapted(*with_gradients).square().mean(), trained)

    return passes
