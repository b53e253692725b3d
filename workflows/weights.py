"""The workflows of the weights family: models as points of a space."""

from .authoring import Output, Workflow

_SPACE = "avatars-v1-w2w.safetensors"
_CAPTION = "portrait, blue hoodie, smiling, plain green background"
_NOTHING = "Nothing (what CFG steers away from)"
_PAPER = "weights2weights, arXiv 2406.09413"
_ALL = 64


class _Demo:
    """The demo model with its space, a caption, and a way from points to pictures."""

    def __init__(self, w: Workflow, caption: str = _CAPTION):
        self.w = w
        w.group("Model, space and caption")
        self.model, clip, self.vae = w.add("GBX_LoadDemoModel")
        self.space, self.about = w.add("GBX_W2WLoadSpace", space_name=_SPACE)
        self.positive = w.add("CLIPTextEncode", clip=clip, text=caption, node_title="Caption")
        self.negative = w.add("CLIPTextEncode", clip=clip, text="", node_title=_NOTHING)

    def sample(self, **choices) -> Output:
        """Points of the space."""
        given = {"space": self.space, "components": 96, "spread": 0.8, **choices}
        return self.w.add("GBX_W2WSample", **given)[0]

    def member(self, space: Output) -> Output:
        """A trained member without a beard: members draw their person more surely than drawn models do."""
        return self.w.add("GBX_W2WSample", space=space, what="a member", member="person_0013")[0]

    def apply(self, point: Output, model: Output | None = None, **choices) -> Output:
        """A model with the weights of a point."""
        return self.w.add("GBX_W2WApply", model=model or self.model, point=point, **choices)

    def paint(self, model: Output, seed: int = 53, batch: int = 1) -> Output:
        """Pictures of a model, or of each of a list of models."""
        latent = self.w.add("EmptyLatentImage", width=128, height=128, batch_size=batch)
        samples = self.w.add(
            "KSampler", model=model, positive=self.positive, negative=self.negative, latent_image=latent, seed=seed,
            steps=12, cfg=3.0, sampler_name="euler", scheduler="normal",
        )  # fmt: skip
        return self.w.add("VAEDecode", samples=samples, vae=self.vae)

    def together(self, images: Output) -> Output:
        """A list of pictures as one batch."""
        return self.w.add("RebatchImages", images=images, batch_size=_ALL)

    def save(self, images: Output, name: str, title: str | None = None) -> None:
        self.w.add("SaveImage", images=images, filename_prefix=f"glassbox/weights_{name}", node_title=title)


def demo_weights_sample(w: Workflow) -> None:
    w.note(
        "Models that nobody trained",
        f"**Six people** are drawn from a space of LoRAs ({_PAPER}): each is a small LoRA of its own, made of a few "
        "random numbers. Caption and noise are the same for all six, so what differs is who is drawn.",
        "**The space** was built from LoRAs of drawn people, ten pictures each. The figures show what its axes "
        "explain, and where the mean lies among its members.",
        "**Try** another seed; a spread of 0.5 (near the mean) or 1.2 (far out); count 12; `what`: a member.",
    )
    demo = _Demo(w)
    w.group("Six people")
    points = demo.sample(seed=3, count=6)
    w.group("Pictures")
    demo.save(demo.together(demo.paint(demo.apply(points))), "sample")
    w.group("The space")
    spectrum, places, report, _ = w.add("GBX_W2WReport", space=demo.space)
    w.add("PreviewImage", images=spectrum, node_title="What the axes explain")
    w.add("PreviewImage", images=places, node_title="The members")
    w.add("PreviewAny", source=report, node_title="In words")


def demo_weights_edit(w: Workflow) -> None:
    w.note(
        "Edits that add up",
        f"**One person** is moved along directions of the space ({_PAPER}, section 3.3): a beard, sunglasses on top, "
        "and an afro and another skin in one node. A strength of 1 is as far out as the member furthest out.",
        "**W2W Fit Directions** finds the directions from the members' labels and tells how well each separates "
        "members that it has not seen. `keep` holds others still. It does not go as well with everybody: the study "
        "of weights has the shares.",
        "**Try** the sliders of W2W Edit; `beard: 2`, negative strengths, `keep: long hair`; another `member`, or a "
        "drawn model.",
    )
    demo = _Demo(w)
    w.group("Directions")
    space, report = w.add("GBX_W2WFitDirections", space=demo.space, components=64)
    w.add("PreviewAny", source=report, node_title="How good the directions are")
    w.group("One person, edited")
    person = demo.member(space)
    first, _ = w.add("GBX_W2WEdit", point=person, edits="beard: 1", node_title="Beard")
    second, _ = w.add("GBX_W2WEdit", point=first, edits="sunglasses: 1", node_title="And sunglasses")
    other, _ = w.add("GBX_W2WEdit", point=person, edits="afro: 1.5, dark skin: 1.5",
                     node_title="Two edits in one node")  # fmt: skip
    w.group("Pictures")
    for point, name, title in ((person, "person", "A member"), (first, "beard", "Beard"),
                               (second, "beard_sunglasses", "And sunglasses"), (other, "two", "Afro, dark skin")):
        demo.save(demo.paint(demo.apply(point)), name, title)  # fmt: skip


