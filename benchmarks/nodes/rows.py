"""Rows of the table of costs: a node's own work at the shapes of SD1.5 and SDXL, and the obvious
way to do it.
"""

from __future__ import annotations

from functools import partial
from unittest import mock

import torch
from torch.nn import functional as F

from ..activations.matching import enlarged_first
from . import rows_of_models
from .sizes import COUNTED, Row, Size, drawn, image, module

_ID = "up-level1-repeat1-out"
_LAYER = "mid_block.attentions.0.transformer_blocks.0.attn1.to_q"
_WEIGHT = "diffusion_model.middle_block.1.transformer_blocks.0.attn1.to_q.weight"


def _feature(size: Size, rows: int = 1, seed: int = 0) -> torch.Tensor:
    return drawn(rows, size.channels, size.side, size.side, seed=seed)


def _tapped(feature: torch.Tensor):
    """Activations of one ID, a row for each image."""
    activations = module("activations.activations")
    rows = tuple(activations.Row(number) for number in range(len(feature)))
    return activations.Activations({_ID: feature}, rows, 1.0, 50.0)


def _colors(size: Size) -> dict[str, tuple]:
    from sklearn.decomposition import PCA

    feature = _feature(size, 2)
    node = module("activations.nodes_visualize").ActivationVisualizer
    options = {"mode": "pca_rgb", "joint_fit": True, "channel": 0, "size": 512}

    def rival(one: torch.Tensor):
        return PCA(3, svd_solver="full").fit_transform(one.movedim(1, -1).flatten(0, 2).numpy())

    return {
        "ours": (partial(node.execute, _tapped(feature), **options),),
        "rival": (rival, feature),
    }


def _similarity(size: Size) -> dict[str, tuple]:
    feature = _feature(size)
    side = size.pixels // 2
    node = module("activations.nodes_visualize").ActivationSimilarity
    options = {"image_index": 0, "points": "20%, 30%\n50%, 50%\n70%, 60%", "opacity": 0.65}
    references = drawn(3, size.channels, seed=1)

    def rival(one: torch.Tensor, points: torch.Tensor):
        resized = F.interpolate(one, size=(side, side), mode="bilinear")
        return torch.stack(
            [F.cosine_similarity(resized, point[None, :, None, None]) for point in points]
        ).amax(0)

    return {
        "ours": (partial(node.execute, _tapped(feature), image(side), **options),),
        "rival": (rival, feature, references),
    }


def _correspondence(size: Size) -> dict[str, tuple]:
    source, target = _feature(size, 2)
    side = size.pixels // 2
    points = torch.rand(10, 2, generator=torch.Generator().manual_seed(1)) * (side - 1)
    node = module("activations.nodes_visualize").ActivationCorrespondence
    pixels = image(side)
    images = {"source_image": pixels, "target_image": pixels, "image_index": 0}
    text = "\n".join(f"{x}, {y}" for x, y in points.tolist())
    options = {"points": text, "resolution": side, "mutual": False}

    def ours():
        return node.execute(
            source=_tapped(source[None]), target=_tapped(target[None]), **images, **options
        )

    return {"ours": (ours,), "rival": (enlarged_first, source, target, points, side)}


def _clusters(size: Size) -> dict[str, tuple]:
    from sklearn.cluster import KMeans

    feature = _feature(size)
    segment = module("activations.nodes_segment")
    options = {"clusters": 6, "seed": 0, "opacity": 0.65}
    ours = partial(
        segment.ActivationClusters.execute, _tapped(feature), image(size.pixels), **options
    )

    def in_this_thread():
        with mock.patch.object(segment, "interruptible", lambda work: work()):
            return ours()

    def rival(one: torch.Tensor):
        points = F.normalize(one, dim=1).movedim(1, -1).flatten(0, 2).numpy()
        return KMeans(6, n_init=4, max_iter=50, random_state=0).fit(points).labels_

    return {"ours": (ours,), "rival": (rival, feature), COUNTED: (in_this_thread,)}


def _few_shot(size: Size) -> dict[str, tuple]:
    few_shot = module("activations.few_shot")
    members = module("activations.pixel_classifier").initial(size.channels, 4, 0)
    segmenter = few_shot.Segmenter(members, {_ID: size.channels}, 128, ("x", "y", "z"))
    tapped = _tapped(_feature(size))
    node = module("activations.nodes_segment").ApplyFewShotSegmenter

    def rival(one):
        table, found = few_shot.PixelFeatures(one, 128), []
        for pixels in torch.arange(table.count).split(4096):
            found.append(members.probabilities(table(pixels)).argmax(-1).mode(0).values)
        return torch.cat(found)

    ours = partial(node.execute, segmenter, tapped, image(128), opacity=0.65)
    return {"ours": (ours,), "rival": (rival, tapped)}


