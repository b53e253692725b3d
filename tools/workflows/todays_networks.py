"""Workflows for the networks that people run today: the ideas of the demo's templates on Z-Image,
Qwen-Image, FLUX.2 klein, Krea 2 and Wan.
"""

from __future__ import annotations

from .authoring import Output, Workflow
from .front import labeled, shape_of, show
from .networks import FLUX2, KREA2, QWEN_IMAGE, WAN, Z_IMAGE, Network
from .weights_training import train_space

_CAPTION = "a red fox on a wooden fence, a blue owl beside it, snow, morning light"
_WORDS = "red fox, wooden fence, blue owl, snow"
_VIDEO_CAPTION = "a red fox runs through snow, pine trees behind it, morning light"
_VIDEO_WORDS = "red fox, snow, pine trees"
_PHOTO = "a photo of a woman with brown hair in a red coat, a street in the background"
_BEFORE = "brown hair"
_AFTER = "red hair"
_TOWN = "a street of an old town at dusk, warm windows, wet pavement"
_PERSON = "photo of a person in a garden"
_SHEET_WIDTH = 640  # pixels of an image on a sheet of two columns
_SHOWN = 470  # canvas units of the node that shows the result
_UNTRIED = "Tested with random weights of this architecture, not with the real files."


def zimage_activations_token_heat_map(w: Workflow) -> None:
    _heat_map(w, Z_IMAGE)


def qwen_activations_token_heat_map(w: Workflow) -> None:
    _heat_map(w, QWEN_IMAGE)


def flux2_activations_token_heat_map(w: Workflow) -> None:
    _heat_map(w, FLUX2)


def krea2_activations_token_heat_map(w: Workflow) -> None:
    _heat_map(w, KREA2)


def wan_activations_token_heat_map(w: Workflow) -> None:
    _heat_map(w, WAN)


def zimage_activations_edit_image_by_words(w: Workflow) -> None:
    _edit_image(w, Z_IMAGE)


def qwen_activations_edit_image_by_words(w: Workflow) -> None:
    _edit_image(w, QWEN_IMAGE)


def flux2_activations_edit_image_by_words(w: Workflow) -> None:
    _edit_image(w, FLUX2)


def krea2_activations_edit_image_by_words(w: Workflow) -> None:
    _edit_image(w, KREA2)


def wan_activations_edit_late_by_words(w: Workflow) -> None:
    w.note(
        "Wan: change a word late in a run",
        "**The first quarter** of the steps decides much of the composition. A word that is "
        "changed after it changes less of the rest: Edit by Words at strength 2. Measured on the "
        "demo model, not on motion.",
        "**Above** the video of the prompt, **below** the same noise with the edit.",
        f"**Try** other starts, and strengths from 1 to 3. {_UNTRIED}",
    )
    w.group("Model and prompt")
    model, clip, vae = WAN.load(w)
    positive, negative = WAN.encode(w, clip, _VIDEO_CAPTION)
    w.group("Edit")
    edited, report = w.add(
        "GBX_EditByWords",
        model=model,
        clip=clip,
        edits="red fox -> white wolf: 2",
        prompt=_VIDEO_CAPTION,
        start_percent=0.25,
    )
    w.add("PreviewAny", source=report, node_title="What is compared")

    def both(w: Workflow, model: Output, edited: Output, vae: Output, **given: Output):
        latent = WAN.latent(w)
        frames = {
            name: w.add(
                "VAEDecode", samples=WAN.sample(w, model=one, latent=latent, **given), vae=vae
            )
            for name, one in (("before", model), ("edited", edited))
        }
        return frames

    w.group("Before and after")
    given = {"positive": positive, "negative": negative, "vae": vae, "seed": 3}
    before, after = w.subgraph("Generate both", both, model=model, edited=edited, **given)
    for name, frames in (("Before", before), ("Edited", after)):
        video = w.add("CreateVideo", images=frames, fps=16.0)
        w.add(
            "SaveVideo",
            video=video,
            filename_prefix=f"glassbox/wan_{name.lower()}",
            node_title=name,
        )


