"""Memorization mitigations: those that Finding NeMo compares with, and the adversarial unlearning
of Finding DoRI.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from comfy_api.latest import io

from ..common.pil_images import rgb
from ..host.evaluate import sample_latents
from ..host.hooks import refuse_compiled
from ..host.image_output import new_figure, to_image
from ..host.latent_shapes import split
from ..host.progress import Progress
from ..host.schema import float_input, int_input, later_seed, precision_input, schema, seed
from ..host.text_encoding import Chunk, chunks, encode
from ..host.text_encoding import known_words as vocabulary
from . import nemo_inputs
from .first_step_comfy import embedding, latent_shape
from .memorization_score import seeded_noise
from .neuron_layers import has_value_layers, value_layers

if TYPE_CHECKING:
    from ..host.socket_types import CLIP, VAE, ModelPatcher
    from .unlearning import UnlearningLosses, UnlearningSettings

CATEGORY = nemo_inputs.CATEGORY
_COST = (
    "Adversarial Unlearning: %d images to generate, then %d rows of the network with gradients "
    "and %d without."
)


class AttentionScaling(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_AttentionScaling",
            display_name="Attention Scaling",
            category=CATEGORY,
            description=(
                "Mitigates memorization: raises the attention to the first token and masks the "
                "padding after the prompt, for the positive prompt. Ren et al., Unveiling and "
                "Mitigating Memorization (arXiv 2403.11052); a baseline of Finding NeMo (arXiv "
                "2406.02366)."
            ),
            search_aliases=[
                "nemo",
                "memorization mitigation",
                "attention entropy",
                "first token attention",
                "less memorization",
            ],
            inputs=[
                io.Model.Input("model", tooltip="U-Net or transformer that reads the prompt."),
                io.Clip.Input("clip", tooltip="Locates the padding after the prompt."),
                io.String.Input(
                    "prompt", default="", multiline=True, tooltip="The positive prompt in use."
                ),
                float_input(
                    "scale",
                    1.25,
                    (0.0, 10.0, 0.05),
                    "Factor on the attention logit of the first token. Paper: 1.25. 1 changes "
                    "nothing.",
                ),
                io.Boolean.Input(
                    "mask_padding",
                    default=True,
                    tooltip="Mask the padding after the prompt, as in the paper.",
                ),
            ],
            outputs=[
                io.Model.Output(display_name="model", tooltip="For any sampler, with this prompt.")
            ],
        )

    @classmethod
    def execute(
        cls, model: ModelPatcher, clip: CLIP, prompt: str, scale: float, mask_padding: bool
    ) -> io.NodeOutput:
        from .attention_scaling_comfy import with_attention

        refuse_compiled(model)
        network = model.model.diffusion_model
        tokens, conditioning = encode(clip, prompt)
        hidden = torch.zeros(embedding(conditioning).shape[1], dtype=torch.bool)
        if mask_padding:
            for chunk in _chunks(clip, tokens, conditioning):
                hidden[chunk.rows][chunk.real :] = True
        if scale == 1 and not bool(hidden.any()):
            return io.NodeOutput(model)
        paths = []
        if has_value_layers(network):
            paths = [layer.path.removesuffix(".to_v") for layer in value_layers(network)]
        return io.NodeOutput(with_attention(model, paths, scale, hidden))


def _chunks(clip: CLIP, tokens: dict, conditioning: list) -> list[Chunk]:
    """The chunks of a prompt. Raises ValueError for a text encoder whose padding is not known."""
    try:
        return chunks(clip, tokens, tuple(embedding(conditioning).shape))
    except ValueError:
        raise ValueError(
            "Which tokens of this text encoder are padding is not known: turn mask_padding off."
        ) from None


class EmbeddingAdjustment(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_EmbeddingAdjustment",
            advanced=("gradient_checkpointing", "precision"),
            display_name="Embedding Adjustment",
            category=CATEGORY,
            description=(
                "Mitigates memorization: optimizes the prompt's embedding until the text changes "
                "the first step less. Wen et al., Detecting, Explaining, and Mitigating "
                "Memorization (arXiv 2407.21720); a baseline of Finding NeMo (arXiv 2406.02366)."
            ),
            search_aliases=[
                "nemo",
                "memorization mitigation",
                "prompt embedding adjustment",
                "rewrite prompt",
                "less memorization",
            ],
            inputs=[
                io.Model.Input("model", tooltip="Model that generates images from noise."),
                io.Conditioning.Input("positive", tooltip="The memorized prompt."),
                io.Conditioning.Input(
                    "negative", tooltip="The empty prompt, or the negative prompt in use."
                ),
                float_input(
                    "target_norm",
                    3.0,
                    (0.0, 1000.0, 0.05),
                    "Target text norm, a mean per sample (see Memorization Score): use that of "
                    "ordinary prompts. The 3 of the paper's code is the norm of a whole batch.",
                ),
                int_input("steps", 10, (1, 1000), "Maximum number of steps. Paper: 10."),
                float_input(
                    "learning_rate",
                    0.05,
                    (0.0001, 1.0, 0.0001),
                    "Learning rate of AdamW. Official code: .05.",
                ),
                int_input(
                    "noise_samples",
                    4,
                    (1, 64),
                    "Number of noise samples to average the norm over. Paper: the sampled batch.",
                ),
                seed(nemo_inputs.SEED_TOOLTIP, 1, control=False),
                io.Int.Input(**nemo_inputs.WIDTH),
                io.Int.Input(**nemo_inputs.HEIGHT),
                io.Boolean.Input(
                    "gradient_checkpointing",
                    default=True,
                    optional=True,
                    tooltip="Recompute activations instead of storing them: slower, less memory.",
                ),
                precision_input("The embedding is always float32.", optional=True),
            ],
            outputs=[
                io.Conditioning.Output(
                    display_name="positive", tooltip="The adjusted prompt, for any sampler."
                ),
                io.String.Output(
                    display_name="report", tooltip="The norm before each step and at the end."
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        positive: list,
        negative: list,
        target_norm: float,
        steps: int,
        learning_rate: float,
        noise_samples: int,
        seed: int,
        width: int,
        height: int,
        gradient_checkpointing: bool = True,
        precision: str = "auto",
    ) -> io.NodeOutput:
        from ..host.precision import describe_precision, resolve_precision
        from . import embedding_session_comfy, mitigations
        from .embedding_session_comfy import refuse_unsupported

        refuse_unsupported(model, positive)
        bar = Progress(steps)
        shape = latent_shape(model, width, height)
        noise = seeded_noise(shape, noise_samples, seed)

        def work(session: Any) -> tuple[torch.Tensor, list[float]]:
            timestep = torch.full((noise_samples,), session.first_timestep, device=session.device)
            x = session.pure(noise.to(session.device), timestep)
            parts = torch.arange(noise_samples).split(session.rows_at_once(x))
            with (
                torch.no_grad()
            ):  # here, since layers of a quantized MODEL may round their inputs anywhere else
                without_text = [
                    session.predicted(x[rows], timestep[rows], rows=[1] * len(rows))
                    for rows in parts
                ]

            def text_norm(adjusted: torch.Tensor) -> Iterator[torch.Tensor]:
                for rows, plain in zip(parts, without_text, strict=True):
                    added = session.predicted(x[rows], timestep[rows], adjusted) - plain
                    yield added.flatten(1).norm(dim=1).sum() / noise_samples

            start = embedding(positive).clone().to(session.device)
            return mitigations.adjust_embedding(
                start,
                text_norm,
                steps=steps,
                learning_rate=learning_rate,
                target=target_norm,
                show_progress=bar.show,
            )

        blank = torch.zeros(1, *shape)
        resolved = resolve_precision(precision, model.load_device)
        adjusted, norms = embedding_session_comfy.run(
            model,
            blank,
            conditioning=positive[:1],
            work=work,
            seed=seed,
            more=[(blank, negative)],
            dtype=resolved.dtype,
            checkpointing=gradient_checkpointing,
        )
        conditioning = [[adjusted.to(embedding(positive)), dict(positive[0][1])], *positive[1:]]
        lines = [
            mitigations.describe_norms(norms, target_norm),
            describe_precision(precision, resolved),
        ]
        return io.NodeOutput(conditioning, "\n".join(lines))


class RandomTokens(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_RandomTokens",
            is_experimental=True,
            display_name="Random Token Augmentation",
            category=CATEGORY,
            description=(
                "Mitigates memorization: inserts random words into the prompt, at the cost of "
                "prompt alignment. Somepalli et al., Understanding and Mitigating Copying (arXiv "
                "2305.20086); a baseline of Finding NeMo (arXiv 2406.02366)."
            ),
            search_aliases=[
                "nemo",
                "memorization mitigation",
                "random tokens",
                "random words",
                "less memorization",
            ],
            inputs=[
                io.Clip.Input("clip", tooltip="Text encoder; the words come from its vocabulary."),
                io.String.Input(
                    "prompt", default="", multiline=True, tooltip="The memorized prompt."
                ),
                int_input(
                    "count",
                    4,
                    (0, 64),
                    "Number of inserted words. Finding NeMo compares 1, 4 and 10; 4 prevent most "
                    "replication there, and hardly any on the demo model.",
                ),
                seed("Seed of the words and their positions."),
                io.String.Input(
                    "words",
                    default="",
                    multiline=True,
                    tooltip=(
                        "Use these words instead of the vocabulary; separate by spaces or lines."
                    ),
                ),
            ],
            outputs=[
                io.Conditioning.Output(
                    display_name="conditioning", tooltip="The new prompt, encoded."
                ),
                io.String.Output(display_name="prompt", tooltip="The new prompt as text."),
            ],
        )

    @classmethod
    def execute(cls, clip: CLIP, prompt: str, count: int, seed: int, words: str) -> io.NodeOutput:
        from .mitigations import insert_random_words

        changed = (
            insert_random_words(prompt, words.split() or vocabulary(clip), count, seed)
            if count
            else prompt
        )
        return io.NodeOutput(encode(clip, changed)[1], changed)


class AdversarialUnlearning(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_AdversarialUnlearning",
            is_experimental=True,
            advanced=(
                "batch_size",
                "keep",
                "noise_samples",
                "restart",
                "layers",
                "gradient_checkpointing",
                "precision",
            ),
            display_name="Adversarial Unlearning",
            category=f"{CATEGORY}/Research",
            description=(
                "Mitigates memorization by adversarial training of a LoRA: an attack optimizes "
                "text embeddings to regenerate the memorized image; the LoRA learns to produce "
                "surrogates for them and to leave ordinary prompts unchanged. After the "
                "adversarial fine-tuning of Finding DoRI (arXiv 2507.16880), which trains the "
                "whole model; LoRAs failed there. No proof of deletion: check with Memorization "
                "Audit."
            ),
            search_aliases=[
                "memorization mitigation",
                "nemo",
                "dori",
                "unlearn",
                "forget an image",
                "concept erasure",
                "adversarial fine-tuning",
            ],
            inputs=[
                io.Model.Input(
                    "model", tooltip="Model that generates images from noise, without the mask."
                ),
                io.Vae.Input("vae", tooltip="VAE of the model."),
                io.Clip.Input(
                    "clip", tooltip="Text encoder of the model, for the ordinary prompts."
                ),
                io.Conditioning.Input(
                    "positive", tooltip="The memorized prompt; attacks start from it."
                ),
                io.Image.Input(
                    "image",
                    tooltip="The memorized image, at the training resolution of the model.",
                ),
                io.Image.Input(
                    "surrogates",
                    tooltip=(
                        "Target images that replace the memorized one: several at its size that "
                        "are not memorized, from ordinary prompts or from the memorized prompt "
                        "with a mask that removes the image."
                    ),
                ),
                io.String.Input(
                    "prompts",
                    default="",
                    multiline=True,
                    tooltip=(
                        "Ordinary prompts to leave unchanged, one per line; a dozen or more. One "
                        "image is generated for each."
                    ),
                ),
                int_input("steps", 75, (1, 100000), "Training steps."),
                float_input(
                    "learning_rate",
                    0.004,
                    (0.000001, 1.0, 0.000001),
                    "Learning rate of AdamW. Higher rates and more steps change ordinary prompts "
                    "more.",
                ),
                int_input(
                    "batch_size", 4, (1, 64), "Surrogates per step, and ordinary images per step."
                ),
                float_input(
                    "keep",
                    2.0,
                    (0.0, 1000.0, 0.1),
                    "Loss weight of the ordinary prompts. Paper: 1. Higher preserves them "
                    "better, but the memorized image too.",
                ),
                int_input(
                    "attack_steps",
                    2,
                    (0, 1000),
                    "Attack steps per training step. 0: no attack, plain fine-tuning of the "
                    "prompt.",
                ),
                int_input("noise_samples", 4, (1, 64), "Noise samples per attack step. Paper: 8."),
                int_input(
                    "restart",
                    50,
                    (1, 2000),
                    "The attack restarts from the memorized prompt after this many steps. "
                    "Memorization Audit attacks for 50.",
                ),
                int_input("rank", 8, (1, 128), "Rank of the LoRA."),
                io.String.Input(
                    "layers",
                    default="attn2",
                    tooltip=(
                        "Comma-separated words; only layers with one of them in their name are "
                        "trained. attn2: cross-attention, where the text acts. Empty: all "
                        "layers, which changes ordinary prompts more."
                    ),
                ),
                int_input(
                    "sampling_steps",
                    20,
                    (1, 200),
                    "Euler steps for the images of ordinary prompts.",
                ),
                float_input(
                    "cfg", 7.0, (1.0, 30.0, 0.1), ("CFG for the images of ordinary prompts.")
                ),
                seed("Seed of the ordinary images, the LoRA, its noise and the attack's noise."),
                io.Boolean.Input(
                    "gradient_checkpointing",
                    default=True,
                    tooltip="Recompute activations instead of storing them: slower, less memory.",
                ),
                precision_input("The LoRA is trained in float32.", optional=True),
            ],
            outputs=[
                io.Model.Output(
                    display_name="model", tooltip="The model with the LoRA at strength 1."
                ),
                io.Custom("LORA_MODEL").Output(
                    display_name="lora", tooltip="For Save LoRA Weights, Load LoRA Model."
                ),
                io.Image.Output(display_name="figure", tooltip="Loss curves of the training."),
                io.String.Output(
                    display_name="report",
                    tooltip="Losses at the start and the end, cost and limits.",
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        vae: VAE,
        clip: CLIP,
        positive: list,
        image: torch.Tensor,
        surrogates: torch.Tensor,
        prompts: str,
        steps: int,
        learning_rate: float,
        batch_size: int,
        keep: float,
        attack_steps: int,
        noise_samples: int,
        restart: int,
        rank: int,
        layers: str,
        sampling_steps: int,
        cfg: float,
        seed: int,
        gradient_checkpointing: bool,
        precision: str = "auto",
    ) -> io.NodeOutput:
        from ..host.precision import describe_precision, resolve_precision
        from ..host.training import adapters
        from . import neuron_figures, unlearning
        from .audit import AttackSettings
        from .embedding_session_comfy import refuse_unsupported

        refuse_unsupported(model, positive)
        refuse_compiled(model)
        ordinary = nemo_inputs.collect_prompts(prompts, least=1)
        latent, others = _same_size(vae, image[:1], surrogates)
        attack = AttackSettings(noise_samples=noise_samples)
        settings = unlearning.UnlearningSettings(
            steps=steps,
            learning_rate=learning_rate,
            batch_size=batch_size,
            keep=keep,
            attack_steps=attack_steps,
            restart=restart,
            attack=attack,
            seed=seed,
        )
        logging.info(_COST, len(ordinary), *settings.rows)
        bar = Progress(len(ordinary) + steps)
        kept = _generated(
            model,
            clip,
            prompts=ordinary,
            latent=latent,
            steps=sampling_steps,
            cfg=cfg,
            seed=seed,
            show=bar.show,
        )
        made = adapters.create(
            model,
            "LoRA",
            rank=rank,
            dtype=torch.float32,
            seed=seed,
            existing=None,
            alpha=float(rank),
            layers=layers,
        )
        images = [(latent, positive[:1]), *((one, positive[:1]) for one in others.split(1)), *kept]
        resolved = resolve_precision(precision, model.load_device)
        memory = {"dtype": resolved.dtype, "checkpointing": gradient_checkpointing}
        losses = _unlearned(
            model,
            images,
            surrogates=len(others),
            made=made,
            settings=settings,
            show=lambda done: bar.show(len(kept) + done),
            **memory,
        )
        lora = made.lora()
        lines = [
            unlearning.describe(losses, settings, len(ordinary)),
            describe_precision(precision, resolved),
        ]
        report = "\n".join(lines)
        figure = new_figure()
        neuron_figures.plot_unlearning(figure, losses)
        return io.NodeOutput(adapters.applied(model, lora), lora, to_image(figure), report)


def _unlearned(
    model: ModelPatcher,
    images: list,
    surrogates: int,
    made: Any,
    settings: UnlearningSettings,
    show: Callable,
    **memory: Any,
) -> UnlearningLosses:
    """Train the parameters of an adapter: images (latent, conditioning), the memorized one,
    surrogates, ordinary ones.

    ``show`` is given how many steps are done; ``memory``: dtype and checkpointing of
    ``embedding_session_comfy.run``.
    """
    from ..host.compute import request_for_training, trained_bytes
    from . import embedding_session_comfy, unlearning

    images_bytes = sum(latent.numel() * latent.element_size() for latent, _ in images)
    request_for_training(trained_bytes(made.parameters.values()) + images_bytes)

    def work(session: Any) -> UnlearningLosses:
        start = [embedding(positive).clone().to(session.device)]
        parameters = made.parameters.values()
        return unlearning.unlearn(
            session,
            surrogates,
            starts=start,
            parameters=parameters,
            settings=settings,
            show_progress=show,
        )

    (latent, positive), *more = images
    return embedding_session_comfy.run(
        model,
        latent,
        conditioning=positive,
        work=work,
        seed=settings.seed,
        more=more,
        functions=made.functions,
        **memory,
    )


def _same_size(
    vae: VAE, image: torch.Tensor, surrogates: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The latents of both; raises ValueError when they differ in size."""
    latent = vae.encode(rgb(image))
    # one by one: where latents have frames a batch is one video
    others = torch.cat([vae.encode(one) for one in rgb(surrogates).split(1)])
    if latent.shape[1:] != others.shape[1:]:
        raise ValueError(
            "image and surrogates have different sizes: scale the surrogates to the image's."
        )
    return latent, others


def _generated(
    model: ModelPatcher,
    clip: CLIP,
    prompts: list[str],
    latent: torch.Tensor,
    steps: int,
    cfg: float,
    seed: int,
    show: Callable,
) -> list[tuple[torch.Tensor, list]]:
    """What a MODEL samples for prompts, each with its conditioning; ``show`` is given how many are
    done.
    """
    negative = encode(clip, "")[1]
    found = []
    for number, text in enumerate(prompts):
        conditioning = encode(clip, text)[1]
        sampled = sample_latents(
            model,
            conditioning,
            negative=negative,
            latent=latent,
            steps=steps,
            cfg=cfg,
            seed=later_seed(seed, number),
        )
        found.append((split(sampled)[0], conditioning))  # without the sound of a video
        show(number + 1)
    return found


NODES = [AttentionScaling, EmbeddingAdjustment, RandomTokens, AdversarialUnlearning]
