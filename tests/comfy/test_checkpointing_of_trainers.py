"""The gradient of every node that trains: the same whether activations are kept or computed again,
on a U-Net and on a transformer.

Read where the node's own optimizer makes its first step, before any difference could grow.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import reduced
import tiny_transformers
import torch
from robustness.gradient_reference import segments_counted
from safetensors.torch import save_file
from torch.optim.optimizer import register_optimizer_step_pre_hook
from trainer_inputs import DEFAULTS

PROMPT = "portrait, red hair"
_RELATIVE = 1e-5
_SIDE = 64
#: PixArt divides by the latent side in units of 64, rounded.
_PIXART_SIDE = 320


class World:
    """A model with what the trainers need beside it, at the smallest sizes."""

    def __init__(self, app, name: str, folder: Path):
        self.app = app
        self.name = name
        if name == "unet":
            self.model, self.clip, self.vae = app.run("GBX_LoadDemoModel", weights="avatars-v2")
        elif name == "sd3":
            self.model, self.clip, self.vae = reduced.checkpoint(name)
        else:
            self.model = tiny_transformers.model(name)
            self.clip = None
            with torch.inference_mode(False), torch.no_grad():
                self.vae = reduced._vae(4, torch.Generator().manual_seed(2))
        self.positive = self.encode(PROMPT)
        self.negative = self.encode("")
        generator = torch.Generator().manual_seed(5)
        self.side = _SIDE if self.clip is not None else _PIXART_SIDE
        self.images = torch.rand(2, self.side, self.side, 3, generator=generator)
        with torch.inference_mode():
            self.latent = app.run("VAEEncode", pixels=self.images[:1], vae=self.vae)[0]
        self._folder = folder

    def encode(self, text: str):
        if self.clip is None:
            return tiny_transformers.conditioning(7 if text else 5, self.model)
        return self.app.run("CLIPTextEncode", clip=self.clip, text=text)[0]

    def space(self):
        """A space of LoRAs of two of the model's attentions."""
        ending = "attn2.to_q" if self.name == "unet" else "attn.qkv"
        named = self.model.model.diffusion_model.named_modules()
        paths = [path for path, _ in named if path.endswith(ending)][:2]
        builder = self.app.module("nodes.weights.space_builder")
        sources = self.app.module("nodes.weights.member_sources")
        for seed in range(5):
            generator = torch.Generator().manual_seed(seed)
            tensors = {}
            for path in paths:
                weight = self.model.model.diffusion_model.get_submodule(path).weight
                stem = f"diffusion_model.{path}"
                down = torch.randn(2, weight.shape[1], generator=generator)
                tensors[f"{stem}.lora_A.weight"] = down
                up = 0.1 * torch.randn(len(weight), 2, generator=generator)
                tensors[f"{stem}.lora_B.weight"] = up
            save_file(tensors, self._folder / f"{seed}.safetensors")
        target = self._folder / "space" / "s.safetensors"
        found = sources.file_sources(self._folder)
        return builder.build(found, builder.BuildSettings(), target)


def invert(world: World, checkpointing: bool) -> None:
    world.app.run(
        "GBX_W2WInvert",
        model=world.model,
        space=world.space(),
        positive=world.positive,
        latent=world.latent,
        steps=1,
        learning_rate=0.1,
        weight_decay=1e-10,
        components=100,
        seed=4,
        precision="fp32",
        gradient_checkpointing=checkpointing,
        preview_interval=2,
        checkpoint_name="",
    )


def train_space(world: World, checkpointing: bool) -> None:
    import folder_paths

    root = Path(folder_paths.get_input_directory()) / "two people"
    source = Path(__file__).resolve().parents[2] / "assets" / "avatars-v2-people"
    shutil.rmtree(root, ignore_errors=True)
    for person in ("person_00", "person_01"):
        (root / person).mkdir(parents=True)
        shutil.copy(source / person / "0.webp", root / person)
    try:
        world.app.run(
            "GBX_W2WTrainSpace",
            model=world.model,
            clip=world.clip,
            vae=world.vae,
            folder="two people",
            prompt="portrait",
            components=2,
            rank=1,
            steps=1,
            learning_rate=0.01,
            members_per_step=2,
            images_per_member=1,
            batch_size=2,
            resolution=64,
            seed=3,
            layers="",
            end_percent=0.85,
            caption_dropout=0.0,
            precision="fp32",
            gradient_checkpointing=checkpointing,
            preview_interval=2,
            checkpoint_name="",
            checkpoint_interval=2,
        )
    finally:
        shutil.rmtree(root, ignore_errors=True)


