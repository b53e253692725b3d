"""Other ways out of memorisation beside NeMo's, with the same inputs; and the audit that tests any of them."""

from __future__ import annotations

import torch
from comfy_api.latest import io

from ...host import conditioned
from ...host.attention_scaling import with_attention
from ...host.figures import new_figure, to_image
from ...host.first_step import at_first_step, latent_shape, refuse_flow
from ...host.hooks import refuse_compiled
from ...host.painting import paint
from ...host.progress import Progress
from ...host.prompts import chunks, encode
from ...host.schema import schema
from ...host.value_answers import embedding
from ...host.vocabulary import words as vocabulary
from .. import audit, comparison, drawing, inputs, words
from ..embedding import adjust
from ..layers import value_layers
from ..mask import CAVEATS
from ..memorization import first_noise
from ..random_words import with_random_words

CATEGORY = inputs.CATEGORY
_REPLICATED = 0.6


class AttentionScaling(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_AttentionScaling",
            display_name="Attention Scaling",
            category=CATEGORY,
            description="A way out of memorisation beside NeMo's: more attention to the first token, none to the "
                        "padding "
            "behind the prompt, in rows of the positive prompt. Ren et al., Unveiling and Mitigating Memorization "
            "(arXiv 2403.11052); a baseline of Finding NeMo (arXiv 2406.02366).",
            search_aliases=["nemo", "memorization mitigation", "attention entropy"],
            inputs=[
                io.Model.Input("model", tooltip="SD1.x, SD2.x, SDXL or the demo model."),
                io.Clip.Input("clip", tooltip="Tells where the padding behind the prompt begins."),
                io.String.Input("prompt", default="", multiline=True, tooltip="The very prompt that is sampled."),
                io.Float.Input("scale", default=1.25, min=0.0, max=10.0, step=0.05,
                               tooltip="Factor on the logit of the first token. Paper: 1.25; 1 leaves it."),
                io.Boolean.Input("hide_padding", default=True,
                                 tooltip="Give no attention to the padding behind the prompt, as the paper does."),
            ],
            outputs=[io.Model.Output(display_name="MODEL", tooltip="For any sampler, with this prompt.")],
        )  # fmt: skip

    @classmethod
    def execute(cls, model, clip, prompt: str, scale: float, hide_padding: bool) -> io.NodeOutput:
        refuse_compiled(model)
        tokens, conditioning = encode(clip, prompt)
        hidden = torch.zeros(embedding(conditioning).shape[1], dtype=torch.bool)
        if hide_padding:
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
            description="A way out of memorisation beside NeMo's: moves the prompt's embedding until the text "
                        "changes the "
            "first step less. Wen et al., Detecting, Explaining, and Mitigating Memorization (arXiv 2407.21720); a "
            "baseline of Finding NeMo (arXiv 2406.02366).",
            search_aliases=["nemo", "memorization mitigation", "prompt embedding adjustment"],
            inputs=[
                io.Model.Input("model", tooltip="SD1.x, SD2.x, SDXL or the demo model."),
                io.Conditioning.Input("positive", tooltip="The prompt that is memorised."),
                io.Conditioning.Input("negative", tooltip="The empty prompt, or the negative one that is used."),
                io.Float.Input("target", default=3.0, min=0.0, max=1000.0, step=0.05,
                               tooltip="Stop at this mean norm of what the text adds (the text norm of Memorization "
                               "Score). The paper takes 3 for SD1.4; aim at ordinary prompts' norm."),
                io.Int.Input("steps", default=10, min=1, max=1000, tooltip="At most so many steps. The paper takes "
                                                                           "10."),
                io.Float.Input("learning_rate", default=0.05, min=0.0001, max=1.0, step=0.0001,
                               tooltip="Of AdamW. The paper's code takes .05."),
                io.Int.Input("pictures", default=4, min=1, max=64,
                             tooltip="How many noises the norm is averaged over. The paper takes the batch it "
                                     "samples."),
                io.Int.Input(**inputs.SEED),
                io.Int.Input(**inputs.WIDTH),
                io.Int.Input(**inputs.HEIGHT),
            ],
            outputs=[
                io.Conditioning.Output(display_name="positive", tooltip="The adjusted prompt, for any sampler."),
                io.String.Output(display_name="report", tooltip="The norm before each step and at the end."),
            ],
        )  # fmt: skip

    @classmethod
    def execute(cls, model, positive, negative, target, steps, learning_rate, pictures, seed, width, height):
        refuse_flow(model)
        shape = latent_shape(model, width, height)
        noise = first_noise(shape, pictures, seed)
        without = at_first_step(model, negative, shape, _first(model), lambda predict: predict(noise)).clone()
        bar = Progress(steps)

        def work(inside):
            timestep = torch.full((pictures,), _first(model), device=inside.device)
            x = inside.pure(noise.to(inside.device), timestep)
            apart = without.clone().to(inside.device)

            def norm(moved: torch.Tensor) -> torch.Tensor:
                return (inside.predicted(x, timestep, moved) - apart).flatten(1).norm(dim=1).mean()

            start = embedding(positive).clone().to(inside.device)
            return adjust(start, norm, steps, learning_rate, target, lambda step, _norm: bar.show(step))

        moved, norms = conditioned.run(model, torch.zeros(1, *shape), positive[:1], work, seed)
        adjusted = [[moved.to(embedding(positive)), dict(positive[0][1])], *positive[1:]]
        steps_taken = len(norms) - 1
        end = "reached" if norms[-1] <= target else "not reached: give it more steps"
        told = ", ".join(f"{value:.3f}" for value in norms)
        return io.NodeOutput(adjusted, f"Text norm {told} after {steps_taken} step(s); target {target:g} {end}.")


