"""The workflows of the weights family: models as points of a space."""

from .authoring import Output, Workflow
from .sampling import encode, generate, sample

_SPACE = "avatars-v2-w2w.safetensors"
_PROMPT = "portrait, blue hoodie, smiling, plain green background"
_PAPER = "weights2weights, arXiv 2406.09413"
_ALL, _STEPS = 64, 20


class _Demo:
    """The demo model with its space, a prompt, and nodes from points to images."""

    def __init__(self, w: Workflow, prompt: str = _PROMPT):
        self.w = w
        w.group("Model, space and prompt")
        self.model, self.clip, self.vae = w.add("GBX_LoadDemoModel")
        self.space, self.about = w.add("GBX_W2WLoadSpace", space_name=_SPACE)
        self.positive, self.negative = encode(w, self.clip, prompt)
        self._latents: dict[int, Output] = {}

    def sample(self, **choices) -> Output:
        """Points of the space."""
        given = {"space": self.space, "components": 96, "spread": 0.8, **choices}
        return self.w.add("GBX_W2WSample", **given)[0]

    def member(self, space: Output) -> Output:
        """The first member with long dark hair and neither beard nor glasses, on whom both can be seen."""
        return self.w.add("GBX_W2WSample", space=space, source="member", member_name="person_0058")[0]

    def apply(self, point: Output, model: Output | None = None, **choices) -> Output:
        """A model with the weights of a point."""
        return self.w.add("GBX_W2WApply", model=model or self.model, point=point, **choices)[0]

    def generate(self, model: Output, seed: int = 53, batch: int = 1) -> Output:
        """Images of a model, or of each of a list of models."""
        latent, numbers = self.latent(batch), {"seed": seed, "steps": _STEPS, "cfg": 3.0}
        return generate(self.w, model, self.positive, self.negative, latent, self.vae, **numbers)

    def image(self, point: Output, guided: bool = False) -> Output:
        """An image of the model with the weights of a point, or with identity guidance; both steps in a subgraph."""
        latent, node = self.latent(1), "GBX_W2WGuidance" if guided else "GBX_W2WApply"

        def inside(w: Workflow, model: Output, point: Output, **given: Output) -> Output:
            return sample(w, model=w.add(node, model=model, point=point)[0], **given)

        return self.w.subgraph(
            "Guide and generate" if guided else "W2W Apply and generate",
            inside,
            model=self.model,
            point=point,
            positive=self.positive,
            negative=self.negative,
            latent_image=latent,
            vae=self.vae,
            seed=53,
            steps=_STEPS,
            cfg=3.0,
        )

    def latent(self, batch: int) -> Output:
        """The empty latent of a batch, once."""
        if batch not in self._latents:
            self._latents[batch] = self.w.add("EmptyLatentImage", width=128, height=128, batch_size=batch)
        return self._latents[batch]

    def batch(self, images: Output) -> Output:
        """A list of images as one batch."""
        return self.w.add("RebatchImages", images=images, batch_size=_ALL)

    def save(self, images: Output, name: str, title: str | None = None) -> None:
        self.w.add("SaveImage", images=images, filename_prefix=f"glassbox/weights_{name}", node_title=title)


def demo_weights_sample(w: Workflow) -> None:
    w.note(
        "Sampled identities",
        f"**Six points** are sampled from a space of LoRAs ({_PAPER}): each is a small LoRA made of a few random "
        "numbers. Prompt and noise are the same for all six, so only the identity differs.",
        "**The space** was built from LoRAs of drawn people, ten images each. The figures show the variance that "
        "its axes explain, and the mean among its members. The sheet names the members nearest to each point.",
        "**Try** another seed; a spread of 0.5 (near the mean) or 1.2 (more diverse); count 12; source: member.",
    )
    demo = _Demo(w)
    w.group("Six points")
    points, _, labels = w.add("GBX_W2WSample", space=demo.space, components=96, spread=0.8, seed=3, count=6)
    w.group("Images")
    sheet, images = w.add("GBX_W2WSheet", images=demo.generate(demo.apply(points)), labels=labels, columns=3)
    demo.save(images, "sample")
    w.add("PreviewImage", images=sheet, node_title="With their nearest members")
    w.group("The space")
    spectrum, places, report, _ = w.add("GBX_W2WReport", space=demo.space)
    w.add("PreviewImage", images=spectrum, node_title="Explained variance")
    w.add("PreviewImage", images=places, node_title="Mean among the members")
    w.add("PreviewAny", source=report, node_title="Report")


