"""Sparse autoencoders: load one, see its features in images, steer by them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ClassVar

import torch
from comfy_api.latest import io

from ..host.folders import autoencoder_path, input_stamp
from ..host.hooks import refuse_compiled
from ..host.progress import with_progress
from ..host.schema import Activations as ActivationsSocket
from ..host.schema import SparseAutoencoder as AutoencoderSocket
from ..host.schema import float_input, int_input, schema
from .activations import Activations
from .tap_inputs import END_PERCENT, ROWS, SEE, START_PERCENT, STEER, image_of, images_of

if TYPE_CHECKING:
    from .sparse_autoencoder import SparseAutoencoder

_PAPER = "TopK sparse autoencoder (arXiv 2406.04093), in diffusion models as in arXiv 2410.22366"


class LoadSparseAutoencoder(io.ComfyNode):
    READS: ClassVar = {"file": functools.partial(input_stamp, what="sparse autoencoder")}

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_LoadSparseAutoencoder",
            display_name="Load Sparse Autoencoder",
            category=SEE,
            is_experimental=True,
            description="Loads a file of Train Sparse Autoencoder, or a published folder of SDXL Unbox with "
            f"config.json, state_dict.pth and mean.pt. {_PAPER}.",
            search_aliases=["diffusion features", "SAE", "SDXL Unbox", "dictionary learning", "monosemantic"],
            inputs=[
                io.String.Input(
                    "file",
                    default="glassbox/autoencoder.safetensors",
                    tooltip="Path of a file or folder in ComfyUI's output or input folder.",
                ),
            ],
            outputs=[
                AutoencoderSocket.Output(
                    display_name="autoencoder", tooltip="For Sparse Features and Sparse Feature Steering."
                ),
                io.String.Output(display_name="ids", tooltip="IDs to tap or record for it, with preset custom_ids."),
                io.String.Output(display_name="report", tooltip="Sizes, and how it was trained."),
            ],
        )

    @classmethod
    def execute(cls, file: str) -> io.NodeOutput:
        from . import autoencoder_file

        autoencoder = autoencoder_file.read(autoencoder_path(file))
        return io.NodeOutput(autoencoder, "\n".join(autoencoder.ids), autoencoder.report())


class SparseFeatures(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_SparseFeatures",
            display_name="Sparse Features",
            category=SEE,
            is_experimental=True,
            description="Shows the strongest features of an image: where each acts, and the images of the batch in "
            f"which it acts most. With a mask, the features of that part. {_PAPER}.",
            search_aliases=["diffusion features", "SAE", "dictionary learning", "interpretability", "monosemantic"],
            inputs=[
                AutoencoderSocket.Input("autoencoder", tooltip="Trained or loaded sparse autoencoder."),
                ActivationsSocket.Input(
                    "activations", tooltip="Activations of the images, tapped or recorded with the autoencoder's ids."
                ),
                io.Image.Input("image", tooltip="The images that were tapped, preferably dozens."),
                int_input("image_index", 0, (0, 4095), "Image whose features are shown."),
                int_input("count", 6, (1, 64), "How many features to show."),
                int_input("top_images", 4, (1, 32), "Images per feature, strongest first."),
                float_input("opacity", 0.65, (0.0, 1.0, 0.05), "Opacity of the heat maps."),
                io.Mask.Input(
                    "mask", optional=True, tooltip="Part of the image: features that act inside more than outside."
                ),
            ],
            outputs=[
                io.Image.Output(
                    display_name="figure", tooltip="One line per feature: the image, then the strongest images."
                ),
                io.String.Output(
                    display_name="features", tooltip="The features, one 'number = 1' per line, for the strengths input."
                ),
                io.Mask.Output(display_name="maps", tooltip="Where each feature acts in the image, one mask each."),
                io.String.Output(display_name="report", tooltip="One line per feature: how strong, and how common."),
            ],
        )

    @classmethod
    def execute(
        cls,
        autoencoder: SparseAutoencoder,
        activations: Activations,
        image: torch.Tensor,
        image_index: int,
        count: int,
        top_images: int,
        opacity: float,
        mask: torch.Tensor | None = None,
    ) -> io.NodeOutput:
        from torch.nn import functional as F

        from . import overlays, sparse_autoencoder

        numbers = [row.image for row in activations.rows]
        if image_index not in numbers:
            raise ValueError(f"image_index is {image_index}, and the activations are of images 0 to {max(numbers)}.")
        row = numbers.index(image_index)
        maps = autoencoder.maps(activations)  # (rows, F, H, W)
        score = sparse_autoencoder.feature_scores(maps[row], mask)
        chosen = score.argsort(descending=True, stable=True)[:count].tolist()
        strongest, tiles = maps.amax((2, 3)), []  # (rows, F)
        for number in with_progress(chosen):
            first = strongest[:, number].argsort(descending=True, stable=True)[:top_images].tolist()
            rows, peak = [row, *first], strongest[:, number].max().clamp_min(1e-12)
            images = torch.stack([image_of(image, activations, one) for one in rows])
            tiles.append((f"feature {number}", overlays.overlay(images, maps[rows, number] / peak, opacity)))
        shown = maps[row, chosen] / maps[row, chosen].amax((1, 2), keepdim=True).clamp_min(1e-12)
        places = F.interpolate(shown[:, None], size=images_of(image, activations).shape[1:3], mode="bilinear")[:, 0]
        sheet = overlays.contact_sheet(tiles, max(128, image.shape[1] // 2))
        features = "\n".join(f"{number} = 1" for number in chosen)
        return io.NodeOutput(sheet, features, places, sparse_autoencoder.feature_table(maps, row, score, chosen))


class SparseFeatureSteering(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_SparseFeatureSteering",
            display_name="Sparse Feature Steering",
            category=STEER,
            is_experimental=True,
            description="Returns a MODEL whose features are made stronger or weaker while any sampler runs, in the "
            f"whole image or inside a brushed mask. Strength 0 is identical to the input model. {_PAPER}.",
            search_aliases=["diffusion features", "SAE", "concept slider", "feature brush", "SAEPaint"],
            inputs=[
                io.Model.Input("model", tooltip="Model that the autoencoder was trained on, with its LoRAs."),
                AutoencoderSocket.Input("autoencoder", tooltip="Trained or loaded sparse autoencoder."),
                io.String.Input(
                    "strengths",
                    multiline=True,
                    default="0 = 1",
                    tooltip="One 'number = strength' per line. Negative strengths weaken a feature.",
                ),
                io.Combo.Input(
                    "mode",
                    options=["add", "scale"],
                    tooltip="add: strength times the feature's usual value, everywhere. scale: strength times its "
                    "value at each position; -1 removes the feature, 1 doubles it.",
                ),
                io.Float.Input(**START_PERCENT),
                io.Float.Input(**END_PERCENT),
                io.Combo.Input(**ROWS),
                io.Mask.Input(
                    "mask", optional=True, tooltip="Area to steer, one mask for all images or one per image."
                ),
            ],
            outputs=[io.Model.Output(display_name="model", tooltip="The steered model, for the sampler.")],
        )

    @classmethod
    def execute(
        cls,
        model,
        autoencoder: SparseAutoencoder,
        strengths: str,
        mode: str,
        start_percent: float,
        end_percent: float,
        rows: str,
        mask: torch.Tensor | None = None,
    ) -> io.NodeOutput:
        from . import activation_edit, sparse_autoencoder
        from .activation_edit_comfy import steered_model
        from .catalog_unet import catalog, transformer_update

        refuse_compiled(model)
        network, source = model.model.diffusion_model, "sparse autoencoder"
        specs = activation_edit.editable_specs(
            dict.fromkeys(autoencoder.ids, len(autoencoder.pre_bias)), catalog(network), source
        )[:1]
        if autoencoder.input_id:
            specs = [transformer_update(specs[0], network)]
        parsed = sparse_autoencoder.parse_strengths(strengths, len(autoencoder.usual))
        parsed = {number: strength for number, strength in parsed.items() if strength}
        if not parsed or (mask is not None and not mask.any()):
            return io.NodeOutput(model)
        edit = sparse_autoencoder.steer_features(autoencoder, parsed, mode, mask)
        return io.NodeOutput(steered_model(model, specs, edit, start_percent, end_percent, rows))


NODES = [LoadSparseAutoencoder, SparseFeatures, SparseFeatureSteering]
