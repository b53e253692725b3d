"""More workflows of the activations family: segmentation, word heat maps, and the quality of
activations.
"""

from __future__ import annotations

from .activations import (
    CAPTION,
    CUSTOM_IDS,
    PAPER,
    PHOTO,
    SD15,
    SDXL,
    face,
    save,
    tap,
    tapped_images,
)
from .authoring import Output, Workflow
from .front import for_generating, prepare, rows, shape_of, show
from .sampling import empty_latent, encode, sampler_of

_PARTS = ("hair", "skin", "clothing")
#: Has the best few-shot score of all activations in studies/results/activations.csv, on other
#: faces.
_BEST_FOR_PARTS = "up-level2-repeat0-res-increment"
_WORDS = "cross_attention"
_MAPS = 0.75  # height over width of the sheet of an image and five words
_HORSE = "a photo of a horse on a beach, blue sky"


def demo_activations_clusters(w: Workflow) -> None:
    w.note(
        "Segmentation without training",
        "**Activation Clusters** segments four faces by their activations, without training "
        f"({PAPER}).",
        "**A color** is the same cluster in every face. There is one mask per cluster and face.",
        "**Try** more clusters, or IDs of a finer level for finer borders.",
    )
    model, vae, images, _, positive = tapped_images(w, 4)
    w.group("Tap")
    tapped, _ = w.add(
        "GBX_LayerActivationTap",
        model=model,
        positive=positive,
        image=images,
        vae=vae,
        noise_samples=4,
    )
    w.group("Cluster")
    figure, _ = w.add("GBX_ActivationClusters", activations=tapped, image=images, clusters=6)
    show(
        w,
        rows(w, images, 4, {"clusters": figure}),
        "activation_clusters",
        "Faces and clusters",
        shape_of(4, 2, 256, True),
        480,
    )


def demo_activations_few_shot_segmentation(w: Workflow) -> None:
    w.note(
        "Learn parts from twenty images",
        "**Train Few-Shot Segmenter** learns hair, skin and clothing from twenty faces with masks "
        f"({PAPER}).",
        "**Few-Shot Segmenter** finds them in four others. Its output uncertainty is high where "
        "its ten networks disagree.",
        "**Try** fewer images, the preset recommended (selected for correspondence), or more "
        "epochs.",
    )
    w.group("Model and images")
    model, clip, vae = w.add("GBX_LoadDemoModel")
    faces = [
        w.add("GBX_DemoPicture", image_index=0, count=20, part=part, node_title=f"The {part}")
        for part in _PARTS
    ]
    others, _, _ = w.add("GBX_DemoPicture", image_index=20, count=4, node_title="Other faces")
    positive = w.add(
        "CLIPTextEncode", clip=clip, text="portrait", node_title="What all images show"
    )
    w.group("Tap")
    given = {
        "model": model,
        "positive": positive,
        "vae": vae,
        "preset": CUSTOM_IDS,
        "ids": _BEST_FOR_PARTS,
    }
    tapped = [tap(w, image, noise_samples=2, **given) for image in (faces[0][0], others)]
    w.group("Train and apply")
    masks = [mask for _, mask, _ in faces]
    _train_and_apply(w, tapped[0], masks, tapped[1], others, resolution=64, epochs=8, count=4)


def demo_activations_token_heat_map(w: Workflow) -> None:
    w.note(
        "See where each word acts",
        "**A recorder**, inside the node on the left, averages the cross-attention of all "
        "sampling steps, as DAAM does (arXiv 2210.04885).",
        "**Bright areas** attend to the word.",
        "**Try** other words of the prompt: type them or click them. A phrase such as red hair "
        "counts as one word.",
    )
    w.in_columns = True
    w.group("An image with its attention")

    def recorded(w: Workflow, ready: dict[str, Output], seed: Output) -> dict[str, Output]:
        prompt = w.add("PrimitiveStringMultiline", value=ready["prompt"])
        activations, image = _recorded(w, 128, 1, **for_generating(ready), seed=seed, cfg=3.0)
        return {"activations": activations, "image": image, "clip": ready["clip"], "text": prompt}

    ready = prepare(w, "Generate and record", recorded, CAPTION, seed=7)
    w.group("Choose words")
    words = "red hair, sunglasses, smiling, hoodie, green background"
    figure, _, _ = w.add(
        "GBX_TokenHeatMap",
        **ready | {"prompt": ready.pop("text")},
        words=words,
        node_size=(380, 680),
    )
    w.group("Where each word acts")
    show(w, figure, "token_heat_map", "Where each word acts", _MAPS)
    inputs = "Generate and record.prompt", "GBX_TokenHeatMap.words", "Generate and record.seed"
    w.app(*inputs, results=("Where each word acts",))