def demo_weights_edit(w: Workflow) -> None:
    w.note(
        "Edits that add up",
        f"**One identity** is moved along directions of the space ({_PAPER}, section 3.3): a beard, then sunglasses. "
        "A strength of 1 is the largest projection of a member.",
        "**W2W Fit Directions** fits the directions to labels of the members and reports the accuracy of each on "
        "held-out members. `preserved_directions` keeps other attributes. Edits do not succeed with every identity: "
        "see the success rates in studies/weights.",
        "**Try** the sliders of W2W Edit; `beard: 2`; negative strengths; `long hair` as preserved direction; another "
        "member, or a random point.",
    )
    demo = _Demo(w)
    w.group("Directions")
    space, report = w.add("GBX_W2WFitDirections", space=demo.space, components=64)
    w.add("PreviewAny", source=report, node_title="Accuracy of the directions")
    w.group("One identity, edited")
    person = demo.member(space)
    first, _ = w.add("GBX_W2WEdit", point=person, edits="beard: 1", node_title="Beard")
    second, _ = w.add("GBX_W2WEdit", point=first, edits="sunglasses: 1", node_title="And sunglasses")
    w.group("Images")
    for point, name, title in (
        (person, "person", "A member"),
        (first, "beard", "Beard"),
        (second, "beard_sunglasses", "And sunglasses"),
    ):
        demo.save(demo.image(point, guided=True), name, title)


def demo_weights_guidance(w: Workflow) -> None:
    w.note(
        "Identity guidance",
        f"**One identity and one edit** with W2W Apply and with identity guidance ({_PAPER}). W2W Apply acts on both "
        "sides of CFG: the prompt is amplified, the identity is not. Guidance keeps the base model on the negative "
        "side, at the same number of evaluations.",
        "**The guider** sets cfg, identity and edit strength in one node; other strengths than 1 cost more evaluations "
        "per step, which its report counts.",
        "**Try** other strengths; another member; the model output of W2W Identity Guidance in your own sampler.",
    )
    demo = _Demo(w)
    w.group("A point and an edit")
    space, _ = w.add("GBX_W2WFitDirections", space=demo.space, components=64)
    person = demo.member(space)
    edited, _ = w.add("GBX_W2WEdit", point=person, edits="dark skin: 1")
    w.group("W2W Apply")
    demo.save(demo.image(person), "applied_identity", "Identity, W2W Apply")
    demo.save(demo.image(edited), "applied_edit", "Edit, W2W Apply")
    w.group("Identity guidance")
    model, _ = w.add("GBX_W2WGuidance", model=demo.model, point=person)
    demo.save(demo.generate(model), "guided_identity", "Identity, guidance")
    guider, report = w.add(
        "GBX_W2WGuider",
        model=demo.model,
        positive=demo.positive,
        negative=demo.negative,
        cfg=3.0,
        point=person,
        edited_point=edited,
    )
    w.add("PreviewAny", source=report, node_title="Evaluations per step")
    samples, _ = w.add(
        "SamplerCustomAdvanced",
        noise=w.add("RandomNoise", noise_seed=53),
        guider=guider,
        sampler=w.add("KSamplerSelect", sampler_name="euler"),
        sigmas=w.add("BasicScheduler", model=demo.model, scheduler="normal", steps=_STEPS, denoise=1.0),
        latent_image=w.add("EmptyLatentImage", width=128, height=128, batch_size=1),
    )
    demo.save(w.add("VAEDecode", samples=samples, vae=demo.vae), "guided_edit", "Edit, guidance")


def demo_weights_sweep(w: Workflow) -> None:
    w.note(
        "A grid of strengths",
        "**Along two directions** one person changes step by step: along a row the beard, down a column sunglasses "
        f"({_PAPER}). W2W Sheet puts the values on the axes.",
        "**Between two people** of the space a straight line leads from one to the other: a strip and an animation.",
        "**Try** `PC 1`, `PC 2` and so on instead of names: the axes of largest variance; or a count of 5.",
    )
    demo = _Demo(w)
    w.group("A grid")
    space, _ = w.add("GBX_W2WFitDirections", space=demo.space, components=64)
    person, another = demo.member(space), demo.sample(space=space, seed=8)
    grid, labels = w.add(
        "GBX_W2WSweep",
        point=person,
        direction="beard",
        second_direction="sunglasses",
        min_strength=-1.0,
        max_strength=1.0,
        count=3,
    )
    w.group("Images of the grid")
    sheet, _ = w.add("GBX_W2WSheet", images=demo.generate(demo.apply(grid)), labels=labels)
    demo.save(sheet, "grid")
    w.group("Interpolation")
    line, names = w.add(
        "GBX_W2WMix", first_point=person, second_point=another, start_fraction=0.0, end_fraction=1.0, count=5
    )
    _, frames = w.add("GBX_W2WSheet", images=demo.generate(demo.apply(line)), labels=names)
    demo.save(frames, "line")
    w.add("SaveAnimatedWEBP", images=frames, filename_prefix="glassbox/weights_animation", fps=4.0, method="default")


