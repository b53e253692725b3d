"""Rows of nodes that act in a network or read a text: the network is left out, the rest is a run of
ComfyUI.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import torch
from torch.nn import functional as F

from . import left_out
from .sizes import Row, Size, drawn, image, module

_STEERED = "up-level1-repeat0-res-out"
_TRAINED = "up-level1-repeat1-vit-out"
_PROMPT = "a portrait of a person with red hair in the rain"
_TRAINING_STEPS = 10
_TRAINING_POINTS = 1024
_FEATURES = 1024
_ACTIVE = 16
_PROMPTS = 64
_NUMBERS = itertools.count()


def _half(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x


def _heat_map(size: Size) -> dict[str, tuple]:
    activations = module("activations.activations")
    maps = {}
    sizes = {}
    for layers, side, heads in size.heads:
        for layer in range(layers):
            id_ = f"{side}-{layer}-cross-map"
            maps[id_] = torch.rand(1, heads, side * side, 77).half()
            sizes[id_] = (side, side)
    largest = max(side for _, side, _ in size.heads)
    rows = (activations.Row(0, True, 77),)
    settings = {activations.MAP_SIZES: sizes}
    recorded = activations.Activations(maps, rows, 1.0, 50.0, settings)
    left_out.write_elsewhere()
    options = {
        "prompt": _PROMPT,
        "words": "hair",
        "prompt_role": "positive",
        "normalize_per_word": True,
        "opacity": 0.65,
    }
    node = module("activations.nodes_token_heatmap").TokenHeatMap
    clip = left_out.clip_of(size)

    def rival():
        total = torch.zeros(largest, largest)
        for id_, each in maps.items():
            for head in each[0].float():  # all tokens, one head at a time, as DAAM does
                positions = head.T.unflatten(1, sizes[id_])[None]
                total += F.interpolate(
                    positions, size=(largest, largest), mode="bicubic"
                ).clamp_min(0)[0, 5]
        return total

    ours = partial(node.execute, recorded, image(size.pixels), clip, **options)
    return {"ours": (ours,), "rival": (rival,)}


def _activation(size: Size, id_: str):
    """What is known of an activation of the network, and two rows of it."""
    networks = module("activations.meta_networks_comfy")
    catalog = module("activations.catalog_unet").catalog
    network = networks.network("architecture", size.architecture)
    spec = next(spec for spec in catalog(network) if spec.id == id_)
    side = size.latent // spec.scale
    return spec, drawn(2, spec.channels, side, side)


def _steering(size: Size) -> dict[str, tuple]:
    steering = module("activations.steering")
    spec, feature = _activation(size, _STEERED)
    vector = drawn(spec.channels, seed=1)
    model = left_out.model_of(size.architecture, {spec.module: feature}, _half)
    node = module("activations.nodes_steering").ActivationSteering
    options = {
        "strength": 0.3,
        "start_percent": 0.0,
        "end_percent": 1.0,
        "rows": "conditional",
        "preserve_norm": False,
    }
    direction = steering.SteeringDirection({spec.id: vector}, "")
    steered = node.execute(model, direction, **options).result[0]
    added = 0.3 * vector[:, None, None]
    layer = model.model.diffusion_model.get_submodule(spec.module)

    rows = torch.tensor([1.0, 0.0])[:, None, None, None]  # the positive prompt's row comes first

    def rival():
        with layer.register_forward_hook(lambda _layer, _args, out: out + rows * added):
            return left_out.sampled(left_out.guider_of(model, size), size.latent)

    def ours():
        return left_out.sampled(left_out.guider_of(steered, size), size.latent)

    return {"ours": (ours,), "rival": (rival,)}


def _train_sparse(size: Size) -> dict[str, tuple]:
    spec, feature = _activation(size, _TRAINED)
    left_out.write_elsewhere()
    model = left_out.model_of(size.architecture, {spec.module: feature}, _half)
    node = module("activations.nodes_train_autoencoder").TrainSparseAutoencoder
    options = {
        "activation_id": _TRAINED,
        "prompts": "a face\na house",
        "image_folder": "",
        "features": _FEATURES,
        "k": _ACTIVE,
        "training_steps": _TRAINING_STEPS,
        "batch_size": _TRAINING_POINTS,
        "learning_rate": 0.001,
        "seed": 0,
        "steps": 10,
        "cfg": 3.0,
    }
    latent = {"samples": torch.zeros(1, 4, size.latent, size.latent)}
    clip = left_out.clip_of(size)

    def ours():  # under a name of its own: the same one would go on where it ended
        name = f"autoencoder {next(_NUMBERS)}"
        return node.execute(model, clip, latent, name=name, **options)

    points = drawn(_TRAINING_POINTS, spec.channels)
    with torch.inference_mode(False):
        weights = [
            torch.nn.Parameter(0.02 * torch.randn(_FEATURES, spec.channels)) for _ in range(2)
        ]
        optimizer = torch.optim.Adam(weights, 0.001)

    def dense():
        x = points.clone()
        values = x @ weights[0].T
        top = values.topk(_ACTIVE, dim=1)
        features = torch.zeros_like(values).scatter(1, top.indices, top.values.relu())
        (features @ weights[1] - x).square().sum(1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def rival():
        with torch.inference_mode(False), torch.enable_grad():
            for _ in range(_TRAINING_STEPS):
                dense()

    return {"ours": (ours,), "rival": (rival,)}


def _score(size: Size) -> dict[str, tuple]:
    scores = module("neurons.memorization_score")
    differences = drawn(10, 4, size.latent, size.latent)
    predictions = itertools.cycle((differences, 0.1 * differences.flip(0)))
    model = left_out.model_of(size.architecture, {}, lambda x: next(predictions)[: len(x)].clone())
    node = module("neurons.nodes_detection").MemorizationScore
    options = {
        "prompts": _PROMPT,
        "prompts_file": "",
        "threshold": 0.428,
        "noise_samples": 10,
        "seed": 1,
        "timestep": "official_961",
        "width": size.pixels,
        "height": size.pixels,
        "filename_prefix": "",
        "text_norm": True,
    }

    def rival(each: torch.Tensor):
        pairs = [(i, j) for i in range(10) for j in range(i)]
        return [scores.similarity(each[i, None], each[j, None]) for i, j in pairs]

    ours = partial(node.execute, model, left_out.clip_of(size), **options)
    return {"ours": (ours,), "rival": (rival, differences)}


def _value_layers(model) -> dict[str, int]:
    """Channels of the layers that the paper searches, by path."""
    layers = module("neurons.neuron_layers")
    found = layers.select_layers(
        layers.neuron_layers(model.model.diffusion_model, layers.NeuronType.VALUE),
        layers.PAPER_LAYERS,
    )
    return {layer.path: layer.width for layer in found}


def _statistics(size: Size) -> dict[str, tuple]:
    widths = _value_layers(left_out.model_of(size.architecture, {}, _half))
    values = {path: drawn(_PROMPTS, 77, width) for path, width in widths.items()}
    model = left_out.model_of(size.architecture, values, _half)
    node = module("neurons.nodes_statistics").NeuronStatistics
    options = {
        "prompts": "\n".join(f"{_PROMPT} {number}" for number in range(_PROMPTS)),
        "prompts_file": "",
        "layers": module("neurons.neuron_layers").PAPER_LAYERS,
        "filename_prefix": "",
    }

    def rival():
        for each in values.values():
            means = each.double().abs().mean(1)
            _ = means.mean(0), means.var(0), means.amin(0), means.amax(0), each.abs().amax((0, 1))

    ours = partial(node.execute, model, clip=left_out.clip_of(size), **options)
    return {"ours": (ours,), "rival": (rival,)}


def _masked(size: Size) -> dict[str, tuple]:
    """All value layers that the paper searches, every tenth neuron of each."""
    widths = _value_layers(left_out.model_of(size.architecture, {}, _half))
    outputs = {path: drawn(2, 77, width) for path, width in widths.items()}
    model = left_out.model_of(size.architecture, outputs, _half)
    node = module("neurons.nodes_nemo").NemoNeuronMask
    scales = {path: dict.fromkeys(range(0, width, 10), 0.0) for path, width in widths.items()}
    options = {"strength": 1.0, "start_percent": 0.0, "end_percent": 1.0, "apply_to": "both"}
    mask = module("neurons.mask").NeuronMask(scales)
    masked = node.execute(model, mask, **options).result[0]
    network = model.model.diffusion_model
    factors = {path: torch.ones(width) for path, width in widths.items()}
    for factor in factors.values():
        factor[::10] = 0

    def scaling(path: str) -> Callable:
        return lambda _layer, _args, out: out * factors[path]

    def rival():
        with ExitStack() as hooks:
            for path in widths:
                layer = network.get_submodule(path)
                hooks.enter_context(layer.register_forward_hook(scaling(path)))
            return left_out.sampled(left_out.guider_of(model, size), size.latent)

    def ours():
        return left_out.sampled(left_out.guider_of(masked, size), size.latent)

    return {"ours": (ours,), "rival": (rival,)}


def _guided(size: Size) -> dict[str, tuple]:
    """On SDXL's network, which takes metadata, at both sizes of the latent."""
    from comfy_extras.nodes_custom_sampler import Guider_DualCFG

    from .sizes import SIZES

    text = SIZES[-1]
    model = left_out.model_of(text.architecture, {}, _half)
    node = module("conditioning.nodes_size_metadata").MetadataGuider
    positive = left_out.conditioning(text)
    negative = left_out.conditioning(text, seed=1)
    options = {
        "cfg": 7.0,
        "metadata_strength": 2.0,
        "fields": "original_size",
        "reference_width": 256,
        "reference_height": 256,
    }

    def ours():
        guider = node.execute(model, positive, negative, **options).result[0]
        return left_out.sampled(guider, size.latent)

    def rival():
        guider = Guider_DualCFG(model)
        guider.set_conds(positive, left_out.conditioning(text, seed=2), negative)
        guider.set_cfg(14.0, 7.0)
        return left_out.sampled(guider, size.latent)

    return {"ours": (ours,), "rival": (rival,)}