def demo_weights_sweep(w: Workflow) -> None:
    w.note(
        "A grid of strengths",
        f"**Along two directions** one person changes step by step: along a row the beard, down a column sunglasses "
        f"({_PAPER}).",
        "**Between two people** of the space a straight line leads from one to the other.",
        "**Try** `PC 1`, `PC 2` and so on instead of names: the axes in which the members differ most, whatever they "
        "mean; or 5 steps.",
    )
    demo = _Demo(w)
    w.group("A grid")
    space, _ = w.add("GBX_W2WFitDirections", space=demo.space, components=64)
    person, another = demo.member(space), demo.sample(space=space, seed=8)
    grid, _ = w.add("GBX_W2WSweep", point=person, across="beard", down="sunglasses", low=-1.0, high=1.0, steps=3)
    w.group("Pictures of the grid")
    demo.save(demo.together(demo.paint(demo.apply(grid))), "grid")
    w.group("From one to another")
    line = w.add("GBX_W2WMix", first=person, second=another, start=0.0, end=1.0, steps=5)
    demo.save(demo.together(demo.paint(demo.apply(line))), "line")


def demo_weights_invert(w: Workflow) -> None:
    w.note(
        "A picture as a point",
        f"**One picture** of somebody that the space does not know: W2W Invert trains the numbers of a point until the "
        f"model they stand for restores the picture from noise ({_PAPER}, section 3.4). The paper takes 400 "
        "steps; here 60.",
        "**Then** the point is a model as any other: it draws its person with another caption, and can be edited.",
        "**Try** more steps; another picture; Stop, which goes on with what there is.",
    )
    demo = _Demo(w, "portrait, blue hoodie, serious, plain green background")
    w.group("The picture")
    picture, mask, _ = w.add("GBX_DemoPicture", picture=5, count=1)
    latent = w.add("VAEEncode", pixels=picture, vae=demo.vae)
    w.group("Inversion")
    space, _ = w.add("GBX_W2WFitDirections", space=demo.space, components=64)
    point, restored, plot, _, report = w.add(
        "GBX_W2WInvert", model=demo.model, space=space, latent=latent, positive=demo.positive, mask=mask, vae=demo.vae,
        steps=60, learning_rate=1.0, precision="fp32", gradient_checkpointing=False, preview_every=15,
    )  # fmt: skip
    w.add("PreviewImage", images=plot)
    w.add("PreviewAny", source=report, node_title="In words")
    w.group("Pictures")
    demo.save(picture, "given", "The picture")
    demo.save(restored, "restored", "Restored from noise")
    demo.save(demo.paint(demo.apply(point)), "inverted", "The model's own picture")
    edited, _ = w.add("GBX_W2WEdit", point=point, edits="afro: 1")
    demo.save(demo.paint(demo.apply(edited)), "inverted_edited", "With an afro")


def demo_weights_delayed_injection(w: Workflow) -> None:
    w.note(
        "An edit that starts late",
        f"**The same edit** from the start, from 20 % and from 50 % of the run on ({_PAPER}, appendix I): the later, "
        "the more of the picture stays, and the weaker the edit is.",
        "**How:** one W2W Apply with the person unedited ends where another with the edited one starts. Both read the "
        "noise level at every step.",
        "**Try** other percents. The paper's T is 1 - T / 999 here: T 800 is 0.199.",
    )
    demo = _Demo(w)
    w.group("A person and an edit")
    space, _ = w.add("GBX_W2WFitDirections", space=demo.space, components=64)
    person = demo.member(space)
    edited, _ = w.add("GBX_W2WEdit", point=person, edits="beard: 1")
    w.group("Pictures")
    demo.save(demo.paint(demo.apply(person)), "unedited", "A member")
    demo.save(demo.paint(demo.apply(edited)), "from_start", "Edited from the start")
    for percent in (0.2, 0.5):
        before = demo.apply(person, end_percent=percent)
        after = demo.apply(edited, before, start_percent=percent)
        demo.save(demo.paint(after), f"from_{percent:.0%}".replace("%", ""), f"Edited from {percent:.0%} on")


