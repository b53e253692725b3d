"""The demo world on the canvas: its model, and its rendered images with their truth."""

from __future__ import annotations

from comfy_api.latest import io

from ..host.schema import DEMO, int_input, schema
from . import assets

IMAGES = 24


class LoadDemoModel(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_LoadDemoModel",
            display_name="Load Glassbox Demo Model",
            category=DEMO,
            description=(
                "A small diffusion model of drawn faces, shipped with the pack (8 million "
                "parameters, 128 x 128 pixels, CFG about 3): try every node within a minute and "
                "without a GPU. Stock nodes use it like SD1.5. No paper: trained by the pack's "
                "own studies/world."
            ),
            search_aliases=[
                "demo checkpoint",
                "avatars",
                "tiny model",
                "test model",
                "example checkpoint",
            ],
            inputs=[
                io.Combo.Input(
                    "weights",
                    options=assets.worlds(),
                    tooltip=(
                        "The checkpoint. avatars-v2-planted generates the same images; each of "
                        "its ten memorized names acts through 1 to 8 known neurons."
                    ),
                ),
            ],
            outputs=[
                io.Model.Output(
                    display_name="model",
                    tooltip=(
                        "U-Net with v prediction and SD's noise schedule, rescaled to zero "
                        "terminal SNR."
                    ),
                ),
                io.Clip.Output(
                    display_name="clip",
                    tooltip="Text encoder with the vocabulary of the demo captions.",
                ),
                io.Vae.Output(
                    display_name="vae",
                    tooltip=("Autoencoder with 8 x 8 pixels per latent cell; 24 latent channels."),
                ),
            ],
        )

    @classmethod
    def execute(cls, weights: str) -> io.NodeOutput:
        from folder_paths import get_folder_paths

        from . import autoencoder, denoiser, text_encoder

        model = denoiser.load(weights)
        clip = text_encoder.load(weights, embedding_directory=get_folder_paths("embeddings"))
        return io.NodeOutput(model, clip, autoencoder.load(weights))


class DemoImage(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_DemoPicture",
            display_name="Load Glassbox Demo Image",
            category=DEMO,
            description=(
                f"{IMAGES} rendered faces of the demo world, each with its true caption and the "
                "true mask of each part: input for image to image, correspondence, segmentation "
                "and inversion. No paper: drawn by python-avatars (MIT)."
            ),
            search_aliases=[
                "avatars",
                "test image",
                "ground truth mask",
                "example image",
                "sample face",
            ],
            inputs=[
                int_input(
                    "image_index",
                    0,
                    (0, IMAGES - 1),
                    f"Number of the first image, 0 to {IMAGES - 1}.",
                ),
                int_input(
                    "count",
                    1,
                    (1, IMAGES),
                    "Number of images in the batch; wraps around after the last image.",
                ),
                io.Combo.Input(
                    "part",
                    options=list(assets.PARTS),
                    tooltip="Part shown by the mask; 'face' is everything but the background.",
                ),
            ],
            outputs=[
                io.Image.Output(display_name="image", tooltip="Images of 128 x 128 pixels."),
                io.Mask.Output(
                    display_name="mask", tooltip="True mask of the chosen part in each image."
                ),
                io.String.Output(
                    display_name="caption", tooltip="True caption of the first image."
                ),
            ],
        )

    @classmethod
    def execute(cls, image_index: int, count: int, part: str) -> io.NodeOutput:
        images, mask, captions = assets.load_images(assets.worlds()[0], image_index, count, part)
        return io.NodeOutput(images, mask, captions[0])


NODES = [LoadDemoModel, DemoImage]