def _padding(size: Size) -> dict[str, tuple]:
    clip = left_out.clip_of(size)
    node = module("conditioning.nodes_padding").NoisyReplicatePadding
    options = {
        "text": _PROMPT,
        "padding": "noisy_copies",
        "strength": 0.02,
        "scale_by_copies": True,
        "seed": 0,
        "pad_empty_prompt": False,
    }

    def rival():
        embedding = clip.encode_from_tokens_scheduled(clip.tokenize(_PROMPT))[0][0]
        return embedding + 0.02 * torch.randn_like(embedding)

    return {"ours": (partial(node.execute, clip, **options),), "rival": (rival,)}


def _rescaled(size: Size) -> dict[str, tuple]:
    import comfy.samplers
    from matplotlib.figure import Figure

    model = left_out.model_of(size.architecture, {}, _half)
    node = module("conditioning.nodes_resolution").ResolutionNoiseRescale
    options = {
        "width": 2 * size.pixels,
        "height": 2 * size.pixels,
        "base_width": 0,
        "base_height": 0,
        "mode": "sampler_only",
        "scheduler": "normal",
    }

    def rival():
        sampling = model.get_model_object("model_sampling")
        sigmas = comfy.samplers.calculate_sigmas(sampling, "normal", left_out.STEPS)
        figure = Figure()
        axes = figure.subplots()
        axes.plot(sigmas.tolist())
        axes.plot((2 * sigmas).tolist())
        figure.canvas.draw()

    return {"ours": (partial(node.execute, model, **options),), "rival": (rival,)}