class RandomTokens(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_RandomTokens",
            display_name="Random Tokens",
            category=CATEGORY,
            description="A way out of memorisation beside NeMo's: puts random words into the prompt, at the cost of "
                        "what "
            "it says. Somepalli et al., Understanding and Mitigating Copying (arXiv 2305.20086); a baseline of Finding "
            "NeMo (arXiv 2406.02366).",
            search_aliases=["nemo", "memorization mitigation", "random words"],
            inputs=[
                io.Clip.Input("clip", tooltip="Text encoder; its vocabulary gives the words."),
                io.String.Input("prompt", default="", multiline=True, tooltip="The prompt that is memorised."),
                io.Int.Input("count", default=4, min=0, max=64,
                             tooltip="How many words. Finding NeMo compares 1, 4 and 10; 4 stop most replication."),
                io.Int.Input("seed", default=0, min=0, max=inputs.SEED_MAX, control_after_generate=True,
                             tooltip="Which words, and where."),
                io.String.Input("words", default="", multiline=True,
                                tooltip="Words to draw from instead of the vocabulary, apart by spaces or lines."),
            ],
            outputs=[
                io.Conditioning.Output(display_name="CONDITIONING", tooltip="The new prompt, encoded."),
                io.String.Output(display_name="prompt", tooltip="The new prompt as text."),
            ],
        )  # fmt: skip

    @classmethod
    def execute(cls, clip, prompt: str, count: int, seed: int, words: str) -> io.NodeOutput:
        changed = with_random_words(prompt, words.split() or vocabulary(clip), count, seed) if count else prompt
        return io.NodeOutput(encode(clip, changed)[1], changed)


