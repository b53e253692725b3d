"""Each node of the pack that takes a MODEL and hands out a MODEL, as it is used on the demo model.

``CHANGERS`` has one or more uses of each; ``LORA_NODES`` those that put a LoRA on the MODEL, which
is what W2W Apply does in a whole run. Together they are all of the menu, which a test checks,
so that a new node is not forgotten.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from tapping import World

PROMPT = "portrait, short brown hair, blue hoodie"
EDIT = "brown hair -> red hair: 1"
_ALWAYS = {"start_percent": 0.0, "end_percent": 1.0}

LORA_NODES = (
    "GBX_AdversarialUnlearning",
    "GBX_Sliders",
    "GBX_TrainLoraImmiscible",
    "GBX_TrainSlider",
)


def of_menu(app) -> set[str]:
    """The ids of the nodes that take a MODEL and hand out a MODEL, as the menu has them."""
    ids = set()
    for node in app.module("nodes.menu").NODES:
        schema = node.GET_SCHEMA()
        takes = any(each.get_io_type() == "MODEL" for each in schema.inputs)
        if takes and any(each.get_io_type() == "MODEL" for each in schema.outputs):
            ids.add(schema.node_id)
    return ids


def point(demo: World):
    space = demo.app.run("GBX_W2WLoadSpace", space_name="avatars-v2-w2w.safetensors")[0]
    member = {
        "source": "member",
        "member_name": "person_0013",
        "seed": 0,
        "count": 1,
        "components": 64,
        "spread": 1.0,
    }
    return demo.app.run("GBX_W2WSample", space=space, **member)[0][0]


def edit_by_words(demo: World, model, edits: str = EDIT, prompt: str = PROMPT, **inputs):
    inputs = {**_ALWAYS, **inputs}
    return demo.app.run(
        "GBX_EditByWords", model=model, clip=demo.clip, edits=edits, prompt=prompt, **inputs
    )[0]


def neuron_mask(demo: World, every: bool = False, prompt: str = ""):
    """A neuron mask of half of the neurons of each layer; ``every``: of all value neurons."""
    layers = demo.app.module("nodes.neurons.neuron_layers")
    masks = demo.app.module("nodes.neurons.mask")
    network = demo.model.model.diffusion_model
    chosen = layers.value_layers(network) if every else layers.all_layers(network)
    neurons = {layer.path: tuple(range(0, layer.width, 1 if every else 2)) for layer in chosen}
    searches = (masks.SearchRecord(prompt, neurons, True),) if prompt else ()
    return masks.NeuronMask(
        {path: dict.fromkeys(numbers, 0.0) for path, numbers in neurons.items()}, searches
    )


def masked(demo: World, model, **changes):
    inputs = {"mask": neuron_mask(demo), "strength": 1.0, "apply_to": "both", **_ALWAYS, **changes}
    return demo.app.run("GBX_NemoNeuronMask", model=model, **inputs)[0]


def _scaled(demo: World, model, **changes):
    inputs = {"clip": demo.clip, "prompt": PROMPT, "scale": 3.0, "mask_padding": True, **changes}
    return demo.app.run("GBX_AttentionScaling", model=model, **inputs)[0]


def _steered(demo: World, model, ids: tuple[str, ...], **changes):
    channels = {spec.id: spec.channels for spec in _catalog(demo)}
    generator = torch.Generator().manual_seed(0)
    vectors = {id_: torch.randn(channels[id_], generator=generator) for id_ in ids}
    direction = demo.app.module("nodes.activations.steering").SteeringDirection(vectors, "test")
    inputs = {"strength": 1.0, "rows": "conditional", "preserve_norm": False, **_ALWAYS, **changes}
    return demo.app.run("GBX_ActivationSteering", model=model, direction=direction, **inputs)[0]


def _catalog(demo: World):
    return demo.app.module("nodes.activations.catalog_unet").catalog(
        demo.model.model.diffusion_model
    )


def _sparse_features(demo: World, model):
    id_, count = "up-level1-repeat0-vit-block0-out", 16
    channels = next(spec.channels for spec in _catalog(demo) if spec.id == id_)
    generator = torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    decoder = torch.nn.functional.normalize(normal(count, channels), dim=1)
    module = demo.app.module("nodes.activations.sparse_autoencoder")
    autoencoder = module.SparseAutoencoder(
        id_,
        4,
        normal(count, channels),
        decoder,
        normal(channels),
        normal(count),
        normal(count).abs() + 1,
    )
    inputs = {
        "autoencoder": autoencoder,
        "strengths": "3 = 4",
        "mode": "add",
        "rows": "both",
        **_ALWAYS,
    }
    return demo.app.run("GBX_SparseFeatureSteering", model=model, **inputs)[0]


def _patched(demo: World, model, latent: dict, steps: int):
    """With activations of a run of another prompt, of the same size and number of steps."""
    ids = "up-level1-repeat0-res-out, up-level0-repeat0-vit-block0-cross-q"
    watched, recording = demo.record(ids=ids, rows="conditional")
    samples = demo.sample(watched, latent, steps=steps)
    inputs = {
        "recording": recording,
        "latent": samples,
        "ids": "*",
        "patched_steps": "all",
        "strength": 0.5,
    }
    return demo.app.run("GBX_ActivationPatching", model=model, **inputs)[0]


def _schedule(demo: World, model, mode: str):
    inputs = {
        "curve": "cosine",
        "exponent": 1.0,
        "fields": "all",
        "reference_width": 0,
        "reference_height": 0,
    }
    return demo.app.run("GBX_MetadataSchedule", model=model, mode=mode, apply_to="both", **inputs)[
        0
    ]


def _larger(demo: World, model):
    inputs = {
        "base_size": 48,
        "alignment": "corners",
        "rotary_method": "ntk",
        "rotary_strength": 2.0,
    }
    inputs |= {"rotary_exponent": 2.0, "downscale_end_percent": 0.6}
    return demo.app.run("GBX_PositionalResample", model=model, **inputs)[0]


def _rescaled(demo: World, model, mode: str):
    inputs = {
        "width": 128,
        "height": 128,
        "base_width": 64,
        "base_height": 64,
        "scheduler": "normal",
        "mode": mode,
    }
    return demo.app.run("GBX_ResolutionNoiseRescale", model=model, **inputs)[0]


def varied(demo: World, model, **changes):
    """Seed Variety, so that each step of a short run has noise on its prompt."""
    inputs = {"method": "annealed", "noise_scale": 0.5, "tau1": 0.1, "tau2": 0.9, "seed": 3}
    return demo.app.run("GBX_SeedVariety", model=model, **{**inputs, **changes})[0]


def _applied(demo: World, model, start: float, end: float):
    inputs = {"point": point(demo), "strength": 1.5, "start_percent": start, "end_percent": end}
    return demo.app.run("GBX_W2WApply", model=model, **inputs)[0]


def _guided(demo: World, model):
    inputs = {
        "point": point(demo),
        "identity_strength": 1.5,
        "edit_strength": 0.0,
        "end_percent": 1.0,
    }
    return demo.app.run("GBX_W2WGuidance", model=model, **inputs)[0]


def _recorded(demo: World, model, **inputs):
    recorded = {"model": model, "ids": "", "preset": "cross_attention", "rows": "both", **inputs}
    return demo.record(**recorded)[0]


#: By use: the node's id, and the MODEL behind it. ``latent`` and ``steps`` are those of the runs
#: that follow.
CHANGERS: dict[str, tuple[str, Callable]] = {
    "patching": ("GBX_ActivationPatching", lambda demo, model, **run: _patched(demo, model, **run)),
    "recorder": ("GBX_ActivationRecorder", lambda demo, model, **_: _recorded(demo, model)),
    "recorder of means": (
        "GBX_ActivationRecorder",
        lambda demo, model, **_: _recorded(demo, model, mean_only=True),
    ),
    "steering": (
        "GBX_ActivationSteering",
        lambda demo, model, **_: _steered(
            demo, model, ("up-level1-repeat0-res-out", "up-level0-repeat0-vit-block0-cross-q")
        ),
    ),
    "steering, norm kept, masked": (
        "GBX_ActivationSteering",
        lambda demo, model, **_: _steered(
            demo,
            model,
            ("mid-vit-block0-out",),
            preserve_norm=True,
            rows="both",
            mask=torch.ones(1, 4, 4) / 2,
        ),
    ),
    "attention scaling": ("GBX_AttentionScaling", lambda demo, model, **_: _scaled(demo, model)),
    "attention scaling, no padding hidden": (
        "GBX_AttentionScaling",
        lambda demo, model, **_: _scaled(demo, model, mask_padding=False),
    ),
    "baked neuron mask": (
        "GBX_BakeNeuronMask",
        lambda demo, model, **_: demo.app.run(
            "GBX_BakeNeuronMask", model=model, mask=neuron_mask(demo), strength=1.0
        )[0],
    ),
    "another edit": (
        "GBX_EditByWords",
        lambda demo, model, **_: edit_by_words(demo, model, "shoes: 1", ""),
    ),
    "schedule of values": (
        "GBX_MetadataSchedule",
        lambda demo, model, **_: _schedule(demo, model, "value"),
    ),
    "schedule of the embedding": (
        "GBX_MetadataSchedule",
        lambda demo, model, **_: _schedule(demo, model, "embedding"),
    ),
    "neuron mask": ("GBX_NemoNeuronMask", lambda demo, model, **_: masked(demo, model)),
    "neuron mask, positive": (
        "GBX_NemoNeuronMask",
        lambda demo, model, **_: masked(demo, model, apply_to="positive"),
    ),
    "neuron mask, part of the run": (
        "GBX_NemoNeuronMask",
        lambda demo, model, **_: masked(demo, model, start_percent=0.3, end_percent=0.8),
    ),
    "higher resolution": ("GBX_PositionalResample", lambda demo, model, **_: _larger(demo, model)),
    "rescaled noise": (
        "GBX_ResolutionNoiseRescale",
        lambda demo, model, **_: _rescaled(demo, model, "sampler_only"),
    ),
    "rescaled noise, retimed": (
        "GBX_ResolutionNoiseRescale",
        lambda demo, model, **_: _rescaled(demo, model, "retimed"),
    ),
    "seed variety": ("GBX_SeedVariety", lambda demo, model, **_: varied(demo, model)),
    "sparse features": (
        "GBX_SparseFeatureSteering",
        lambda demo, model, **_: _sparse_features(demo, model),
    ),
    "identity": ("GBX_W2WApply", lambda demo, model, **_: _applied(demo, model, 0.0, 1.0)),
    "identity, part of the run": (
        "GBX_W2WApply",
        lambda demo, model, **_: _applied(demo, model, 0.2, 0.7),
    ),
    "guidance": ("GBX_W2WGuidance", lambda demo, model, **_: _guided(demo, model)),
}
