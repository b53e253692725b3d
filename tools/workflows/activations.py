"""The workflows of the activations family: tap a model, visualize, compare, match, record."""

from __future__ import annotations

from .authoring import Output, Workflow
from .front import prepare, rows, show
from .sampling import encode, sampler_of

CAPTION = (
    "portrait, light skin, long red hair, shaven, sunglasses, blue hoodie, smiling, striped green "
    "background"
)
PAPER = "arXiv 2410.03558"
PHOTO = "a cartoon portrait"
SD15, SDXL = "v1-5-pruned-emaonly-fp16.safetensors", "sd_xl_base_1.0.safetensors"
CUSTOM_IDS = "custom_ids"
_LAID_OVER = 0.65  # opacity of colors over the image that they are of


def demo_activations_tap_and_pca(w: Workflow) -> None:
    w.note(
        "What the model sees in an image",
        "**Layer Activation Tap** adds a little noise to six faces and reads the model's "
        f"activations ({PAPER}).",
        "**The colors** are the first three principal components. A color means the same in each "
        "face.",
        "**The contact sheet** shows the activations of one level in forward order: coarse first, "
        "fine last.",
        "**Try** another preset, a level of 300, or IDs from the catalog's report.",
    )
    model, vae, images, _, positive = tapped_images(w, 6)
    w.group("Tap")
    best, _ = w.add(
        "GBX_LayerActivationTap", model=model, positive=positive, image=images, vae=vae, seed=1
    )

    def one_level(
        w: Workflow, model: Output, positive: Output, image: Output, vae: Output, ids: Output
    ):
        tap = {"model": model, "positive": positive, "image": image, "vae": vae, "ids": ids}
        level, _ = w.add("GBX_LayerActivationTap", preset=CUSTOM_IDS, seed=1, **tap)
        few, report = w.add(
            "GBX_SelectActivations", activations=level, ids="*-out\n*-cross-q", image_indices="0-2"
        )
        return w.add(
            "GBX_ActivationPicture", activations=few, mode="contact_sheet", size=384
        ), report

    tapped = {"model": model, "positive": positive, "image": images, "vae": vae}
    sheet, report = w.subgraph("Contact sheet of a level", one_level, **tapped, ids="up-level1-*")
    figure = w.add("GBX_ActivationCatalog", model=model, width=128, height=128)[0]
    w.group("Visualize")
    colors = w.add("GBX_ActivationPicture", activations=best, size=256)
    laid = rows(w, images, 6, {"activations": colors}, _LAID_OVER)
    save(w, laid, "activation_colors", "Principal components")
    save(w, sheet, "activation_sheet", "One level in forward order")
    save(w, figure, "activation_map", "The network")
    w.add("PreviewAny", source=report, node_title="Selected")


def demo_activations_point_similarity(w: Workflow) -> None:
    w.note(
        "Similarity to a point or a part",
        "**A point** on the hair of the first face is compared with every position of all faces "
        f"({PAPER}).",
        "**A mask** does the same for a part: here the true mask of the skin.",
        "**Self-attention** shows where the point looks, one image per attention head.",
        "**Try** points on an eye, the background or the clothes, one per line.",
    )
    model, vae, images, mask, positive = tapped_images(w, 4, part="skin")
    w.group("Tap")
    tapped, _ = w.add(
        "GBX_LayerActivationTap",
        model=model,
        positive=positive,
        image=images,
        vae=vae,
        noise_samples=4,
    )
    w.group("Compare")
    by_point, _ = w.add(
        "GBX_ActivationSimilarity", activations=tapped, image=images, points="64, 24"
    )
    by_mask, _ = w.add(
        "GBX_ActivationSimilarity",
        activations=tapped,
        image=images,
        mask=mask,
        node_size=(340, 588),
    )
    save(w, by_point, "similar_to_a_point", "Similar to the point")
    save(w, by_mask, "similar_to_a_part", "Similar to the masked part")
    w.group("Self-attention of the point")
    by_head = _attention(w, model, positive, images, vae, "64, 24")
    save(w, by_head, "attention_of_a_point", "Each head's attention")


