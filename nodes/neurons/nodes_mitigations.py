"""Memorization mitigations: those that Finding NeMo compares with, and the adversarial unlearning of Finding DoRI."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from comfy_api.latest import io

from ..common.pil_images import rgb
from ..host.evaluate import sample_latents
from ..host.hooks import refuse_compiled
from ..host.image_output import new_figure, to_image
from ..host.progress import Progress
from ..host.schema import float_input, int_input, later_seed, schema, seed
from ..host.text_encoding import chunks, encode
from ..host.text_encoding import known_words as vocabulary
from . import nemo_inputs
from .first_step_comfy import embedding, latent_shape
from .memorization_score import OFFICIAL_TIMESTEP, seeded_noise
from .neuron_layers import value_layers

if TYPE_CHECKING:
    from .unlearning import UnlearningLosses, UnlearningSettings

CATEGORY = nemo_inputs.CATEGORY
_COST = "Adversarial Unlearning: %d images to generate, then %d rows of the network with gradients and %d without."


class AttentionScaling(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_AttentionScaling",
            display_name="Attention Scaling",
            category=CATEGORY,
            description="Mitigates memorization: raises the attention to the first token and masks the padding after "
            "the prompt, for the positive prompt. Ren et al., Unveiling and Mitigating Memorization (arXiv "
            "2403.11052); a baseline of Finding NeMo (arXiv 2406.02366).",
            search_aliases=[
                "nemo",
                "memorization mitigation",
                "attention entropy",
                "first token attention",
                "less memorization",
            ],
            inputs=[
                io.Model.Input("model", tooltip="SD1.x, SD2.x, SDXL or the demo model."),
                io.Clip.Input("clip", tooltip="Finds where the padding after the prompt begins."),
                io.String.Input("prompt", default="", multiline=True, tooltip="The prompt that is sampled."),
                float_input(
                    "scale",
                    1.25,
                    (0.0, 10.0, 0.05),
                    "Factor on the attention logit of the first token. Paper: 1.25. 1 changes nothing.",
                ),
                io.Boolean.Input(
                    "mask_padding",
                    default=True,
                    tooltip="No attention to the padding after the prompt, as in the paper.",
                ),
            ],
            outputs=[io.Model.Output(display_name="model", tooltip="For any sampler, with this prompt.")],
        )

    @classmethod
    def execute(cls, model, clip, prompt, scale, mask_padding) -> io.NodeOutput:
        from .attention_scaling_comfy import with_attention

        refuse_compiled(model)
        tokens, conditioning = encode(clip, prompt)
        hidden = torch.zeros(embedding(conditioning).shape[1], dtype=torch.bool)
        if mask_padding:
            for chunk in chunks(clip, tokens, tuple(embedding(conditioning).shape)):
                hidden[chunk.rows][chunk.real :] = True
        if scale == 1 and not bool(hidden.any()):
            return io.NodeOutput(model)
        paths = [layer.path.removesuffix(".to_v") for layer in value_layers(model.model.diffusion_model)]
        return io.NodeOutput(with_attention(model, paths, scale, hidden))


class EmbeddingAdjustment(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_EmbeddingAdjustment",
            display_name="Embedding Adjustment",
            category=CATEGORY,
            description="Mitigates memorization: optimizes the prompt's embedding until the text changes the first "
            "step less. Wen et al., Detecting, Explaining, and Mitigating Memorization (arXiv 2407.21720); a baseline "
            "of Finding NeMo (arXiv 2406.02366).",
            search_aliases=[
                "nemo",
                "memorization mitigation",
                "prompt embedding adjustment",
                "rewrite prompt",
                "less memorization",
            ],
            inputs=[
                io.Model.Input("model", tooltip="SD1.x, SD2.x, SDXL or the demo model."),
                io.Conditioning.Input("positive", tooltip="The memorized prompt."),
                io.Conditioning.Input("negative", tooltip="The empty prompt, or the negative prompt in use."),
                float_input(
                    "target_norm",
                    3.0,
                    (0.0, 1000.0, 0.05),
                    "Stops at this text norm (see Memorization Score). Paper: 3 for SD1.4. Use the norm of "
                    "ordinary prompts.",
                ),
                int_input("steps", 10, (1, 1000), "Maximum number of steps. Paper: 10."),
                float_input(
                    "learning_rate", 0.05, (0.0001, 1.0, 0.0001), "Learning rate of AdamW. Official code: .05."
                ),
                int_input(
                    "noise_samples",
                    4,
                    (1, 64),
                    "Number of noise samples that the norm is averaged over. Paper: the sampled batch.",
                ),
                seed(nemo_inputs.SEED_TOOLTIP, 1, control=False),
                io.Int.Input(**nemo_inputs.WIDTH),
                io.Int.Input(**nemo_inputs.HEIGHT),
            ],
            outputs=[
                io.Conditioning.Output(display_name="positive", tooltip="The adjusted prompt, for any sampler."),
                io.String.Output(display_name="report", tooltip="The norm before each step and at the end."),
            ],
        )

    @classmethod
    def execute(
        cls, model, positive, negative, target_norm, steps, learning_rate, noise_samples, seed, width, height
    ) -> io.NodeOutput:
        from . import embedding_session_comfy, mitigations
        from .embedding_session_comfy import refuse_unsupported

        refuse_unsupported(model, positive)
        bar, shape = Progress(steps), latent_shape(model, width, height)
        noise = seeded_noise(shape, noise_samples, seed)

        def work(session):
            timestep = torch.full((noise_samples,), OFFICIAL_TIMESTEP, device=session.device)
            x = session.pure(noise.to(session.device), timestep)
            with torch.no_grad():  # here, since layers of a quantized MODEL may round their inputs anywhere else
                without_text = session.predicted(x, timestep, rows=[1] * noise_samples)

            def text_norm(adjusted: torch.Tensor) -> torch.Tensor:
                return (session.predicted(x, timestep, adjusted) - without_text).flatten(1).norm(dim=1).mean()

            start = embedding(positive).clone().to(session.device)
            return mitigations.adjust_embedding(start, text_norm, steps, learning_rate, target_norm, bar.show)

        blank = torch.zeros(1, *shape)
        adjusted, norms = embedding_session_comfy.run(model, blank, positive[:1], work, seed, more=[(blank, negative)])
        conditioning = [[adjusted.to(embedding(positive)), dict(positive[0][1])], *positive[1:]]
        return io.NodeOutput(conditioning, mitigations.describe_norms(norms, target_norm))


class RandomTokens(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_RandomTokens",
            display_name="Random Token Augmentation",
            category=CATEGORY,
            description="Mitigates memorization: inserts random words into the prompt, at the cost of prompt "
            "alignment. Somepalli et al., Understanding and Mitigating Copying (arXiv 2305.20086); a baseline of "
            "Finding NeMo (arXiv 2406.02366).",
            search_aliases=["nemo", "memorization mitigation", "random tokens", "random words", "less memorization"],
            inputs=[
                io.Clip.Input("clip", tooltip="Text encoder; the words come from its vocabulary."),
                io.String.Input("prompt", default="", multiline=True, tooltip="The memorized prompt."),
                int_input(
                    "count", 4, (0, 64), "Number of words. Finding NeMo compares 1, 4 and 10; 4 stop most replication."
                ),
                seed("Seed of the words and their places."),
                io.String.Input(
                    "words",
                    default="",
                    multiline=True,
                    tooltip="Words to use instead of the vocabulary, separated by spaces or lines.",
                ),
            ],
            outputs=[
                io.Conditioning.Output(display_name="conditioning", tooltip="The new prompt, encoded."),
                io.String.Output(display_name="prompt", tooltip="The new prompt as text."),
            ],
        )

    @classmethod
    def execute(cls, clip, prompt, count, seed, words) -> io.NodeOutput:
        from .mitigations import insert_random_words

        changed = insert_random_words(prompt, words.split() or vocabulary(clip), count, seed) if count else prompt
        return io.NodeOutput(encode(clip, changed)[1], changed)


class AdversarialUnlearning(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_AdversarialUnlearning",
            advanced=(
                "batch_size",
                "keep",
                "attack_learning_rate",
                "noise_samples",
                "restart",
                "layers",
                "gradient_checkpointing",
            ),
            display_name="Adversarial Unlearning",
            category=f"{CATEGORY}/Research",
            description="Mitigates memorization: trains a LoRA under attack. Between the steps an attack optimizes "
            "text embeddings to regenerate the memorized image; the LoRA learns to answer them with surrogates, and to "
            "leave ordinary prompts as they are. After the adversarial fine-tuning of Finding DoRI (arXiv 2507.16880), "
            "which trains the whole model; LoRAs failed there. No proof of deletion: check with Memorization Audit.",
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
                io.Model.Input("model", tooltip="SD1.x, SD2.x, SDXL or the demo model, without the mask."),
                io.Vae.Input("vae", tooltip="VAE of the model."),
                io.Clip.Input("clip", tooltip="Text encoder of the model, for the ordinary prompts."),
                io.Conditioning.Input("positive", tooltip="The memorized prompt, where attacks start."),
                io.Image.Input("image", tooltip="The memorized image, of the size that the model was trained at."),
                io.Image.Input(
                    "surrogates",
                    tooltip="What is generated in its place: some images of that size that are not memorized, of "
                    "ordinary prompts, or of the memorized one under a mask that replaces the whole image.",
                ),
                io.String.Input(
                    "prompts",
                    default="",
                    multiline=True,
                    tooltip="Ordinary prompts that the LoRA should not change, one per line; a dozen or more. One "
                    "image is generated for each.",
                ),
                int_input("steps", 75, (1, 100000), "Steps of the training."),
                float_input(
                    "learning_rate",
                    0.004,
                    (0.000001, 1.0, 0.000001),
                    "Learning rate of AdamW. Higher rates and more steps change ordinary prompts more.",
                ),
                int_input("batch_size", 4, (1, 64), "Surrogates per step, and ordinary images per step."),
                float_input(
                    "keep",
                    2.0,
                    (0.0, 1000.0, 0.1),
                    "Weight of the ordinary prompts in the loss. Paper: 1. More keeps them better, and the memorized "
                    "image too.",
                ),
                int_input(
                    "attack_steps",
                    2,
                    (0, 1000),
                    "Steps of the attack per step of the training. 0: none, plain fine-tuning of the prompt.",
                ),
                float_input(
                    "attack_learning_rate", 0.1, (0.0001, 1.0, 0.0001), "Learning rate of the attack. Paper: .1."
                ),
                int_input("noise_samples", 4, (1, 64), "Noise samples per attack step. Paper: 8."),
                int_input(
                    "restart",
                    50,
                    (1, 2000),
                    "Steps after which an attack starts again at the memorized prompt. Memorization Audit attacks for "
                    "50.",
                ),
                int_input("rank", 8, (1, 128), "The rank of the LoRA layers."),
                io.String.Input(
                    "layers",
                    default="attn2",
                    tooltip="Comma-separated words: only layers with one of them in their name are trained. attn2: the "
                    "cross-attention, through which a text acts. Empty trains all, which changes ordinary prompts "
                    "more.",
                ),
                int_input("sampling_steps", 20, (1, 200), "Euler steps to generate the image of an ordinary prompt."),
                float_input("cfg", 7.0, (1.0, 30.0, 0.1), "CFG to generate them."),
                seed("Seed of the ordinary images, the LoRA, its noise and that of the attack."),
                io.Boolean.Input(
                    "gradient_checkpointing",
                    default=True,
                    tooltip="Recompute activations instead of keeping them: slower, with less memory.",
                ),
            ],
            outputs=[
                io.Model.Output(display_name="model", tooltip="The model with the LoRA at strength 1."),
                io.Custom("LORA_MODEL").Output(display_name="lora", tooltip="For Save LoRA Weights, Load LoRA Model."),
                io.Image.Output(display_name="figure", tooltip="Losses over the training."),
                io.String.Output(display_name="report", tooltip="Losses at the start and the end, cost and limits."),
            ],
        )

    @classmethod
    def execute(
        cls,
        model,
        vae,
        clip,
        positive,
        image,
        surrogates,
        prompts,
        steps,
        learning_rate,
        batch_size,
        keep,
        attack_steps,
        attack_learning_rate,
        noise_samples,
        restart,
        rank,
        layers,
        sampling_steps,
        cfg,
        seed,
        gradient_checkpointing,
    ) -> io.NodeOutput:
        from ..host.training import adapters
        from . import neuron_figures, unlearning
        from .audit import AttackSettings
        from .embedding_session_comfy import refuse_unsupported

        refuse_unsupported(model, positive)
        refuse_compiled(model)
        ordinary = nemo_inputs.collect_prompts(prompts, least=1)
        latent, others = _same_size(vae, image[:1], surrogates)
        attack = AttackSettings(learning_rate=attack_learning_rate, noise_samples=noise_samples)
        settings = unlearning.UnlearningSettings(
            steps, learning_rate, batch_size, keep, attack_steps, restart, attack, seed
        )
        logging.info(_COST, len(ordinary), *settings.rows)
        bar = Progress(len(ordinary) + steps)
        kept = _generated(model, clip, ordinary, latent, sampling_steps, cfg, seed, bar.show)
        made = adapters.create(model, "LoRA", rank, torch.float32, seed, None, float(rank), layers)
        images = [(latent, positive[:1]), *((one, positive[:1]) for one in others.split(1)), *kept]
        losses = _unlearned(
            model, images, len(others), made, settings, gradient_checkpointing, lambda done: bar.show(len(kept) + done)
        )
        lora, figure, report = made.lora(), new_figure(), unlearning.describe(losses, settings, len(ordinary))
        neuron_figures.plot_unlearning(figure, losses)
        return io.NodeOutput(adapters.applied(model, lora), lora, to_image(figure), report)


def _unlearned(
    model, images: list, surrogates: int, made, settings: UnlearningSettings, checkpointing: bool, show: Callable
) -> UnlearningLosses:
    """Train the parameters of an adapter: images (latent, conditioning), the memorized one, surrogates, ordinary ones.

    ``show`` is given how many steps are done.
    """
    from . import embedding_session_comfy, unlearning

    def work(session) -> UnlearningLosses:
        start, parameters = [embedding(positive).clone().to(session.device)], made.parameters.values()
        return unlearning.unlearn(session, surrogates, start, parameters, settings, show)

    (latent, positive), *more = images
    how = {"functions": made.functions, "checkpointing": checkpointing}
    return embedding_session_comfy.run(model, latent, positive, work, settings.seed, more=more, **how)


def _same_size(vae, image: torch.Tensor, surrogates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The latents of both; raises ValueError when they differ in size."""
    latent, others = vae.encode(rgb(image)), vae.encode(rgb(surrogates))
    if latent.shape[1:] != others.shape[1:]:
        raise ValueError("image and surrogates have different sizes: scale the surrogates to the image's.")
    return latent, others


def _generated(
    model, clip, prompts: list[str], latent: torch.Tensor, steps: int, cfg: float, seed: int, show: Callable
) -> list[tuple[torch.Tensor, list]]:
    """What a MODEL samples for prompts, each with its conditioning; ``show`` is given how many are done."""
    negative, found = encode(clip, "")[1], []
    for number, text in enumerate(prompts):
        conditioning, draw = encode(clip, text)[1], later_seed(seed, number)
        found.append((sample_latents(model, conditioning, negative, latent, steps, cfg, draw), conditioning))
        show(number + 1)
    return found


NODES = [AttentionScaling, EmbeddingAdjustment, RandomTokens, AdversarialUnlearning]