def train_slider(world: World, checkpointing: bool) -> None:
    world.app.run(
        "GBX_TrainSlider",
        model=world.model,
        clip=world.clip,
        increase="majestic beard",
        decrease="shaven",
        base_prompt="portrait",
        keep="",
        rank=2,
        steps=1,
        learning_rate=0.01,
        guidance_scale=2.0,
        batch_size=1,
        images=1,
        sampling_steps=1,
        cfg=1.0,
        end_percent=1.0,
        seed=3,
        layers="",
        precision="fp32",
        gradient_checkpointing=checkpointing,
        preview_interval=0,
        filename_prefix="",
        checkpoint_name="",
        checkpoint_interval=2,
        latent=world.latent,
    )


def train_lora(world: World, checkpointing: bool) -> None:
    choices = DEFAULTS | {
        "steps": 1,
        "sample_interval": 0,
        "gradient_checkpointing": checkpointing,
    }
    world.app.run(
        "GBX_TrainLoraImmiscible",
        model=[world.model],
        latents=[world.latent],
        positive=[world.positive],
        **{key: [value] for key, value in choices.items()},
    )


def optimize_mask(world: World, checkpointing: bool) -> None:
    half = world.app.module("nodes.neurons.learned_factors_comfy")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_LATENT_STEPS", "_ANCHORS", "_MEMORIZED"):  # images to learn from are dear
            patch.setattr(half, name, 1)
        world.app.run(
            "GBX_OptimizeNeuronMask",
            model=world.model,
            clip=world.clip,
            prompts=PROMPT,
            anchor="portrait",
            ordinary_prompts="portrait, bald",
            layers="all",
            steps=1,
            learning_rate=0.15,
            min_factor=0.0,
            removal=10.0,
            keep=1.0,
            sparsity=0.1,
            max_neurons=0,
            batch_size=2,
            noise_samples=2,
            seed=1,
            width=world.side,
            height=world.side,
            checkpoint_name="",
            gradient_checkpointing=checkpointing,
            precision="fp32",
        )


def audit(world: World, checkpointing: bool) -> None:
    world.app.run(
        "GBX_MemorizationAudit",
        model=world.model,
        vae=world.vae,
        positive=world.positive,
        negative=world.negative,
        image=world.images[:1],
        steps=1,
        learning_rate=0.1,
        noise_samples=2,
        batch_size=1,
        sampling_steps=1,
        cfg=3.0,
        seed=1,
        gradient_checkpointing=checkpointing,
        precision="fp32",
    )


def adjust(world: World, checkpointing: bool) -> None:
    world.app.run(
        "GBX_EmbeddingAdjustment",
        model=world.model,
        positive=world.positive,
        negative=world.negative,
        target_norm=0.0,
        steps=1,
        learning_rate=0.05,
        noise_samples=2,
        seed=1,
        width=world.side,
        height=world.side,
        gradient_checkpointing=checkpointing,
        precision="fp32",
    )


def unlearn(world: World, checkpointing: bool) -> None:
    world.app.run(
        "GBX_AdversarialUnlearning",
        model=world.model,
        vae=world.vae,
        clip=world.clip,
        positive=world.positive,
        image=world.images[:1],
        surrogates=world.images[1:],
        prompts="portrait, bald",
        steps=1,
        learning_rate=0.01,
        batch_size=1,
        keep=1.0,
        attack_steps=1,
        noise_samples=1,
        restart=2,
        rank=2,
        layers="attn2",
        sampling_steps=1,
        cfg=3.0,
        seed=1,
        gradient_checkpointing=checkpointing,
        precision="fp32",
    )


def attribute(world: World, checkpointing: bool) -> None:
    world.app.run(
        "GBX_NemoLocalize",
        model=world.model,
        clip=world.clip,
        prompts=PROMPT,
        layers="all",
        threshold=0.2,
        criterion="between_seeds",
        target_score=0.7,
        theta_start=5.0,
        time_budget=0.0,
        method="attribution",
        ranking="multi",
        stopping_rule="fraction",
        fraction=0.5,
        anchor="portrait",
        noise_samples=2,
        seed=1,
        timestep="official_961",
        width=world.side,
        height=world.side,
        gradient_checkpointing=checkpointing,
        precision="fp32",
    )