def zimage_weights_train_space(w: Workflow) -> None:
    _train_space(
        w,
        Z_IMAGE,
        "**Z-Image Turbo is distilled**: training on it undoes the distillation a little with "
        "every step. Train on Z-Image's base model, or on Turbo with a training adapter of yours, "
        "and apply what is learned to Turbo: it needs a Load Diffusion Model of its own.",
    )


def qwen_weights_train_space(w: Workflow) -> None:
    _train_space(
        w,
        QWEN_IMAGE,
        "**Memory**: this model of 20 billion parameters in fp8 takes 20 GB before a single "
        "activation. Leave `gradient_checkpointing` on and start with `resolution` 512.",
    )


def flux2_weights_train_space(w: Workflow) -> None:
    _train_space(
        w,
        FLUX2,
        "**FLUX.2 klein is distilled** to four steps: train on flux-2-klein-base-4b and apply "
        "what is learned to the distilled model, in a Load Diffusion Model of its own.",
    )


def krea2_weights_train_space(w: Workflow) -> None:
    _train_space(
        w,
        KREA2,
        "**Krea 2 Turbo is distilled**: train on the raw model where you have it, and apply what "
        "is learned to Turbo, in a Load Diffusion Model of its own.",
    )


def zimage_noise_composition(w: Workflow) -> None:
    _composition(w, Z_IMAGE)


def qwen_noise_composition(w: Workflow) -> None:
    _composition(w, QWEN_IMAGE)


def krea2_noise_composition(w: Workflow) -> None:
    _composition(w, KREA2)


def zimage_conditioning_higher_resolution(w: Workflow) -> None:
    _higher_resolution(w, Z_IMAGE, 2048)


def qwen_conditioning_higher_resolution(w: Workflow) -> None:
    _higher_resolution(w, QWEN_IMAGE, 2048)


def krea2_conditioning_higher_resolution(w: Workflow) -> None:
    _higher_resolution(w, KREA2, 2048)


def zimage_noise_seed_scout(w: Workflow) -> None:
    _seed_scout(w, Z_IMAGE)


def qwen_noise_seed_scout(w: Workflow) -> None:
    _seed_scout(w, QWEN_IMAGE)


def krea2_noise_seed_scout(w: Workflow) -> None:
    _seed_scout(w, KREA2)


def _heat_map(w: Workflow, network: Network) -> None:
    video = network is WAN
    last = ": a map for each frame." if video else ". A phrase such as red fox counts as one word."
    w.note(
        f"See where each word acts in {network.title}",
        "**A recorder** averages the attention of the image to every word over all steps, blocks "
        "and heads, as DAAM does (arXiv 2210.04885). Text and image may attend together or apart.",
        f"**Bright areas** attend to the word{last}",
        f"**Try** other words of the prompt: type them or click them. {_UNTRIED}",
    )
    caption_text = _VIDEO_CAPTION if video else _CAPTION
    w.group("Model and prompt")
    model, clip, vae = network.load(w)
    caption = w.add("PrimitiveStringMultiline", value=caption_text, node_title="Prompt")
    positive, negative = network.encode(w, clip, caption)
    w.group("Generate and record")
    recorded_model, recording = w.add(
        "GBX_ActivationRecorder",
        model=model,
        preset="cross_attention",
        recorded_steps="all",
        mean_only=True,
    )
    samples = network.sample(
        w,
        model=recorded_model,
        positive=positive,
        negative=negative,
        latent=network.latent(w),
        seed=7,
    )
    activations, _, _ = w.add("GBX_ReadActivations", recording=recording, latent=samples)
    image = w.add("VAEDecode", samples=samples, vae=vae)
    w.group("Where each word acts")
    figure, _, _ = w.add(
        "GBX_TokenHeatMap",
        activations=activations,
        image=image,
        clip=clip,
        prompt=caption,
        words=_VIDEO_WORDS if video else _WORDS,
        node_size=(380, 680),
    )
    show(w, figure, "token_heat_map", "Where each word acts", shape_of(2, 2, 400), _SHOWN)