def demo_activations_quality(w: Workflow) -> None:
    w.note(
        "Which activations are useful",
        "**Score Activations** measures diffusion noise, granularity and locality of the "
        f"up-stage ({PAPER}), on four noise samples of each image.",
        "**Highlighted bars** pass the general filter. The paper publishes its own filter for "
        "SD1.5 and SDXL only.",
        "**Try** another noise level, or id_filter measured.",
    )
    model, vae, images, _, positive = tapped_images(w, 8)
    w.group("Measure")
    ids = "up-*-out\nup-*-q\nup-*-k\nup-*-v\nup-*-increment\nup-*-inner"
    given = {"model": model, "positive": positive, "vae": vae}
    figure, report, ids, *_ = measure_quality(w, images, ids, "general_filter", **given)
    save(w, figure, "activation_quality", "Three properties")
    w.add("PreviewAny", source=report, node_title="Report")
    w.add("PreviewAny", source=ids, node_title="Kept")
    w.batch("GBX_LayerActivationTap.ids", join=("quality",), chunk=8)


def measure_quality(
    w: Workflow,
    images: Output,
    ids: str,
    id_filter: str,
    model: Output,
    positive: Output,
    vae: Output,
) -> tuple[Output, ...]:
    """The outputs of Score Activations for noise, granularity and locality, on four noise samples
    of each image.
    """
    repeated = w.add("RepeatImageBatch", image=images, amount=4, node_title="Four noise samples")
    tapped = w.add(
        "GBX_LayerActivationTap",
        model=model,
        positive=positive,
        preset=CUSTOM_IDS,
        ids=ids,
        image=repeated,
        vae=vae,
    )[0]
    return w.add(
        "GBX_ScoreActivations",
        measure="quality",
        activations=tapped,
        latent=w.add("VAEEncode", pixels=images, vae=vae),
        model=model,
        id_filter=id_filter,
        filename_prefix="",
    )


def sd15_activations_token_heat_map(w: Workflow) -> None:
    _checkpoint_words(w, SD15, 512)


def sdxl_activations_token_heat_map(w: Workflow) -> None:
    _checkpoint_words(w, SDXL, 1024)


def sd15_activations_few_shot_segmentation(w: Workflow) -> None:
    w.note(
        "Learn parts from a few images with SD1.5",
        "**The paper's set** ours_v1_5 at t = 50, and its pixel classifier: ten networks that "
        f"vote ({PAPER}).",
        "**Replace** the demo faces by your own images and masks with Load Image.",
        "**The paper** uses 30 images. Training reads every pixel, so start with a resolution of "
        "64 or 128.",
    )
    w.group("Model and images")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name=SD15)
    positive = w.add("CLIPTextEncode", clip=clip, text=PHOTO, node_title="What the images show")
    known, unknown = face(w, 0, 512), face(w, 5, 512)
    masks = [
        w.add("GBX_DemoPicture", image_index=0, part=part, node_title=f"The {part}")[1]
        for part in _PARTS
    ]
    w.group("Tap")
    tapped = [tap(w, image, model=model, positive=positive, vae=vae) for image in (known, unknown)]
    w.group("Train and apply")
    _train_and_apply(w, tapped[0], masks, tapped[1], unknown, resolution=64, epochs=100, count=1)


def flux_activations_tap_and_pca(w: Workflow) -> None:
    w.note(
        "What Flux sees in an image",
        f"**The output of the middle block** as colors. The paper ({PAPER}) evaluates U-Nets only, "
        "so no ranking of a transformer's blocks is published.",
        "**The contact sheet** shows every block, double ones first.",
        "**Replace** the demo face by Load Image.",
    )
    w.group("Model and image")
    model, clip, vae = _flux(w)
    positive = w.add("CLIPTextEncode", clip=clip, text=PHOTO, node_title="What the image shows")
    image = face(w, 0, 1024)
    w.group("Tap and visualize")
    tap = {"model": model, "positive": positive, "image": image, "vae": vae}
    middle, _ = w.add("GBX_LayerActivationTap", **tap)
    blocks, _ = w.add("GBX_LayerActivationTap", preset=CUSTOM_IDS, ids="vit-block*[0-9]-out", **tap)
    save(w, w.add("GBX_ActivationPicture", activations=middle), "flux_colors", "Middle block")
    save(
        w,
        w.add("GBX_ActivationPicture", activations=blocks, mode="contact_sheet"),
        "flux_blocks",
        "Every block",
    )


