"""Train LoRA with noise that is paired with the images."""

from __future__ import annotations

from typing import ClassVar

import torch
from comfy_api.latest import io

from ..common.training.batch_sampler import LengthUnit
from ..common.training.training_data import collect_training_data
from ..common.training.training_loop import OPTIMIZERS, LearningRateSchedule
from ..common.training.training_loss import LOSSES, NoiseLevels, Weighting
from ..common.training.training_run import OnStop, TrainingRun
from ..host.folders import lora_stamp
from ..host.image_output import new_figure, to_image
from ..host.progress import nothing_to_show
from ..host.schema import NOISE, float_input, int_input, schema, seed
from ..host.training import adapters
from .assignment import Grouping
from .nearest import NearestForm
from .pairing import PairingMode, PairingSettings

#: A LoRA is trained without touching these.
_ADVANCED = [
    "pool_size",
    "k",
    "nearest_form",
    "grouping",
    "penalty",
    "grad_accumulation_steps",
    "unit",
    "lr_schedule",
    "warmup_steps",
    "optimizer",
    "loss_function",
    "weighting",
    "snr_gamma",
    "precision",
    "lora_precision",
    "algorithm",
    "gradient_checkpointing",
    "existing_lora",
    "held_out",
    "validation_interval",
    "sample_interval",
    "sample_steps",
    "sample_cfg",
    "checkpoint_interval",
    "on_stop",
    "alpha",
    "layers",
    "caption_dropout",
    "noise_levels",
    "logit_mean",
    "logit_std",
    "ema_decay",
    "checkpoint_depth",
    "text_encoder_rate",
]
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def _inputs() -> list[io.Input]:
    return [
        io.Model.Input("model", tooltip="The model to train the LoRA on."),
        io.Latent.Input(
            "latents",
            tooltip="The training images: one batch, or a list of any sizes, as Make Training Dataset gives. Each "
            "training batch contains images of one size.",
        ),
        io.Conditioning.Input("positive", tooltip="One caption for all images, or one for each, in their order."),
        *_pairing_inputs(),
        *_training_inputs(),
        int_input(
            "held_out",
            0,
            (0, 10000),
            "How many of the last images are kept out of training and used for the validation loss, always "
            "with the same noise and noise levels.",
        ),
        int_input(
            "validation_interval",
            25,
            (0, 100000),
            "Steps between two measurements of the validation loss; 0 measures only at the end.",
        ),
        int_input(
            "sample_interval",
            0,
            (0, 100000),
            "Steps between two sets of sample images; 0 samples only at the end. Needs a VAE.",
        ),
        int_input("sample_steps", 12, (1, 200), "Euler steps of a sample image."),
        float_input(
            "sample_cfg", 3.0, (1.0, 30.0, 0.5), "CFG of sample images; takes effect when sample_negative is connected."
        ),
        io.String.Input(
            "checkpoint_name",
            default="",
            tooltip="Name of a file in the output folder, such as glassbox/training, from which an interrupted run "
            "resumes exactly; empty keeps none. With lr_schedule constant, raise steps to continue after the end.",
        ),
        int_input(
            "checkpoint_interval",
            50,
            (0, 100000),
            "Steps between two saves of the checkpoint; it is also saved at the end and at a stop.",
        ),
        io.Combo.Input(
            "on_stop",
            options=list(OnStop),
            default=OnStop.CANCEL,
            tooltip="What ComfyUI's Stop button does while this node trains. cancel: ends the workflow; the checkpoint "
            "is saved first, and the same workflow queued again resumes. keep_lora: continues the workflow with the "
            "LoRA as it is, as Finish now does.",
        ),
        *_more_inputs(),
        io.Vae.Input("vae", optional=True, tooltip="For sample images on the way."),
        io.Conditioning.Input(
            "sample_positive",
            optional=True,
            tooltip="Prompts of the sample images, one CONDITIONING each; the first caption if absent.",
        ),
        io.Conditioning.Input("sample_negative", optional=True, tooltip="Negative prompt of the sample images."),
        io.Conditioning.Input(
            "empty_caption", optional=True, tooltip="For caption_dropout: an encoded empty prompt, as CFG will use it."
        ),
        io.Mask.Input(
            "masks",
            optional=True,
            tooltip="Where the loss counts, 0 to 1: one mask for all images, or one for each, in their order. The loss "
            "of an image is the mean weighted by its mask.",
        ),
        io.Clip.Input(
            "clip",
            optional=True,
            tooltip="With it the LoRA trains the linear layers of the text encoder too. Needs captions. Only captions "
            "and empty_caption follow it; sample_positive and sample_negative stay as they were encoded.",
        ),
        io.String.Input(
            "captions",
            optional=True,
            force_input=True,
            tooltip="The captions as text, for clip: one for all images, or one for each, in their order.",
        ),
    ]


