"""Search problems: SD1.5's architecture with random weights, and memorized names of the demo
model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from studies.common import host
from studies.world.autoencoder import CHANNELS

from ..weights.network import sd15_unet


@dataclass(frozen=True)
class Case:
    """A model with a conditioning, its searched layers, the latent's shape, and the prompt's z and
    activations.
    """

    name: str
    model: object
    conditioning: list
    negative: list
    layers: list
    shape: tuple[int, int, int]
    z: list[torch.Tensor]
    activations: list[torch.Tensor]
    threshold: float | None = None


def random_sd15(
    channels: int, side: int, outliers: int, prompts: int = 1, heads: int = 8
) -> list[Case]:
    """SD1.5 as ComfyUI builds it, ``channels`` wide (320 in SD1.5), with random texts, each with so
    many outliers.
    """
    generator = torch.Generator().manual_seed(0)
    model = _filled(channels, heads, generator)
    pack = host.pack("nodes.neurons.neuron_layers")
    layers = pack.select_layers(pack.value_layers(model.model.diffusion_model), "down, middle")
    empty, cases = _text(generator), []
    for _ in range(prompts):
        z = _outliers(layers, outliers, generator)
        activations = [torch.rand(layer.width, generator=generator) for layer in layers]
        name = f"random SD1.5, {channels} channels, latent {side}"
        cases.append(
            Case(name, model, _text(generator), empty, layers, (4, side, side), z, activations)
        )
    return cases


def _filled(channels: int, heads: int, generator: torch.Generator):
    import comfy.model_patcher
    import comfy.supported_models

    config = comfy.supported_models.SD15({**sd15_unet(), "model_channels": channels})
    config.unet_config["num_heads"] = heads
    with torch.inference_mode(False), torch.no_grad():
        config.set_inference_dtype(torch.float32, None)
        model = config.get_model({}, device="cpu")
        for name, parameter in model.diffusion_model.named_parameters():
            if parameter.ndim < 2:
                parameter.data.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                scale = 3 if "attn2.to_v" in name else 1
                drawn = torch.randn(parameter.shape, generator=generator)
                parameter.data.copy_(scale * drawn / parameter[0].numel() ** 0.5)
        cpu = torch.device("cpu")
        return comfy.model_patcher.ModelPatcher(model, load_device=cpu, offload_device=cpu)


def _text(generator: torch.Generator) -> list:
    return [[torch.randn(1, 77, 768, generator=generator), {}]]


def _outliers(layers: list, count: int, generator: torch.Generator) -> list[torch.Tensor]:
    """z of which ``count`` neurons, spread over theta, lie over the last theta of the selection."""
    widths = [layer.width for layer in layers]
    z = torch.zeros(sum(widths))
    z[torch.randperm(len(z), generator=generator)[:count]] = torch.linspace(1.3, 6.0, count)
    return list(z.split(widths))


def blocked_after(case: Case, steps: int, noise: torch.Tensor, neurons) -> Case:
    """The case with a threshold that the selection reaches at that step: between the scores before
    and there.
    """
    nemo_search = host.pack("nodes.neurons.nemo_search")

    def scores(predict) -> list[float]:
        evaluator = nemo_search.Evaluator(predict, noise, neurons)
        schedule = list(nemo_search.selection_schedule(nemo_search.SearchSettings()))[:steps]
        chosen = [nemo_search.select(case.z, case.activations, theta, k) for theta, k in schedule]
        return [evaluator.score(neurons.mask(one)) for one in chosen]

    *before, there = at_first_step(case, scores)
    return replace(case, threshold=(min(before) + there) / 2)


def at_first_step(case: Case, work):
    """What ``work(predict)`` gives at the official first step."""
    with torch.inference_mode():
        return host.pack("nodes.neurons.first_step_comfy").at_first_step(
            case.model, case.conditioning, case.shape, 961, work
        )


def demo(seeds: int, names: int) -> Iterator[Case]:
    """Memorized names of the demo model; threshold and layers as the study finds them."""
    from studies.neurons.world import World

    world = World(seeds, 24)
    pack, values = (
        host.pack("nodes.neurons.neuron_layers"),
        host.pack("nodes.neurons.first_step_comfy"),
    )
    measure = host.pack("nodes.neurons.neuron_statistics").mean_activations
    normal = [score for score, _ in world.scores(world.ordinary)]
    threshold = host.pack("nodes.neurons.score_threshold").calibrate(normal).value
    for text in world.names["verbatim"][:names]:
        chosen = world.layers([text])
        layers = pack.select_layers(pack.value_layers(world.model.model.diffusion_model), chosen)
        statistics, conditioning = world.statistics(chosen), world.encode(text)
        with torch.inference_mode():
            seen = values.value_outputs(
                world.model, values.embedding(conditioning), [layer.path for layer in layers]
            )
        activations = [measure(seen[layer.path][0]).cpu() for layer in layers]
        z = [
            statistics.z(layer.path, values)
            for layer, values in zip(layers, activations, strict=True)
        ]
        yield Case(
            "demo model",
            world.model,
            conditioning,
            world.encode(""),
            layers,
            (CHANNELS, 16, 16),
            z,
            activations,
            threshold,
        )
