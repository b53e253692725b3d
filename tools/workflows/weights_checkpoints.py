"""The workflows of the weights family for checkpoints: spaces of one's own LoRAs and the official
one.
"""

from .authoring import Output, Workflow
from .sampling import encode, generate, sample, sampled_into
from .weights import PAPER, SPACE


def sdxl_weights_edit_photo(w: Workflow) -> None:
    w.note(
        "Edit the person in a photo with SDXL",
        "**Put LoRAs** of people for SDXL into models/loras/sdxl-people: they become a space. W2W "
        f"Invert finds the person of the photo in it, W2W Edit changes them ({PAPER}, sections 3.3 "
        "and 3.4), and image to image puts the edited person back.",
        "**Keep the background:** open the photo in the mask editor and brush over what should "
        "stay, or everything changes.",
        "**Edits:** `PC 1` needs no labels; W2W Fit Directions with a table of labels gives named "
        "ones. A few LoRAs cover few people: the report says how far the person found lies from "
        "the members.",
        "Tested with random weights of this architecture, not with real LoRAs.",
    )
    w.group("Model, space and photo")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name="sd_xl_base_1.0.safetensors")

    def built(w: Workflow, folder: Output, filename: Output) -> tuple[Output, ...]:
        return w.add("GBX_W2WBuildSpace", folder=folder, filename=filename)

    space, report = w.subgraph(
        "Space of a folder of LoRAs", built, folder="sdxl-people", filename="sdxl-people"
    )
    w.add("PreviewAny", source=report, node_title="Build report")
    photo, kept = w.add("LoadImage", image="example.png", node_title="Photo: mask what should stay")

    def scaled(w: Workflow, photo: Output, kept: Output, vae: Output) -> dict[str, Output]:
        image = w.add(
            "ImageScaleToTotalPixels", image=photo, upscale_method="lanczos", megapixels=1.0
        )
        latent = w.add("VAEEncode", pixels=image, vae=vae)
        return {"image": image, "mask": w.add("InvertMask", mask=kept), "latent": latent}

    image, mask, latent = w.subgraph("Scale and encode", scaled, photo=photo, kept=kept, vae=vae)
    positive, negative = encode(w, clip, "photo of a person")
    w.group("Inversion")
    point, *_, about = w.add(
        "GBX_W2WInvert",
        model=model,
        space=space,
        latent=latent,
        positive=positive,
        mask=mask,
        steps=400,
        learning_rate=0.1,
    )
    w.group("Edit, and back into the photo")
    w.add("PreviewAny", source=about, node_title="Report")
    edited, _ = w.add("GBX_W2WEdit", point=point, edits="PC 1: 1")
    patched, _ = w.add("GBX_W2WGuidance", model=model, point=point, edited_point=edited)
    whole = sampled_into(
        w,
        True,
        sampler="dpmpp_2m",
        scheduler="karras",
        model=patched,
        positive=positive,
        negative=negative,
        image=image,
        mask=mask,
        latent=latent,
        vae=vae,
        seed=5,
        steps=30,
        cfg=6.0,
        denoise=0.6,
    )
    w.add(
        "SaveImage",
        images=whole,
        filename_prefix="glassbox/edited_photo",
        node_title="The edited photo",
    )