def demo_weights_invert(w: Workflow) -> None:
    w.note(
        "Inversion: an image as a point",
        "**One image** of a person who is not a member: W2W Invert trains the coefficients of a point until its "
        f"model restores the image from noise ({_PAPER}, section 3.4). The paper uses 400 steps; here 60.",
        "**Afterwards** the point works like any other: with another prompt, and with edits.",
        "**Try** more steps; another image; Stop, which keeps the point trained so far.",
    )
    demo = _Demo(w, "portrait, blue hoodie, serious, plain green background")
    w.group("Image")
    image, mask, _ = w.add("GBX_DemoPicture", image_index=5, count=1)
    latent = w.add("VAEEncode", pixels=image, vae=demo.vae)
    w.group("Inversion")
    space, _ = w.add("GBX_W2WFitDirections", space=demo.space, components=64)
    point, restored, figure, _, report = w.add(
        "GBX_W2WInvert",
        model=demo.model,
        space=space,
        latent=latent,
        positive=demo.positive,
        mask=mask,
        vae=demo.vae,
        steps=60,
        learning_rate=1.0,
        precision="fp32",
        gradient_checkpointing=False,
        preview_interval=15,
    )
    w.add("PreviewImage", images=figure)
    w.add("PreviewAny", source=report, node_title="Report")
    w.group("Images")
    demo.save(image, "given", "Input image")
    demo.save(restored, "restored", "Restored from noise")
    demo.save(demo.image(point), "inverted", "Image of the inverted point")
    edited, _ = w.add("GBX_W2WEdit", point=point, edits="afro: 1")
    demo.save(demo.image(edited), "inverted_edited", "With an afro")


def demo_weights_edit_photo(w: Workflow) -> None:
    w.note(
        "Edit the person in an image",
        "**From an image and back:** W2W Invert finds the point of the person, W2W Edit moves it, and image to image "
        f"with a mask puts the edited person back ({_PAPER}, sections 3.3 and 3.4). The background stays as it is.",
        "**The mask** limits the loss of the inversion, the noise of the sampler and the area that is replaced.",
        "**Try** more steps of W2W Invert (the paper: 400); the sliders; a lower denoise, which keeps more.",
    )
    demo = _Demo(w, "portrait, yellow hoodie, smiling, dotted blue background")
    w.group("Image")
    image, mask, _ = w.add("GBX_DemoPicture", image_index=5, count=1)
    latent = w.add("VAEEncode", pixels=image, vae=demo.vae)
    w.group("Inversion")
    space, report = w.add("GBX_W2WFitDirections", space=demo.space, components=64)
    w.add("PreviewAny", source=report, node_title="Accuracy and reliability of the directions")
    point, *_ = w.add(
        "GBX_W2WInvert",
        model=demo.model,
        space=space,
        latent=latent,
        positive=demo.positive,
        mask=mask,
        steps=60,
        learning_rate=1.0,
        precision="fp32",
        gradient_checkpointing=False,
    )
    w.group("Edit")
    edited, _ = w.add("GBX_W2WEdit", point=point, edits="dark skin: 2")
    model, _ = w.add("GBX_W2WGuidance", model=demo.model, point=point, edited_point=edited)
    w.group("Back into the image")
    samples = w.add(
        "KSampler",
        model=model,
        positive=demo.positive,
        negative=demo.negative,
        latent_image=w.add("SetLatentNoiseMask", samples=latent, mask=mask),
        seed=53,
        steps=_STEPS,
        cfg=3.0,
        sampler_name="euler",
        scheduler="normal",
        denoise=0.7,
    )
    decoded = w.add("VAEDecode", samples=samples, vae=demo.vae)
    whole = w.add("ImageCompositeMasked", destination=image, source=decoded, x=0, y=0, resize_source=False, mask=mask)
    demo.save(image, "photo", "Input image")
    demo.save(whole, "photo_edited", "Edited")