def _autoencoder(size: Size):
    given = {
        "encoder": drawn(5120, size.channels) / size.channels**0.5,
        "decoder": F.normalize(drawn(5120, size.channels, seed=1), dim=1),
        "pre_bias": torch.zeros(size.channels),
        "latent_bias": torch.zeros(5120),
        "usual": torch.ones(5120),
    }
    return module("activations.sparse_autoencoder").SparseAutoencoder(_ID, 10, **given)


def _sparse(size: Size) -> dict[str, tuple]:
    autoencoder, feature = _autoencoder(size), _feature(size)
    node = module("activations.nodes_sparse_autoencoder").SparseFeatures
    options = {"image_index": 0, "count": 6, "top_images": 4, "opacity": 0.65}

    def rival(one: torch.Tensor):
        points = one.movedim(1, -1).flatten(0, 2)
        values = (points - autoencoder.pre_bias) @ autoencoder.encoder.T + autoencoder.latent_bias
        top = values.topk(10, dim=1)
        dense = torch.zeros_like(values).scatter_(1, top.indices, top.values.relu())
        strongest = dense.mean(0).topk(6).indices
        maps = dense[:, strongest].T.unflatten(1, (size.side, size.side))
        return F.interpolate(maps[None], size=(size.pixels,) * 2, mode="bilinear")

    ours = partial(node.execute, autoencoder, _tapped(feature), image(size.pixels), **options)
    return {"ours": (ours,), "rival": (rival, feature)}


def _apply(size: Size) -> dict[str, tuple]:
    """The patched MODEL of the node, and the weight as one evaluation in the interval has it."""
    import comfy.lora
    from comfy.patcher_extension import WrappersMP
    from comfy.weight_adapter.lora import LoRAAdapter

    width, rank = 1280, 16
    model = _model_without_memory(size.architecture)
    point = _point_of_one_layer(width, rank)
    weight = drawn(width, width).half()
    factors = point.layers()[_LAYER]
    adapter = LoRAAdapter({"a"}, (factors.up, factors.down, float(rank), None, None, None))
    noise_level = model.get_model_object("model_sampling").percent_to_sigma(0.5)
    options = {"sigmas": torch.tensor([noise_level])}
    node = module("weights.nodes_lora").W2WApply

    def ours():
        applied = node.execute(model, point, 0.7, start_percent=0.3, end_percent=1.0)
        patched = applied.result[0]
        ((change,),) = patched.weight_wrapper_patches.values()
        (wrapper,) = patched.get_all_wrappers(WrappersMP.APPLY_MODEL)
        return wrapper(
            lambda x, _t, **_options: change(x),
            weight,
            options["sigmas"],
            transformer_options=options,
        )

    def rival():
        patched = model.clone()
        (key,) = patched.add_patches({_WEIGHT: adapter}, 0.7)
        return comfy.lora.calculate_weight(patched.patches[key], weight.clone(), key)

    return {"ours": (ours,), "rival": (rival,)}


def _model_without_memory(architecture: str):
    """A MODEL with a network's layers in true shapes, without memory, and its noise levels."""
    import comfy.model_base
    import comfy.model_patcher
    import comfy.supported_models

    network = dict(module("activations.meta_networks_comfy").ARCHITECTURES[architecture])
    kinds = {"sd15": comfy.supported_models.SD15, "sdxl": comfy.supported_models.SDXL}
    config = kinds[architecture](network)
    config.set_inference_dtype(torch.float16, None)
    with torch.device("meta"):
        model = config.get_model({}, device="meta")
    cpu = torch.device("cpu")
    patcher = comfy.model_patcher.ModelPatcher(model, cpu, cpu)
    sampling = comfy.model_base.model_sampling(config, comfy.model_base.ModelType.EPS)
    patcher.add_object_patch("model_sampling", sampling)
    return patcher


def _point_of_one_layer(width: int, rank: int):
    """A point of a space of eight random components that change one square weight."""
    layouts, spaces = module("weights.flat_layout"), module("weights.space")
    layout = layouts.Layout.of({_LAYER: ((rank, width), (width, rank))}, rank, float(rank))
    space = spaces.Space(
        layout=layout,
        mean=0.1 * drawn(layout.size),
        deviation=torch.ones(layout.size),
        basis=0.1 * drawn(8, layout.size, seed=1),
        coefficients=drawn(2, 8, seed=2),
        members=("a", "b"),
        singular_values=torch.ones(2),
    )
    return spaces.Point(space, space.coefficients[0])


def _mix(size: Size) -> dict[str, tuple]:
    from ..weights.moving import made_up_space

    space = made_up_space(200)
    first, second = (module("weights.space").Point(space, one) for one in space.coefficients)
    node = module("weights.nodes_points").W2WMix
    options = {"start_fraction": 0.5, "end_fraction": 0.5, "count": 1}
    return {
        "ours": (lambda: node.execute(first, second, **options).result[0][0].flat,),
        "rival": (lambda: torch.lerp(first.flat, second.flat, 0.5),),
    }