def sd15_weights_official_release(w: Workflow) -> None:
    w.note(
        "The official space of 65,000 people",
        f"**Identities** sampled from the official space for SD1.5 ({PAPER}) and edited. Put the "
        "folder `files` of Snapchat/weights2weights (Hugging Face; non-commercial) in "
        "models/w2w/weights2weights, with its labels written as identity_df.csv once (see the "
        "help page of W2W Load Space).",
        "**The checkpoint** of its members is Realistic Vision 5.1; others of SD1.5 work less "
        "well. The prompt contains 'sks person', CFG is 3.",
        "**Try** other attributes of CelebA in W2W Fit Directions and `edits`.",
        "Tested with files of the same format and random weights, not with the released files.",
    )
    w.group("Model and space")
    model, clip, vae = w.add(
        "CheckpointLoaderSimple", ckpt_name="realisticVisionV51_v51VAE.safetensors"
    )
    space, note = w.add(
        "GBX_W2WLoadSpace", space_name=SPACE, release_folder="weights2weights/files"
    )
    w.add("PreviewAny", source=note, node_title="Import report")
    directed, report = w.add(
        "GBX_W2WFitDirections",
        space=space,
        method="least_squares",  # as its authors fit them
        attributes="Chubby, Young, Eyeglasses, Male",
    )
    w.add("PreviewAny", source=report, node_title="Accuracy of the directions")
    w.group("A point, edited")
    person, _, _ = w.add("GBX_W2WSample", space=directed, seed=1, source="random")
    edited, _ = w.add(
        "GBX_W2WEdit",
        point=person,
        edits="Chubby: 0.5",
        preserved_directions="Young, Male, Eyeglasses",
    )
    w.group("Images")
    positive, negative = encode(w, clip, "sks person", "low quality, blurry, unfinished, cartoon")

    def applied(w: Workflow, model: Output, point: Output, **given: Output) -> Output:
        latent = w.add("EmptyLatentImage", width=512, height=512, batch_size=1)
        given["model"], *_ = w.add("GBX_W2WApply", model=model, point=point)
        return sample(w, latent_image=latent, sampler="ipndm", **given)

    given = {
        "positive": positive,
        "negative": negative,
        "vae": vae,
        "seed": 5,
        "steps": 30,
        "cfg": 3.0,
    }
    for point, name, title in (
        (person, "person", "A sampled person"),
        (edited, "chubby", "Edited: Chubby 0.5"),
    ):
        image = w.subgraph(
            f"Apply and generate: {name}", applied, model=model, point=point, **given
        )
        w.add("SaveImage", images=image, filename_prefix=f"glassbox/w2w_{name}", node_title=title)


def sdxl_weights_own_space(w: Workflow) -> None:
    _own_space(w, "SDXL", "sd_xl_base_1.0.safetensors", 1024, 7.0)


def flux_weights_own_space(w: Workflow) -> None:
    _own_space(w, "Flux", "flux1-dev-fp8.safetensors", 1024, 1.0)


def _own_space(w: Workflow, base: str, checkpoint: str, side: int, cfg: float) -> None:
    """From a folder of LoRAs to an edited model and its LoRA."""
    w.note(
        f"A space of your own {base} LoRAs",
        f"**Put LoRAs** of one kind (people, styles, products) for {base} into "
        f"models/loras/{base.lower()}-people. Any trainer, rank and kind is supported; they become "
        f"the points of a space ({PAPER}, section 3.1). The report names files that do not fit and "
        "other base models, such as Pony among SDXL.",
        "**An axis** of the space (`PC 1`) needs no labels. For named edits give W2W Fit "
        "Directions a table of labels, and write `smiling: 0.8`. Named directions need about a "
        "hundred LoRAs.",
        "**The edited point** is exported as a LoRA: ComfyUI's own loader reads it, and the file "
        "lies in output/loras.",
        "Tested with random weights of this architecture, not with real LoRAs.",
    )
    w.group("Model and LoRAs")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name=checkpoint)
    name = f"{base.lower()}-people"
    space, report = w.add("GBX_W2WBuildSpace", folder=name, filename=name)
    w.add("PreviewAny", source=report, node_title="Build report")
    w.group("A point, edited")
    person, _, _ = w.add("GBX_W2WSample", space=space, seed=1, spread=0.7)
    edited, _ = w.add("GBX_W2WEdit", point=person, edits="PC 1: 1.5")
    lora, file, _ = w.add("GBX_W2WToLoRA", point=edited, filename_prefix=f"loras/{name}")
    w.add("PreviewAny", source=file, node_title="File")
    w.group("Images")
    positive, negative = encode(w, clip, "photo of a person, looking at the camera")
    kind = "EmptySD3LatentImage" if base == "Flux" else "EmptyLatentImage"
    latent = w.add(kind, width=side, height=side, batch_size=1)
    applied, *_ = w.add("GBX_W2WApply", model=model, point=person)
    stock = w.add("LoraModelLoader", model=model, lora=lora)
    for patched, what, title in (
        (applied, "sampled point", "Sampled point"),
        (stock, "edited point", "Edited, by ComfyUI's own loader"),
    ):
        image = generate(
            w, patched, positive, negative, latent, vae, what=what, seed=5, steps=20, cfg=cfg
        )
        w.add("SaveImage", images=image, filename_prefix=f"glassbox/{name}", node_title=title)
