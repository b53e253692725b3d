"""The nodes of the pack in menu order. Only ``comfy_entrypoint`` imports this."""

from __future__ import annotations

from comfy_api.latest import ComfyExtension, io

from .activations import nodes_catalog
from .activations.nodes_activations_file import LoadActivations, SaveActivations
from .activations.nodes_catalog import ActivationCatalog, SelectActivations
from .activations.nodes_patching import ActivationPatching, ActivationPatchingMap
from .activations.nodes_quality import ActivationQuality
from .activations.nodes_record import ActivationRecorder, GetRecordedActivations
from .activations.nodes_scores import CompareActivations, ScoreActivations
from .activations.nodes_seed_scout import SeedScout
from .activations.nodes_segment import ActivationClusters, ApplyFewShotSegmenter, TrainFewShotSegmenter
from .activations.nodes_sparse_autoencoder import LoadSparseAutoencoder, SparseFeatures, SparseFeatureSteering
from .activations.nodes_steering import (
    ActivationSteering,
    LoadSteeringDirection,
    MixSteeringDirections,
    SaveSteeringDirection,
    SteeringDirectionFromActivations,
    SteeringDirectionFromPrompts,
)
from .activations.nodes_tap import LayerActivationTap
from .activations.nodes_token_heatmap import TokenHeatMap
from .activations.nodes_train_autoencoder import TrainSparseAutoencoder
from .activations.nodes_visualize import ActivationCorrespondence, ActivationSimilarity, ActivationVisualizer
from .conditioning.nodes_padding import NoisyReplicatePadding
from .conditioning.nodes_resolution import PositionalResample, ResolutionNoiseRescale
from .conditioning.nodes_size_metadata import MetadataConditioning, MetadataGuider, MetadataReport, MetadataSchedule
from .conditioning.nodes_size_sheet import SizeSheet
from .demo import architecture
from .demo.nodes_demo import DemoImage, LoadDemoModel
from .host import progress, routes
from .host.schema import with_checked_inputs
from .neurons.nodes_audit import MemorizationAudit
from .neurons.nodes_concept import ConceptNeurons
from .neurons.nodes_detection import CalibrateThreshold, LayerAblation, MemorizationScore, ScanReport
from .neurons.nodes_mask import BakeNeuronMask, LoadNeuronMask, NeuronMaskEdit, NeuronReport, SaveNeuronMask
from .neurons.nodes_mitigations import AdversarialUnlearning, AttentionScaling, EmbeddingAdjustment, RandomTokens
from .neurons.nodes_nemo import NemoLocalize, NemoNeuronMask
from .neurons.nodes_statistics import LoadNeuronStatistics, NeuronStatistics
from .noise.nodes_composition import CompositionNoise
from .noise.nodes_immiscible import ImmiscibleLatentBatch, ImmiscibleNoise, NoiseGainPreview
from .noise.nodes_train_lora import TrainLoraImmiscible
from .noise.nodes_training_tools import CompareTrainingRuns, ResizeToBuckets, TrainingFromScratch
from .weights.nodes_guidance import W2WGuidance, W2WGuider
from .weights.nodes_invert import W2WInvert
from .weights.nodes_labels import W2WFitDirections, W2WLabelMembers
from .weights.nodes_lora import W2WApply, W2WStyleMerge, W2WToLoRA
from .weights.nodes_points import W2WEdit, W2WMix, W2WProjectLoRA, W2WSample, W2WSweep
from .weights.nodes_space import (
    W2WBuildSpace,
    W2WImportRelease,
    W2WLoadSpace,
    W2WSaveSpace,
    directions_of,
)
from .weights.nodes_space_report import W2WReport, W2WSheet

NODES: list[type[io.ComfyNode]] = [
    LoadDemoModel,
    DemoImage,
    W2WLoadSpace,
    W2WSample,
    W2WEdit,
    W2WMix,
    W2WSweep,
    W2WSheet,
    W2WProjectLoRA,
    W2WInvert,
    W2WApply,
    W2WGuidance,
    W2WGuider,
    W2WToLoRA,
    W2WStyleMerge,
    W2WReport,
    W2WLabelMembers,
    W2WFitDirections,
    W2WBuildSpace,
    W2WSaveSpace,
    W2WImportRelease,
    SeedScout,
    CompositionNoise,
    ImmiscibleNoise,
    ImmiscibleLatentBatch,
    NoiseGainPreview,
    TrainLoraImmiscible,
    ResizeToBuckets,
    CompareTrainingRuns,
    TrainingFromScratch,
    LayerActivationTap,
    ActivationCatalog,
    SelectActivations,
    ActivationRecorder,
    GetRecordedActivations,
    ActivationVisualizer,
    ActivationSimilarity,
    ActivationCorrespondence,
    ActivationClusters,
    TrainFewShotSegmenter,
    ApplyFewShotSegmenter,
    TokenHeatMap,
    ActivationQuality,
    SaveActivations,
    LoadActivations,
    ActivationSteering,
    SteeringDirectionFromPrompts,
    SteeringDirectionFromActivations,
    MixSteeringDirections,
    SaveSteeringDirection,
    LoadSteeringDirection,
    TrainSparseAutoencoder,
    LoadSparseAutoencoder,
    SparseFeatures,
    SparseFeatureSteering,
    ActivationPatching,
    ActivationPatchingMap,
    CompareActivations,
    ScoreActivations,
    MetadataConditioning,
    MetadataSchedule,
    MetadataReport,
    MetadataGuider,
    SizeSheet,
    ResolutionNoiseRescale,
    PositionalResample,
    NoisyReplicatePadding,
    MemorizationScore,
    CalibrateThreshold,
    NeuronStatistics,
    LoadNeuronStatistics,
    LayerAblation,
    NemoLocalize,
    ConceptNeurons,
    NemoNeuronMask,
    NeuronMaskEdit,
    SaveNeuronMask,
    LoadNeuronMask,
    NeuronReport,
    ScanReport,
    BakeNeuronMask,
    AttentionScaling,
    EmbeddingAdjustment,
    RandomTokens,
    AdversarialUnlearning,
    MemorizationAudit,
]

#: These take a model to read it, to patch it, or to split a prompt.
_EVALUATE_NONE = {
    *(ActivationCatalog, CompareActivations, TokenHeatMap, CompositionNoise, ImmiscibleNoise, ImmiscibleLatentBatch),
    *(NoiseGainPreview, NeuronMaskEdit, BakeNeuronMask, W2WBuildSpace, ResolutionNoiseRescale),
}

for _node in NODES:
    with_checked_inputs(_node, evaluates=_node not in _EVALUATE_NONE)


def network_outline(kind: str, name: str) -> dict:
    """See `nodes_catalog.network_outline`; it knows the demo model too."""
    return nodes_catalog.network_outline(kind, name, {"demo": architecture.UNET})


#: What the widgets in web/ ask for, by the last part of the address: `/glassbox/space?space_name=...`.
ROUTES: dict[str, routes.Answer] = {"space": directions_of, "network": network_outline}
#: What settings and buttons send to the server.
ORDERS: dict[str, routes.Answer] = {"kernels": routes.choose, "finish": progress.finish}


class Glassbox(ComfyExtension):
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        routes.serve(ROUTES)
        routes.serve(ORDERS, post=True)
        routes.accept_old_names()
        return NODES
