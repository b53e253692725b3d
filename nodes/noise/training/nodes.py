"""Train LoRA with noise that is paired with the pictures."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import torch
from comfy_api.latest import io

from ...common.curves import outline
from ...host import adapters, train
from ...host.figures import new_figure, to_image
from ...host.live import LiveCurve
from ...host.output_files import named_file
from ...host.progress import Progress, Stopped, nothing_to_show
from ...host.schema import schema
from ..groups import GROUPINGS
from ..nearest import FORMS
from ..settings import MODES, Settings
from . import curves, objective
from .checkpoint import Store
from .draws import UNITS, Draws
from .feed import Feed
from .loop import OPTIMIZERS, Plan, Training
from .request import Material, material, optimizer_steps
from .samples import Painter
from .schedule import SCHEDULES
from .serving import Server
from .validation import Validation

_SEED_MAX = 0xFFFFFFFFFFFFFFFF
_KEEP, _CANCEL = "keep what it has", "cancel the workflow"
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def _inputs() -> list[io.Input]:
    return [
        io.Model.Input("model", tooltip="The model to train the LoRA on."),
        io.Latent.Input("latents", tooltip="The training pictures: one batch, or a list of any sizes, as Make Training "
                        "Dataset gives. Each batch of training holds pictures of one size."),
        io.Conditioning.Input("positive", tooltip="One caption for all pictures, or one for each, in their order."),
        *_pairing_inputs(),
        *_training_inputs(),
        io.Int.Input("held_out", default=0, min=0, max=10000,
                     tooltip="How many of the last pictures are kept out of training and used to measure the "
                     "validation loss, always with the same noise and noise levels."),
        io.Int.Input("validate_every", default=25, min=0, max=100000,
                     tooltip="Steps between two measurements of the validation loss; 0 measures at the end alone."),
        io.Int.Input("sample_every", default=0, min=0, max=100000,
                     tooltip="Steps between two sample pictures; 0 paints at the end alone. Needs a VAE."),
        io.Int.Input("sample_steps", default=12, min=1, max=200, tooltip="Euler steps for a sample picture."),
        io.Float.Input("sample_cfg", default=3.0, min=1.0, max=30.0, step=0.5,
                       tooltip="CFG of sample pictures; acts when sample_negative is linked."),
        io.String.Input("checkpoint", default="",
                        tooltip="Name of a file in the output folder, such as glassbox/training, from which an "
                        "interrupted run goes on exactly; empty keeps none. With a longer run it goes on after its "
                        "end."),
        io.Int.Input("checkpoint_every", default=50, min=0, max=100000,
                     tooltip="Steps between two writings of the checkpoint; one is also written at the end and at a "
                     "stop."),
        io.Combo.Input("on_stop", options=[_KEEP, _CANCEL],
                       tooltip="What ComfyUI's Stop button does while this node trains: end the training and go on "
                       "with the LoRA as it is, or cancel the whole workflow."),
        io.Vae.Input("vae", optional=True, tooltip="For sample pictures on the way."),
        io.Conditioning.Input("sample_positive", optional=True,
                              tooltip="What sample pictures show, one CONDITIONING each; the first caption if absent."),
        io.Conditioning.Input("sample_negative", optional=True, tooltip="What sample pictures steer away from by CFG."),
    ]  # fmt: skip


def _pairing_inputs() -> list[io.Input]:
    return [
        io.Combo.Input("mode", options=list(MODES), default="pool",
                       tooltip="How noise is paired with pictures. Off: as core's Train LoRA. Pool: assigned over the "
                       "whole training set and served one at a time, right for small batches. Assign: within each "
                       "batch. Nearest: for each picture alone the nearest of k."),
        io.Int.Input("pool_size", default=256, min=1, max=4096,
                     tooltip="Mode pool: how many noises are shared out to the pictures at once."),
        io.Float.Input("k", default=4.0, min=1.0, max=256, step=0.5,
                       tooltip="Mode nearest: how many noises to choose from; 2 for very few pictures, else 4 to 8."),
        io.Combo.Input("form", options=list(FORMS),
                       tooltip="Mode nearest: closed form and official have one law, the first at the cost of one "
                       "noise whatever k; dot product keeps the strength of the noise."),
        io.Combo.Input("grouping", options=list(GROUPINGS),
                       tooltip="How assignment treats pictures of different captions: ignore (as the paper), swap only "
                       "within one caption, or with a penalty (C2OT, arXiv 2503.10636)."),
        io.Float.Input("penalty", default=1.0, min=0.0, max=100.0, step=0.1,
                       tooltip="For grouping by penalty: the cost of a noise from another caption's picture, in "
                       "standard deviations."),
    ]  # fmt: skip


def _training_inputs() -> list[io.Input]:
    return [
        io.Int.Input("batch_size", default=1, min=1, max=10000, tooltip="Pictures in one batch, all of one size."),
        io.Int.Input("grad_accumulation_steps", default=1, min=1, max=1024,
                     tooltip="Batches whose gradients make one step together."),
        io.Int.Input("steps", default=16, min=1, max=100000, tooltip="How long to train, in the unit below."),
        io.Combo.Input("unit", options=list(UNITS),
                       tooltip="Steps of the optimizer, with pictures at random as in core; or epochs, each of which "
                       "shows every picture once."),
        io.Float.Input("learning_rate", default=0.0005, min=0.0000001, max=1.0, step=0.0000001,
                       tooltip="The highest learning rate."),
        io.Combo.Input("schedule", options=list(SCHEDULES),
                       tooltip="The learning rate after warm-up: stays, or falls to 0 along a line or a cosine."),
        io.Int.Input("warmup_steps", default=0, min=0, max=100000,
                     tooltip="Steps over which the learning rate rises at first."),
        io.Int.Input("rank", default=8, min=1, max=128, tooltip="The rank of the LoRA layers."),
        io.Combo.Input("optimizer", options=list(OPTIMIZERS), tooltip="The optimizer, with PyTorch's defaults."),
        io.Combo.Input("loss_function", options=list(objective.LOSSES),
                       tooltip="The distance of the model's answer from the clean picture."),
        io.Combo.Input("weighting", options=list(objective.WEIGHTINGS),
                       tooltip="How noise levels count. Plain: the error of the clean picture, as core. Epsilon: that "
                       "of the noise, as most trainers. min-SNR: between both (arXiv 2303.09556)."),
        io.Float.Input("snr_gamma", default=5.0, min=0.01, max=100.0, step=0.1,
                       tooltip="For min-SNR: the highest weight; the paper takes 5."),
        io.Int.Input("seed", default=0, min=0, max=_SEED_MAX, control_after_generate=True,
                     tooltip="Decides the first factors, the order of pictures, noise and noise levels."),
        io.Combo.Input("training_dtype", options=list(_DTYPES), tooltip="In which the model computes."),
        io.Combo.Input("lora_dtype", options=list(_DTYPES), tooltip="In which the LoRA is kept."),
        io.Combo.Input("algorithm", options=adapters.ALGORITHMS, tooltip="The kind of adapter."),
        io.Boolean.Input("gradient_checkpointing", default=True,
                         tooltip="Compute activations twice instead of keeping them: slower, with less memory."),
        io.Combo.Input("existing_lora", options=adapters.lora_names(), default=adapters.NO_LORA,
                       tooltip="A LoRA file to train on from; its own ranks and kinds of adapters stay."),
    ]  # fmt: skip


class TrainLoraImmiscible(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_TrainLoraImmiscible",
            display_name="Train LoRA (Immiscible)",
            category="glassbox/noise",
            description=(
                "Trains a LoRA with noise that lies near its pictures. Immiscible Diffusion (arXiv 2406.12303, NeurIPS "
                "2024), Improved Immiscible Diffusion (arXiv 2505.18521). Has all of core's Train LoRA, and validation "
                "on held-out pictures, samples on the way, checkpoints to go on from, learning-rate schedules, "
                "min-SNR, sizes in buckets, and a stop that keeps what it has. With mode off it is core's run."
            ),
            search_aliases=["immiscible diffusion", "lora training", "fine-tune", "dreambooth", "min-snr"],
            inputs=_inputs(),
            outputs=[
                io.Model.Output(display_name="MODEL", tooltip="The model with the LoRA at strength 1."),
                io.Custom("LORA_MODEL").Output(display_name="lora", tooltip="For Save LoRA Weights, Load LoRA Model."),
                io.Custom("LOSS_MAP").Output(display_name="loss_map", tooltip="For Plot Loss Graph."),
                io.Int.Output(display_name="steps", tooltip="Steps trained, those of the existing LoRA included."),
                io.Image.Output(display_name="plot", tooltip="Training and validation loss."),
                io.Image.Output(display_name="samples", tooltip="Sample pictures, oldest first; none without a VAE."),
                io.String.Output(display_name="report", tooltip="Losses, what pairing gained, and what it cost."),
            ],
            is_input_list=True,
        )  # fmt: skip

    @classmethod
    def execute(cls, model, latents, positive, vae=(None,), sample_positive=(), sample_negative=(), **choices):
        chosen = {name: value[0] for name, value in choices.items()}
        found = material(latents, positive, chosen["held_out"], list(sample_positive), list(sample_negative))
        existing, steps_before = adapters.read_lora(chosen["existing_lora"])
        made = adapters.create(model[0], chosen["algorithm"], chosen["rank"], _DTYPES[chosen["lora_dtype"]],
                               chosen["seed"], existing)  # fmt: skip
        run = _Run(chosen, found, made, vae[0])
        train.run(
            model[0], made.functions, found.latents, found.conditions, run.train,
            dtype=_DTYPES[chosen["training_dtype"]], checkpointing=chosen["gradient_checkpointing"],
            seed=chosen["seed"],
        )  # fmt: skip
        lora = made.lora()
        steps = steps_before + run.training.steps_done
        return io.NodeOutput(adapters.applied(model[0], lora), lora, run.training.history.loss_map(), steps,
                             *run.shown(), ui={"glassbox_curve": [run.curve()]})  # fmt: skip


@dataclass
class _Run:
    """One execution of the node: puts the pieces of the method together around a session."""

    chosen: dict
    material: Material
    made: adapters.Adapters
    vae: object
    training: Training | None = None
    painted: dict[int, torch.Tensor] = field(default_factory=dict)  # steps done -> IMAGE

    def train(self, session) -> None:
        """Train in a session of the model; a stop by the user ends it early where that is wanted."""
        chosen, found = self.chosen, self.material
        pictures = found.pictures(session.latents)
        draws = Draws(pictures, chosen["batch_size"], chosen["seed"], chosen["unit"])
        server = Server(self._settings(), pictures, chosen["seed"], session.device)
        training = self.training = self._training(session, optimizer_steps(chosen, draws))
        if training.store is not None:
            training.store.restore(training, server, draws)
        try:
            training.run(session, Feed(pictures, draws, server))
        except Stopped:
            if chosen["on_stop"] == _CANCEL or training.steps_done == 0:
                raise
            training.history.stopped = True
        for done, latents in training.history.samples:
            self._paint(session, done, latents)

    def shown(self) -> tuple:
        """Plot, samples and report."""
        history, figure = self.training.history, new_figure()
        curves.draw(figure, history, self.chosen["grad_accumulation_steps"], f"Noise: {self.chosen['mode']}")
        samples = torch.cat([self.painted[done] for done, _ in history.samples]) if self.painted else nothing_to_show()
        counts = f"{self.material.trained} pictures trained on, {self.material.held_out} held out"
        return to_image(figure), samples, curves.describe(self._settings(), history, counts, self.training.steps_done)

    def curve(self) -> dict:
        """The losses as the canvas draws them."""
        history, plan = self.training.history, self.training.plan
        return outline(history.losses, plan.steps, plan.accumulation, history.validation)

    def _settings(self) -> Settings:
        names = ("mode", "pool_size", "k", "form", "grouping", "penalty")
        return Settings(**{name: self.chosen[name] for name in names})

    def _training(self, session, steps: int) -> Training:
        chosen, found = self.chosen, self.material
        rate = chosen["learning_rate"]
        plan = Plan(steps, chosen["grad_accumulation_steps"], rate, chosen["schedule"], chosen["warmup_steps"],
                    chosen["validate_every"], chosen["sample_every"], chosen["checkpoint_every"])  # fmt: skip
        parameters = self.made.parameters
        optimizer = OPTIMIZERS[chosen["optimizer"]]([p for p in parameters.values() if p.requires_grad], lr=rate)
        held_out = range(found.trained, len(found.latents))
        painter = Painter(found.sample_rows, found.negative_row, chosen["sample_cfg"], chosen["sample_steps"],
                          chosen["seed"])  # fmt: skip
        name = chosen["checkpoint"]
        progress = Progress(steps)
        return Training(
            parameters, optimizer, plan,
            objective.make(chosen["loss_function"], chosen["weighting"], chosen["snr_gamma"]),
            Validation(held_out, chosen["seed"]) if held_out else None,
            None if self.vae is None else painter,
            Store(named_file(name, ".safetensors"), found.settings(chosen)) if name.strip() else None,
            functools.partial(self._tell, session, progress, LiveCurve()),
        )  # fmt: skip

    def _tell(self, session, progress: Progress, live: LiveCurve, done: int, latents: torch.Tensor | None) -> None:
        live.show(self.curve)
        progress.show(done, None if latents is None else self._paint(session, done, latents))

    def _paint(self, session, done: int, latents: torch.Tensor) -> torch.Tensor:
        """The sample pictures of a step, decoded once."""
        if done not in self.painted:
            with torch.inference_mode():
                images = self.vae.decode(session.as_latent(latents))
            self.painted[done] = images.reshape(-1, *images.shape[-3:])
            session.reload()
        return self.painted[done]
