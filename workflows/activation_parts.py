"""More workflows of the activations family: parts of pictures, words in pictures, and what activations are worth."""

from __future__ import annotations

from .activations import CAPTION, LIST, NOTHING, PAPER, PHOTO, SD15, SDXL, face, save, tapped_pictures
from .authoring import Output, Workflow

_PARTS = ("hair", "skin", "clothing")
_WORDS = "attention to words"
_HORSE = "a photo of a horse on a beach, blue sky"


def demo_activations_clusters(w: Workflow) -> None:
    w.note(
        "Parts without names",
        f"**Activation Clusters** splits six faces into parts by what the model sees, without any training ({PAPER}).",
        "**One colour** is one part in every face; as many masks come out as there are parts.",
        "**Try** more clusters, or IDs of a finer level for finer borders.",
    )
    model, vae, pictures, _, positive = tapped_pictures(w, 6)
    w.group("Tap")
    tapped, _ = w.add("GBX_LayerActivationTap", model=model, positive=positive, image=pictures, vae=vae, draws=4)
    w.group("Split")
    drawn, masks = w.add("GBX_ActivationClusters", activations=tapped, image=pictures, clusters=6)
    save(w, drawn, "activation_clusters", "A colour a part")
    save(w, w.add("MaskToImage", mask=masks), "activation_cluster_masks", "The masks")


def demo_activations_few_shot_segmentation(w: Workflow) -> None:
    w.note(
        "Learn parts from ten pictures",
        f"**Train Few-Shot Segmenter** learns hair, skin and clothing from ten faces and their masks ({PAPER}).",
        "**Few-Shot Segmenter** finds them in four others. Bright uncertainty: the ten networks disagree.",
        "**Try** fewer pictures, another preset, or more rounds (epochs): each network stops by itself.",
    )
    model, vae, pictures, hair, positive = tapped_pictures(w, 10, part=_PARTS[0])
    masks = [hair, *(w.add("GBX_DemoPicture", picture=0, count=10, part=part, node_title=f"The {part}")[1]
                     for part in _PARTS[1:])]  # fmt: skip
    others, _, _ = w.add("GBX_DemoPicture", picture=12, count=4, node_title="Other faces")
    w.group("Tap")
    tap = {"model": model, "positive": positive, "vae": vae, "draws": 2}
    known, _ = w.add("GBX_LayerActivationTap", image=pictures, **tap)
    unknown, _ = w.add("GBX_LayerActivationTap", image=others, **tap)
    w.group("Learn and find")
    _learn_and_find(w, known, masks, unknown, others, side=64, epochs=2)


def demo_activations_token_heat_map(w: Workflow) -> None:
    w.note(
        "Where each word acts",
        "**The recorder** averages the cross-attention of all steps while KSampler paints, as DAAM (arXiv 2210.04885).",
        "**A line a word**: where in the two pictures the model looked it up.",
        "**Try** other words of the caption, or the preset on a tap to ask the same of any picture.",
    )
    w.group("Model")
    model, clip, vae = w.add("GBX_LoadDemoModel")
    _words(w, model, clip, vae, CAPTION, "red hair, sunglasses, smiling, hoodie, green background", 128, 2, 3.0)


def demo_activations_quality(w: Workflow) -> None:
    w.note(
        "Which activations are worth something",
        f"**Activation Quality** measures diffusion noise, granularity and locality of the whole up-stage ({PAPER}).",
        "**Marked bars** pass the general filter, which is ours: the paper publishes its own for SD1.5 and SDXL alone.",
        "**Try** another noise level, or the filter by what was measured.",
    )
    model, vae, pictures, _, positive = tapped_pictures(w, 8)
    w.group("Measure")
    ids = "up-*-out\nup-*-q\nup-*-k\nup-*-v\nup-*-increment\nup-*-inner"
    figure, table, ids = w.add("GBX_ActivationQuality", model=model, positive=positive, preset=LIST, ids=ids,
                               image=pictures, vae=vae)  # fmt: skip
    save(w, figure, "activation_quality", "Three properties")
    w.add("PreviewAny", source=table, node_title="In numbers")
    w.add("PreviewAny", source=ids, node_title="Kept")


def sd15_activations_token_heat_map(w: Workflow) -> None:
    _checkpoint_words(w, SD15, 512)


def sdxl_activations_token_heat_map(w: Workflow) -> None:
    _checkpoint_words(w, SDXL, 1024)


def sd15_activations_few_shot_segmentation(w: Workflow) -> None:
    w.note(
        "Learn parts from a few pictures with SD1.5",
        f"**The paper's set** Ours-v1.5 at t = 50, and its pixel classifier: ten networks that vote ({PAPER}).",
        "**The drawn faces** stand for your own pictures and masks: Load Image gives both.",
        "**The paper** takes 30 pictures; training reads every pixel, so begin with a side of 64 or 128.",
    )
    w.group("Model and pictures")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name=SD15)
    positive = w.add("CLIPTextEncode", clip=clip, text=PHOTO, node_title="What the pictures show")
    known, unknown = face(w, 0, 512), face(w, 5, 512)
    masks = [w.add("GBX_DemoPicture", picture=0, part=part, node_title=f"The {part}")[1] for part in _PARTS]
    w.group("Tap")
    tapped = [w.add("GBX_LayerActivationTap", model=model, positive=positive, image=picture, vae=vae)[0]
              for picture in (known, unknown)]  # fmt: skip
    w.group("Learn and find")
    _learn_and_find(w, tapped[0], masks, tapped[1], unknown, side=64, epochs=100)