def _assignment(size: Size) -> dict[str, tuple]:
    from scipy.optimize import linear_sum_assignment

    latent = {"samples": drawn(16, 4, size.latent, size.latent)}
    noise = module("noise.noise_objects_comfy").SeededNoise(0)
    node = module("noise.nodes_immiscible").ImmiscibleNoise

    def rival(latents: torch.Tensor):
        drawn = noise.generate_noise(latent).flatten(1)
        return linear_sum_assignment(torch.cdist(latents, drawn).numpy())

    return {
        "ours": (partial(node.execute, noise, latent, pairing="assign"),),
        "rival": (rival, latent["samples"].flatten(1)),
    }


def _composition(size: Size) -> dict[str, tuple]:
    noise, guide = (drawn(1, 4, size.latent, size.latent, seed=seed) for seed in range(2))
    node = module("noise.nodes_composition").CompositionNoise
    options = {"seed": 0, "strength": 0.7, "cutoff": 4.0, "low_cutoff": 0.0}
    latents = {"latent": {"samples": torch.zeros_like(guide)}, "guide": {"samples": guide}}

    def rival(a: torch.Tensor, b: torch.Tensor):
        frequencies = torch.fft.fftfreq(size.latent) * size.latent
        low = (frequencies[:, None].abs() < 4) & (frequencies[None].abs() < 4)
        return torch.fft.ifft2(torch.where(low, torch.fft.fft2(b), torch.fft.fft2(a))).real

    return {
        "ours": (partial(node.execute, **latents, **options),),
        "rival": (rival, noise, guide),
    }


ROWS = (
    Row("ActivationPicture", "colors of two images, 640 channels", "scikit-learn's PCA", _colors),
    Row(
        "ActivationSimilarity",
        "three references, at half the image's size",
        "channels enlarged first",
        _similarity,
    ),
    Row(
        "ActivationCorrespondence",
        "ten points, at half the image's size",
        "channels enlarged first",
        _correspondence,
    ),
    Row("ActivationClusters", "six clusters of one image", "scikit-learn's KMeans", _clusters),
    Row(
        "FewShotSegmenter",
        "one image, 128 x 128 pixels, ten networks",
        "pixels interpolated first",
        _few_shot,
    ),
    Row(
        "SparseFeatures",
        "5,120 features, 10 active, all positions",
        "all features, densely",
        _sparse,
    ),
    Row(
        "W2WApply",
        "one 1280 x 1280 weight, rank 16, in an interval",
        "stock's LoRA patch",
        _apply,
    ),
    Row("W2WMix", "two points of 200 components to weights", "interpolated weights", _mix),
    Row("ImmiscibleNoise", "16 latents and noise samples", "cdist and SciPy", _assignment),
    Row(
        "CompositionNoise",
        "one latent, four cycles",
        "low frequencies swapped by FFT",
        _composition,
    ),
    *rows_of_models.ROWS,
)

#: Nodes without a row, by what their cost is.
WITHOUT_ROW = {
    "evaluations of the network and what the rows above say": """
        ActivationPatching AdversarialUnlearning CalibrateThreshold ConceptNeurons
        EditByWords EmbeddingAdjustment FlowEdit ImageToNoise OptimizeNeuronMask
        MemorizationAudit NemoLocalize PatchingMap PromptSteeringDirection SeedScout
        SizeSheet W2WLabelMembers AttentionScaling""",
    "a benchmark of its own: activations": (
        "ActivationRecorder LayerActivationTap SparseFeatureSteering"
    ),
    "a benchmark of its own: weights": """
        TrainSlider W2WBuildSpace W2WEdit W2WGuidance W2WGuider W2WInvert W2WSweep W2WTrainSpace""",
    "a benchmark of its own: noise": (
        "ImmiscibleLatentBatch TrainLoraImmiscible TrainingFromScratch"
    ),
    "training of small networks, whose steps are scikit-learn's or PyTorch's": (
        "TrainFewShotSegmenter W2WFitDirections"
    ),
    "files": """
        ActivationCatalog LoadActivations LoadDemoModel LoadNeuronMask
        LoadSparseAutoencoder LoadSteeringDirection SaveActivations SaveNeuronMask
        SaveSteeringDirection W2WLoadSpace W2WSaveSpace W2WToLoRA""",
    "text, tables and figures": """
        CompareTrainingRuns MemorizationReport MetadataReport
        ScoreActivations W2WReport W2WSheet""",
    "a few small products or a choice": """
        BakeNeuronMask DemoPicture MetadataConditioning MetadataSchedule MixSteeringDirections
        NeuronMaskEdit PositionalResample RandomTokens ReadActivations ResizeToBuckets SeedVariety
        SelectActivations Sliders SteeringDirection W2WProjectLoRA W2WSample W2WStyleMerge""",
}