def _more_inputs() -> list[io.Input]:
    return [
        float_input(
            "alpha",
            1.0,
            (0.01, 1024.0, 0.01),
            "Alpha of new LoRA layers, which are scaled by alpha / rank. 1 as core; equal to the rank, the scale is 1.",
        ),
        io.String.Input(
            "layers",
            default="",
            tooltip="Comma-separated words: only layers with one of them in their name are trained, such as attn2, or "
            "to_q, to_v. Empty trains all, as core. Other layers of an existing LoRA are left out.",
        ),
        float_input(
            "caption_dropout",
            0.0,
            (0.0, 1.0, 0.01),
            "How often an image is trained with empty_caption instead of its own, for CFG. 0.1 is common; 0 as core.",
        ),
        io.Combo.Input(
            "noise_levels",
            options=list(NoiseLevels),
            tooltip="How noise levels are drawn. uniform: over the sampling range, as core. logit_normal: mostly in "
            "the middle, as SD3 (arXiv 2403.03206).",
        ),
        float_input(
            "logit_mean",
            0.0,
            (-5.0, 5.0, 0.05),
            "For logit_normal: above 0 trains more at high noise, below 0 more at low noise.",
        ),
        float_input("logit_std", 1.0, (0.05, 5.0, 0.05), "For logit_normal: how far the noise levels spread."),
        float_input(
            "ema_decay",
            0.0,
            (0.0, 0.99999, 0.0001),
            "Exponential moving average of the LoRA over the steps, which validation, samples and the result "
            "then use. 0.99 for some hundred steps, 0.999 for thousands; 0 as core.",
        ),
        int_input(
            "checkpoint_depth",
            1,
            (1, 5),
            "For gradient_checkpointing: 1 recomputes whole blocks of the network, more their modules so many "
            "levels inside: less memory at once, more kept. The result is the same.",
        ),
        float_input(
            "text_encoder_rate",
            1.0,
            (0.0, 10.0, 0.05),
            "Learning rate of the text encoder as a multiple of learning_rate; takes effect when clip is "
            "connected. 0.1 to 0.5 is common.",
        ),
    ]


def _pairing_inputs() -> list[io.Input]:
    return [
        io.Combo.Input(
            "pairing",
            options=list(PairingMode),
            default=PairingMode.OFF,
            tooltip="How noise is paired with images. off: as core's Train LoRA, best in our LoRA study; the others "
            "were worse there. pool: assigned over the whole training set, one sample at a time. assign: within each "
            "batch. nearest: the nearest of k for each image alone.",
        ),
        int_input("pool_size", 256, (1, 4096), "For pool: how many noise samples are assigned at once."),
        float_input(
            "k",
            4.0,
            (1.0, 256, 0.5),
            "For nearest: how many noise samples to choose from; 2 for very few images, else 4 to 8.",
        ),
        io.Combo.Input(
            "nearest_form",
            options=list(NearestForm),
            tooltip="For nearest: closed_form and official follow one law, the first at the cost of one noise sample "
            "for any k; dot_product keeps the strength of the noise.",
        ),
        io.Combo.Input(
            "grouping",
            options=list(Grouping),
            tooltip="How assignment treats images of different captions: ignore them (as the paper), swap only within "
            "one caption, or with a penalty (C2OT, arXiv 2503.10636).",
        ),
        float_input(
            "penalty",
            1.0,
            (0.0, 100.0, 0.1),
            "For grouping penalty: the cost of noise from an image of another caption, in standard deviations.",
        ),
    ]


def _training_inputs() -> list[io.Input]:
    return [
        int_input("batch_size", 1, (1, 10000), "Images in one batch, all of one size."),
        int_input("grad_accumulation_steps", 1, (1, 1024), "Batches whose gradients are accumulated for one step."),
        int_input("steps", 16, (1, 100000), "Length of the training, in steps or epochs (unit)."),
        io.Combo.Input(
            "unit",
            options=list(LengthUnit),
            tooltip="steps: optimizer steps, with random images as in core. epochs: each shows every image once.",
        ),
        float_input("learning_rate", 0.0005, (0.0000001, 1.0, 0.0000001), "The highest learning rate."),
        io.Combo.Input(
            "lr_schedule",
            options=list(LearningRateSchedule),
            tooltip="The learning rate after warm-up: constant, or down to 0 along a line or a cosine.",
        ),
        int_input("warmup_steps", 0, (0, 100000), "Steps over which the learning rate rises at the start."),
        int_input("rank", 8, (1, 128), "The rank of the LoRA layers."),
        io.Combo.Input(
            "optimizer",
            options=list(OPTIMIZERS),
            tooltip="The optimizer, with its package's defaults. Prodigy (pip install prodigyopt; learning_rate 1) "
            "and AdamW8bit (pip install bitsandbytes) need their packages and take no checkpoint.",
        ),
        io.Combo.Input(
            "loss_function",
            options=list(LOSSES),
            tooltip="The distance of the model's prediction from the clean image.",
        ),
        io.Combo.Input(
            "weighting",
            options=list(Weighting),
            tooltip="How noise levels count. plain: the error of the clean image, as core. epsilon: that of the noise, "
            "as most trainers. min_snr: between both (arXiv 2303.09556).",
        ),
        float_input("snr_gamma", 5.0, (0.01, 100.0, 0.1), "For min_snr: the highest weight; the paper uses 5."),
        seed("Seed of the initial LoRA, the order of images, noise and noise levels."),
        io.Combo.Input("precision", options=list(_DTYPES), tooltip="Compute dtype of the model."),
        io.Combo.Input("lora_precision", options=list(_DTYPES), tooltip="Dtype of the LoRA."),
        io.Combo.Input("algorithm", options=adapters.ALGORITHMS, tooltip="The adapter type."),
        io.Boolean.Input(
            "gradient_checkpointing",
            default=True,
            tooltip="Recompute activations instead of keeping them: slower, with less memory.",
        ),
        io.Combo.Input(
            "existing_lora",
            options=adapters.lora_names(),
            default=adapters.NO_LORA,
            tooltip="A LoRA file to continue training from; it keeps its ranks and adapter types.",
        ),
    ]


