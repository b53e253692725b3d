"""Adversarial audit of a memorization mitigation."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ClassVar

import torch
from comfy_api.latest import io

from ..common.pil_images import rgb
from ..host.evaluate import sample_images
from ..host.folders import input_stamp
from ..host.image_output import new_figure, to_image
from ..host.progress import Progress, with_progress
from ..host.schema import float_input, int_input, schema, seed
from . import nemo_inputs
from .first_step_comfy import embedding, latent_shape
from .image_similarity_comfy import Similarity, image_judge, image_reader
from .mask import CAVEATS

if TYPE_CHECKING:
    from .audit import AttackSettings
    from .image_similarity import ReplicationThreshold
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
            ),
            display_name="Memorization Audit",
            category=nemo_inputs.CATEGORY,
            description="Adversarial check of a mask: optimizes a text embedding to regenerate a given image through "
            f"the masked model. After Finding DoRI (arXiv 2507.16880). {' '.join(CAVEATS)}",
            search_aliases=["nemo", "dori", "adversarial embedding", "memorization attack", "does the image come back"],
            inputs=[
                io.Model.Input("model", tooltip="The model under test, with its mask."),
                io.Vae.Input("vae", tooltip="VAE of the model."),
                io.Conditioning.Input("positive", tooltip="Start of the attack: the memorized prompt."),
                io.Conditioning.Input("negative", tooltip="The empty prompt, or the negative prompt in use."),
                io.Image.Input("image", tooltip="The image that should not be replicated."),
                io.Image.Input(
                    "control_image",
                    optional=True,
                    tooltip="An image of the same kind that the model was not trained on: a fair attack does not "
                    "produce it.",
                ),
                int_input(
                    "steps",
                    50,
                    (1, 2000),
                    "Steps of the attack. Paper: 50; an image that is not memorized needs over 500.",
                ),
                float_input("learning_rate", 0.1, (0.0001, 1.0, 0.0001), "Learning rate of Adam. Paper: .1."),
                int_input("noise_samples", 8, (1, 64), "Noise samples per attack step. Paper: 8."),
                int_input("batch_size", 4, (1, 64), "Images generated per check."),
                int_input("sampling_steps", 20, (1, 200), "Steps to generate them, with Euler."),
                float_input("cfg", 7.0, (1.0, 30.0, 0.1), "CFG to generate them."),
                seed("Seed of the attack's noise and of the images.", 1),
                io.Combo.Input(options=Similarity, **nemo_inputs.SIMILARITY),
                float_input(
                    "replication_threshold",
                    0.0,
                    (0.0, 1.0, 0.001),
                    "Similarity above which an image counts as replicated. 0: calibrated on untouched_images "
                    "and other_images; without these .7 for sscd (paper) and .73 for ssim.",
                    optional=True,
                ),
                io.Image.Input(
                    "untouched_images",
                    optional=True,
                    tooltip="For calibration: three or more images of the prompt from the model without the mask.",
                ),
                io.Image.Input(
                    "other_images",
                    optional=True,
                    tooltip="For calibration: three or more images of other prompts from the same model.",
                ),
                io.String.Input(**nemo_inputs.SSCD_FILE),
                io.ClipVision.Input("clip_vision", optional=True, tooltip="Any image encoder, to compare images."),
                io.Clip.Input("clip", optional=True, tooltip="The demo model's, to compare images by its judge."),
                io.Image.Input(**nemo_inputs.GENERIC_IMAGES),
            ],
            outputs=[
                io.Image.Output(
                    display_name="images",
                    tooltip="Generated before the attack, after it, and after the control's attack.",
                ),
                io.Float.Output(
                    display_name="similarity_before", tooltip="Median similarity to the image without an attack."
                ),
                io.Float.Output(
                    display_name="similarity_after", tooltip="Median similarity to the image after the attack."
                ),
                io.Image.Output(display_name="figure", tooltip="Loss of the attack, and similarities."),
                io.String.Output(display_name="report", tooltip="Numbers, verdict and caveats."),
            ],
        )

    @classmethod
    def execute(
        cls,
        model,
        vae,
        positive,
        negative,
        image,
        steps,
        learning_rate,
        noise_samples,
        batch_size,
        sampling_steps,
        cfg,
        seed,
        control_image=None,
        similarity=Similarity.AUTO,
        replication_threshold=0.0,
        untouched_images=None,
        other_images=None,
        sscd_file="",
        clip_vision=None,
        clip=None,
        generic_images=None,
    ) -> io.NodeOutput:
        from . import audit, image_similarity, neuron_figures, neuron_reports
        from .embedding_session_comfy import refuse_unsupported

        refuse_unsupported(model, positive)
        judge, embed = image_judge(similarity, sscd_file, clip_vision, clip)
        threshold = _threshold(replication_threshold, judge, embed, image, untouched_images, other_images)
        settings = audit.AttackSettings(steps, learning_rate, noise_samples, seed)
        about = (negative, latent_shape(model, image.shape[2], image.shape[1]), batch_size, seed)
        generate = functools.partial(_generated, model, vae, *about, steps=sampling_steps, cfg=cfg)
        targets = {"before": image, "after": image, "control": control_image}
        images, losses = _attacked(model, vae, positive, targets, settings, generate)
        compare = functools.partial(image_similarity.compare_to_reference, embed=embed, track=with_progress)
        similarities = {step: compare(batch, targets[step]) for step, batch in images.items()}
        median = {step: float(values.median()) for step, values in similarities.items()}
        verdict = audit.attack_verdict(median["before"], median["after"], median.get("control"), threshold.value)
        lines = [*map(_similarity_line, median, median.values()), _threshold_line(judge.name, threshold), verdict]
        lines += _remains_lines(images, image, generic_images, embed, clip)
        if control_image is not None:
            unseen = float(compare(images["before"], control_image).median())
            lines.append(audit.attack_rise(median["before"], median["after"], unseen, median["control"]))
        figure, batch = new_figure(1000, 400), torch.cat([rgb(one) for one in images.values()])
        neuron_figures.plot_attack(figure, losses, similarities, threshold.value)
        report = "\n".join([*lines, neuron_reports.caveats()])
        return io.NodeOutput(batch, median["before"], median["after"], to_image(figure), report)


def _generated(
    model, vae, negative: list, shape: tuple[int, int, int], count: int, seed: int, positive: list, **how
) -> torch.Tensor:
    return sample_images(model, vae, positive, negative, shape, count, seed, **how)


def _attack(model, vae, positive: list, image: torch.Tensor, settings: AttackSettings) -> tuple[list, list[float]]:
    """The prompt with an embedding that was optimized to generate an image, and the losses on the way."""
    from . import audit, embedding_session_comfy

    start = embedding(positive)

    def work(session) -> tuple[torch.Tensor, list[float]]:
        bar = Progress(settings.steps)
        return audit.attack_embedding(session, start.clone().to(session.device), settings, bar.show)

    latent = vae.encode(rgb(image[:1]))
    attacked, losses = embedding_session_comfy.run(model, latent, positive[:1], work, settings.seed)
    return [[attacked.to(start), dict(positive[0][1])]], losses


def _attacked(model, vae, positive: list, targets: dict, settings: AttackSettings, generate) -> tuple[dict, dict]:
    """Images before the attack, after it, and after the control's where there is one; the losses of each attack."""
    images, losses = {"before": generate(positive)}, {}
    for step in ("after", "control"):
        if targets[step] is not None:
            attacked, losses[step] = _attack(model, vae, positive, targets[step], settings)
            images[step] = generate(attacked)
    return images, losses