def flux_activations_token_heat_map(w: Workflow) -> None:
    w.note(
        "Where each word acts in Flux",
        "**Text and image** attend together. A map is the attention of the image to a word of T5, "
        "averaged over steps, blocks and heads as in DAAM (arXiv 2210.04885).",
        "**It takes time**: the maps are computed beside every attention. Record fewer steps to "
        "save time.",
        "**Try** words of your own prompt. At CFG 1 there is no negative prompt.",
    )
    w.group("Model")
    model, clip, vae = _flux(w)
    _words(w, model, clip, vae, _HORSE, "horse, beach, blue sky", 1024, 1, 1.0)


def _flux(w: Workflow) -> tuple[Output, Output, Output]:
    model = w.add("UNETLoader", unet_name="flux1-dev.safetensors", weight_dtype="default")
    clip = w.add(
        "DualCLIPLoader",
        clip_name1="clip_l.safetensors",
        clip_name2="t5xxl_fp16.safetensors",
        type="flux",
    )
    return model, clip, w.add("VAELoader", vae_name="ae.safetensors")


def _train_and_apply(
    w: Workflow,
    known: Output,
    masks: list[Output],
    unknown: Output,
    images: Output,
    resolution: int,
    epochs: int,
    count: int,
) -> None:
    parts = {f"part_{number}": mask for number, mask in enumerate(masks, 1)}
    segmenter, report = w.add(
        "GBX_TrainFewShotSegmenter",
        activations=known,
        part_names=", ".join(_PARTS),
        resolution=resolution,
        epochs=epochs,
        **parts,
    )
    figure, *_ = w.add(
        "GBX_FewShotSegmenter", segmenter=segmenter, activations=unknown, image=images
    )
    w.group("Parts")
    save(w, rows(w, images, count, {"/".join(_PARTS): figure}), "few_shot_parts", "Predicted parts")
    w.add("PreviewAny", source=report, node_title="IoU on the training images")


def _checkpoint_words(w: Workflow, checkpoint: str, side: int) -> None:
    w.note(
        "Where each word acts",
        "**The recorder** averages the cross-attention of all sampling steps, as DAAM does (arXiv "
        "2210.04885).",
        "**Each image** shows where one word acts. A phrase such as blue sky counts as one word.",
        "**Try** words of your own prompt, or those of the negative prompt: set rows to both and "
        "`prompt_role` to negative.",
    )
    w.group("Model")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name=checkpoint)
    _words(w, model, clip, vae, _HORSE, "horse, beach, blue sky", side, 1, 7.0)


def _words(
    w: Workflow, model, clip, vae, prompt: str, words: str, side: int, count: int, cfg: float
) -> None:
    """Sample with a recorder, and show the heat maps of words."""
    w.group("Sampling")
    caption = w.add("PrimitiveStringMultiline", value=prompt, node_title="Caption")
    positive, negative = encode(w, clip, caption)

    given = {"model": model, "positive": positive, "negative": negative, "vae": vae}
    activations, image = _recorded(w, side, count, **given, seed=7, cfg=cfg)
    w.group("Words")
    figure, _, _ = w.add(
        "GBX_TokenHeatMap",
        activations=activations,
        image=image,
        clip=clip,
        prompt=caption,
        words=words,
    )
    save(w, figure, "token_heat_map", "Where each word acts")
    save(w, image, "token_heat_map_image", "Generated image")


def _recorded(
    w: Workflow, side: int, count: int, model: Output, vae: Output, **given: Output
) -> tuple[Output, Output]:
    """The cross-attention of all steps of a KSampler, and its image."""
    recording_model, recording = w.add(
        "GBX_ActivationRecorder", model=model, preset=_WORDS, recorded_steps="all", mean_only=True
    )
    samples = w.add(
        "KSampler",
        model=recording_model,
        latent_image=empty_latent(w, side, count),
        steps=20,
        sampler_name=sampler_of(w),
        scheduler="normal",
        **given,
    )
    activations, _, _ = w.add("GBX_ReadActivations", recording=recording, latent=samples)
    return activations, w.add("VAEDecode", samples=samples, vae=vae)