class MemorizationAudit(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_MemorizationAudit",
            display_name="Memorization Audit",
            category=CATEGORY,
            description="Tests a mask honestly: optimises the text embedding for a picture of yours and looks "
                        "whether the "
            f"masked model paints it again. After Finding DoRI (arXiv 2507.16880). {' '.join(CAVEATS)}",
            search_aliases=["nemo", "dori", "adversarial embedding", "memorization attack"],
            inputs=[
                io.Model.Input("model", tooltip="The model under test, with its mask."),
                io.Vae.Input("vae", tooltip="Of that model."),
                io.Conditioning.Input("positive", tooltip="Where the attack begins: the memorised prompt."),
                io.Conditioning.Input("negative", tooltip="The empty prompt, or the negative one."),
                io.Image.Input("picture", tooltip="The picture that should not come back: one that is yours."),
                io.Image.Input("control", optional=True,
                               tooltip="A picture of the same kind that the model has never seen: it should not come "
                               "back either."),
                io.Int.Input("steps", default=50, min=1, max=2000,
                             tooltip="Steps of the attack. The paper takes 50; a picture that is not memorised needs "
                             "over 500."),
                io.Float.Input("learning_rate", default=0.1, min=0.0001, max=1.0, step=0.0001,
                               tooltip="Of Adam. Paper: .1."),
                io.Int.Input("batch", default=8, min=1, max=64, tooltip="Noises for each step. Paper: 8."),
                io.Int.Input("pictures", default=4, min=1, max=64, tooltip="How many pictures are painted to look."),
                io.Int.Input("sampling_steps", default=20, min=1, max=200, tooltip="Steps to paint them, by Euler."),
                io.Float.Input("cfg", default=7.0, min=1.0, max=30.0, step=0.1, tooltip="CFG to paint them."),
                io.Int.Input("seed", default=1, min=0, max=inputs.SEED_MAX, control_after_generate=True,
                             tooltip="Of the attack's noises and of the pictures."),
            ],
            outputs=[
                io.Image.Output(display_name="images", tooltip="Painted before the attack, then after it, then for the "
                                "control."),
                io.Float.Output(display_name="before", tooltip="Median similarity to the picture without an attack."),
                io.Float.Output(display_name="after", tooltip="Median similarity to the picture after it."),
                io.Image.Output(display_name="figure", tooltip="Loss of the attack, and similarities."),
                io.String.Output(display_name="report", tooltip="Numbers, verdict, and what to know."),
            ],
        )  # fmt: skip

    @classmethod
    def execute(cls, model, vae, positive, negative, picture, control=None, **how) -> io.NodeOutput:
        refuse_flow(model)
        shape = latent_shape(model, picture.shape[2], picture.shape[1])
        test = _Audit(model, vae, positive, negative, shape, how)
        rows = {"before": test.paint(positive)}
        losses = {}
        for name, target in (("after", picture), ("control", control)):
            if target is not None:
                attacked, losses[name] = test.attack(target)
                rows[name] = test.paint(attacked)
        targets = {"before": picture, "after": picture, "control": control}
        alike = {name: comparison.measure(images, targets[name]).to_reference for name, images in rows.items()}
        median = {name: float(values.median()) for name, values in alike.items()}
        lines = [
            f"{name}: median similarity to the {'control' if name == 'control' else 'picture'} {median[name]:.3f}"
            for name in rows
        ]
        told = audit.verdict(median["before"], median["after"], median.get("control"), _REPLICATED)
        figure = new_figure(1000, 400)
        drawing.attack(figure, losses, {name: values.tolist() for name, values in alike.items()}, _REPLICATED)
        report = "\n".join([*lines, told, words.caveats()])
        images = torch.cat([image[..., :3] for image in rows.values()])
        return io.NodeOutput(images, median["before"], median["after"], to_image(figure), report)


class _Audit:
    """The model under test, and the settings of its test."""

    def __init__(self, model, vae, positive, negative, shape: tuple[int, int, int], how: dict):
        self._model, self._vae, self._positive, self._negative, self._how = model, vae, positive, negative, how
        self._shape = shape

    def paint(self, positive) -> torch.Tensor:
        """Pictures of a conditioning, at the size of the picture under test."""
        how = self._how
        return paint(self._model, self._vae, positive, self._negative, self._shape, how["pictures"], how["seed"],
                     steps=how["sampling_steps"], cfg=how["cfg"])  # fmt: skip

    def attack(self, picture: torch.Tensor) -> tuple[list, list[float]]:
        """The conditioning that the attack ends at, and its losses."""
        how, bar = self._how, Progress(self._how["steps"])
        latent = self._vae.encode(picture[:1, ..., :3])
        settings = audit.Attack(how["steps"], how["learning_rate"], how["batch"], how["seed"])
        start = embedding(self._positive)

        def work(inside):
            begin = start.clone().to(inside.device)
            return audit.attack(inside, begin, settings, lambda step, _loss: bar.show(step + 1))

        found, losses = conditioned.run(self._model, latent, self._positive[:1], work, how["seed"])
        return [[found.to(start), dict(self._positive[0][1])]], losses


def _first(model) -> int:
    """The timestep of pure noise."""
    return model.get_model_object("model_sampling").num_timesteps - 1
