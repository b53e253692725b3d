"""The demo world on the canvas: its model, and its rendered pictures with their truth."""

from __future__ import annotations

from comfy_api.latest import io

from ..host import blueprints
from ..host.schema import schema
from . import architecture, assets, pictures

CATEGORY = "glassbox/demo"
PICTURES = 24
blueprints.ARCHITECTURES["demo"] = architecture.UNET


class LoadDemoModel(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_LoadDemoModel",
            display_name="Load Glassbox Demo Model",
            category=CATEGORY,
            description=(
                "A small diffusion model of drawn faces that comes with the pack (8 million parameters, 128 x 128 "
                "pixels, CFG about 3), so that every node can be tried within a minute and without a GPU. Stock nodes "
                "use it like SD1.5. No paper: trained by the pack's own studies/world."
            ),
            search_aliases=["demo checkpoint", "avatars", "tiny model", "test model"],
            inputs=[
                io.Combo.Input("weights", options=assets.worlds(),
                               tooltip="Which checkpoint to load. The planted one has four more names, each of "
                                       "which always brings one portrait, through 1, 2, 3 or 5 known neurons."),
            ],
            outputs=[
                io.Model.Output(display_name="MODEL", tooltip="U-Net with SD's noise schedule and v prediction."),
                io.Clip.Output(display_name="CLIP", tooltip="Text model that knows the words of the demo captions."),
                io.Vae.Output(display_name="VAE", tooltip="Autoencoder with 8 latent channels, 8 pixels to a side."),
            ],
        )

    @classmethod
    def execute(cls, weights: str) -> io.NodeOutput:
        from . import autoencoder, model, text

        return io.NodeOutput(model.load(weights), text.load(weights), autoencoder.load(weights))


class DemoPicture(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_DemoPicture",
            display_name="Load Glassbox Demo Picture",
            category=CATEGORY,
            description=(
                f"{PICTURES} rendered faces of the demo world, each with its true caption and the true mask of each "
                "part: input for picture to picture, correspondence, segmentation and inversion. No paper: drawn by "
                "python-avatars (MIT)."
            ),
            search_aliases=["avatars", "test picture", "ground truth mask"],
            inputs=[
                io.Int.Input("picture", default=0, min=0, max=PICTURES - 1,
                             tooltip=f"Number of the first picture, 0 to {PICTURES - 1}."),
                io.Int.Input("count", default=1, min=1, max=PICTURES,
                             tooltip="How many pictures to load as one batch; counting goes round after the last."),
                io.Combo.Input("part", options=list(pictures.PARTS),
                               tooltip="Which part the mask shows; 'face' is everything but the background."),
            ],
            outputs=[
                io.Image.Output(display_name="IMAGE", tooltip="Pictures of 128 x 128 pixels."),
                io.Mask.Output(display_name="MASK", tooltip="True mask of the chosen part in each picture."),
                io.String.Output(display_name="caption", tooltip="True caption of the first picture."),
            ],
        )

    @classmethod
    def execute(cls, picture: int, count: int, part: str) -> io.NodeOutput:
        images, mask, captions = pictures.load(assets.worlds()[0], picture, count, part)
        return io.NodeOutput(images, mask, captions[0])
