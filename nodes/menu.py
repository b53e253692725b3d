"""The nodes of the pack in menu order. Only ``comfy_entrypoint`` imports this."""

from __future__ import annotations

from comfy_api.latest import ComfyExtension, io

from .activations.nodes import ActivationCatalog, LayerActivationTap, SelectActivations
from .activations.recording.nodes import ActivationRecorder, ReadActivations
from .activations.saving.nodes import LoadActivations, SaveActivations
from .activations.views.nodes import ActivationCorrespondence, ActivationPicture, ActivationSimilarity
from .demo.nodes import DemoPicture, LoadDemoModel
from .noise.nodes import ImmiscibleLatentBatch, ImmiscibleNoise, NoiseGainPreview

NODES: list[type[io.ComfyNode]] = [
    LoadDemoModel,
    DemoPicture,
    ImmiscibleNoise,
    ImmiscibleLatentBatch,
    NoiseGainPreview,
    LayerActivationTap,
    ActivationCatalog,
    SelectActivations,
    ActivationRecorder,
    ReadActivations,
    ActivationPicture,
    ActivationSimilarity,
    ActivationCorrespondence,
    SaveActivations,
    LoadActivations,
]


class Glassbox(ComfyExtension):
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return NODES