def _edit_image(w: Workflow, network: Network) -> None:
    w.note(
        f"{network.title}: change a word in an image",
        "**Load an image** and describe it in the prompt. Image to image at denoise 0.6 keeps "
        "most of it.",
        "**Edit by Words** adds the difference that the changed word makes in every attention of "
        "the image to the text, twice. Strength 1 would be the changed prompt. It needs no "
        "negative prompt and works at CFG 1, too. **FlowEdit** gets both prompts and no strength.",
        f"**The strength** is the one that works on the demo model: try 1 to 3. {_UNTRIED}",
    )
    w.group("Model and image")
    model, clip, vae = network.load(w)
    loaded, _ = w.add("LoadImage", image="example.png")
    image = w.add(
        "ImageScale",
        image=loaded,
        upscale_method="lanczos",
        width=network.side,
        height=network.side,
        crop="center",
    )
    positive, negative = network.encode(w, clip, _PHOTO)
    changed = w.add(
        "CLIPTextEncode",
        clip=clip,
        text=_PHOTO.replace(_BEFORE, _AFTER),
        node_title="Changed prompt",
    )
    w.group("Change words")
    edited, report = w.add(
        "GBX_EditByWords",
        model=model,
        clip=clip,
        edits=f"{_BEFORE} -> {_AFTER}: 2",
        prompt=_PHOTO,
        node_properties={"glassbox_live": True},
        node_size=(360, 640),
    )
    w.add("PreviewAny", source=report, node_title="What is compared")

    def each_way(
        w: Workflow,
        model: Output,
        edited: Output,
        positive: Output,
        changed: Output,
        negative: Output,
        image: Output,
        vae: Output,
        seed: Output,
    ) -> Output:
        latent = w.add("VAEEncode", pixels=image, vae=vae)
        sheet = [image]
        for sampled_model, prompt, denoise in ((edited, positive, 0.6), (model, changed, 0.6)):
            samples = network.sample(
                w,
                model=sampled_model,
                positive=prompt,
                negative=negative,
                latent=latent,
                seed=seed,
                denoise=denoise,
            )
            sheet.append(w.add("VAEDecode", samples=samples, vae=vae))
        flow_edited = network.flow_edit(
            w,
            model=model,
            source=positive,
            target=changed,
            negative=negative,
            latent=latent,
            seed=seed,
            denoise=0.8,
        )
        sheet.insert(2, w.add("VAEDecode", samples=flow_edited, vae=vae))
        labels = ("before", "Edit by Words", "FlowEdit", "changed prompt")
        return labeled(w, sheet, labels, 2, _SHEET_WIDTH)

    w.group("Before and after")
    sheet = w.subgraph(
        "Image to image each way",
        each_way,
        model=model,
        edited=edited,
        positive=positive,
        changed=changed,
        negative=negative,
        image=image,
        vae=vae,
        seed=0,
    )
    show(w, sheet, "edit_image", "Before and after", shape_of(2, 2, _SHEET_WIDTH), _SHOWN)