def demo_weights_build_space(w: Workflow) -> None:
    w.note(
        "A space of your own LoRAs",
        f"**Eight LoRAs** become a space ({_PAPER}, section 3.1). Here they are drawn from another space so that the "
        "workflow runs as it is; put the name of a folder inside models/loras in `folder` to take yours.",
        "**Any trainer, rank and layers** of one base model will do; the report names what does not fit and what was "
        "lost. A handful of LoRAs makes a handful of axes: the paper has 65,000.",
        "**Saved** in models/w2w, the space is one file to load again and to share; int8 costs what the report says.",
    )
    demo = _Demo(w)
    w.group("LoRAs")
    points = demo.sample(seed=40, count=8)
    loras, _ = w.add("GBX_W2WToLoRA", point=points, filename_prefix="loras/glassbox_member")
    w.group("A space of them")
    space, report = w.add("GBX_W2WBuildSpace", name="my-space", lora_1=loras)
    w.add("PreviewAny", source=report, node_title="What was built")
    saved, told = w.add("GBX_W2WSaveSpace", space=space, name="my-space-int8", storage="int8")
    w.add("PreviewAny", source=told, node_title="What int8 costs")
    w.group("A new model of it")
    person, _ = w.add("GBX_W2WSample", space=saved, seed=2)
    spectrum, places, _, _ = w.add("GBX_W2WReport", space=saved, point=person)
    w.add("PreviewImage", images=spectrum)
    w.add("PreviewImage", images=places)
    demo.save(demo.paint(demo.apply(person)), "own_space")


def demo_weights_to_lora(w: Workflow) -> None:
    w.note(
        "A point as an ordinary LoRA",
        "**One model** three ways: by W2W Apply, as a LoRA in ComfyUI's own loader, and as that LoRA projected into "
        "the space again. The first two pictures are the same bit for bit, the third nearly.",
        "**The file** lies in output/loras: Load LoRA lists it after a refresh, and Forge and diffusers read it.",
        f"**W2W Style Merge** adds another LoRA to it ({_PAPER}, appendix H). Here that is a second person: two people "
        "do not merge but mix. A style LoRA is what it is for.",
    )
    demo = _Demo(w)
    w.group("A point and its LoRA")
    person, another = demo.sample(seed=3), demo.sample(seed=8)
    lora, file = w.add("GBX_W2WToLoRA", point=person, filename_prefix="loras/glassbox_person")
    style, _ = w.add("GBX_W2WToLoRA", point=another, filename_prefix="")
    w.add("PreviewAny", source=file, node_title="The file")
    w.group("The same picture")
    demo.save(demo.paint(demo.apply(person)), "applied", "W2W Apply")
    stock = w.add("LoraModelLoader", model=demo.model, lora=lora)
    demo.save(demo.paint(stock), "stock", "ComfyUI's own loader")
    w.group("And back")
    again, report = w.add("GBX_W2WProjectLoRA", space=demo.space, lora=lora)
    demo.save(demo.paint(demo.apply(again)), "projected", "Projected into the space again")
    w.add("PreviewAny", source=report, node_title="What was kept")
    w.group("With another LoRA")
    merged, _, told = w.add("GBX_W2WStyleMerge", point=person, style=style, strength_style=0.5)
    demo.save(demo.paint(w.add("LoraModelLoader", model=demo.model, lora=merged)), "merged")
    w.add("PreviewAny", source=told, node_title="How the two meet")


