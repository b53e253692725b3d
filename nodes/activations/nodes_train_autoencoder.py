"""Train Sparse Autoencoder: on an activation while prompts are sampled, or on a folder of
images.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from comfy_api.latest import io

from ..common.resume import digest, file_digest, settings_identity
from ..host.evaluate import PERCENT, sample_latents, sigma_at, timestep_of
from ..host.folders import input_stamp, named_file, relative, resolve_input_file
from ..host.hooks import observe, refuse_compiled
from ..host.image_output import new_figure, to_image
from ..host.progress import Progress
from ..host.schema import float_input, int_input, later_seed, schema, seed
from ..host.sockets import SparseAutoencoder as AutoencoderSocket
from ..host.text_encoding import encode
from . import select_ids
from .activation_spec import ActivationSpec
from .tap_inputs import RESEARCH

if TYPE_CHECKING:
    from ..host.socket_types import CLIP, VAE, ModelPatcher
    from .autoencoder_training import Trainer, TrainingSettings

_PAPER = "TopK sparse autoencoder (arXiv 2406.04093), in diffusion models as in arXiv 2410.22366"
_ENDINGS = (".png", ".jpg", ".jpeg", ".webp")
#: Prompts or images that are gathered at a time, and at most as many are held out.
_GATHERED = 8
_VALIDATED = 4096  # positions
_PIXELS = 8  # of a latent position's side


class TrainSparseAutoencoder(io.ComfyNode):
    READS: ClassVar = {"image_folder": functools.partial(input_stamp, what="image folder")}
    WRITES: ClassVar = {"name": functools.partial(named_file, suffix=".safetensors")}

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_TrainSparseAutoencoder",
            advanced=("batch_size", "learning_rate", "steps", "cfg"),
            display_name="Train Sparse Autoencoder (SAE)",
            category=RESEARCH,
            is_experimental=True,
            description=(
                "Trains a TopK sparse autoencoder on one activation of sampled prompts or of a "
                "folder of images: each position becomes a sum of a few out of many features. A "
                "tenth is held out for validation. Run again with the same settings to resume. "
                f"{_PAPER}."
            ),
            search_aliases=[
                "diffusion features",
                "SAE",
                "dictionary learning",
                "interpretability",
                "monosemantic",
            ],
            is_output_node=True,
            inputs=[
                io.Model.Input(
                    "model",
                    tooltip="Model with a U-Net or a supported transformer, with its LoRAs.",
                ),
                io.Clip.Input("clip", tooltip="CLIP that encodes the prompts."),
                io.Latent.Input(
                    "latent",
                    tooltip=(
                        "Empty latent; sets the size. Its batch size is the number of images per "
                        "prompt."
                    ),
                ),
                io.String.Input(
                    "activation_id",
                    default="mid-vit-out",
                    tooltip=(
                        "ID of one activation, a module's output, e.g. up-level1-repeat0-vit-out."
                    ),
                ),
                io.String.Input(
                    "prompts",
                    multiline=True,
                    default="",
                    tooltip=(
                        "Prompts to sample, one per line; at least two, preferably hundreds. "
                        "With image_folder: one line that describes all images."
                    ),
                ),
                io.String.Input(
                    "image_folder",
                    default="",
                    tooltip=(
                        "Image folder inside ComfyUI's input folder; replaces sampled prompts. "
                        "Needs vae."
                    ),
                ),
                int_input(
                    "features", 1024, (2, 131072), "Number of features. 4 per channel is usual."
                ),
                int_input(
                    "k",
                    16,
                    (1, 1024),
                    "Number of active features per position (k). Published SDXL autoencoders "
                    "have 10.",
                ),
                int_input(
                    "training_steps", 2000, (1, 10_000_000), ("Training steps, one batch each.")
                ),
                int_input("batch_size", 1024, (1, 1_048_576), "Batch size in positions."),
                float_input("learning_rate", 0.001, (1e-7, 1.0, 1e-7), "Learning rate of Adam."),
                seed("Seed of the initialization, the order and the noise."),
                int_input("steps", 10, (1, 1000), "Sampling steps per prompt (euler)."),
                float_input("cfg", 3.0, (1.0, 100.0, 0.1), "CFG scale."),
                io.String.Input(
                    "name",
                    default="glassbox/autoencoder",
                    tooltip=(
                        "File in ComfyUI's output folder. A stopped run resumes from it; raise "
                        "training_steps to continue."
                    ),
                ),
                io.Vae.Input("vae", optional=True, tooltip="Encodes the images of image_folder."),
            ],
            outputs=[
                AutoencoderSocket.Output(
                    display_name="autoencoder",
                    tooltip="For Sparse Features and Sparse Feature Steering.",
                ),
                io.String.Output(
                    display_name="file", tooltip="Path inside ComfyUI's output folder."
                ),
                io.Image.Output(
                    display_name="figure",
                    tooltip="Explained variance on held-out positions, and dead features.",
                ),
                io.String.Output(
                    display_name="report", tooltip="Explained variance, dead features, sizes."
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        clip: CLIP,
        latent: dict,
        activation_id: str,
        prompts: str,
        image_folder: str,
        features: int,
        k: int,
        training_steps: int,
        batch_size: int,
        learning_rate: float,
        seed: int,
        steps: int,
        cfg: float,
        name: str,
        vae: VAE | None = None,
    ) -> io.NodeOutput:
        from . import activation_edit, autoencoder_file, autoencoder_training
        from .catalog_unet import catalog

        refuse_compiled(model)
        if k > features:
            raise ValueError(f"k is {k} of {features} features. Lower k, or raise features.")
        specs = catalog(model.model.diffusion_model)
        selected = select_ids.select(specs, select_ids.Preset.CUSTOM_IDS, activation_id)
        if len(selected) != 1:
            raise ValueError(
                f"activation_id selects {len(selected)} activations. Enter the ID of one."
            )
        activation_edit.editable_specs(
            {selected[0].id: selected[0].channels}, specs, "activation_id"
        )
        items = _items(prompts, image_folder, vae)
        source = _Source(
            model=model,
            clip=clip,
            vae=vae,
            latent=latent["samples"],
            spec=selected[0],
            items=items,
            caption=prompts.strip(),
            seed=seed,
            steps=steps,
            cfg=cfg,
        )
        settings = autoencoder_training.TrainingSettings(
            features=features, k=k, learning_rate=learning_rate, seed=seed
        )
        about = {
            **settings_identity(settings),
            "batch_size": batch_size,
            "steps": steps,
            "cfg": cfg,
            "activation": selected[0].id,
            **source.identity(),
        }
        path = named_file(name, ".safetensors")
        state_suffix = ".training.safetensors"
        trainer, curve = _train(
            source,
            settings,
            batch_size=batch_size,
            steps=training_steps,
            path=path.with_suffix(state_suffix),
            about=about,
        )
        held_out = {
            "held-out explained variance": round(float(curve[-1, 1]), 4),
            "dead features": trainer.dead(),
        }
        autoencoder = trainer.autoencoder(selected[0].id, {"batches": trainer.steps, **held_out})
        autoencoder_file.write(autoencoder, path)
        return io.NodeOutput(
            autoencoder, relative(path), _curve_figure(curve), autoencoder.report()
        )


def _items(prompts: str, image_folder: str, vae: VAE | None) -> list[str] | list[Path]:
    """The prompts, or the images of the folder; raises ValueError for fewer than two."""
    lines = [line.strip() for line in prompts.splitlines() if line.strip()]
    if not image_folder.strip():
        if len(lines) < 2:
            raise ValueError(
                f"prompts has {len(lines)} lines. Enter at least two, one of which is held out."
            )
        return lines
    if vae is None or len(lines) > 1:
        raise ValueError(
            "image_folder needs vae, and one line in prompts that describes all images."
        )
    folder = resolve_input_file(image_folder, "image folder")
    paths = (
        sorted(path for path in folder.iterdir() if path.suffix.lower() in _ENDINGS)
        if folder.is_dir()
        else []
    )
    if len(paths) < 2:
        raise ValueError(
            f"image_folder {folder.name} has {len(paths)} images. Give a folder of at least two."
        )
    return paths


@dataclass(frozen=True, kw_only=True)
class _Source:
    """Positions (N, C) of an activation on prompts that are sampled, or on images at random noise
    levels.
    """

    model: Any
    clip: Any
    vae: Any
    latent: torch.Tensor
    spec: ActivationSpec
    items: list[str] | list[Path]
    caption: str
    seed: int
    steps: int
    cfg: float

    def identity(self) -> dict:
        """The networks and the latent, and the prompts or the images by content with what encodes
        them.
        """
        from ..host.identity import clip_digest, embedding_digest, model_digest, vae_digest

        files = [file_digest(item) for item in self.items if isinstance(item, Path)]
        texts = [self.caption] if files else [str(item) for item in self.items]
        return {
            "latent": digest(self.latent),
            "clip": clip_digest(self.clip),
            "model": model_digest(self.model),
            "prompts": digest(self.caption),
            "embedding": embedding_digest(self.clip, texts),
            "images": digest(files),
            "vae": vae_digest(self.vae) if files else None,
        }

    def held_out(self) -> torch.Tensor:
        """At most 4096 positions of a tenth of the items, at least one and at most eight."""
        points = self._gather(self.items[: self._held_out()], self.seed)
        return points[torch.randperm(len(points), generator=self._generator(0))[:_VALIDATED]]

    def chunk(self, number: int) -> torch.Tensor:
        """Positions of the next items in shuffled order, from 0; the same for the same number."""
        training = self.items[self._held_out() :]
        count = min(_GATHERED, len(training))  # of fewer items a chunk is one epoch
        first = number * count
        chosen = []
        for place in range(first, first + count):
            epoch, index = divmod(place, len(training))
            order = torch.randperm(len(training), generator=self._generator(1 + epoch))
            chosen.append(training[order[index]])
        points = self._gather(chosen, self.seed + 1 + first)
        return points[torch.randperm(len(points), generator=self._generator(-1 - number))]

    def _held_out(self) -> int:
        return min(max(len(self.items) // 10, 1), _GATHERED)

    def _generator(self, number: int) -> torch.Generator:
        return torch.Generator().manual_seed(later_seed(self.seed * 1_000_003, number))

    def _gather(self, items: list, seed: int) -> torch.Tensor:
        parts = [
            self._sampled(item, later_seed(seed, number))
            if isinstance(item, str)
            else self._tapped(item, later_seed(seed, number))
            for number, item in enumerate(items)
        ]
        return torch.cat([part.movedim(1, -1).flatten(0, -2) for part in parts])

    def _sampled(self, prompt: str, seed: int) -> torch.Tensor:
        """Of all steps of a run: (steps * images, C, H, W)."""
        from .recorder import Recorder
        from .tap import TapSettings

        recorder = Recorder(
            [self.spec],
            TapSettings(dtype=torch.float32),
            lambda *_: True,
            lambda sigma: timestep_of(self.model, sigma),
        )
        positive = encode(self.clip, prompt)[1]
        negative = encode(self.clip, "")[1]
        model = observe(self.model, recorder)
        run = recorder.run_of(
            sample_latents(
                model,
                positive,
                negative=negative,
                latent=self.latent,
                steps=self.steps,
                cfg=self.cfg,
                seed=seed,
            )
        )
        run.require_recorded("Use other steps, or other activations.")
        return torch.cat([snapshot.activations.tensors[self.spec.id] for snapshot in run.snapshots])

    def _tapped(self, path: Path, seed: int) -> torch.Tensor:
        """Of one image at a random noise level: (1, C, H, W)."""
        from PIL import Image, ImageOps

        from ..common.pil_images import from_pil, in_8_bits, open_image
        from .tap import TapSettings
        from .tap_comfy import tap_noise_samples

        size = (self.latent.shape[-1] * _PIXELS, self.latent.shape[-2] * _PIXELS)
        try:
            opened = open_image(path, (2 * size[1], 2 * size[0]))
        except ValueError as error:
            raise ValueError(
                f"{path.name} {error}: remove it from the folder, or write it again."
            ) from None
        image = ImageOps.fit(in_8_bits(opened), size, Image.Resampling.LANCZOS)
        pixels = from_pil(image)[None]
        fraction = float(torch.rand((), generator=torch.Generator().manual_seed(seed)))
        sigma = sigma_at(self.model, fraction, PERCENT)
        latent = {"samples": self.vae.encode(pixels)}
        settings = TapSettings(dtype=torch.float32)
        positive = encode(self.clip, self.caption)[1]
        (tapped,) = tap_noise_samples(
            self.model,
            positive,
            latent=latent,
            sigma=sigma,
            specs=[self.spec],
            settings=settings,
            seed=seed,
            noise_samples=1,
        )
        return tapped.tensors[self.spec.id]


def _train(
    source: _Source,
    settings: TrainingSettings,
    batch_size: int,
    steps: int,
    path: Path,
    about: dict,
) -> tuple[Trainer, torch.Tensor]:
    """Train up to ``steps`` batches from where the file of the state left off, which is written
    after each chunk.

    Returns the trainer and the curve: steps, held-out explained variance and dead features, one row
    per chunk.
    """
    from ..host.compute import compute_device
    from . import autoencoder_training

    held_out = source.held_out()
    progress = Progress(steps)
    state = autoencoder_training.read_state(path, about, settings, steps)
    chunk = 0
    curve = torch.zeros(0, 3, dtype=torch.float64)
    trainer = None
    if state is not None:
        curve = state["curve"]
        chunk = int(state["chunks"])
        with torch.inference_mode(False):
            trainer = autoencoder_training.Trainer(settings, state, compute_device(*state.values()))
    while trainer is None or trainer.steps < steps:
        points = source.chunk(chunk)
        with torch.inference_mode(False), torch.enable_grad():
            needed = (
                4 * 8 * settings.features * (points.shape[1] + batch_size)
            )  # parameters, moments, gradients, features
            device = compute_device(points, needed=needed)
            points = points.to(
                device, copy=True
            )  # what was recorded in inference mode cannot be trained on
            trainer = trainer or autoencoder_training.Trainer.start(settings, points)
            for batch in points.split(batch_size)[: max(len(points) // batch_size, 1)]:
                if trainer.steps < steps:
                    trainer.step(batch)
        made = trainer.autoencoder(source.spec.id, {})
        explained = autoencoder_training.explained_variance(made, held_out.to(device))
        row = torch.tensor([[trainer.steps, explained, trainer.dead()]], dtype=torch.float64)
        chunk = chunk + 1
        curve = torch.cat([curve, row])
        kept = {"chunks": torch.tensor(chunk), "curve": curve}
        autoencoder_training.save(path, about, trainer.state() | kept)
        progress.show(min(trainer.steps, steps))
    return trainer, curve


def _curve_figure(curve: torch.Tensor) -> torch.Tensor:
    figure = new_figure(700, 400)
    axis = figure.subplots()
    axis.plot(curve[:, 0], curve[:, 1], color="#e66101", label="explained variance, held out")
    axis.set(xlabel="batches", ylim=(0, 1))
    axis.grid(alpha=0.3)
    other = axis.twinx()
    other.plot(curve[:, 0], curve[:, 2], color="#5e3c99", label="dead features")
    other.set_ylim(bottom=0)
    figure.legend(loc="outside upper center", ncols=2)
    return to_image(figure)


NODES = [TrainSparseAutoencoder]
