"""Sparse autoencoders: load one, see its features in images, steer by them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ClassVar

import torch
from comfy_api.latest import io

from ..host.folders import autoencoder_path, input_stamp
from ..host.hooks import refuse_compiled
from ..host.progress import with_progress
from ..host.schema import float_input, int_input, schema
from ..host.sockets import Activations as ActivationsSocket
from ..host.sockets import SparseAutoencoder as AutoencoderSocket
from .activations import Activations
from .tap_inputs import END_PERCENT, ROWS, SEE, START_PERCENT, STEER, image_of, images_of

if TYPE_CHECKING:
    from ..host.socket_types import ModelPatcher
    from .sparse_autoencoder import SparseAutoencoder

_PAPER = "TopK sparse autoencoder (arXiv 2406.04093), in diffusion models as in arXiv 2410.22366"


class LoadSparseAutoencoder(io.ComfyNode):
    READS: ClassVar = {"file": functools.partial(input_stamp, what="sparse autoencoder")}

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_LoadSparseAutoencoder",
            display_name="Load Sparse Autoencoder (SAE)",
            category=SEE,
            is_experimental=True,
            description=(
                "Loads a file saved by Train Sparse Autoencoder, or a published folder of SDXL "
                f"Unbox with config.json, state_dict.pth and mean.pt. {_PAPER}."
            ),
            search_aliases=[
                "diffusion features",
                "SAE",
                "SDXL Unbox",
                "dictionary learning",
                "monosemantic",
            ],
            inputs=[
                io.String.Input(
                    "file",
                    default="glassbox/autoencoder.safetensors",
                    tooltip="Path of a file or folder in ComfyUI's output or input folder.",
                ),
            ],
            outputs=[
                AutoencoderSocket.Output(
                    display_name="autoencoder",
                    tooltip="For Sparse Features and Sparse Feature Steering.",
                ),
                io.String.Output(
                    display_name="ids",
                    tooltip="IDs to tap or record for this autoencoder, with preset custom_ids.",
                ),
                io.String.Output(display_name="report", tooltip="Sizes and training settings."),
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
            display_name="Sparse Features (SAE)",
            category=SEE,
            is_experimental=True,
            description=(
                "Shows the strongest features of an image: heat map of each, and the images of "
                "the batch with the highest activation. With a mask: features specific to that "
                f"part. {_PAPER}."
            ),
            search_aliases=[
                "diffusion features",
                "SAE",
                "dictionary learning",
                "interpretability",
                "monosemantic",
            ],
            inputs=[
                AutoencoderSocket.Input(
                    "autoencoder", tooltip="Trained or loaded sparse autoencoder."
                ),
                ActivationsSocket.Input(
                    "activations",
                    tooltip=(
                        "Activations of the images, tapped or recorded with the autoencoder's ids."
                    ),
                ),
                io.Image.Input("image", tooltip="The tapped images, preferably dozens."),
                int_input("image_index", 0, (0, 4095), "Index of the image to explain."),
                int_input("count", 6, (1, 64), "Number of features to show."),
                int_input("top_images", 4, (1, 32), "Images per feature, strongest first."),
                float_input("opacity", 0.65, (0.0, 1.0, 0.05), "Opacity of the heat maps."),
                io.Mask.Input(
                    "mask",
                    optional=True,
                    tooltip="Part of the image: ranks features by activation inside minus outside.",
                ),
            ],
            outputs=[
                io.Image.Output(
                    display_name="figure",
                    tooltip=(
                        "One row per feature: the image, then the images with the highest "
                        "activation."
                    ),
                ),
                io.String.Output(
                    display_name="features",
                    tooltip="The features, one 'number = 1' per line, for the strengths input.",
                ),
                io.Mask.Output(
                    display_name="maps",
                    tooltip="One mask per feature: its activation in the image.",
                ),
                io.String.Output(
                    display_name="report",
                    tooltip="One line per feature: strength and frequency.",
                ),
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
            raise ValueError(
                f"image_index is {image_index}, and the activations are of images 0 to "
                f"{max(numbers)}."
            )
        row = numbers.index(image_index)
        maps = autoencoder.maps(activations)  # (rows, F, H, W)
        score = sparse_autoencoder.feature_scores(maps[row], mask)
        chosen = score.argsort(descending=True, stable=True)[:count].tolist()
        # (rows, F)
        strongest = maps.amax((2, 3))
        tiles = []
        for number in with_progress(chosen):
            first = strongest[:, number].argsort(descending=True, stable=True)[:top_images].tolist()
            rows = [row, *first]
            peak = strongest[:, number].max().clamp_min(1e-12)
            images = torch.stack([image_of(image, activations, one) for one in rows])
            tiles.append(
                (f"feature {number}", overlays.overlay(images, maps[rows, number] / peak, opacity))
            )
        shown = maps[row, chosen] / maps[row, chosen].amax((1, 2), keepdim=True).clamp_min(1e-12)
        places = F.interpolate(
            shown[:, None], size=images_of(image, activations).shape[1:3], mode="bilinear"
        )[:, 0]
        sheet = overlays.contact_sheet(tiles, max(128, image.shape[1] // 2))
        features = "\n".join(f"{number} = 1" for number in chosen)
        return io.NodeOutput(
            sheet, features, places, sparse_autoencoder.feature_table(maps, row, score, chosen)
        )


class SparseFeatureSteering(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_SparseFeatureSteering",
            display_name="Sparse Feature Steering",
            category=STEER,
            is_experimental=True,
            description=(
                "Amplifies or weakens sparse features while any sampler runs on the returned "
                "MODEL, in the whole image or inside a mask. Strength 0 is identical to the "
                f"input model. {_PAPER}."
            ),
            search_aliases=[
                "diffusion features",
                "SAE",
                "concept slider",
                "feature brush",
                "SAEPaint",
            ],
            inputs=[
                io.Model.Input(
                    "model", tooltip="The model the autoencoder was trained on, with its LoRAs."
                ),
                AutoencoderSocket.Input(
                    "autoencoder", tooltip="Trained or loaded sparse autoencoder."
                ),
                io.String.Input(
                    "strengths",
                    multiline=True,
                    default="0 = 1",
                    tooltip=(
                        "One 'number = strength' per line. Negative strengths weaken a feature."
                    ),
                ),
                io.Combo.Input(
                    "mode",
                    options=["add", "scale"],
                    tooltip=(
                        "add: adds strength times the feature's usual value everywhere. scale: "
                        "adds strength times its value at each position; -1 removes the feature, "
                        "1 doubles it."
                    ),
                ),
                io.Float.Input(**START_PERCENT),
                io.Float.Input(**END_PERCENT),
                io.Combo.Input(**ROWS),
                io.Mask.Input(
                    "mask",
                    optional=True,
                    tooltip="Area to steer, one mask for all images or one per image.",
                ),
            ],
            outputs=[
                io.Model.Output(display_name="model", tooltip="The steered model, for the sampler.")
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
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
        network = model.model.diffusion_model
        source = "sparse autoencoder"
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
        return io.NodeOutput(
            steered_model(
                model,
                specs,
                edit=edit,
                start_percent=start_percent,
                end_percent=end_percent,
                rows=rows,
            )
        )


NODES = [LoadSparseAutoencoder, SparseFeatures, SparseFeatureSteering]