def flux_activations_tap_and_pca(w: Workflow) -> None:
    w.note(
        "What Flux sees in a picture",
        f"**The middle block's** output as colours. The paper ({PAPER}) is about U-Nets: which of a transformer"
        "'s blocks are good is not published.",
        "**The contact sheet** shows every block, double ones first.",
        "**Put** Load Image in the place of the drawn face.",
    )
    w.group("Model and picture")
    model, clip, vae = _flux(w)
    positive = w.add("CLIPTextEncode", clip=clip, text=PHOTO, node_title="What the picture shows")
    picture = face(w, 0, 1024)
    w.group("Tap and look")
    tap = {"model": model, "positive": positive, "image": picture, "vae": vae}
    middle, _ = w.add("GBX_LayerActivationTap", **tap)
    blocks, _ = w.add("GBX_LayerActivationTap", preset=LIST, ids="vit-block*[0-9]-out", **tap)
    save(w, w.add("GBX_ActivationPicture", activations=middle), "flux_colours", "Middle block")
    save(w, w.add("GBX_ActivationPicture", activations=blocks, show="contact sheet"), "flux_blocks", "Every block")


def flux_activations_token_heat_map(w: Workflow) -> None:
    w.note(
        "Where each word acts in Flux",
        "**Text and picture** attend together: a map is what the picture pays to a word of T5, as in DAAM (arXiv "
        "2210.04885) averaged over steps, blocks and heads.",
        "**It takes time**: the maps are made beside every attention, slice by slice. Record fewer steps to save it.",
        "**Try** words of your own prompt. At CFG 1 there is no negative one.",
    )
    w.group("Model")
    model, clip, vae = _flux(w)
    _words(w, model, clip, vae, _HORSE, "horse, beach, blue sky", 1024, 1, 1.0)


def _flux(w: Workflow) -> tuple[Output, Output, Output]:
    model = w.add("UNETLoader", unet_name="flux1-dev.safetensors", weight_dtype="default")
    clip = w.add("DualCLIPLoader", clip_name1="clip_l.safetensors", clip_name2="t5xxl_fp16.safetensors", type="flux")
    return model, clip, w.add("VAELoader", vae_name="ae.safetensors")


def _learn_and_find(
    w: Workflow, known: Output, masks: list[Output], unknown: Output, pictures: Output, side: int, epochs: int
) -> None:
    parts = {f"part_{number}": mask for number, mask in enumerate(masks, 1)}
    segmenter, report = w.add("GBX_TrainFewShotSegmenter", activations=known, names=", ".join(_PARTS), side=side,
                              epochs=epochs, **parts)  # fmt: skip
    drawn, _, uncertainty, found = w.add("GBX_FewShotSegmenter", segmenter=segmenter, activations=unknown,
                                         image=pictures)  # fmt: skip
    w.group("Parts")
    save(w, drawn, "few_shot_parts", "Parts found")
    save(w, w.add("MaskToImage", mask=uncertainty), "few_shot_uncertainty", "Uncertainty")
    w.add("PreviewAny", source=report, node_title="On the training pictures")
    w.add("PreviewAny", source=found, node_title="In the others")


def _checkpoint_words(w: Workflow, checkpoint: str, side: int) -> None:
    w.note(
        "Where each word acts",
        "**The recorder** averages the cross-attention of all steps while KSampler paints, as DAAM (arXiv 2210.04885).",
        "**A line a word**: where the model looked it up. Phrases such as blue sky count as one.",
        "**Try** words of your own prompt, or `prompt_is` negative with both rows recorded.",
    )
    w.group("Model")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name=checkpoint)
    _words(w, model, clip, vae, _HORSE, "horse, beach, blue sky", side, 1, 7.0)


def _words(w: Workflow, model, clip, vae, prompt: str, words: str, side: int, count: int, cfg: float) -> None:
    """Paint with a recorder, and show the heat maps of words."""
    recording_model, recording = w.add("GBX_ActivationRecorder", model=model, preset=_WORDS, when="all")
    w.group("Painting")
    positive = w.add("CLIPTextEncode", clip=clip, text=prompt, node_title="Prompt")
    negative = w.add("CLIPTextEncode", clip=clip, text="", node_title=NOTHING)
    empty = "EmptySD3LatentImage" if w.name.startswith("flux") else "EmptyLatentImage"
    latent = w.add(empty, width=side, height=side, batch_size=count)
    samples = w.add("KSampler", model=recording_model, positive=positive, negative=negative, latent_image=latent,
                    seed=7, steps=20, cfg=cfg, sampler_name="euler", scheduler="normal")  # fmt: skip
    image = w.add("VAEDecode", samples=samples, vae=vae)
    w.group("Words")
    activations, _, _ = w.add("GBX_ReadActivations", recording=recording, samples=samples, average=True)
    sheet, _, _ = w.add("GBX_TokenHeatMap", activations=activations, image=image, clip=clip, prompt=prompt, words=words)
    save(w, sheet, "token_heat_map", "Where each word acts")
    save(w, image, "token_heat_map_picture", "The picture")
