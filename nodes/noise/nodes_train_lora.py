"""Train LoRA with noise that is paired with the images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

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
from ..host.schema import NOISE, float_input, int_input, precision_input, schema, seed
from ..host.training import adapters
from .assignment import Grouping
from .pairing import PairingMode, PairingSettings

if TYPE_CHECKING:
    from ..common.training.training_data import TrainingData
    from ..host.socket_types import CLIP, VAE, ModelPatcher
    from .training_noise import PairedTrainingOptions

#: A LoRA is trained without touching these.
_ADVANCED = [
    "pool_size",
    "k",
    "grouping",
    "grad_accumulation_steps",
    "unit",
    "lr_schedule",
    "warmup_steps",
    "optimizer",
    "loss_function",
    "weighting",
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
    "ema_decay",
    "text_encoder_rate",
]
_LORA_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def _inputs() -> list[io.Input]:
    return [
        io.Model.Input("model", tooltip="The model to train the LoRA on."),
        io.Latent.Input(
            "latents",
            tooltip=(
                "Training images: one batch, or a list of any sizes, e.g. from Make Training "
                "Dataset. Each training batch contains images of one size."
            ),
        ),
        io.Conditioning.Input(
            "positive", tooltip="One caption for all images, or one per image in the same order."
        ),
        *_pairing_inputs(),
        *_training_inputs(),
        int_input(
            "held_out",
            0,
            (0, 10000),
            "Number of images held out from the end of the list, for the validation loss; their "
            "noise and timesteps are fixed.",
        ),
        int_input(
            "validation_interval",
            25,
            (0, 100000),
            "Steps between evaluations of the validation loss; 0: only at the end.",
        ),
        int_input(
            "sample_interval",
            0,
            (0, 100000),
            "Steps between sample images; 0: only at the end. Needs a VAE.",
        ),
        int_input("sample_steps", 12, (1, 200), "Euler steps of the sample images."),
        float_input(
            "sample_cfg",
            3.0,
            (1.0, 30.0, 0.5),
            "CFG of the sample images; used if sample_negative is connected.",
        ),
        io.String.Input(
            "checkpoint_name",
            default="",
            tooltip=(
                "Checkpoint file in the output folder, e.g. glassbox/training; an interrupted "
                "run resumes from it exactly. Empty: no checkpoint. With lr_schedule constant, "
                "raise steps to continue after the end."
            ),
        ),
        int_input(
            "checkpoint_interval",
            50,
            (0, 100000),
            "Steps between checkpoints; one is also saved at the end and on Stop.",
        ),
        io.Combo.Input(
            "on_stop",
            options=list(OnStop),
            default=OnStop.CANCEL,
            tooltip=(
                "Effect of ComfyUI's Stop button while this node trains. cancel: saves the "
                "checkpoint and ends the workflow; queue it again to resume. keep_lora: "
                "continues the workflow with the current LoRA, like Finish now."
            ),
        ),
        *_more_inputs(),
        io.Vae.Input("vae", optional=True, tooltip="Decodes the sample images during training."),
        io.Conditioning.Input(
            "sample_positive",
            optional=True,
            tooltip=(
                "Prompts of the sample images, one CONDITIONING each; default: the first caption."
            ),
        ),
        io.Conditioning.Input(
            "sample_negative", optional=True, tooltip="Negative prompt of the sample images."
        ),
        io.Conditioning.Input(
            "empty_caption",
            optional=True,
            tooltip="For caption_dropout: the encoded empty prompt that CFG will use.",
        ),
        io.Mask.Input(
            "masks",
            optional=True,
            tooltip=(
                "Loss mask, 0 to 1: one for all images, or one per image in the same order. Each "
                "image's loss is its mask-weighted mean."
            ),
        ),
        io.Clip.Input(
            "clip",
            optional=True,
            tooltip=(
                "If connected, the text encoder's linear layers are trained too. Needs captions. "
                "Only captions and empty_caption are re-encoded; sample_positive and "
                "sample_negative stay as encoded."
            ),
        ),
        io.String.Input(
            "captions",
            optional=True,
            force_input=True,
            tooltip=(
                "The captions as text, for clip: one for all images, or one per image in the "
                "same order."
            ),
        ),
    ]


def _more_inputs() -> list[io.Input]:
    return [
        float_input(
            "alpha",
            1.0,
            (0.01, 1024.0, 0.01),
            "Alpha of new LoRA layers; their scale is alpha / rank. 1: as in core. Equal to the "
            "rank: scale 1.",
        ),
        io.String.Input(
            "layers",
            default="",
            tooltip=(
                "Comma-separated words; only layers with one of them in their name are trained, "
                "e.g. attn2, or to_q, to_v. Empty: all layers, as in core. Other layers of an "
                "existing LoRA are dropped."
            ),
        ),
        float_input(
            "caption_dropout",
            0.0,
            (0.0, 1.0, 0.01),
            "Probability of training with empty_caption instead of the caption, for CFG. 0.1 is "
            "common; 0: as in core.",
        ),
        io.Combo.Input(
            "noise_levels",
            options=list(NoiseLevels),
            tooltip=(
                "Timestep distribution. uniform: over the sampling range, as in core. "
                "logit_normal: mostly in the middle, as in SD3 (mean 0, standard deviation 1; "
                "arXiv 2403.03206)."
            ),
        ),
        float_input(
            "ema_decay",
            0.0,
            (0.0, 0.99999, 0.0001),
            "Decay of the exponential moving average (EMA) of the LoRA, used for validation, "
            "samples and the result. 0.99 for some hundred steps, 0.999 for thousands; 0: off, "
            "as in core.",
        ),
        float_input(
            "text_encoder_rate",
            1.0,
            (0.0, 10.0, 0.05),
            "Learning rate of the text encoder, as a multiple of learning_rate; used if clip is "
            "connected. 0.1 to 0.5 is common.",
        ),
    ]


def _pairing_inputs() -> list[io.Input]:
    return [
        io.Combo.Input(
            "pairing",
            options=list(PairingMode),
            default=PairingMode.OFF,
            tooltip=(
                "Noise assignment. off: as in core's Train LoRA; in our LoRA study assign and "
                "pool gained nothing, and nearest was worse. pool: over the whole training set, "
                "one sample at a time. assign: within each batch. nearest: the nearest of k for "
                "each image alone."
            ),
        ),
        int_input(
            "pool_size", 256, (1, 4096), "For pool: number of noise samples assigned at once."
        ),
        float_input(
            "k",
            4.0,
            (1.0, 256, 0.5),
            "For nearest: number k of candidate noise samples; 2 for very few images, else 4 to 8.",
        ),
        io.Combo.Input(
            "grouping",
            options=list(Grouping),
            tooltip=(
                "Handling of images with different captions: ignore them (as in the paper), swap "
                "only within one caption, or add a penalty of one standard deviation of the "
                "cost (C2OT, arXiv 2503.10636)."
            ),
        ),
    ]


def _training_inputs() -> list[io.Input]:
    return [
        int_input("batch_size", 1, (1, 10000), "Images per batch, all of one size."),
        int_input(
            "grad_accumulation_steps",
            1,
            (1, 1024),
            "Number of batches accumulated per optimizer step.",
        ),
        int_input("steps", 16, (1, 100000), "Length of the training, in steps or epochs (unit)."),
        io.Combo.Input(
            "unit",
            options=list(LengthUnit),
            tooltip=(
                "steps: optimizer steps, with random images as in core. epochs: each shows every "
                "image once."
            ),
        ),
        float_input("learning_rate", 0.0005, (0.0000001, 1.0, 0.0000001), "Peak learning rate."),
        io.Combo.Input(
            "lr_schedule",
            options=list(LearningRateSchedule),
            tooltip=("Schedule after warm-up: constant, or linear or cosine decay to 0."),
        ),
        int_input(
            "warmup_steps", 0, (0, 100000), "Warm-up steps, with a linearly rising learning rate."
        ),
        int_input("rank", 8, (1, 128), "Rank of the LoRA."),
        io.Combo.Input(
            "optimizer",
            options=list(OPTIMIZERS),
            tooltip=(
                "Optimizer, with its package's defaults. Prodigy (pip install prodigyopt; "
                "learning_rate 1) and AdamW8bit (pip install bitsandbytes) need their packages "
                "and do not support checkpoints."
            ),
        ),
        io.Combo.Input(
            "loss_function",
            options=list(LOSSES),
            tooltip="Loss between the model's prediction and the clean image.",
        ),
        io.Combo.Input(
            "weighting",
            options=list(Weighting),
            tooltip=(
                "Loss weighting over noise levels. plain: error of the clean image, as in core. "
                "epsilon: error of the noise, as in most trainers. min_snr: between both, with "
                "gamma 5 (arXiv 2303.09556)."
            ),
        ),
        seed("Seed of the LoRA's initialization, the order of images, noise and timesteps."),
        precision_input(),
        io.Combo.Input("lora_precision", options=list(_LORA_DTYPES), tooltip="Dtype of the LoRA."),
        io.Combo.Input("algorithm", options=adapters.ALGORITHMS, tooltip="The adapter type."),
        io.Boolean.Input(
            "gradient_checkpointing",
            default=True,
            tooltip="Recompute activations instead of storing them: slower, less memory.",
        ),
        io.Combo.Input(
            "existing_lora",
            options=adapters.lora_names(),
            default=adapters.NO_LORA,
            tooltip="LoRA file to continue training from; its ranks and adapter types are kept.",
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
                "Trains a LoRA with validation on held-out images, sample images, exactly "
                "resumable checkpoints, learning-rate schedules, min-SNR, size buckets, and "
                "Finish now; optionally with noise assigned to the nearest latent: Immiscible "
                "Diffusion (arXiv 2406.12303, NeurIPS 2024), Improved Immiscible Diffusion "
                "(arXiv 2505.18521). With pairing off it equals core's Train LoRA."
            ),
            search_aliases=[
                "immiscible diffusion",
                "lora training",
                "fine-tune",
                "dreambooth",
                "min-snr",
            ],
            inputs=_inputs(),
            outputs=[
                io.Model.Output(
                    display_name="model", tooltip="The model with the LoRA at strength 1."
                ),
                io.Custom("LORA_MODEL").Output(
                    display_name="lora", tooltip="For Save LoRA Weights, Load LoRA Model."
                ),
                io.Custom("LOSS_MAP").Output(
                    display_name="loss_map", tooltip="For Plot Loss Graph."
                ),
                io.Int.Output(
                    display_name="steps",
                    tooltip="Trained steps, including the existing LoRA's.",
                ),
                io.Image.Output(display_name="figure", tooltip="Training and validation loss."),
                io.Image.Output(
                    display_name="images",
                    tooltip="Sample images, oldest first; none without a VAE.",
                ),
                io.String.Output(
                    display_name="report",
                    tooltip=("Losses, and gain and cost of the noise assignment."),
                ),
                io.Clip.Output(
                    display_name="clip",
                    tooltip="The clip with the LoRA at strength 1; empty if no clip is connected.",
                ),
            ],
            is_input_list=True,
        )

    @classmethod
    def execute(
        cls,
        model: Sequence[ModelPatcher],
        latents: Sequence[dict],
        positive: Sequence[list],
        vae: Sequence[VAE | None] = (None,),
        sample_positive: Sequence[list] = (),
        sample_negative: Sequence[list] = (),
        empty_caption: Sequence[list] = (),
        masks: Sequence[torch.Tensor] = (),
        clip: Sequence[CLIP | None] = (None,),
        captions: Sequence[str] = (),
        **options: Sequence[Any],
    ) -> io.NodeOutput:
        from ..host.precision import describe_precision, resolve_precision
        from . import train_lora_comfy
        from .training_noise import PairedTrainingOptions

        if (clip[0] is None) != (not captions):
            raise ValueError(
                "clip and captions belong together: connect both to train the text encoder, or "
                "neither."
            )
        values = {name: value[0] for name, value in options.items()}
        requested = values["precision"]
        precision = resolve_precision(requested, model[0].load_device)
        settings = PairedTrainingOptions(**values | {"precision": str(precision)})
        data = collect_training_data(
            list(latents),
            list(positive),
            settings.held_out,
            samples=list(sample_positive),
            negative=list(sample_negative),
            empty=empty_caption,
            masks=masks,
            texts=captions,
        )
        settings.check(data)
        existing, steps_before = adapters.read_lora(settings.existing_lora)
        trained = train_lora_comfy.adapters_of(
            model[0],
            clip[0],
            options=settings,
            data=data,
            existing=existing,
            dtype=_LORA_DTYPES[settings.lora_precision],
        )
        checkpoint = train_lora_comfy.checkpoint_of(
            model[0], clip[0], options=settings, data=data, existing=existing
        )
        run, monitor = train_lora_comfy.train(
            model[0],
            vae[0],
            trained=trained,
            options=settings,
            data=data,
            checkpoint=checkpoint,
            dtype=precision.dtype,
        )
        lora = trained.made.lora()
        steps = run.training.steps_done
        patched = adapters.applied(model[0], lora)
        text = nothing_to_show()
        if trained.text is not None:
            text = adapters.applied_to_text(clip[0], lora)
        losses = run.training.history.loss_map()
        figure = _figure(run, settings)
        ui = {"glassbox_curve": [run.curve()]}
        lines = [
            _described(run, settings, data),
            *trained.remarks,
            describe_precision(requested, precision),
        ]
        report = "\n".join(filter(None, lines))
        return io.NodeOutput(
            patched,
            lora,
            losses,
            steps_before + steps,
            figure,
            monitor.all_images(),
            report,
            text,
            ui=ui,
        )


def _described(run: TrainingRun, options: PairedTrainingOptions, data: TrainingData) -> str:
    from . import noise_report

    counts = f"{data.trained} images trained on, {data.held_out} held out"
    steps = run.training.steps_done
    return noise_report.describe_training(
        PairingSettings.of(options), run.training.history, counts, steps
    )


def _figure(run: TrainingRun, options: PairedTrainingOptions) -> torch.Tensor:
    """The losses of a run, as an IMAGE."""
    from ..common.training import training_report

    figure = new_figure()
    every = options.grad_accumulation_steps
    training_report.draw_losses(figure, run.training.history, every, f"Pairing: {options.pairing}")
    return to_image(figure)


NODES = [TrainLoraImmiscible]
