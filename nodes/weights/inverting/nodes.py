"""W2W Invert: a point of a space for one or several pictures."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
from comfy_api.latest import io

from ...common.curves import outline
from ...host import train
from ...host.figures import new_figure, to_image
from ...host.live import LiveCurve
from ...host.lora_patches import layer_targets
from ...host.output_files import named_file
from ...host.progress import Progress, Stopped, nothing_to_show
from ...host.schema import schema
from ...host.sockets import W2WPoint, W2WSpace
from .. import lora_export, report
from ..inputs import CATEGORY, PAPER, SEED_MAX
from ..inversion import Inversion, Model, Recipe, latent_mask
from ..space import Point, Space
from . import checkpoint, curve

_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_PREVIEW_PERCENT = 0.4
_CHECKPOINT_EVERY = 50


class W2WInvert(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WInvert",
            display_name="W2W Invert",
            category=CATEGORY,
            description=f"Finds the model of a space that draws the person of a picture, by training only the point's "
            f"coefficients. {PAPER}, section 3.4. The Stop button keeps what it has.",
            search_aliases=["weight space", "weights2weights", "inversion", "identity from one picture", "dreambooth"],
            inputs=[
                io.Model.Input("model", tooltip="The base model of the space."),
                W2WSpace.Input("space", tooltip="Space to find the point in."),
                io.Latent.Input("latent", tooltip="The picture, or a few of one person, from VAE Encode. The paper: "
                                "512 pixels for SD1.5, cut to the face."),
                io.Conditioning.Input("positive", tooltip="The prompt that the space's members were trained with, for "
                                      "the official one 'sks person'."),
                io.Int.Input("steps", default=400, min=1, max=100_000, tooltip="Steps of Adam; the paper takes 400."),
                io.Float.Input("learning_rate", default=0.1, min=1e-6, max=10.0, step=0.001,
                               tooltip="The paper's is 0.1; 1 for pictures that are unlike the members'."),
                io.Float.Input("weight_decay", default=1e-10, min=0.0, max=1.0, step=1e-10,
                               tooltip="Adam's decay towards the mean, as in the paper. More keeps nearer to members."),
                io.Int.Input("components", default=10_000, min=1, max=100_000,
                             tooltip="How many first coefficients to train: in the paper 10,000, and 1,000 for "
                             "pictures unlike the members'. Few underfit, many overfit."),
                io.Int.Input("seed", default=0, min=0, max=SEED_MAX, control_after_generate=True,
                             tooltip="Decides noise and noise levels of each step."),
                io.Combo.Input("precision", options=list(_DTYPES),
                               tooltip="In which the model computes; coefficients are float32 always."),
                io.Boolean.Input("gradient_checkpointing", default=True,
                                 tooltip="Compute activations twice instead of keeping them: slower, less memory."),
                io.Int.Input("preview_every", default=25, min=0, max=100_000,
                             tooltip="Steps between two looks at the picture as the point would restore it from noise; "
                             "0 is never. Needs a VAE."),
                io.String.Input("checkpoint", default="",
                                tooltip="Name of a file in the output folder, such as glassbox/inversion, from which a "
                                "run that was stopped goes on exactly; empty keeps none."),
                io.Mask.Input("mask", optional=True, tooltip="Where the person is: only there errors count."),
                W2WPoint.Input("start", optional=True, tooltip="Begin at this point and not at the mean."),
                io.Vae.Input("vae", optional=True, tooltip="For previews and the restored picture."),
            ],
            outputs=[
                W2WPoint.Output(display_name="point", tooltip="For W2W Edit, W2W Apply, W2W To LoRA."),
                io.Image.Output(display_name="restored", tooltip="Each picture restored from noise; none without VAE."),
                io.Image.Output(display_name="plot", tooltip="Loss over steps."),
                io.Custom("LOSS_MAP").Output(display_name="loss_map", tooltip="For Plot Loss Graph."),
                io.String.Output(display_name="report", tooltip="Losses, time, and where the point lies."),
            ],
        )  # fmt: skip

    @classmethod
    def execute(cls, model, space: Space, latent: dict, positive: list, mask=None, start=None, vae=None, **chosen):
        origin = start.coefficients if start is not None else space.coefficients[0, :0]
        recipe = Recipe(*(chosen[name] for name in ("steps", "learning_rate", "weight_decay", "components", "seed")))
        pictures = list(latent["samples"].split(1))
        with torch.inference_mode(False):
            made = Model(space, origin.clone(), recipe.components, model.load_device)
            run = _Run(Inversion(made, recipe), chosen, vae, mask)
            train.run(
                model, functions(model, made), pictures, [positive] * len(pictures), run.train,
                dtype=_DTYPES[chosen["precision"]], checkpointing=chosen["gradient_checkpointing"], seed=chosen["seed"],
            )  # fmt: skip
        point = Point(space, made.whole(), "inverted")
        figure = new_figure()
        curve.draw(figure, run.inversion)
        restored = run.restored if run.restored is not None else nothing_to_show()
        text = "\n".join([curve.describe(run.inversion, run.seconds), report.describe_point(point)])
        return io.NodeOutput(point, restored, to_image(figure), {"loss": list(run.inversion.losses)}, text,
                             ui={"glassbox_curve": [run.curve()]})  # fmt: skip


@dataclass
class _Run:
    """One execution: a session's steps with previews, checkpoints and a stop that keeps what it has."""

    inversion: Inversion
    chosen: dict
    vae: object
    mask: torch.Tensor | None
    restored: torch.Tensor | None = None
    seconds: float = 0.0
    _began: float = field(default_factory=time.perf_counter)

    def train(self, session) -> None:
        name = self.chosen["checkpoint"].strip()
        path = named_file(name, ".safetensors") if name else None
        if path is not None:
            checkpoint.restore(self.inversion, path)
        mask = None if self.mask is None else latent_mask(self.mask, session.latents[0])
        progress, live, first = Progress(self.chosen["steps"]), LiveCurve(), self.inversion.done
        self._began = time.perf_counter()

        def tell(done: int) -> None:
            every = self.chosen["preview_every"]
            if path is not None and done % _CHECKPOINT_EVERY == 0:
                checkpoint.save(self.inversion, path)
            live.show(self.curve)
            progress.show(done, self._restore(session) if every and done % every == 0 else None)

        try:
            self.inversion.run(session, mask, tell)
            self._restore(session)
        except Stopped:
            if self.inversion.done == first:
                raise
            self.inversion.stopped = True
        finally:
            self.seconds = (time.perf_counter() - self._began) / max(self.inversion.done - first, 1)
            if path is not None:
                checkpoint.save(self.inversion, path)

    def curve(self) -> dict:
        """The losses as the canvas draws them."""
        return outline(self.inversion.losses, self.inversion.recipe.steps)

    def _restore(self, session) -> torch.Tensor | None:
        """The pictures as the point restores them from noise, decoded; None without a VAE."""
        if self.vae is None:
            return None
        latents = torch.cat(session.latents).to(session.device)
        sigmas = torch.full((len(latents),), session.sigma(_PREVIEW_PERCENT), device=session.device)
        noise = torch.randn(latents.shape, generator=torch.Generator().manual_seed(self.chosen["seed"]))
        with torch.no_grad():
            noised = session.noised(latents, noise.to(latents), sigmas)
            answer = session.denoised(noised, sigmas, range(len(latents)))
        with torch.inference_mode():
            images = self.vae.decode(session.as_latent(answer))
        self.restored = images.reshape(-1, *images.shape[-3:])
        session.reload()
        return self.restored


def functions(model, made: Model) -> dict:
    """A weight function for every weight of the MODEL that the space changes."""
    layers = made.space.layout.unflatten(torch.zeros(made.space.layout.size))
    tensors = {}
    for name, factors in layers.items():
        tensors[name] = lora_export.to_tensors({name: factors})
    targets: dict[str, list] = {}
    for name, (weight, part) in layer_targets(model, tensors).items():
        targets.setdefault(weight, []).append((name, part))
    return {weight: made.function(found) for weight, found in targets.items()}
