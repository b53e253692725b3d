"""Steps of training on the demo model: an inversion against its floor, and an identity's fraction
of a population.

Processor time, so run it on one thread: what else the machine does then hardly counts.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from studies.common import host, results
from studies.world.autoencoder import CHANNELS
from studies.world.generate import Generator
from studies.world.release import WORLD


def measure_inversion(steps: int) -> dict[str, dict]:
    """A step of W2W Invert, and forward and backward of the network to the same weights, in turns,
    float32.
    """
    generator = Generator.load(WORLD)
    train, inversion = (
        host.pack("nodes.host.training.trainer"),
        host.pack("nodes.weights.inversion"),
    )
    nodes, files = host.pack("nodes.weights.inversion_comfy"), host.pack("nodes.weights.space_file")
    space = files.read(host.ROOT / "assets" / f"{WORLD}-w2w.safetensors")
    latent = torch.randn(1, CHANNELS, 16, 16, generator=torch.Generator().manual_seed(0))
    condition, seconds = generator.condition(["portrait"]), {"step": [], "floor": []}
    with torch.inference_mode(False):
        made = inversion.TrainablePoint(space, torch.zeros(0), space.components)
        run = inversion.Inversion(model=made, settings=inversion.InversionSettings(steps=1))

        def work(session) -> None:
            floor = _floor(
                generator, nodes.weight_functions(generator.model, made), session, condition[0][0]
            )
            for turn in range(-2, steps):
                for name, way in (
                    ("step", lambda: run.run(session, None, lambda done: None)),
                    ("floor", floor),
                ):
                    run.losses.clear()
                    started = time.process_time()
                    way()
                    if turn >= 0:
                        seconds[name].append(time.process_time() - started)

        functions = nodes.weight_functions(generator.model, made)
        train.run(generator.model, functions, [latent], [condition], work, dtype=torch.float32)
    found = {name: np.array(values) for name, values in seconds.items()}
    what = f"one image, {space.components} coefficients, demo model, float32"
    return {
        "inversion step": results.bootstrap(1000 * found["step"], what, "ms", np.median),
        "inversion, forward and backward alone": results.bootstrap(
            1000 * found["floor"], what, "ms", np.median
        ),
        "inversion, step over floor": results.bootstrap(
            found["step"] / found["floor"], "paired", "ratio", np.median
        ),
    }


def _floor(generator, names, session, context):
    """Forward and backward of a copy of the bare network to the weights that the space changes."""
    import copy

    network = copy.deepcopy(generator.model.model.diffusion_model).requires_grad_(False).float()
    weights = [network.get_parameter(name.removeprefix("diffusion_model.")) for name in names]
    for weight in weights:
        weight.requires_grad_(True)
    x, times = torch.randn(1, CHANNELS, 16, 16), torch.tensor([500.0])
    vector, context = generator.model.model.encode_adm(), context.clone()

    def step() -> None:
        torch.autograd.grad(network(x, times, context, vector).square().mean(), weights)

    return step


def measure_population(sizes: tuple[int, ...], steps: int) -> dict[str, dict]:
    """Seconds of a training step of P identities at once, and of one of them."""
    from studies.common.training import device, has_bfloat16
    from studies.weights.grouped import Population, adapted
    from studies.weights.people import Encoded
    from studies.weights.population import Plan, Trainer, descend

    trainer, numbers = Trainer(Generator.load(WORLD), Plan()), {}
    for size in sizes:
        draws = torch.Generator().manual_seed(size)
        data = Encoded(
            *(
                torch.randn(size, 10, *shape, generator=draws)
                for shape in ((CHANNELS, 16, 16), (77, 128))
            )
        )
        population = Population(trainer.layout, size, 0, device())
        optimizer, seconds = torch.optim.AdamW([population.flat], lr=1e-3), []
        with adapted(trainer.network, population):
            for step in range(-2, steps):
                started = time.process_time()
                descend(optimizer, trainer.loss(population, data, draws), max(step, 0), steps)
                if step >= 0:
                    seconds.append(time.process_time() - started)
        numbers_in = "bfloat16" if has_bfloat16() else "float32"
        what = f"a training step in one batch, one image per identity, {numbers_in}"
        each = 1000 * np.array(seconds) / size
        numbers[f"population of {size}, ms per identity"] = results.bootstrap(
            each, what, "ms", np.median
        )
    return numbers