ROWS = (
    Row("TokenHeatMap", "one word, all cross-attention layers", "map of DAAM's loop", _heat_map),
    Row(
        "ActivationSteering",
        "one ID, each step of a run without a network",
        "a hook that adds a vector",
        _steering,
        times=left_out.STEPS,
    ),
    Row(
        "TrainSparseAutoencoder",
        "ten steps of 1,024 positions, with two sampled prompts",
        "autograd, dense decoder, ten steps",
        _train_sparse,
    ),
    Row("MemorizationScore", "one prompt, ten seeds, with its figure", "pair by pair", _score),
    Row(
        "NeuronStatistics",
        "64 prompts, the paper's layers",
        "five reductions in float64",
        _statistics,
    ),
    Row(
        "NemoNeuronMask",
        "the paper's layers, each step of a run without a network",
        "hooks that multiply by a vector",
        _masked,
        times=left_out.STEPS,
    ),
    Row(
        "MetadataGuider",
        "three predictions, each step of a run without a network",
        "DualCFGGuider",
        _guided,
        times=left_out.STEPS,
    ),
    Row("NoisyReplicatePadding", "one prompt", "noise on all tokens", _padding),
    Row(
        "ResolutionNoiseRescale",
        "the schedule, with its figure and report",
        "the sigmas by stock, drawn by matplotlib",
        _rescaled,
    ),
)
