"""Rows of the table of costs: a node's own work at the shapes of SD1.5 and SDXL, and the obvious way to do it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional as F

from studies.common import host

from ..activations.matching import enlarged_first


@dataclass(frozen=True)
class Size:
    """A network at an image's size: sides of the latent and of the recommended activations, channels of the latter."""

    name: str
    architecture: str
    latent: int
    side: int
    channels: int
    pixels: int
    heads: tuple[tuple[int, int, int], ...]  # of its cross-attention: layers, side, heads
    width: int  # of a token


SIZES = (
    Size("SD1.5", "sd15", 64, 32, 640, 512, ((5, 64, 8), (5, 32, 8), (5, 16, 8), (1, 8, 8)), 768),
    Size("SDXL", "sdxl", 128, 64, 640, 1024, ((10, 64, 10), (60, 32, 20)), 2048),
)


@dataclass(frozen=True)
class Row:
    """``make`` gives the work and the rival at a size, each a function and its tensors."""

    node: str
    work: str
    rival: str
    make: Callable[[Size], dict[str, tuple]]


def _module(name: str):
    return host.pack(f"nodes.{name}")


def _drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _feature(size: Size, rows: int = 1, seed: int = 0) -> torch.Tensor:
    return _drawn(rows, size.channels, size.side, size.side, seed=seed)


def _colors(size: Size) -> dict[str, tuple]:
    from sklearn.decomposition import PCA

    feature = _feature(size, 2)

    def rival(one: torch.Tensor):
        return PCA(3, svd_solver="full").fit_transform(one.movedim(1, -1).flatten(0, 2).numpy())

    return {"ours": (_module("activations.pca").pca_colors, feature), "rival": (rival, feature)}