class TrainLoraImmiscible(io.ComfyNode):
    READS: ClassVar = {"existing_lora": lora_stamp}

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_TrainLoraImmiscible",
            advanced=_ADVANCED,
            display_name="Train LoRA (Exact Resume)",
            category=NOISE,
            description=(
                "Trains a LoRA with validation on held-out images, sample images, checkpoints that resume exactly, "
                "learning-rate schedules, min-SNR, buckets of sizes, and Finish now; optionally with noise "
                "assigned to the nearest latent: Immiscible Diffusion (arXiv 2406.12303, NeurIPS 2024), Improved "
                "Immiscible Diffusion (arXiv 2505.18521). With pairing off it is the run of core's Train LoRA."
            ),
            search_aliases=["immiscible diffusion", "lora training", "fine-tune", "dreambooth", "min-snr"],
            inputs=_inputs(),
            outputs=[
                io.Model.Output(display_name="model", tooltip="The model with the LoRA at strength 1."),
                io.Custom("LORA_MODEL").Output(display_name="lora", tooltip="For Save LoRA Weights, Load LoRA Model."),
                io.Custom("LOSS_MAP").Output(display_name="loss_map", tooltip="For Plot Loss Graph."),
                io.Int.Output(display_name="steps", tooltip="Steps trained, those of the existing LoRA included."),
                io.Image.Output(display_name="figure", tooltip="Training and validation loss."),
                io.Image.Output(display_name="images", tooltip="Sample images, oldest first; none without a VAE."),
                io.String.Output(display_name="report", tooltip="Losses, and what pairing gained and cost."),
                io.Clip.Output(display_name="clip", tooltip="The clip with the LoRA at strength 1; none without one."),
            ],
            is_input_list=True,
        )

    @classmethod
    def execute(
        cls,
        model,
        latents,
        positive,
        vae=(None,),
        sample_positive=(),
        sample_negative=(),
        empty_caption=(),
        masks=(),
        clip=(None,),
        captions=(),
        **options,
    ):
        from . import train_lora_comfy
        from .training_noise import PairedTrainingOptions

        if (clip[0] is None) != (not captions):
            raise ValueError("clip and captions belong together: connect both to train the text encoder, or neither.")
        options = PairedTrainingOptions(**{name: value[0] for name, value in options.items()})
        further = map(list, (sample_positive, sample_negative, empty_caption, masks, captions))
        data = collect_training_data(latents, positive, options.held_out, *further)
        options.check(data)
        existing, steps_before = adapters.read_lora(options.existing_lora)
        given = (model[0], clip[0], options, data, existing)
        trained = train_lora_comfy.adapters_of(*given, _DTYPES[options.lora_precision])
        checkpoint = train_lora_comfy.checkpoint_of(*given)
        run, monitor = train_lora_comfy.train(
            model[0], vae[0], trained, options, data, checkpoint, _DTYPES[options.precision]
        )
        lora, steps = trained.made.lora(), run.training.steps_done
        patched, text = adapters.applied(model[0], lora), nothing_to_show()
        if trained.text is not None:
            text = adapters.applied_to_text(clip[0], lora)
        losses, figure, ui = run.training.history.loss_map(), _figure(run, options), {"glassbox_curve": [run.curve()]}
        report = "\n".join(filter(None, [_described(run, options, data), *trained.remarks]))
        return io.NodeOutput(
            patched, lora, losses, steps_before + steps, figure, monitor.all_images(), report, text, ui=ui
        )


def _described(run: TrainingRun, options, data) -> str:
    from . import noise_report

    counts, steps = f"{data.trained} images trained on, {data.held_out} held out", run.training.steps_done
    return noise_report.describe_training(PairingSettings.of(options), run.training.history, counts, steps)


def _figure(run: TrainingRun, options) -> torch.Tensor:
    """The losses of a run, as an IMAGE."""
    from ..common.training import training_report

    figure, every = new_figure(), options.grad_accumulation_steps
    training_report.draw_losses(figure, run.training.history, every, f"Pairing: {options.pairing}")
    return to_image(figure)


NODES = [TrainLoraImmiscible]