def sd15_weights_official_release(w: Workflow) -> None:
    w.note(
        "The official space of 65,000 people",
        f"**People** drawn from the official space for SD1.5 ({_PAPER}) and edited. Put the folder `files` of "
        "Snapchat/weights2weights (Hugging Face; non-commercial) in models/w2w/weights2weights, with its labels "
        "written as identity_df.csv once (see the help page of W2W Import Release).",
        "**The checkpoint** that its members were trained on is Realistic Vision 5.1; others of SD1.5 work less well. "
        "The prompt says 'sks person', CFG is 3.",
        "**Try** other attributes of CelebA in W2W Fit Directions and `edits`.",
        "Checked on files of the same form and random weights; the real files have not been tried.",
    )
    w.group("Model and space")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name="realisticVisionV51_v51VAE.safetensors")
    space, told = w.add("GBX_W2WImportRelease", folder="weights2weights/files", name="w2w-people-sd15")
    w.add("PreviewAny", source=told, node_title="What was found")
    directed, report = w.add("GBX_W2WFitDirections", space=space, attributes="Chubby, Young, Eyeglasses, Male")
    w.add("PreviewAny", source=report, node_title="The directions")
    w.group("A person, edited")
    person, _ = w.add("GBX_W2WSample", space=directed, seed=1)
    edited, _ = w.add("GBX_W2WEdit", point=person, edits="Chubby: 0.5", keep="Young, Male, Eyeglasses")
    w.group("Pictures")
    positive = w.add("CLIPTextEncode", clip=clip, text="sks person", node_title="Prompt")
    against = "low quality, blurry, unfinished, cartoon"
    negative = w.add("CLIPTextEncode", clip=clip, text=against, node_title="Negative")
    for point, name in ((person, "person"), (edited, "chubby")):
        applied = w.add("GBX_W2WApply", model=model, point=point)
        latent = w.add("EmptyLatentImage", width=512, height=512, batch_size=1)
        samples = w.add("KSampler", model=applied, positive=positive, negative=negative, latent_image=latent, seed=5,
                        steps=30, cfg=3.0, sampler_name="ipndm", scheduler="normal")  # fmt: skip
        w.add("SaveImage", images=w.add("VAEDecode", samples=samples, vae=vae), filename_prefix=f"glassbox/w2w_{name}")


def sdxl_weights_own_space(w: Workflow) -> None:
    _own_space(w, "SDXL", "sd_xl_base_1.0.safetensors", 1024, 7.0)


def flux_weights_own_space(w: Workflow) -> None:
    _own_space(w, "Flux", "flux1-dev-fp8.safetensors", 1024, 1.0)


def _own_space(w: Workflow, base: str, checkpoint: str, side: int, cfg: float) -> None:
    """From a folder of LoRAs to an edited model and its LoRA."""
    w.note(
        f"A space of your own {base} LoRAs",
        f"**Put LoRAs** of one kind (people, styles, products) for {base} into models/loras/{base.lower()}-people. Any "
        f"rank will do, from one trainer best; they become the points of a space ({_PAPER}, section 3.1). The report "
        "names what does not fit.",
        "**An axis** of the space (`PC 1`) needs no labels. For named edits give W2W Fit Directions a table of labels, "
        "and write `smiling: 0.8`. A dozen LoRAs show how it works, hundreds make directions good.",
        "**The edited model** is a LoRA again: ComfyUI's own loader takes it, and the file lies in output/loras.",
        "Checked on random weights of this architecture; real LoRAs have not been tried.",
    )
    w.group("Model and LoRAs")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name=checkpoint)
    name = f"{base.lower()}-people"
    space, report = w.add("GBX_W2WBuildSpace", folder=name, name=name)
    w.add("PreviewAny", source=report, node_title="What was built")
    w.group("A model, edited")
    person, _ = w.add("GBX_W2WSample", space=space, seed=1, spread=0.7)
    edited, _ = w.add("GBX_W2WEdit", point=person, edits="PC 1: 1.5")
    lora, file = w.add("GBX_W2WToLoRA", point=edited, filename_prefix=f"loras/{name}")
    w.add("PreviewAny", source=file, node_title="The file")
    w.group("Pictures")
    positive = w.add("CLIPTextEncode", clip=clip, text="photo of a person, looking at the camera", node_title="Prompt")
    negative = w.add("CLIPTextEncode", clip=clip, text="", node_title=_NOTHING)
    kind = "EmptySD3LatentImage" if base == "Flux" else "EmptyLatentImage"
    latent = w.add(kind, width=side, height=side, batch_size=1)
    applied = w.add("GBX_W2WApply", model=model, point=person)
    stock = w.add("LoraModelLoader", model=model, lora=lora)
    for patched, title in ((applied, "The drawn model"), (stock, "Edited, by ComfyUI's own loader")):
        samples = w.add("KSampler", model=patched, positive=positive, negative=negative, latent_image=latent, seed=5,
                        steps=20, cfg=cfg, sampler_name="euler", scheduler="normal")  # fmt: skip
        w.add("SaveImage", images=w.add("VAEDecode", samples=samples, vae=vae), filename_prefix=f"glassbox/{name}",
              node_title=title)  # fmt: skip