def _remains_lines(images: dict, image: torch.Tensor, generic_images, embed, clip) -> list[str]:
    """What each batch that there is has of the image, and whether it is gone."""
    from . import neuron_reports
    from .image_similarity import remains

    shown = {"without an attack": images["before"], "after": images["after"], "generic prompt": generic_images}
    given = {name: batch for name, batch in shown.items() if batch is not None}
    return neuron_reports.remains_lines(
        {name: remains(batch, image, embed, image_reader(clip)) for name, batch in given.items()}
    )


def _similarity_line(step: str, median: float) -> str:
    return f"{step}: median similarity to the {'control' if step == 'control' else 'image'} {median:.3f}"


def _threshold(given: float, judge: Judge, embed, image, untouched_images, other_images) -> ReplicationThreshold:
    """The given threshold, else the calibrated one, else the default of the similarity."""
    from .image_similarity import ReplicationThreshold, calibrate_replication, compare_to_reference

    untouched, controls = (
        [] if images is None else compare_to_reference(images, image, embed, with_progress).tolist()
        for images in (untouched_images, other_images)
    )
    if given:
        return ReplicationThreshold(given, tuple(untouched), tuple(controls))
    if untouched and controls:
        return calibrate_replication(untouched, controls)
    if judge.threshold is None:
        raise ValueError(
            f"There is no default replication threshold for {judge.name}: set replication_threshold, or connect "
            "untouched_images and other_images."
        )
    return ReplicationThreshold(judge.threshold, tuple(untouched), tuple(controls))


def _threshold_line(name: str, threshold: ReplicationThreshold) -> str:
    line = f"Similarity: {name}; an image counts as replicated above {threshold.value:.3f}."
    if threshold.untouched:
        hits = sum(value > threshold.value for value in threshold.untouched)
        line += f" {hits} of {len(threshold.untouched)} untouched images are above it."
    if interval := threshold.false_positives:
        rate, low, high = interval
        line += (
            f" False positives: {100 * rate:.0f} % of {len(threshold.controls)} other images (95 % interval "
            f"{100 * low:.0f} to {100 * high:.0f} %)."
        )
    return line


NODES = [MemorizationAudit]