TRAINERS: dict[str, Callable[[World, bool], None]] = {
    "W2W Invert": invert,
    "W2W Train Space": train_space,
    "Train LoRA (Exact Resume)": train_lora,
    "Train Slider": train_slider,
    "Optimize Neuron Mask": optimize_mask,
    "Memorization Audit": audit,
    "Embedding Adjustment": adjust,
    "Adversarial Unlearning": unlearn,
    "NeMo Localize by attribution": attribute,
}


class _Enough(BaseException):
    """The gradient is known, and the run that made it may end."""


@contextmanager
def first_gradients(app, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.Tensor]]:
    """Those of an optimizer's first step, or of the first call of ``torch.autograd.grad``, or the
    first that attribution reads, with which the block ends.
    """
    gradients: list[torch.Tensor] = []

    def keep(values: list) -> None:
        gradients.extend(value.detach().clone() for value in values if value is not None)
        raise _Enough

    def before_step(optimizer, _arguments, _keywords) -> None:
        keep([slot.grad for group in optimizer.param_groups for slot in group["params"]])

    grad = torch.autograd.grad

    def recorded(*args, **kwargs) -> None:
        keep(list(grad(*args, **kwargs)))

    attribution = app.module("nodes.neurons.neuron_attribution")
    read = attribution._mean_gradient

    def attributed(paths: list[torch.Tensor]) -> None:
        keep([read(paths)])

    monkeypatch.setattr(attribution, "_mean_gradient", attributed)
    handle = register_optimizer_step_pre_hook(before_step)
    monkeypatch.setattr(torch.autograd, "grad", recorded)
    try:
        yield gradients
    except _Enough:
        pass
    finally:
        handle.remove()
        monkeypatch.undo()


#: SD3 is a flow model, which nodes that need timesteps refuse; PixArt predicts noise and comes
#: without a text encoder.
TRANSFORMERS = {
    "sd3": ("W2W Invert", "W2W Train Space", "Train LoRA (Exact Resume)", "Train Slider"),
    "PixArtAlpha": ("Memorization Audit", "Embedding Adjustment"),
}
#: Its images have 320 pixels a side on PixArt.
_SLOW = ("PixArtAlpha", "Memorization Audit")
CASES = [("unet", name) for name in TRAINERS]
CASES += [
    (model, name)
    for model, names in TRANSFORMERS.items()
    for name in names
    if (model, name) != _SLOW
]
CASES += [pytest.param(*_SLOW, marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def worlds(app, tmp_path_factory):
    made: dict[str, World] = {}

    def world(model: str) -> World:
        if model not in made:
            made[model] = World(app, model, tmp_path_factory.mktemp(model))
        return made[model]

    return world


@pytest.mark.parametrize(("model", "name"), CASES)
def test_a_trainers_gradient_is_that_of_activations_kept(worlds, model, name, monkeypatch):
    world = worlds(model)
    found = {}
    blocks = {}
    for checkpointing in (False, True):
        with (
            segments_counted(world.app) as count,
            first_gradients(world.app, monkeypatch) as gradients,
        ):
            TRAINERS[name](world, checkpointing)
        found[checkpointing] = gradients
        blocks[checkpointing] = len(count)
    assert blocks[False] == 0 and blocks[True] >= 3
    assert found[False] and len(found[False]) == len(found[True])
    sizes = [float(gradient.norm()) for gradient in found[False]]
    assert max(sizes) > 0
    for kept, again in zip(found[False], found[True], strict=True):
        assert kept.isfinite().all()
        # of a gradient that is zero but for rounding, 1e-7 of the largest of all says enough
        least = max(float(kept.norm()), 0.01 * max(sizes))
        assert float((again - kept).norm()) <= _RELATIVE * least


def test_every_node_with_the_input_is_tried(app):
    """By display name; NeMo Localize has it for attribution."""
    named = set()
    for name, node in app.classes.items():
        if not name.startswith("GBX_"):
            continue
        described = node.define_schema()
        if any(slot.id == "gradient_checkpointing" for slot in described.inputs):
            named.add(described.display_name)
    tried = {name.removesuffix(" by attribution") for name in TRAINERS}
    assert {name for name in named if name} <= tried
