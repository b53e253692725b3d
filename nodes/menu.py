"""The nodes of the pack in menu order. Only ``comfy_entrypoint`` imports this."""

from __future__ import annotations

from comfy_api.latest import ComfyExtension, io

from .activations.measuring.nodes import ActivationQuality
from .activations.nodes import ActivationCatalog, SelectActivations, network_outline
from .activations.parts.nodes import ActivationClusters, ApplyFewShotSegmenter, TrainFewShotSegmenter
from .activations.recording.nodes import ActivationRecorder, ReadActivations
from .activations.saving.nodes import LoadActivations, SaveActivations
from .activations.tapping.nodes import LayerActivationTap
from .activations.views.nodes import ActivationCorrespondence, ActivationPicture, ActivationSimilarity
from .activations.wording.nodes import TokenHeatMap
from .conditioning.nodes import MetadataConditioning, MetadataGuider, MetadataReport, MetadataSchedule
from .conditioning.padding.nodes import NoisyReplicatePadding
from .conditioning.resolution.nodes import PositionalResample, ResolutionNoiseRescale
from .demo.nodes import DemoPicture, LoadDemoModel
from .host import kernel_setting, routes
from .neurons.baselines.nodes import AttentionScaling, EmbeddingAdjustment, MemorizationAudit, RandomTokens
from .neurons.detection.nodes import CalibrateThreshold, LayerAblation, MemorizationScore
from .neurons.masks.nodes import BakeNeuronMask, LoadNeuronMask, NeuronMaskEdit, NeuronReport, SaveNeuronMask
from .neurons.nodes import NemoLocalize, NemoNeuronMask
from .neurons.reference.nodes import LoadNeuronStatistics, NeuronStatistics
from .noise.nodes import ImmiscibleLatentBatch, ImmiscibleNoise, NoiseGainPreview
from .noise.training.nodes import TrainLoraImmiscible
from .weights.inverting.nodes import W2WInvert
from .weights.models.nodes import W2WApply, W2WStyleMerge, W2WToLoRA
from .weights.reporting.nodes import W2WReport
from .weights.sampling.nodes import W2WEdit, W2WMix, W2WProjectLoRA, W2WSample, W2WSweep
from .weights.spaces.nodes import (
    W2WBuildSpace,
    W2WFitDirections,
    W2WImportRelease,
    W2WLoadSpace,
    W2WSaveSpace,
    directions_of,
)

NODES: list[type[io.ComfyNode]] = [
    LoadDemoModel,
    DemoPicture,
    W2WLoadSpace,
    W2WSample,
    W2WEdit,
    W2WMix,
    W2WSweep,
    W2WProjectLoRA,
    W2WInvert,
    W2WApply,
    W2WToLoRA,
    W2WStyleMerge,
    W2WReport,
    W2WFitDirections,
    W2WBuildSpace,
    W2WSaveSpace,
    W2WImportRelease,
    ImmiscibleNoise,
    ImmiscibleLatentBatch,
    NoiseGainPreview,
    TrainLoraImmiscible,
    LayerActivationTap,
    ActivationCatalog,
    SelectActivations,
    ActivationRecorder,
    ReadActivations,
    ActivationPicture,
    ActivationSimilarity,
    ActivationCorrespondence,
    ActivationClusters,
    TrainFewShotSegmenter,
    ApplyFewShotSegmenter,
    TokenHeatMap,
    ActivationQuality,
    SaveActivations,
    LoadActivations,
    MetadataConditioning,
    MetadataSchedule,
    MetadataReport,
    MetadataGuider,
    ResolutionNoiseRescale,
    PositionalResample,
    NoisyReplicatePadding,
    MemorizationScore,
    CalibrateThreshold,
    NeuronStatistics,
    LoadNeuronStatistics,
    LayerAblation,
    NemoLocalize,
    NemoNeuronMask,
    NeuronMaskEdit,
    SaveNeuronMask,
    LoadNeuronMask,
    NeuronReport,
    BakeNeuronMask,
    AttentionScaling,
    EmbeddingAdjustment,
    RandomTokens,
    MemorizationAudit,
]

#: What the widgets in web/ ask for, by the last part of the address: `/glassbox/space?space_name=...`.
ROUTES: dict[str, routes.Answer] = {"space": directions_of, "network": network_outline}
#: What settings tell the server.
ORDERS: dict[str, routes.Answer] = {"kernels": kernel_setting.choose}


class Glassbox(ComfyExtension):
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        routes.serve(ROUTES)
        routes.serve(ORDERS, post=True)
        return NODES
