"""The nodes of the pack in menu order: file by file, as each lists its own. Only
``comfy_entrypoint`` imports this.
"""

from __future__ import annotations

from comfy_api.latest import ComfyExtension, io

from .activations import (
    nodes_activations_file,
    nodes_catalog,
    nodes_patching,
    nodes_record,
    nodes_scores,
    nodes_seed_scout,
    nodes_segment,
    nodes_sparse_autoencoder,
    nodes_steering,
    nodes_tap,
    nodes_token_heatmap,
    nodes_train_autoencoder,
    nodes_visualize,
)
from .conditioning import (
    nodes_padding,
    nodes_resolution,
    nodes_seed_variety,
    nodes_size_metadata,
    nodes_size_sheet,
)
from .demo import architecture, nodes_demo
from .host import progress, routes
from .host.input_checks import with_checked_inputs
from .host.watched_files import with_watched_files
from .neurons import (
    nodes_audit,
    nodes_concept,
    nodes_detection,
    nodes_mask,
    nodes_mitigations,
    nodes_nemo,
    nodes_optimize_mask,
    nodes_report,
    nodes_statistics,
)
from .noise import (
    nodes_composition,
    nodes_flow_edit,
    nodes_image_to_noise,
    nodes_immiscible,
    nodes_train_lora,
    nodes_training_tools,
)
from .weights import (
    nodes_guidance,
    nodes_invert,
    nodes_labels,
    nodes_lora,
    nodes_points,
    nodes_sliders,
    nodes_space,
    nodes_space_report,
    nodes_train_slider,
    nodes_train_space,
)

_FILES = (
    nodes_demo,
    nodes_space,
    nodes_train_space,
    nodes_points,
    nodes_space_report,
    nodes_invert,
    nodes_lora,
    nodes_guidance,
    nodes_labels,
    nodes_train_slider,
    nodes_sliders,
    nodes_composition,
    nodes_flow_edit,
    nodes_image_to_noise,
    nodes_immiscible,
    nodes_train_lora,
    nodes_training_tools,
    nodes_tap,
    nodes_catalog,
    nodes_record,
    nodes_visualize,
    nodes_segment,
    nodes_token_heatmap,
    nodes_seed_scout,
    nodes_activations_file,
    nodes_steering,
    nodes_train_autoencoder,
    nodes_sparse_autoencoder,
    nodes_patching,
    nodes_scores,
    nodes_size_metadata,
    nodes_size_sheet,
    nodes_resolution,
    nodes_padding,
    nodes_seed_variety,
    nodes_detection,
    nodes_statistics,
    nodes_nemo,
    nodes_optimize_mask,
    nodes_concept,
    nodes_mask,
    nodes_report,
    nodes_mitigations,
    nodes_audit,
)
NODES: list[type[io.ComfyNode]] = [
    with_watched_files(with_checked_inputs(node)) for file in _FILES for node in file.NODES
]


def network_outline(kind: str, name: str) -> dict:
    """See `nodes_catalog.network_outline`; it knows the demo model too."""
    return nodes_catalog.network_outline(kind, name, {"demo": architecture.UNET})


#: What the widgets in web/ ask for, by the last part of the address:
#: `/glassbox/space?space_name=...`.
ROUTES: dict[str, routes.Answer] = {
    "space": nodes_space.directions_of,
    "network": network_outline,
    "sliders": nodes_sliders.sliders_of,
}
#: What settings and buttons send to the server.
ORDERS: dict[str, routes.Answer] = {"kernels": routes.choose, "finish": progress.finish}


class Glassbox(ComfyExtension):
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        routes.serve(ROUTES)
        routes.serve(ORDERS, post=True)
        routes.revalidate_modules()
        return NODES