def sdxl_weights_edit_photo(w: Workflow) -> None:
    w.note(
        "Edit the person in a photo with SDXL",
        "**Put LoRAs** of people for SDXL into models/loras/sdxl-people: they become a space. W2W Invert finds the "
        f"point of the person of the photo, W2W Edit moves it ({_PAPER}, sections 3.3 and 3.4), and image to image "
        "puts the edited person back.",
        "**Keep the background:** open the photo in the mask editor and cover what shall stay; otherwise all of it "
        "changes.",
        "**Edits:** `PC 1` needs no labels; W2W Fit Directions with a table of labels gives named ones. A space of "
        "few LoRAs holds few people: read in the report how far the point lies from the members.",
        "Tested with random weights of this architecture, not with real LoRAs.",
    )
    w.group("Model, space and photo")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name="sd_xl_base_1.0.safetensors")
    space, report = w.add("GBX_W2WBuildSpace", folder="sdxl-people", filename="sdxl-people")
    w.add("PreviewAny", source=report, node_title="Build report")
    photo, kept = w.add("LoadImage", image="example.png", node_title="Photo; mask what shall stay")
    image = w.add("ImageScaleToTotalPixels", image=photo, upscale_method="lanczos", megapixels=1.0)
    mask = w.add("InvertMask", mask=kept)
    latent = w.add("VAEEncode", pixels=image, vae=vae)
    positive, negative = encode(w, clip, "photo of a person")
    w.group("Inversion")
    point, _, figure, _, about = w.add(
        "GBX_W2WInvert", model=model, space=space, latent=latent, positive=positive, mask=mask
    )
    w.add("PreviewImage", images=figure)
    w.add("PreviewAny", source=about, node_title="Report")
    w.group("Edit")
    edited, _ = w.add("GBX_W2WEdit", point=point, edits="PC 1: 1")
    patched, _ = w.add("GBX_W2WGuidance", model=model, point=point, edited_point=edited)
    w.group("Back into the photo")
    noised = w.add("SetLatentNoiseMask", samples=latent, mask=mask)
    samples = w.add(
        "KSampler",
        model=patched,
        positive=positive,
        negative=negative,
        latent_image=noised,
        seed=5,
        steps=30,
        cfg=6.0,
        sampler_name="dpmpp_2m",
        scheduler="karras",
        denoise=0.6,
    )
    decoded = w.add("VAEDecode", samples=samples, vae=vae)
    whole = w.add("ImageCompositeMasked", destination=image, source=decoded, x=0, y=0, resize_source=True, mask=mask)
    w.add("SaveImage", images=whole, filename_prefix="glassbox/edited_photo")


def demo_weights_delayed_injection(w: Workflow) -> None:
    w.note(
        "An edit that starts late",
        f"**The same edit** from the start, from 20 % and from 50 % of sampling ({_PAPER}, appendix I): a later start "
        "keeps more of the image and weakens the edit.",
        "**How:** one W2W Apply with the unedited point ends where another with the edited point starts.",
        "**Try** other percents. The paper's T is 1 - T / 999 here: T 800 is 0.199.",
    )
    demo = _Demo(w)
    w.group("A point and an edit")
    space, _ = w.add("GBX_W2WFitDirections", space=demo.space, components=64)
    person = demo.member(space)
    edited, _ = w.add("GBX_W2WEdit", point=person, edits="beard: 1")
    w.group("Images")
    demo.save(demo.generate(demo.apply(person)), "unedited", "A member")
    demo.save(demo.generate(demo.apply(edited)), "from_start", "Edited from the start")
    for percent in (0.2, 0.5):
        before = demo.apply(person, end_percent=percent)
        after = demo.apply(edited, before, start_percent=percent)
        demo.save(demo.generate(after), f"from_{percent:.0%}".replace("%", ""), f"Edited from {percent:.0%}")


def demo_weights_build_space(w: Workflow) -> None:
    w.note(
        "A space of your own LoRAs",
        f"**Eight LoRAs** become a space ({_PAPER}, section 3.1). Here they are sampled from another space so that the "
        "workflow runs without files; set `folder` to a folder inside models/loras to use your own.",
        "**Any trainer, rank and kind** (LoRA, LoHa, LoKr, DoRA, OFT) of one base model: points are sums of the "
        "members' weight updates in one common basis per layer. The report names files that do not fit, files that are "
        "there twice, and what was lost. A handful of LoRAs makes a handful of axes: the paper has 65,000.",
        "**The file** lies in models/w2w; the report gives the error of storing it as int8.",
    )
    demo = _Demo(w)
    w.group("LoRAs")
    points = demo.sample(seed=40, count=8)
    loras, _, _ = w.add("GBX_W2WToLoRA", point=points, filename_prefix="loras/glassbox_member")
    w.group("Space")
    space, report = w.add("GBX_W2WBuildSpace", filename="my-space", lora_1=loras)
    w.add("PreviewAny", source=report, node_title="Build report")
    saved, note = w.add("GBX_W2WSaveSpace", space=space, filename="my-space-int8", storage="int8")
    w.add("PreviewAny", source=note, node_title="Error of int8")
    w.group("A sampled point")
    person, _, _ = w.add("GBX_W2WSample", space=saved, seed=2)
    spectrum, places, _, _ = w.add("GBX_W2WReport", space=saved, point=person)
    w.add("PreviewImage", images=spectrum)
    w.add("PreviewImage", images=places)
    demo.save(demo.generate(demo.apply(person)), "own_space")


