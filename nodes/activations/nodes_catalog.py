"""List the activations of a model, and select among tapped ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from comfy_api.latest import io

from ..host.latent_shapes import pixels_a_position
from ..host.schema import int_input, schema
from ..host.sockets import Activations as ActivationsSocket
from . import select_ids
from .activations import Activations
from .tap_inputs import IDS, MEASURE, PAPER, PRESET, RESEARCH, Rows

if TYPE_CHECKING:
    from ..host.socket_types import ModelPatcher


class ActivationCatalog(io.ComfyNode):
    EVALUATES = False

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ActivationCatalog",
            display_name="Activation Catalog",
            category=RESEARCH,
            description=(
                "Lists every activation of the MODEL by ID, with its module, channels and size, "
                "and its membership in the paper's pool, filter and sets. Also draws a map of "
                f"the network. {PAPER}."
            ),
            search_aliases=[
                "diffusion features",
                "list layers",
                "list blocks",
                "layer names",
                "network map",
            ],
            inputs=[
                io.Model.Input(
                    "model",
                    tooltip=(
                        "Model with a U-Net (SD1.5, SD2.1, SDXL, Playground v2, the demo model), "
                        "or a transformer such as Flux, SD3, Qwen-Image, HunyuanDiT, PixArt, "
                        "Lumina, HiDream, LTXV or Wan."
                    ),
                ),
                io.Combo.Input(**PRESET),
                io.String.Input(**IDS),
                int_input("width", 1024, (64, 16384, 8), "Image width in pixels, for the report."),
                int_input(
                    "height", 1024, (64, 16384, 8), "Image height in pixels, for the report."
                ),
            ],
            outputs=[
                io.Image.Output(
                    display_name="figure",
                    tooltip=(
                        "The network as a U with one small box per activation; selected ones are "
                        "highlighted."
                    ),
                ),
                io.String.Output(
                    display_name="report",
                    tooltip="One line per activation: ID, module, size, marks, published scores.",
                ),
                io.String.Output(
                    display_name="ids",
                    tooltip="The selected IDs, one per line, for a tap with preset custom_ids.",
                ),
            ],
        )

    @classmethod
    def execute(
        cls, model: ModelPatcher, preset: str, ids: str, width: int, height: int
    ) -> io.NodeOutput:
        from . import catalog_table
        from .catalog_unet import catalog

        specs = catalog(model.model.diffusion_model)
        selected = {spec.id for spec in select_ids.select(specs, preset, ids)}
        factor = pixels_a_position(model)
        return io.NodeOutput(
            catalog_table.network_map(specs, selected),
            catalog_table.table(specs, selected, (height // factor, width // factor)),
            "\n".join(spec.id for spec in specs if spec.id in selected),
            ui={"glassbox_network": [catalog_table.outline(specs)]},
        )


class SelectActivations(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_SelectActivations",
            display_name="Select Activations",
            category=MEASURE,
            description="Selects activations by ID or wildcard, and images and rows by number. "
            f"{PAPER}.",
            search_aliases=[
                "diffusion features",
                "filter features",
                "pick layers",
                "subset of activations",
                "choose IDs",
            ],
            inputs=[
                ActivationsSocket.Input(
                    "activations", tooltip="Tapped, recorded or loaded activations."
                ),
                io.String.Input(
                    "ids",
                    default="*",
                    multiline=True,
                    tooltip="IDs or wildcards, separated by commas or line breaks. * selects all.",
                ),
                io.String.Input(
                    "image_indices",
                    default="all",
                    tooltip="Image numbers from 0: all, or e.g. 0, 2-4, last.",
                ),
                io.Combo.Input(
                    "rows",
                    options=[Rows.BOTH.value, Rows.CONDITIONAL.value, Rows.UNCONDITIONAL.value],
                    tooltip="Rows of a recording to keep. A tap has conditional rows only.",
                ),
            ],
            outputs=[
                ActivationsSocket.Output(
                    display_name="activations",
                    tooltip=("The selected activations, in forward order."),
                ),
                io.String.Output(
                    display_name="report", tooltip="One line per activation: ID, shape, type."
                ),
            ],
        )

    @classmethod
    def execute(
        cls, activations: Activations, ids: str, image_indices: str, rows: str
    ) -> io.NodeOutput:
        selects = select_ids.parse_steps(image_indices)
        count = max(row.image for row in activations.rows) + 1
        kept = [
            index
            for index, row in enumerate(activations.rows)
            if selects(row.image, count)
            and rows in (Rows.BOTH, Rows.CONDITIONAL if row.conditional else Rows.UNCONDITIONAL)
        ]
        if not kept:
            raise ValueError(
                f"No row is left: there are images 0 to {count - 1}, and {image_indices!r} with "
                f"rows '{rows}' selects none."
            )
        selected = activations.select(
            select_ids.match_ids(list(activations.tensors), ids)
        ).select_rows(kept)
        return io.NodeOutput(selected, selected.report())


def network_outline(kind: str, name: str, further: Mapping[str, dict]) -> dict:
    """For the canvas: the catalog of an architecture or of a file's network, before anything has
    run.

    See `meta_networks.network` for the arguments.
    """
    from . import catalog_table, meta_networks_comfy
    from .catalog_unet import catalog

    return catalog_table.outline(catalog(meta_networks_comfy.network(kind, name, further)))


NODES = [ActivationCatalog, SelectActivations]
