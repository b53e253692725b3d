"""The workflows of the activations family: look into a model with a tap, compare, match, record."""

from __future__ import annotations

from .authoring import Output, Workflow

CAPTION = "portrait, light skin, long red hair, sunglasses, smiling, blue hoodie, striped green background"
NOTHING = "Nothing (what CFG steers away from)"
PAPER = "arXiv 2410.03558"
PHOTO = "a drawn portrait"
SD15, SDXL = "v1-5-pruned-emaonly-fp16.safetensors", "sd_xl_base_1.0.safetensors"
LIST = "the list below"


def demo_activations_tap_and_pca(w: Workflow) -> None:
    w.note(
        "What the model sees in a picture",
        f"**Layer Activation Tap** adds a little noise to six faces and reads what the model computes ({PAPER}).",
        "**The colours** are the three main directions of the activations: one colour means the same in each face.",
        "**The contact sheet** shows the whole way up through one level: coarse first, fine at its end.",
        "**Try** another preset, a level of 300, or IDs from the catalog's table.",
    )
    model, vae, pictures, _, positive = tapped_pictures(w, 6)
    w.group("Tap")
    best, _ = w.add("GBX_LayerActivationTap", model=model, positive=positive, image=pictures, vae=vae, seed=1)
    level, _ = w.add("GBX_LayerActivationTap", model=model, positive=positive, preset=LIST, ids="up-level1-*",
                     image=pictures, vae=vae, seed=1)  # fmt: skip
    few, report = w.add("GBX_SelectActivations", activations=level, ids="*-out\n*-cross-q", pictures="0-2")
    map_, table, _ = w.add("GBX_ActivationCatalog", model=model, width=128, height=128)
    w.group("Look")
    colours = w.add("GBX_ActivationPicture", activations=best, size=256)
    sheet = w.add("GBX_ActivationPicture", activations=few, show="contact sheet", size=384)
    save(w, colours, "activation_colours", "Main directions as colours")
    save(w, sheet, "activation_sheet", "Through one level")
    save(w, map_, "activation_map", "The network")
    w.add("PreviewAny", source=table, node_title="Every activation")
    w.add("PreviewAny", source=report, node_title="What was selected")


def demo_activations_point_similarity(w: Workflow) -> None:
    w.note(
        "Where else is something like this?",
        f"**A point** on the hair of the first face is compared with every place of all faces ({PAPER}).",
        "**A mask** does the same for a whole part: here the true mask of the skin.",
        "**Try** points on an eye, the background or the clothes, one a line.",
    )
    model, vae, pictures, mask, positive = tapped_pictures(w, 4, part="skin")
    w.group("Tap")
    tapped, _ = w.add("GBX_LayerActivationTap", model=model, positive=positive, image=pictures, vae=vae, draws=4)
    w.group("Compare")
    by_point, _ = w.add("GBX_ActivationSimilarity", activations=tapped, image=pictures, points="64, 24")
    by_mask, _ = w.add("GBX_ActivationSimilarity", activations=tapped, image=pictures, mask=mask)
    save(w, by_point, "similar_to_a_point", "Like the point")
    save(w, by_mask, "similar_to_a_part", "Like the masked part")


def demo_activations_correspondence(w: Workflow) -> None:
    w.note(
        "The same point in another face",
        f"**Points** of one face are found in three others by the most similar activation, untrained ({PAPER}).",
        "**A hollow point** is a match that does not lead back, and so is less sure.",
        "**The mask** of the hair is carried over in the same way.",
        "**Try** other faces, other points, or the preset with all the levels.",
    )
    model, vae, pictures, mask, positive = tapped_pictures(w, 1, part="hair")
    others, _, _ = w.add("GBX_DemoPicture", picture=5, count=3, node_title="Other faces")
    w.group("Tap")
    source, _ = w.add("GBX_LayerActivationTap", model=model, positive=positive, image=pictures, vae=vae, draws=4)
    target, _ = w.add("GBX_LayerActivationTap", model=model, positive=positive, image=others, vae=vae, draws=4)
    w.group("Match")
    drawn, points, carried = w.add(
        "GBX_ActivationCorrespondence", source=source, source_image=pictures, target=target, target_image=others,
        points="64, 24\n50, 60\n64, 84\n64, 116", resolution=128, mutual=True, source_mask=mask,
    )  # fmt: skip
    save(w, drawn, "corresponding_points", "Points found")
    save(w, w.add("MaskToImage", mask=carried), "corresponding_mask", "The hair, carried over")
    w.add("PreviewAny", source=points, node_title="Points in pixels")


def demo_activations_record(w: Workflow) -> None:
    w.note(
        "How a picture comes about inside",
        f"**Activation Recorder** sits in the MODEL wire while KSampler paints, and changes nothing ({PAPER}).",
        "**Two moments**: the first recorded step, all noise, and the last, when the face is there.",
        "**Try** other steps, the unconditional rows, or another sampler.",
    )
    w.group("Model")
    model, clip, vae = w.add("GBX_LoadDemoModel")
    recording_model, recording = w.add("GBX_ActivationRecorder", model=model, when="10%, last")
    w.group("Painting")
    samples, image = _paint(w, recording_model, clip, vae, CAPTION, 128, count=4)
    late = _read_two(w, recording, samples)
    save(w, image, "recorded_faces", "The pictures")
    w.group("Kept for another day")
    file = w.add("GBX_SaveActivations", activations=late)
    again, _ = w.add("GBX_LoadActivations", file=file)
    sheet = w.add("GBX_ActivationPicture", activations=again, show="contact sheet", size=384)
    save(w, sheet, "recorded_sheet", "From the file")