def demo_weights_label_members(w: Workflow) -> None:
    w.note(
        "Directions without typed labels",
        "**Forty members** of the space are generated with one prompt and one noise. W2W Label Members compares their "
        f"images with words, W2W Fit Directions fits directions to these labels ({_PAPER}, section 3.3), and W2W Edit "
        "moves a person along one.",
        "**The demo model's CLIP** brings a judge of its own. With other models connect a CLIP with its projection to "
        "images (Load CLIP) and the CLIP_VISION that was trained with it.",
        "**Of your own LoRAs** the source file_names or metadata needs no images: words in file names, or the tags "
        "that kohya's trainer writes.",
        "**Try** more members: with forty, an edit takes other attributes along. The report says which directions are "
        "noise.",
    )
    demo = _Demo(w, "portrait, plain green background")
    w.group("Images of members")
    points, names, _ = w.add("GBX_W2WSample", space=demo.space, source="members", seed=1, count=40)
    images = generate(
        w, demo.apply(points), demo.positive, demo.negative, demo.latent(1), demo.vae, seed=53, steps=10, cfg=3.0
    )
    w.add("PreviewImage", images=demo.batch(images), node_title="Members")
    w.group("Labels and directions")
    table, about = w.add(
        "GBX_W2WLabelMembers",
        space=demo.space,
        words="black skin / brown skin / pale skin\nmajestic beard / shaven",
        prompt="portrait, WORD",
        images=images,
        names=names,
        clip=demo.clip,
    )
    w.add("PreviewAny", source=about, node_title="Labels")
    space, report = w.add(
        "GBX_W2WFitDirections", space=demo.space, labels=table, method="mean_difference", components=64
    )
    w.add("PreviewAny", source=report, node_title="Accuracy and reliability of the directions")
    w.group("An edit by a fitted direction")
    person = demo.member(space)
    edited, _ = w.add("GBX_W2WEdit", point=person, edits="pale skin: -1")
    demo.save(demo.image(person, guided=True), "labeled_person", "A member")
    demo.save(demo.image(edited, guided=True), "labeled_edit", "Edited")


def demo_weights_to_lora(w: Workflow) -> None:
    w.note(
        "A point as an ordinary LoRA",
        "**One model** three ways: by W2W Apply, as a LoRA in ComfyUI's own loader, and as that LoRA projected back "
        "into the space. The first two images are bit-identical, the third nearly.",
        "**The file** lies in output/loras: Load LoRA lists it after a refresh; Forge and diffusers read it too.",
        f"**W2W Style Merge** adds a style LoRA ({_PAPER}, appendix H). Here it is a second person: two people mix.",
    )
    demo = _Demo(w)
    w.group("A point and its LoRA")
    person, another = demo.sample(seed=3), demo.sample(seed=8)
    lora, file, _ = w.add("GBX_W2WToLoRA", point=person, filename_prefix="loras/glassbox_person")
    style, _, _ = w.add("GBX_W2WToLoRA", point=another, filename_prefix="")
    w.add("PreviewAny", source=file, node_title="File")
    w.group("The same image")
    demo.save(demo.image(person), "applied", "W2W Apply")
    stock = w.add("LoraModelLoader", model=demo.model, lora=lora)
    demo.save(demo.generate(stock), "stock", "ComfyUI's own loader")
    w.group("Projected back")
    again, report = w.add("GBX_W2WProjectLoRA", space=demo.space, lora=lora)
    demo.save(demo.image(again), "projected", "Projected back into the space")
    w.add("PreviewAny", source=report, node_title="Projection report")
    w.group("With another LoRA")
    merged, _, note = w.add("GBX_W2WStyleMerge", point=person, style_lora=style, style_strength=0.5)
    demo.save(demo.generate(w.add("LoraModelLoader", model=demo.model, lora=merged)), "merged")
    w.add("PreviewAny", source=note, node_title="Merge report")
