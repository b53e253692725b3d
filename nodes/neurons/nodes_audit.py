"""Adversarial audit of a memorization mitigation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from comfy_api.latest import io

from ..host.evaluate import sample_images
from ..host.image_output import new_figure, to_image
from ..host.progress import Progress, with_progress
from ..host.schema import schema
from . import nemo_inputs
from .first_step_comfy import embedding, latent_shape, refuse_flow
from .image_similarity_comfy import Similarity, image_embedding
from .mask import CAVEATS

if TYPE_CHECKING:
    from .image_similarity import ReplicationThreshold

#: Without calibration: the paper's for SSCD, and for SSIM the similarity that .5 % of new demo renders reach.
_DEFAULT_THRESHOLDS = {"SSCD": 0.7, "SSIM": 0.73}


class MemorizationAudit(io.ComfyNode):
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
                io.Int.Input(
                    "steps",
                    default=50,
                    min=1,
                    max=2000,
                    tooltip="Steps of the attack. Paper: 50; an image that is not memorized needs over 500.",
                ),
                io.Float.Input(
                    "learning_rate",
                    default=0.1,
                    min=0.0001,
                    max=1.0,
                    step=0.0001,
                    tooltip="Learning rate of Adam. Paper: .1.",
                ),
                io.Int.Input(
                    "noise_samples", default=8, min=1, max=64, tooltip="Noise samples per attack step. Paper: 8."
                ),
                io.Int.Input("batch_size", default=4, min=1, max=64, tooltip="Images generated per check."),
                io.Int.Input(
                    "sampling_steps", default=20, min=1, max=200, tooltip="Steps to generate them, with Euler."
                ),
                io.Float.Input("cfg", default=7.0, min=1.0, max=30.0, step=0.1, tooltip="CFG to generate them."),
                io.Int.Input(
                    "seed",
                    default=1,
                    min=0,
                    max=nemo_inputs.SEED_MAX,
                    control_after_generate=True,
                    tooltip="Seed of the attack's noise and of the images.",
                ),
                io.Combo.Input(options=Similarity, **nemo_inputs.SIMILARITY),
                io.Float.Input(
                    "replication_threshold",
                    default=0.0,
                    min=0.0,
                    max=1.0,
                    step=0.001,
                    optional=True,
                    tooltip="Similarity above which an image counts as replicated. 0: calibrated on untouched_images "
                    "and other_images; without these .7 for sscd (paper) and .73 for ssim.",
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
    ) -> io.NodeOutput:
        from . import audit, embedding_session_comfy, image_similarity, neuron_figures, neuron_reports

        refuse_flow(model)
        embedding_session_comfy.refuse_ranges(positive)
        name, embed = image_embedding(similarity, sscd_file, clip_vision, clip)
        threshold = _threshold(replication_threshold, name, embed, image, untouched_images, other_images)
        settings = audit.AttackSettings(steps, learning_rate, noise_samples, seed)
        start, (_, height, width, _) = embedding(positive), image.shape

        def generate(conditioning) -> torch.Tensor:
            shape = latent_shape(model, width, height)
            return sample_images(
                model, vae, conditioning, negative, shape, batch_size, seed, steps=sampling_steps, cfg=cfg
            )

        def attack(session) -> tuple[torch.Tensor, list[float]]:
            return audit.attack_embedding(session, start.clone().to(session.device), settings, Progress(steps).show)

        images, losses = {"before": generate(positive)}, {}
        targets = {"before": image, "after": image, "control": control_image}
        for step in ("after", "control"):
            if targets[step] is not None:
                latent = vae.encode(targets[step][:1, ..., :3])
                attacked, losses[step] = embedding_session_comfy.run(model, latent, positive[:1], attack, seed)
                images[step] = generate([[attacked.to(start), dict(positive[0][1])]])
        similarities = {
            step: image_similarity.compare_to_reference(batch, targets[step], embed, with_progress)
            for step, batch in images.items()
        }
        median = {step: float(values.median()) for step, values in similarities.items()}
        lines = [
            f"{step}: median similarity to the {'control' if step == 'control' else 'image'} {value:.3f}"
            for step, value in median.items()
        ]
        lines.append(_threshold_line(name, threshold))
        lines.append(audit.attack_verdict(median["before"], median["after"], median.get("control"), threshold.value))
        figure = new_figure(1000, 400)
        by_step = {step: values.tolist() for step, values in similarities.items()}
        neuron_figures.plot_attack(figure, losses, by_step, threshold.value)
        report = "\n".join([*lines, neuron_reports.caveats()])
        batch = torch.cat([one[..., :3] for one in images.values()])
        return io.NodeOutput(batch, median["before"], median["after"], to_image(figure), report)


def _threshold(given: float, name: str, embed, image, untouched_images, other_images) -> ReplicationThreshold:
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
    if name not in _DEFAULT_THRESHOLDS:
        raise ValueError(
            f"There is no default replication threshold for {name}: set replication_threshold, or connect "
            "untouched_images and other_images."
        )
    return ReplicationThreshold(_DEFAULT_THRESHOLDS[name], tuple(untouched), tuple(controls))


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