def sd15_activations_correspondence(w: Workflow) -> None:
    _checkpoint_correspondence(w, SD15, 512)


def sdxl_activations_correspondence(w: Workflow) -> None:
    _checkpoint_correspondence(w, SDXL, 1024)


def sd15_activations_record(w: Workflow) -> None:
    w.note(
        "How a picture comes about inside SD1.5",
        f"**Activation Recorder** sits in the MODEL wire while KSampler paints, and changes nothing ({PAPER}).",
        "**Two moments**: an early step and the last one, as colours.",
        "**Try** other steps or another preset.",
    )
    w.group("Model")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name=SD15)
    recording_model, recording = w.add("GBX_ActivationRecorder", model=model, when="10%, last")
    w.group("Painting")
    samples, image = _paint(w, recording_model, clip, vae, "a photo of a horse on a beach", 512, count=1, cfg=7.0)
    _read_two(w, recording, samples)
    save(w, image, "recorded_sd15", "The picture")


def _checkpoint_correspondence(w: Workflow, checkpoint: str, side: int) -> None:
    w.note(
        "The same point in another picture",
        f"**Points** of one picture are found in another by the paper's set for this model, at t = 50 ({PAPER}).",
        f"**Both pictures** are squeezed to {side} x {side}, as in the paper; the nodes take other shapes too.",
        "**Put** Load Image in the place of the drawn faces, with two pictures of one thing, and name it in the text.",
    )
    w.group("Model and pictures")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name=checkpoint)
    positive = w.add("CLIPTextEncode", clip=clip, text=PHOTO, node_title="What the pictures show")
    pictures = [face(w, number, side) for number in (0, 5)]
    w.group("Tap")
    tapped = [w.add("GBX_LayerActivationTap", model=model, positive=positive, image=picture, vae=vae)[0]
              for picture in pictures]  # fmt: skip
    w.group("Match")
    drawn, points, _ = w.add(
        "GBX_ActivationCorrespondence", source=tapped[0], source_image=pictures[0], target=tapped[1],
        target_image=pictures[1], points="50%, 20%\n40%, 45%", mutual=True,
    )  # fmt: skip
    colours = w.add("GBX_ActivationPicture", activations=tapped[0])
    save(w, drawn, "corresponding_points", "Points found")
    save(w, colours, "activation_colours", "Main directions as colours")
    w.add("PreviewAny", source=points, node_title="Points in pixels")


def tapped_pictures(w: Workflow, count: int, part: str = "face") -> tuple[Output, Output, Output, Output, Output]:
    """MODEL, VAE, pictures, mask and the first picture's caption as CONDITIONING."""
    w.group("Model and pictures")
    model, clip, vae = w.add("GBX_LoadDemoModel")
    pictures, mask, caption = w.add("GBX_DemoPicture", picture=0, count=count, part=part)
    return model, vae, pictures, mask, w.add("CLIPTextEncode", clip=clip, text=caption, node_title="Its caption")


def face(w: Workflow, number: int, side: int) -> Output:
    image, _, _ = w.add("GBX_DemoPicture", picture=number)
    return w.add("ImageScale", image=image, upscale_method="bicubic", width=side, height=side, crop="disabled")


def _paint(w: Workflow, model, clip, vae, text: str, side: int, count: int, cfg: float = 3.0) -> tuple[Output, Output]:
    positive = w.add("CLIPTextEncode", clip=clip, text=text, node_title="Caption")
    negative = w.add("CLIPTextEncode", clip=clip, text="", node_title=NOTHING)
    latent = w.add("EmptyLatentImage", width=side, height=side, batch_size=count)
    samples = w.add("KSampler", model=model, positive=positive, negative=negative, latent_image=latent, seed=7,
                    steps=20, cfg=cfg, sampler_name="euler", scheduler="normal")  # fmt: skip
    return samples, w.add("VAEDecode", samples=samples, vae=vae)


def _read_two(w: Workflow, recording: Output, samples: Output) -> Output:
    """Show the first and the last of what was recorded; returns the last."""
    w.group("What was recorded")
    for index, name in ((0, "early"), (-1, "late")):
        activations, _, report = w.add("GBX_ReadActivations", recording=recording, samples=samples, index=index)
        picture = w.add("GBX_ActivationPicture", activations=activations, size=256)
        save(w, picture, f"recorded_{name}", f"Inside, {name}")
        w.add("PreviewAny", source=report, node_title=f"In words, {name}")
    return activations


def save(w: Workflow, image: Output, name: str, title: str) -> None:
    w.add("SaveImage", images=image, filename_prefix=f"glassbox/{name}", node_title=title)