def _train_space(w: Workflow, network: Network, advice: str) -> None:
    folder = "people"
    network_name = w.name.partition("_")[0]
    w.note(
        f"Learn sliders from folders of images with {network.title}",
        "**Put images** of people into input/people, a folder for each person, 3 to 20 images "
        "each, and only of people who agreed to it. W2W Train Space learns a space in one "
        "training; each of its axes is a slider.",
        "**Captions**: a .txt file of the same name says what varies in an image (pose, clothes, "
        "place), never who it is. Images without one use `prompt`.",
        advice,
        "**Learning rate and steps** were only tuned on the demo model: watch the previews, and "
        f"start low. {_UNTRIED}",
    )
    w.group("Model")
    model, clip, vae = network.load(w)
    positive, negative = network.encode(w, clip, _PERSON)
    w.group("Training")
    trained, previews, report = train_space(
        w,
        {"resolution": 512, "batch_size": 2},
        model=model,
        clip=clip,
        vae=vae,
        folder=folder,
        prompt="photo of a person",
        checkpoint_name=f"glassbox/train_space_{network_name}",
    )
    w.add("PreviewAny", source=report, node_title="Report")
    w.add(
        "SaveImage", images=previews, filename_prefix="glassbox/train_space", node_title="Previews"
    )
    space, _ = w.add(
        "GBX_W2WSaveSpace",
        space=trained,
        filename=f"learned-people-{network_name}",
        storage="float16",
    )
    w.group("A sampled person, and a slider")
    point, _, _ = w.add("GBX_W2WSample", space=space, seed=1)
    edited, _ = w.add("GBX_W2WEdit", point=point, edits="PC 1: 1")

    def both(
        w: Workflow, model: Output, point: Output, edited: Output, vae: Output, **given: Output
    ) -> Output:
        latent = network.latent(w)
        images = []
        for one in (point, edited):
            applied, *_ = w.add("GBX_W2WApply", model=model, point=one)
            samples = network.sample(w, model=applied, latent=latent, **given)
            images.append(w.add("VAEDecode", samples=samples, vae=vae))
        return labeled(w, images, ("a sampled person", "PC 1: 1"), 2, _SHEET_WIDTH)

    given = {"positive": positive, "negative": negative, "vae": vae, "seed": 5}
    sheet = w.subgraph("Generate both", both, model=model, point=point, edited=edited, **given)
    show(w, sheet, "learned_person", "A sampled person, and a slider", shape_of(2, 1, 640), _SHOWN)
    w.add("GBX_W2WToLoRA", point=edited, filename_prefix="loras/learned_person")


def _composition(w: Workflow, network: Network) -> None:
    w.note(
        f"{network.title}: set the layout with noise",
        "**A mask in two colors** is the guide: warm light on the left, dark blue on the right. "
        "Composition Noise reorders the noise so that its low frequencies follow the guide (after "
        "arXiv 2406.12303).",
        "**Above** the noise as drawn, **below** the same seeds with the layout in them.",
        "**Try** your own mask (Load Image), other colors, shape firm, or a photo through VAE "
        f"Encode as guide. {_UNTRIED}",
    )
    w.group("Model and prompt")
    model, clip, vae = network.load(w)
    positive, negative = network.encode(w, clip, _TOWN)
    w.group("Layout in the noise")
    half = network.side // 2 // 8 * 8

    def halves(w: Workflow) -> Output:
        size = {"height": network.side}
        left = w.add("SolidMask", value=1.0, width=half, **size, node_title="Left")
        image = w.add("SolidMask", value=0.0, width=network.side, **size, node_title="Image")
        return w.add("MaskComposite", destination=image, source=left, x=0, y=0, operation="add")

    latent = network.latent(w, batch_size=2)
    _, composed, seed, report, figure = w.add(
        "GBX_CompositionNoise",
        latent=latent,
        seed=21,
        strength=0.8,
        cutoff=2.0,
        model=model,
        mask=w.subgraph("The left half", halves),
        shape="soft",
        foreground="#f0b060",
        background="#101840",
    )
    w.add("PreviewAny", source=report, node_title="Report")
    w.add(
        "SaveImage",
        images=figure,
        filename_prefix="glassbox/composition",
        node_title="Low frequencies",
    )

    def both(w: Workflow, drawn: Output, composed: Output, vae: Output, **given: Output) -> Output:
        images = [
            w.add("VAEDecode", samples=network.sample(w, latent=one, **given), vae=vae)
            for one in (drawn, composed)
        ]
        labels = [
            f"{name}, {number}"
            for name in ("noise as drawn", "composed noise")
            for number in (1, 2)
        ]
        return labeled(w, images, labels, 2, _SHEET_WIDTH)

    w.group("Side by side")
    given = {"model": model, "positive": positive, "negative": negative, "vae": vae, "seed": seed}
    sheet = w.subgraph("Generate both", both, drawn=latent, composed=composed, **given)
    show(w, sheet, "composed", "Drawn and composed", shape_of(2, 2, _SHEET_WIDTH), _SHOWN)