def demo_activations_correspondence(w: Workflow) -> None:
    w.note(
        "Find the same point in other faces",
        "**Points** on one face are found on two others, where the activation is most similar "
        f"({PAPER}).",
        "**A hollow point** is a match that does not lead back, so it is less certain.",
        "**Try** other points: after a run, click on the face in Activation Correspondence. Or "
        "try other faces.",
    )
    w.in_columns = True
    w.group("One face and two others")

    def tapped(
        w: Workflow, ready: dict[str, Output], image_index: Output, others: Output
    ) -> dict[str, Output]:
        made = {}
        for name, number, count in (("source", image_index, 1), ("target", others, 2)):
            image, _, _ = w.add("GBX_DemoPicture", image_index=number, count=count)
            given = {
                "model": ready["model"],
                "positive": ready["positive"],
                "vae": ready["vae"],
                "noise_samples": 4,
            }
            made[name], _ = w.add("GBX_LayerActivationTap", image=image, **given)
            made[f"{name}_image"] = image
        return made

    ready = prepare(w, "Faces and their activations", tapped, "portrait", image_index=0, others=5)
    w.group("Choose points")
    points = {"points": "64, 24\n50, 60\n64, 84\n64, 116", "resolution": 128, "mutual": True}
    figure, _, _ = w.add("GBX_ActivationCorrespondence", **ready, **points, node_size=(380, 640))
    w.group("The same points in the others")

    def stacked(w: Workflow, figure: Output) -> Output:
        first, second = (
            w.add("ImageFromBatch", image=figure, batch_index=number, length=1) for number in (0, 1)
        )
        gap = {"spacing_width": 12, "spacing_color": "black"}
        return w.add(
            "ImageStitch",
            image1=first,
            image2=second,
            direction="down",
            match_image_size=False,
            **gap,
        )

    sheet = w.subgraph("On one sheet", stacked, figure=figure)
    show(w, sheet, "corresponding_points", "The same points", 1.0)


def demo_activations_record(w: Workflow) -> None:
    w.note(
        "Activations during sampling",
        "**Activation Recorder** records while KSampler runs. The image stays bit-identical "
        f"({PAPER}).",
        "**Two steps**: an early one, mostly noise, and the last one, when the face is there.",
        "**Try** other steps, the unconditional rows, or another sampler.",
    )
    w.group("Model")
    model, clip, vae = w.add("GBX_LoadDemoModel")
    recording_model, recording = w.add(
        "GBX_ActivationRecorder", model=model, recorded_steps="10%, last"
    )
    w.group("Sampling")
    samples, image = _sample(w, recording_model, clip, vae, CAPTION, 128, count=4)
    late, shown = _read_two(w, recording, samples)
    save(w, rows(w, image, 4, shown, _LAID_OVER), "recorded_faces", "Images and activations")
    w.group("Save and load")
    file = w.add("GBX_SaveActivations", activations=late)
    again, _ = w.add("GBX_LoadActivations", file=file)
    sheet = w.add("GBX_ActivationPicture", activations=again, mode="contact_sheet", size=1024)
    save(w, sheet, "recorded_sheet", "Loaded from the file")


def sd15_activations_correspondence(w: Workflow) -> None:
    _checkpoint_correspondence(w, SD15, 512)


def sd15_activations_point_similarity(w: Workflow) -> None:
    w.note(
        "Where a point of an image attends in SD1.5",
        f"**A point** is compared with every position of the image, by the paper's set ({PAPER}).",
        "**Self-attention** shows where the point looks, one image per attention head.",
        "**Replace** the demo face by Load Image, and name what it shows in the text. Click "
        "another point.",
    )
    w.group("Model and image")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name=SD15)
    positive = w.add("CLIPTextEncode", clip=clip, text=PHOTO, node_title="What the image shows")
    image = face(w, 0, 512)
    w.group("Similarity")
    tapped, _ = w.add(
        "GBX_LayerActivationTap", model=model, positive=positive, image=image, vae=vae
    )
    similar, _ = w.add(
        "GBX_ActivationSimilarity", activations=tapped, image=image, points="50%, 20%"
    )
    save(w, similar, "sd15_similar_to_a_point", "Similar to the point")
    w.group("Self-attention of the point")
    save(
        w,
        _attention(w, model, positive, image, vae, "50%, 20%"),
        "sd15_attention",
        "Each head's attention",
    )


def sdxl_activations_correspondence(w: Workflow) -> None:
    _checkpoint_correspondence(w, SDXL, 1024)


def sd15_activations_record(w: Workflow) -> None:
    w.note(
        "Activations during sampling with SD1.5",
        "**Activation Recorder** records while KSampler runs. The image stays bit-identical "
        f"({PAPER}).",
        "**Two steps**: an early one and the last one, as colors.",
        "**Try** other steps or another preset.",
    )
    w.group("Model")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name=SD15)
    recording_model, recording = w.add(
        "GBX_ActivationRecorder", model=model, recorded_steps="10%, last"
    )
    w.group("Sampling")
    samples, image = _sample(
        w, recording_model, clip, vae, "a photo of a horse on a beach", 512, count=1, cfg=7.0
    )
    _, shown = _read_two(w, recording, samples)
    save(w, rows(w, image, 1, shown, _LAID_OVER), "recorded_sd15", "Image and activations")


