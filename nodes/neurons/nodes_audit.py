"""Adversarial audit of a memorization mitigation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from comfy_api.latest import io

from ..common.pil_images import rgb
from ..host.evaluate import sample_images
from ..host.folders import input_stamp
from ..host.image_output import new_figure, to_image
from ..host.progress import Progress, with_progress
from ..host.schema import float_input, int_input, precision_input, schema, seed
from . import nemo_inputs
from .first_step_comfy import embedding, latent_shape
from .image_similarity_comfy import Similarity, image_judge, image_reader
from .mask import CAVEATS

if TYPE_CHECKING:
    from ..host.socket_types import CLIP, VAE, ClipVisionModel, ModelPatcher
    from .audit import AttackSettings
    from .embedding_session_comfy import EmbeddingSession
    from .image_similarity import Embed, ReplicationThreshold
    from .image_similarity_comfy import Judge


class MemorizationAudit(io.ComfyNode):
    READS: ClassVar = {"sscd_file": functools.partial(input_stamp, what="SSCD model")}

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_MemorizationAudit",
            advanced=(
                "learning_rate",
                "batch_size",
                "sscd_file",
                "gradient_checkpointing",
                "precision",
            ),
            display_name="Memorization Audit",
            category=nemo_inputs.CATEGORY,
            description=(
                "Adversarial check of a mask: optimizes a text embedding to regenerate a given "
                "image through the masked model. After Finding DoRI (arXiv 2507.16880). "
                f"{' '.join(CAVEATS)}"
            ),
            search_aliases=[
                "nemo",
                "dori",
                "adversarial embedding",
                "memorization attack",
                "does the image come back",
            ],
            inputs=[
                io.Model.Input("model", tooltip="The model under test, with its mask."),
                io.Vae.Input("vae", tooltip="VAE of the model."),
                io.Conditioning.Input(
                    "positive", tooltip="Start of the attack: the memorized prompt."
                ),
                io.Conditioning.Input(
                    "negative", tooltip="The empty prompt, or the negative prompt in use."
                ),
                io.Image.Input(
                    "image", tooltip="The memorized image; it should not be reproduced."
                ),
                io.Image.Input(
                    "control_image",
                    optional=True,
                    tooltip=(
                        "Control: a similar image that is not in the training data. A fair "
                        "attack fails on it."
                    ),
                ),
                int_input(
                    "steps",
                    50,
                    (1, 2000),
                    "Attack steps. Paper: 50; reproducing an image that is not memorized takes "
                    "over 500.",
                ),
                float_input(
                    "learning_rate", 0.1, (0.0001, 1.0, 0.0001), "Learning rate of Adam. Paper: .1."
                ),
                int_input("noise_samples", 8, (1, 64), "Noise samples per attack step. Paper: 8."),
                int_input("batch_size", 4, (1, 64), "Images generated per check."),
                int_input("sampling_steps", 20, (1, 200), "Sampling steps (Euler)."),
                float_input("cfg", 7.0, (1.0, 30.0, 0.1), "CFG scale."),
                seed("Seed of the attack's noise and of the images.", 1),
                io.Combo.Input(options=Similarity, **nemo_inputs.SIMILARITY),
                float_input(
                    "replication_threshold",
                    0.0,
                    (0.0, 1.0, 0.001),
                    "Similarity above which an image counts as a replica. 0: calibrated on "
                    "untouched_images and other_images; if those are missing, .7 for sscd "
                    "(paper) and .73 for ssim.",
                    optional=True,
                ),
                io.Image.Input(
                    "untouched_images",
                    optional=True,
                    tooltip=(
                        "For calibration: three or more images of the prompt from the unmasked "
                        "model."
                    ),
                ),
                io.Image.Input(
                    "other_images",
                    optional=True,
                    tooltip=(
                        "For calibration: three or more images of other prompts from the same "
                        "model."
                    ),
                ),
                io.String.Input(**nemo_inputs.SSCD_FILE),
                io.ClipVision.Input(
                    "clip_vision", optional=True, tooltip="Any image encoder, for image similarity."
                ),
                io.Clip.Input(
                    "clip",
                    optional=True,
                    tooltip=(
                        "CLIP of the demo model, for image similarity with its own image encoder."
                    ),
                ),
                io.Image.Input(**nemo_inputs.GENERIC_IMAGES),
                io.Boolean.Input(
                    "gradient_checkpointing",
                    default=True,
                    optional=True,
                    tooltip="Recompute activations instead of storing them: slower, less memory.",
                ),
                precision_input("The embedding is always float32.", optional=True),
            ],
            outputs=[
                io.Image.Output(
                    display_name="images",
                    tooltip=(
                        "Images before the attack, after it, and after the attack on the control "
                        "image."
                    ),
                ),
                io.Float.Output(
                    display_name="similarity_before",
                    tooltip="Median similarity to the image before the attack.",
                ),
                io.Float.Output(
                    display_name="similarity_after",
                    tooltip="Median similarity to the image after the attack.",
                ),
                io.Image.Output(
                    display_name="figure", tooltip="Loss curve of the attack, and similarities."
                ),
                io.String.Output(display_name="report", tooltip="Numbers, verdict and caveats."),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        vae: VAE,
        positive: list,
        negative: list,
        image: torch.Tensor,
        steps: int,
        learning_rate: float,
        noise_samples: int,
        batch_size: int,
        sampling_steps: int,
        cfg: float,
        seed: int,
        control_image: torch.Tensor | None = None,
        similarity: str = Similarity.AUTO,
        replication_threshold: float = 0.0,
        untouched_images: torch.Tensor | None = None,
        other_images: torch.Tensor | None = None,
        sscd_file: str = "",
        clip_vision: ClipVisionModel | None = None,
        clip: CLIP | None = None,
        generic_images: torch.Tensor | None = None,
        gradient_checkpointing: bool = True,
        precision: str = "auto",
    ) -> io.NodeOutput:
        from ..host.precision import describe_precision, resolve_precision
        from . import audit, image_similarity, neuron_figures, neuron_reports
        from .embedding_session_comfy import refuse_unsupported

        refuse_unsupported(model, positive)
        judge, embed = image_judge(similarity, sscd_file, clip_vision, clip)
        threshold = _threshold(
            replication_threshold,
            judge,
            embed=embed,
            image=image,
            untouched_images=untouched_images,
            other_images=other_images,
        )
        settings = audit.AttackSettings(
            steps=steps, learning_rate=learning_rate, noise_samples=noise_samples, seed=seed
        )
        generate = functools.partial(
            _generated,
            model,
            vae,
            negative=negative,
            shape=latent_shape(model, image.shape[2], image.shape[1]),
            count=batch_size,
            seed=seed,
            steps=sampling_steps,
            cfg=cfg,
        )
        targets = {"before": image, "after": image}
        if control_image is not None:
            targets["control"] = control_image
        resolved = resolve_precision(precision, model.load_device)
        memory = {"dtype": resolved.dtype, "checkpointing": gradient_checkpointing}
        attack = functools.partial(_attack, model, vae, positive, settings=settings, memory=memory)
        images, losses = _attacked(positive, targets, attack, generate)
        compare = functools.partial(
            image_similarity.compare_to_reference, embed=embed, track=with_progress
        )
        similarities = {step: compare(batch, targets[step]) for step, batch in images.items()}
        median = {step: float(values.median()) for step, values in similarities.items()}
        verdict = audit.attack_verdict(
            median["before"], median["after"], median.get("control"), threshold.value
        )
        lines = [
            *map(_similarity_line, median, median.values()),
            _threshold_line(judge.name, threshold),
            verdict,
        ]
        lines.append(describe_precision(precision, resolved))
        lines += _remains_lines(
            images, image, generic_images=generic_images, embed=embed, clip=clip
        )
        if control_image is not None:
            unseen = float(compare(images["before"], control_image).median())
            lines.append(
                audit.attack_rise(median["before"], median["after"], unseen, median["control"])
            )
        figure = new_figure(1000, 400)
        batch = torch.cat([rgb(one) for one in images.values()])
        neuron_figures.plot_attack(figure, losses, similarities, threshold.value)
        report = "\n".join([*lines, neuron_reports.caveats()])
        return io.NodeOutput(batch, median["before"], median["after"], to_image(figure), report)


def _generated(
    model: ModelPatcher,
    vae: VAE,
    positive: list,
    negative: list,
    shape: tuple[int, ...],
    count: int,
    seed: int,
    **how: Any,
) -> torch.Tensor:
    return sample_images(
        model, vae, positive=positive, negative=negative, shape=shape, count=count, seed=seed, **how
    )


def _attack(
    model: ModelPatcher,
    vae: VAE,
    positive: list,
    image: torch.Tensor,
    *,
    settings: AttackSettings,
    memory: dict,
) -> tuple[list, list[float]]:
    """The prompt with an embedding that was optimized to generate an image, and the losses on the
    way.

    ``memory``: dtype and checkpointing of ``embedding_session_comfy.run``.
    """
    from . import audit, embedding_session_comfy

    start = embedding(positive)

    def work(session: EmbeddingSession) -> tuple[torch.Tensor, list[float]]:
        bar = Progress(settings.steps)
        return audit.attack_embedding(session, start.clone().to(session.device), settings, bar.show)

    latent = vae.encode(rgb(image[:1]))
    attacked, losses = embedding_session_comfy.run(
        model, latent, conditioning=positive[:1], work=work, seed=settings.seed, **memory
    )
    return [[attacked.to(start), dict(positive[0][1])]], losses


def _attacked(
    positive: list, targets: dict, attack: Callable, generate: Callable
) -> tuple[dict, dict]:
    """Images before the attack, after it, and after the control's where there is one; the losses of
    each attack.
    """
    images = {"before": generate(positive)}
    losses = {}
    for step in ("after", "control"):
        if step in targets:
            attacked, losses[step] = attack(targets[step])
            images[step] = generate(attacked)
    return images, losses


def _remains_lines(
    images: dict,
    image: torch.Tensor,
    generic_images: torch.Tensor | None,
    embed: Embed | None,
    clip: CLIP,
) -> list[str]:
    """What each batch that there is has of the image, and whether it is gone."""
    from . import neuron_reports
    from .image_similarity import remains

    shown = {
        "without an attack": images["before"],
        "after": images["after"],
        "generic prompt": generic_images,
    }
    given = {name: batch for name, batch in shown.items() if batch is not None}
    return neuron_reports.remains_lines(
        {name: remains(batch, image, embed, image_reader(clip)) for name, batch in given.items()}
    )


def _similarity_line(step: str, median: float) -> str:
    return (
        f"{step}: median similarity to the {'control' if step == 'control' else 'image'} "
        f"{median:.3f}"
    )


def _threshold(
    given: float,
    judge: Judge,
    embed: Embed | None,
    image: torch.Tensor,
    untouched_images: torch.Tensor | None,
    other_images: torch.Tensor | None,
) -> ReplicationThreshold:
    """The given threshold, else the calibrated one, else the default of the similarity."""
    from .image_similarity import ReplicationThreshold, calibrate_replication, compare_to_reference

    untouched, controls = (
        [] if images is None else compare_to_reference(images, image, embed, with_progress).tolist()
        for images in (untouched_images, other_images)
    )
    if given:
        return ReplicationThreshold(
            value=given, untouched=tuple(untouched), controls=tuple(controls)
        )
    if untouched and controls:
        return calibrate_replication(untouched, controls)
    if judge.threshold is None:
        raise ValueError(
            f"There is no default replication threshold for {judge.name}: set "
            "replication_threshold, or connect untouched_images and other_images."
        )
    return ReplicationThreshold(
        value=judge.threshold, untouched=tuple(untouched), controls=tuple(controls)
    )


def _threshold_line(name: str, threshold: ReplicationThreshold) -> str:
    line = f"Similarity: {name}; an image counts as replicated above {threshold.value:.3f}."
    if threshold.untouched:
        hits = sum(value > threshold.value for value in threshold.untouched)
        line += f" {hits} of {len(threshold.untouched)} untouched images are above it."
    if interval := threshold.false_positives:
        rate, low, high = interval
        line += (
            f" False positives: {100 * rate:.0f} % of {len(threshold.controls)} other images (95 % "
            f"interval {100 * low:.0f} to {100 * high:.0f} %)."
        )
    return line


NODES = [MemorizationAudit]
