"""Activations on the canvas: list them, and choose among them."""

from __future__ import annotations

from comfy_api.latest import io

from ..host import blueprints
from ..host.schema import schema
from ..host.sockets import Activations
from . import listing, moments, outline, selection
from .catalog import catalog
from .features import Activations as Tapped
from .inputs import CATEGORY, IDS, PAPER, PRESET


class ActivationCatalog(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ActivationCatalog",
            display_name="Activation Catalog",
            category=CATEGORY,
            description="Every activation of the MODEL by its ID, with module, channels, side, and whether it is in "
            f"the paper's pool, filter and sets; as a table and as a drawn map of the network. {PAPER}.",
            search_aliases=["diffusion features", "list layers", "list blocks", "layer names", "network map"],
            inputs=[
                io.Model.Input(
                    "model",
                    tooltip="Model with a U-Net (SD1.5, SD2.1, SDXL, Playground v2, the demo model), or a transformer "
                    "of the kind of SD3, Flux, PixArt, Lumina or Wan.",
                ),
                io.Combo.Input(**PRESET),
                io.String.Input(**IDS),
                io.Int.Input(
                    "width",
                    default=1024,
                    min=64,
                    max=16384,
                    step=8,
                    tooltip="Picture width in pixels, for the sides in the table.",
                ),
                io.Int.Input(
                    "height",
                    default=1024,
                    min=64,
                    max=16384,
                    step=8,
                    tooltip="Picture height in pixels, for the sides in the table.",
                ),
            ],
            outputs=[
                io.Image.Output(
                    display_name="map",
                    tooltip="The network as a U, each activation a small box; the chosen ones stand out.",
                ),
                io.String.Output(
                    display_name="table", tooltip="One line an activation: ID, module, size, marks, published scores."
                ),
                io.String.Output(display_name="ids", tooltip="The chosen IDs, one a line, to paste into a tap's list."),
            ],
        )

    @classmethod
    def execute(cls, model, preset: str, ids: str, width: int, height: int) -> io.NodeOutput:
        entries = catalog(model.model.diffusion_model)
        chosen = {entry.id for entry in selection.select(entries, preset, ids)}
        factor = _pixels_a_latent(model)
        size = (height // factor, width // factor)
        names = "\n".join(entry.id for entry in entries if entry.id in chosen)
        return io.NodeOutput(
            listing.network_map(entries, chosen),
            listing.table(entries, chosen, size),
            names,
            ui={"glassbox_network": [outline.outline(entries)]},
        )


class SelectActivations(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_SelectActivations",
            display_name="Select Activations",
            category=CATEGORY,
            description=f"Some of the tapped activations, by ID or wildcard, and some of their pictures. {PAPER}.",
            search_aliases=["diffusion features", "filter features"],
            inputs=[
                Activations.Input("activations", tooltip="Tapped, recorded or loaded activations."),
                io.String.Input(
                    "ids", default="*", multiline=True, tooltip="IDs or wildcards apart by commas or lines; * is all."
                ),
                io.String.Input(
                    "pictures", default="all", tooltip="Numbers of the pictures, from 0: all, or such as 0, 2-4, last."
                ),
                io.Combo.Input(
                    "rows",
                    options=["all", "conditional", "unconditional"],
                    tooltip="Which rows of a recording to keep; a tap has conditional ones alone.",
                ),
            ],
            outputs=[
                Activations.Output(display_name="activations", tooltip="What is left, in forward order."),
                io.String.Output(display_name="report", tooltip="One line an activation: ID, shape, type."),
            ],
        )

    @classmethod
    def execute(cls, activations: Tapped, ids: str, pictures: str, rows: str) -> io.NodeOutput:
        choose, count = moments.chooser(pictures), max(row.image for row in activations.rows) + 1
        kept = [
            index
            for index, row in enumerate(activations.rows)
            if choose(row.image, count) and rows in ("all", "conditional" if row.conditional else "unconditional")
        ]
        if not kept:
            raise ValueError(
                f"No row is left: there are pictures 0 to {count - 1}, and '{pictures}' with {rows} rows chooses none."
            )
        chosen = activations.chosen(selection.match_ids(list(activations.tensors), ids)).only_rows(kept)
        return io.NodeOutput(chosen, chosen.report())


def network_outline(kind: str, name: str) -> dict:
    """For the canvas: the catalog of an architecture or of a file's network, before anything has run."""
    return outline.outline(catalog(blueprints.network(kind, name)))


def _pixels_a_latent(model) -> int:
    return getattr(model.get_model_object("latent_format"), "spacial_downscale_ratio", 8)
