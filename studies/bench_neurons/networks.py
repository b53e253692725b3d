"""What is localised: SD1.5's architecture with random weights, and the demo model's first memorised name."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..common import host

_HEADS = 8


@dataclass(frozen=True)
class Case:
    """A model with a conditioning, its searched layers, the latent's shape, and how the prompt stands out."""

    name: str
    model: object
    conditioning: list
    negative: list
    layers: list
    shape: tuple[int, int, int]
    z: list[torch.Tensor]
    activations: list[torch.Tensor]
    threshold: float


def random_sd15(channels: int, side: int, outliers: int, threshold: float, seed: int = 0) -> Case:
    """SD1.5 as ComfyUI builds it, ``channels`` wide (320 in SD1.5), a random text, and so many outliers."""
    import comfy.model_patcher
    import comfy.supported_models

    config = comfy.supported_models.SD15({
        "image_size": 32, "use_checkpoint": False, "legacy": False, "use_spatial_transformer": True, "in_channels": 4,
        "out_channels": 4, "model_channels": channels, "use_temporal_attention": False, "use_temporal_resblock": False,
        "num_res_blocks": [2, 2, 2, 2], "channel_mult": [1, 2, 4, 4], "transformer_depth": [1] * 6 + [0, 0],
        "transformer_depth_middle": 1, "transformer_depth_output": [1] * 9 + [0] * 3, "context_dim": 768,
        "adm_in_channels": None, "use_linear_in_transformer": False, "num_heads": _HEADS,
    })  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
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
        patcher = comfy.model_patcher.ModelPatcher(model, load_device=cpu, offload_device=cpu)
    pack = host.pack("nodes.neurons.layers")
    layers = pack.choose(pack.value_layers(model.diffusion_model), "down, middle")
    z = _outliers(layers, outliers, generator)
    activations = [torch.rand(layer.width, generator=generator) for layer in layers]
    text, empty = ([[torch.randn(1, 77, 768, generator=generator), {}]] for _ in range(2))
    return Case(f"random SD1.5, {channels} channels, latent {side}", patcher, text, empty, layers,
                (4, side, side), z,
                activations, threshold)  # fmt: skip


def _outliers(layers: list, count: int, generator: torch.Generator) -> list[torch.Tensor]:
    """z of which ``count`` neurons, spread over theta, lie over the last theta of the selection."""
    widths = [layer.width for layer in layers]
    z = torch.zeros(sum(widths))
    z[torch.randperm(len(z), generator=generator)[:count]] = torch.linspace(1.3, 6.0, count)
    return list(z.split(widths))


def demo(seeds: int) -> Case:
    """The demo model's first memorised name; threshold and layers as the study finds them."""
    from ..neurons.world import World

    world = World(seeds, 24)
    text = world.names["verbatim"][0]
    names = world.layers([text])
    pack, values = host.pack("nodes.neurons.layers"), host.pack("nodes.host.value_answers")
    layers = pack.choose(pack.value_layers(world.model.model.diffusion_model), names)
    statistics, conditioning = world.statistics(names), world.encode(text)
    with torch.inference_mode():
        seen = values.answers(world.model, values.embedding(conditioning), [layer.path for layer in layers])
    measure = host.pack("nodes.neurons.statistics").activations
    activations = [measure(seen[layer.path][0]).cpu() for layer in layers]
    z = [statistics.z(layer.path, values) for layer, values in zip(layers, activations, strict=True)]
    normal = [score for score, _ in world.scores(world.ordinary)]
    threshold = host.pack("nodes.neurons.calibration").threshold(normal).value
    return Case(
        "demo model", world.model, conditioning, world.encode(""), layers, (8, 16, 16), z, activations, threshold
    )