def _higher_resolution(w: Workflow, network: Network, side: int) -> None:
    w.note(
        f"{network.title} at {side} pixels",
        f"**The same noise** at {side} pixels, stock and with Higher Resolution: rotary positions "
        "scaled by the timestep (DyPE, arXiv 2510.20766).",
        "**What to look for:** one subject and one horizon, against repeated parts.",
        f"**Try** 1536 pixels, or connect the latent to the node, which shifts the noise schedule "
        f"too. {_UNTRIED}",
    )
    w.group("Model and prompt")
    model, clip, vae = network.load(w)
    positive, negative = network.encode(w, clip, _TOWN)
    w.group("Higher Resolution")
    higher, report = w.add("GBX_PositionalResample", model=model)
    w.add("PreviewAny", source=report, node_title="Report")

    def both(w: Workflow, model: Output, higher: Output, vae: Output, **given: Output) -> Output:
        latent = network.latent(w, side=side)
        images = [
            w.add(
                "VAEDecode",
                samples=network.sample(w, model=one, latent=latent, side=side, **given),
                vae=vae,
            )
            for one in (model, higher)
        ]
        return labeled(w, images, ("stock", "Higher Resolution"), 2, 1024)

    w.group("The same noise, before and after")
    given = {"positive": positive, "negative": negative, "vae": vae, "seed": 7}
    sheet = w.subgraph("Generate both", both, model=model, higher=higher, **given)
    show(w, sheet, "higher", "Before and after", shape_of(2, 1, 1024), _SHOWN)


def _seed_scout(w: Workflow, network: Network) -> None:
    distilled = (
        "**Distilled models** give similar images for all seeds, so that the choice is smaller "
        "than for others.",
    )
    w.note(
        f"{network.title}: find the seeds with the layout you want",
        "**Sixteen seeds** run for four steps each and are ranked by how much their first image "
        "is laid out as the image on the left. The three best run to the end, from exactly the "
        "scouted noise.",
        "**Four steps** are few and enough: in one or two a flow model shows no layout.",
        *(distilled if network.cfg == 1 else ()),
        f"**Try** your own image, and more seeds. {_UNTRIED}",
    )
    w.group("Model, prompt and layout")
    model, clip, vae = network.load(w)
    positive, negative = network.encode(w, clip, _TOWN)
    reference, _ = w.add("LoadImage", image="example.png", node_title="The layout you want")
    latent = network.latent(w)
    w.group("Scout")
    seeds, _, figure, report, _ = w.add(
        "GBX_SeedScout",
        model=model,
        positive=positive,
        negative=negative,
        vae=vae,
        latent=latent,
        reference=reference,
        ranking="layout_likeness",
        seed=21,
        keep=3,
        steps=4,
        cfg=network.cfg,
    )
    w.add(
        "SaveImage", images=figure, filename_prefix="glassbox/scout", node_title="Seeds by layout"
    )
    w.add("PreviewAny", source=report, node_title="Report")
    w.group("The best seeds to the end")
    samples = network.sample(
        w, model=model, positive=positive, negative=negative, latent=latent, seed=seeds
    )
    show(
        w,
        w.add("VAEDecode", samples=samples, vae=vae),
        "best_seeds",
        "The best seeds",
        1.0,
        _SHOWN,
    )