def _attention(
    w: Workflow, model: Output, positive: Output, image: Output, vae: Output, points: str
) -> Output:
    """The self-attention of points, one image per head."""

    def inside(w: Workflow, image: Output, points: Output, **given: Output) -> Output:
        maps, _ = w.add("GBX_LayerActivationTap", preset=CUSTOM_IDS, image=image, **given)
        return w.add(
            "GBX_ActivationSimilarity", activations=maps, image=image, points=points, per_head=True
        )[0]

    ids = "up-level2-repeat0-vit-block0-self-map"
    given = {"model": model, "positive": positive, "image": image, "vae": vae}
    return w.subgraph("Attention of a point", inside, **given, ids=ids, points=points)


def _checkpoint_correspondence(w: Workflow, checkpoint: str, side: int) -> None:
    w.note(
        "The same point in another image",
        "**Points** of one image are found in another with the paper's set for this model, at t = "
        f"50 ({PAPER}).",
        f"**Both images** are resized to {side} x {side}, as in the paper. Other shapes work too.",
        "**Replace** the demo faces by Load Image, with two images of one kind of object, and "
        "name it in the text.",
    )
    w.group("Model and images")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name=checkpoint)
    positive = w.add("CLIPTextEncode", clip=clip, text=PHOTO, node_title="What the images show")
    images = [face(w, number, side) for number in (0, 5)]
    w.group("Tap")
    tapped = [tap(w, image, model=model, positive=positive, vae=vae) for image in images]
    w.group("Match")
    figure, points, _ = w.add(
        "GBX_ActivationCorrespondence",
        source=tapped[0],
        source_image=images[0],
        target=tapped[1],
        target_image=images[1],
        points="50%, 20%\n40%, 45%",
        mutual=True,
    )
    colors = w.add("GBX_ActivationPicture", activations=tapped[0])
    save(w, figure, "corresponding_points", "Matched points")
    save(w, colors, "activation_colors", "Principal components")
    w.add("PreviewAny", source=points, node_title="Points in pixels")


def tapped_images(
    w: Workflow, count: int, part: str = "face"
) -> tuple[Output, Output, Output, Output, Output]:
    """MODEL, VAE, images, mask and the first image's caption as CONDITIONING."""
    w.group("Model and images")
    model, clip, vae = w.add("GBX_LoadDemoModel")
    images, mask, caption = w.add("GBX_DemoPicture", image_index=0, count=count, part=part)
    return (
        model,
        vae,
        images,
        mask,
        w.add("CLIPTextEncode", clip=clip, text=caption, node_title="Caption"),
    )


def tap(
    w: Workflow, image: Output, noise_samples: int = 1, preset: str = "recommended", **given: Output
) -> Output:
    """The activations of an image, tapped in a subgraph that shows the preset."""

    def inside(w: Workflow, **given: Output) -> Output:
        return w.add("GBX_LayerActivationTap", noise_samples=noise_samples, **given)[0]

    return w.subgraph("Tap", inside, image=image, **given, preset=preset)


def face(w: Workflow, number: int, side: int) -> Output:
    def inside(w: Workflow, image_index: Output) -> Output:
        image, _, _ = w.add("GBX_DemoPicture", image_index=image_index)
        return w.add(
            "ImageScale",
            image=image,
            upscale_method="bicubic",
            width=side,
            height=side,
            crop="disabled",
        )

    return w.subgraph("Demo image", inside, image_index=number)


def _sample(
    w: Workflow, model, clip, vae, text: str, side: int, count: int, cfg: float = 3.0
) -> tuple[Output, Output]:
    positive, negative = encode(w, clip, text)
    latent = w.add("EmptyLatentImage", width=side, height=side, batch_size=count)
    samples = w.add(
        "KSampler",
        model=model,
        positive=positive,
        negative=negative,
        latent_image=latent,
        seed=7,
        steps=20,
        cfg=cfg,
        sampler_name=sampler_of(w),
        scheduler="normal",
    )
    return samples, w.add("VAEDecode", samples=samples, vae=vae)


def _read_two(w: Workflow, recording: Output, samples: Output) -> tuple[Output, dict[str, Output]]:
    """The activations of the last recorded step, and the first and the last as colors."""
    w.group("Recorded activations")

    def read(w: Workflow, **given: Output) -> tuple[Output, Output]:
        activations, _, _ = w.add("GBX_ReadActivations", **given)
        return activations, w.add("GBX_ActivationPicture", activations=activations, size=256)

    shown = {}
    for index, name in ((0, "early step"), (-1, "last step")):
        given = {"recording": recording, "latent": samples, "step_index": index}
        activations, shown[name] = w.subgraph("Read a step", read, **given)
    return activations, shown


def save(w: Workflow, image: Output, name: str, title: str) -> None:
    w.add("SaveImage", images=image, filename_prefix=f"glassbox/{name}", node_title=title)