def _similarity(size: Size) -> dict[str, tuple]:
    feature, references = _feature(size), _drawn(3, size.channels, seed=1)

    def resized(values: torch.Tensor) -> torch.Tensor:
        return F.interpolate(values, size=(size.pixels // 2,) * 2, mode="bilinear")

    def ours(one: torch.Tensor, points: torch.Tensor):
        return resized(_module("activations.correspondence").similarity(one, points)[:, None])

    def rival(one: torch.Tensor, points: torch.Tensor):
        return torch.stack([F.cosine_similarity(resized(one), point[None, :, None, None]) for point in points]).amax(0)

    return {"ours": (ours, feature, references), "rival": (rival, feature, references)}


def _correspondence(size: Size) -> dict[str, tuple]:
    source, target = _feature(size, 2)
    points = torch.rand(10, 2, generator=torch.Generator().manual_seed(1)) * (size.pixels // 2 - 1)
    given = source, target, points, size.pixels // 2
    return {"ours": (_module("activations.correspondence").nearest_points, *given), "rival": (enlarged_first, *given)}


def _clusters(size: Size) -> dict[str, tuple]:
    from sklearn.cluster import KMeans

    feature = _feature(size)

    def rival(one: torch.Tensor):
        points = F.normalize(one, dim=1).movedim(1, -1).flatten(0, 2).numpy()
        return KMeans(6, n_init=4, max_iter=50, random_state=0).fit(points).labels_

    return {"ours": (_module("activations.kmeans").cluster, feature, 6, 0), "rival": (rival, feature)}


def _few_shot(size: Size) -> dict[str, tuple]:
    few_shot, activations = _module("activations.few_shot"), _module("activations.activations")
    members = _module("activations.pixel_classifier").initial(size.channels, 4, 0)
    segmenter = few_shot.Segmenter(members, {"a": size.channels}, 128, ("x", "y", "z"))
    tapped = activations.Activations({"a": _feature(size)}, (activations.Row(0),), 1.0, 50.0)

    def rival(one):
        table, found = few_shot.PixelFeatures(one, 128), []
        for pixels in torch.arange(table.count).split(4096):
            found.append(members.probabilities(table(pixels)).argmax(-1).mode(0).values)
        return torch.cat(found)

    return {"ours": (few_shot.segment, segmenter, tapped), "rival": (rival, tapped)}


def _heat_map(size: Size) -> dict[str, tuple]:
    maps, sizes = {}, {}
    for layers, side, heads in size.heads:
        for layer in range(layers):
            id_ = f"{side} {layer}"
            maps[id_], sizes[id_] = torch.rand(1, heads, side * side, 77).half(), (side, side)
    heat, largest = _module("activations.token_heatmap"), max(side for _, side, _ in size.heads)

    def rival():
        total = torch.zeros(largest, largest)
        for id_, each in maps.items():
            for head in each[0].float():  # all tokens, one head at a time, as DAAM does
                one = head.T.unflatten(1, sizes[id_])[None]
                total += F.interpolate(one, size=(largest, largest), mode="bicubic").clamp_min(0)[0, 5]
        return total

    return {"ours": (heat.daam_heat_map, maps, sizes, [5], 77), "rival": (rival,)}


def _steering(size: Size) -> dict[str, tuple]:
    steering, specs = _module("activations.steering"), _module("activations.activation_spec")
    catalog = _module("activations.catalog_unet").catalog
    network = _module("activations.meta_networks_comfy").network("architecture", size.architecture)
    spec = next(one for one in catalog(network) if one.id == "up-level1-repeat0-res-out")
    assert isinstance(spec, specs.ActivationSpec)
    feature, vector = _drawn(1, spec.channels, size.side, size.side).half(), _drawn(spec.channels, seed=1)
    direction = steering.SteeringDirection({spec.id: vector}, "")
    edit = steering.steer(direction, steering.SteeringSettings(2.0))
    added = 2.0 * vector.half()[:, None, None]
    return {"ours": (edit, spec, None, feature, 1), "rival": (torch.add, feature, added)}


def _autoencoder(size: Size):
    given = {
        "encoder": _drawn(5120, size.channels) / size.channels**0.5,
        "decoder": F.normalize(_drawn(5120, size.channels, seed=1), dim=1),
        "pre_bias": torch.zeros(size.channels),
        "latent_bias": torch.zeros(5120),
        "usual": torch.ones(5120),
    }
    return _module("activations.sparse_autoencoder").SparseAutoencoder("a", 10, **given)


def _sparse(size: Size) -> dict[str, tuple]:
    autoencoder, points = _autoencoder(size), _drawn(size.side**2, size.channels, seed=2)

    def rival(x: torch.Tensor):
        values = (x - autoencoder.pre_bias) @ autoencoder.encoder.T + autoencoder.latent_bias
        top = values.topk(10, dim=1)
        return torch.zeros_like(values).scatter_(1, top.indices, top.values.relu()) @ autoencoder.decoder

    return {"ours": (autoencoder.reconstruct, points), "rival": (rival, points)}


def _train_sparse(size: Size) -> dict[str, tuple]:
    training, points = _module("activations.autoencoder_training"), _drawn(1024, size.channels)
    with torch.inference_mode(False):
        trainer = training.Trainer.start(training.TrainingSettings(5120, 10, 1e-4, 10_000, 0), points.clone())
        weights = [torch.nn.Parameter(0.02 * torch.randn(5120, size.channels)) for _ in range(2)]
        optimizer = torch.optim.Adam(weights, 1e-4)

    def within(work: Callable[[], object]):
        with torch.inference_mode(False), torch.enable_grad():
            return work()

    def dense():
        x = points.clone()
        values = x @ weights[0].T
        top = values.topk(10, dim=1)
        features = torch.zeros_like(values).scatter(1, top.indices, top.values.relu())
        (features @ weights[1] - x).square().sum(1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return {"ours": (within, lambda: trainer.step(points.clone())), "rival": (within, dense)}


def _lora_change(size: Size) -> dict[str, tuple]:
    from comfy.weight_adapter.lora import LoRAAdapter

    width = 1280
    weight, up, down = _drawn(width, width).half(), _drawn(width, 16, seed=1).half(), _drawn(16, width, seed=2).half()
    adapter = LoRAAdapter({"a"}, (up, down, 16.0, None, None, None))
    given = (weight, "a", 0.7, 1.0, None, lambda value: value)

    def rival():
        return adapter.calculate_weight(given[0].clone(), *given[1:])

    return {"ours": (host.pack("kernels").low_rank_apply, weight, up, down, 0.7), "rival": (rival,)}


def _mix(size: Size) -> dict[str, tuple]:
    from ..weights.moving import made_up_space

    space = made_up_space(200)
    points, spaces = _module("weights.points"), _module("weights.space")
    first, second = (spaces.Point(space, one) for one in space.coefficients)
    return {
        "ours": (lambda: points.mix(first, second, 0.5, 0.5, 1)[0].flat,),
        "rival": (lambda: torch.lerp(first.flat, second.flat, 0.5),),
    }


def _assignment(size: Size) -> dict[str, tuple]:
    from scipy.optimize import linear_sum_assignment

    data, noise = (_drawn(16, 4 * size.latent**2, seed=seed) for seed in range(2))

    def rival(a: torch.Tensor, b: torch.Tensor):
        return linear_sum_assignment(torch.cdist(a, b).numpy())

    return {"ours": (_module("noise.assignment").assign, data, noise), "rival": (rival, data, noise)}


def _composition(size: Size) -> dict[str, tuple]:
    composition = _module("noise.composition")
    noise, guide = (_drawn(1, 4, size.latent, size.latent, seed=seed) for seed in range(2))
    settings = composition.CompositionSettings(0.7, 4.0)

    def rival(a: torch.Tensor, b: torch.Tensor):
        frequencies = torch.fft.fftfreq(size.latent) * size.latent
        low = (frequencies[:, None].abs() < 4) & (frequencies[None].abs() < 4)
        return torch.fft.ifft2(torch.where(low, torch.fft.fft2(b), torch.fft.fft2(a))).real

    return {"ours": (composition.compose_noise, settings, noise, guide), "rival": (rival, noise, guide)}


def _score(size: Size) -> dict[str, tuple]:
    module, differences = _module("neurons.memorization_score"), _drawn(10, 4, size.latent, size.latent)

    def rival(each: torch.Tensor):
        pairs = [(i, j) for i in range(10) for j in range(i)]
        return [module.similarity(each[i, None], each[j, None]) for i, j in pairs]

    return {"ours": (module.pairwise_similarity, differences), "rival": (rival, differences)}


def _statistics(size: Size) -> dict[str, tuple]:
    values = _drawn(64, 77, size.channels)

    def rival(each: torch.Tensor):
        means = each.double().abs().mean(1)
        return means.mean(0), means.var(0), means.amin(0), means.amax(0), each.abs().amax((0, 1))

    return {"ours": (_module("neurons.neuron_statistics").moments, values), "rival": (rival, values)}


def _scaled(size: Size) -> dict[str, tuple]:
    """Value projections of two prompts: outputs are scaled, or stock's linear layer runs on scaled weights."""
    layers = [(2, 77, 320)] * 5 + [(2, 77, 640)] * 5 + [(2, 77, 1280)] * 6
    outputs = [_drawn(*shape).half() for shape in layers]
    factors = [torch.rand(shape[-1]).half() for shape in layers]
    weights = [_drawn(shape[-1], size.width).half() for shape in layers]

    def ours():
        return [output * factor for output, factor in zip(outputs, factors, strict=True)]

    def rival():
        return [weight * factor[:, None] for weight, factor in zip(weights, factors, strict=True)]

    return {"ours": (ours,), "rival": (rival,)}


def _guided(size: Size) -> dict[str, tuple]:
    negative, reference, requested = (_drawn(1, 4, size.latent, size.latent, seed=seed) for seed in range(3))
    guided = _module("conditioning.size_metadata").guided_by_metadata

    def ours():
        return negative + 7.0 * (guided(requested, reference, 2.0) - negative)

    return {"ours": (ours,), "rival": (lambda: negative + 7.0 * (requested - negative),)}


def _padding(size: Size) -> dict[str, tuple]:
    padding, embedding = _module("conditioning.replicate_padding"), _drawn(1, 77, size.width)
    chunk = padding.PromptChunk("clip", slice(0, 77), slice(0, size.width), 9)
    settings = padding.PaddingSettings(padding.Padding.NOISY_COPIES, 0.02, True)
    return {
        "ours": (padding.replace_padding, embedding, [chunk], settings, 0),
        "rival": (lambda: embedding + 0.02 * torch.randn_like(embedding),),
    }


def _sigmas(size: Size) -> dict[str, tuple]:
    sigmas = torch.linspace(14.6, 0.03, 31)
    law = partial(_module("conditioning.noise_rescale").scaled_sigma, 2.0)
    return {"ours": (law, sigmas), "rival": (torch.mul, sigmas, 2.0)}


ROWS = (
    Row("ActivationPicture", "colors of two images, 640 channels", "scikit-learn's PCA", _colors),
    Row("ActivationSimilarity", "three references, at half the image's size", "channels enlarged first", _similarity),
    Row("ActivationCorrespondence", "ten points, at half the image's size", "channels enlarged first", _correspondence),
    Row("ActivationClusters", "six clusters of one image", "scikit-learn's KMeans", _clusters),
    Row("FewShotSegmenter", "one image, 128 x 128 pixels, ten networks", "pixels interpolated first", _few_shot),
    Row("TokenHeatMap", "one word, all cross-attention layers", "all tokens, head by head", _heat_map),
    Row("ActivationSteering", "one ID, one row, each evaluation", "a hook that adds a vector", _steering),
    Row("SparseFeatures", "5,120 features, 10 active, all positions", "dense decoder", _sparse),
    Row("TrainSparseAutoencoder", "a step of 1,024 positions", "autograd, dense decoder", _train_sparse),
    Row("W2WApply", "one 1280 x 1280 weight, rank 16, in an interval", "stock's LoRA patch", _lora_change),
    Row("W2WMix", "two points of 200 components to weights", "interpolated weights", _mix),
    Row("ImmiscibleNoise", "16 latents and noise samples", "cdist and SciPy", _assignment),
    Row("CompositionNoise", "one latent, four cycles", "low frequencies swapped by FFT", _composition),
    Row("MemorizationScore", "ten seeds, 45 pairs", "pair by pair", _score),
    Row("NeuronStatistics", "one layer, 64 prompts", "five reductions in float64", _statistics),
    Row("NemoNeuronMask", "16 value layers, each evaluation", "scaled weights, each evaluation", _scaled),
    Row("MetadataGuider", "three predictions to one, each evaluation", "CFG's formula", _guided),
    Row("NoisyReplicatePadding", "one prompt", "noise on all tokens", _padding),
    Row("ResolutionNoiseRescale", "the sigmas of 30 steps", "one product", _sigmas),
)

#: Nodes without a row, by what their cost is.
WITHOUT_ROW = {
    "evaluations of the network and what the rows above say": """
        ActivationPatching ActivationQuality AdversarialUnlearning CalibrateThreshold ConceptNeurons EditByWords
        EmbeddingAdjustment OptimizeNeuronMask
        LayerAblation MemorizationAudit NemoLocalize PatchingMap PromptSteeringDirection SeedScout SizeSheet W2WGuidance
        W2WGuider W2WLabelMembers AttentionScaling""",
    "a benchmark of its own: activations": "ActivationRecorder LayerActivationTap SparseFeatureSteering",
    "a benchmark of its own: weights": "W2WBuildSpace W2WEdit W2WInvert W2WTrainSpace W2WSweep",
    "a benchmark of its own: noise": "ImmiscibleLatentBatch TrainLoraImmiscible TrainingFromScratch",
    "training of small networks, whose steps are scikit-learn's or PyTorch's": "TrainFewShotSegmenter W2WFitDirections",
    "files": """
        ActivationCatalog LoadActivations LoadDemoModel LoadNeuronMask LoadNeuronStatistics LoadSparseAutoencoder
        LoadSteeringDirection SaveActivations SaveNeuronMask SaveSteeringDirection W2WImportRelease W2WLoadSpace
        W2WSaveSpace W2WToLoRA""",
    "text, tables and figures": """
        CompareActivations CompareTrainingRuns MetadataReport NeuronReport NoiseGainPreview ScanReport ScoreActivations
        W2WReport W2WSheet""",
    "a few small products or a choice": """
        BakeNeuronMask DemoPicture MetadataConditioning MetadataSchedule MixSteeringDirections NeuronMaskEdit
        PositionalResample RandomTokens ReadActivations ResizeToBuckets SelectActivations SteeringDirection
        W2WProjectLoRA W2WSample W2WStyleMerge""",
}
