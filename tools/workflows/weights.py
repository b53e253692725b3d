"""The workflows of the weights family: models as points of a space."""

from collections.abc import Callable

from .authoring import Output, Workflow
from .front import labeled, shape_of, show
from .sampling import encode, sample

SPACE = "avatars-v2-w2w.safetensors"
PROMPT = "portrait, blue hoodie, smiling, open eyes, plain green background"
PAPER = "weights2weights, arXiv 2406.09413"
MEMBER = "person_0001"
SAMPLER, STEPS = "euler_ancestral", 30
GUIDED = {
    "end_percent": 0.6
}  # later guidance adds nothing to the identity and burns colors: studies/weights


class Demo:
    """The demo model with its space, a prompt, and nodes from points to images."""

    def __init__(self, w: Workflow, prompt: str = PROMPT, with_space: bool = True):
        self.w = w
        w.group("Model, space and prompt" if with_space else "Model and prompt")
        self.model, self.clip, self.vae = w.add("GBX_LoadDemoModel")
        if with_space:
            self.space, _ = w.add("GBX_W2WLoadSpace", space_name=SPACE)
        self.positive, self.negative = encode(w, self.clip, prompt)

    def sample(self, **choices) -> Output:
        """Points of the space."""
        return self.w.add("GBX_W2WSample", space=self.space, **choices)[0]

    def members(self, count: int) -> tuple[Output, Output]:
        """An image of each of some members, and their names, in a subgraph."""

        def inside(
            w: Workflow, model, space, count, sample_seed, **given: Output
        ) -> dict[str, Output]:
            points, names, _ = w.add(
                "GBX_W2WSample", space=space, source="members", seed=sample_seed, count=count
            )
            images = sampled(w, model=w.add("GBX_W2WApply", model=model, point=points)[0], **given)
            return {"images": images, "names": names}

        shown = {"space": self.space, "count": count, "sample_seed": 1}
        return self._image("Generate members", inside, steps=10, model=self.model, **shown)

    def directed_space(self) -> tuple[Output, Output]:
        """The space with directions, in a subgraph, and their report."""

        def inside(w: Workflow, space_name: Output) -> tuple[Output, ...]:
            space, _ = w.add("GBX_W2WLoadSpace", space_name=space_name)
            return w.add("GBX_W2WFitDirections", space=space)

        return self.w.subgraph("Space with directions", inside, space_name=SPACE)

    def directed_member(self) -> tuple[Output, Output]:
        """The same in a subgraph, of the space with directions, and the report of those."""

        def inside(w: Workflow, space_name: Output, member_name: Output) -> dict[str, Output]:
            space, _ = w.add("GBX_W2WLoadSpace", space_name=space_name)
            space, report = w.add("GBX_W2WFitDirections", space=space)
            point, _, _ = w.add(
                "GBX_W2WSample", space=space, source="member", member_name=member_name
            )
            return {"point": point, "report": report}

        return self.w.subgraph(
            "A member with directions", inside, space_name=SPACE, member_name=MEMBER
        )

    def generate(self, model: Output, steps: int = STEPS) -> Output:
        """An image of a model, or of each of a list of models."""
        return self._image("Generate", sampled, steps, model=model)

    def images(self, **points: Output) -> tuple[Output, ...]:
        """An image of the model with the weights of each point, in a subgraph."""
        return self._each("W2W Apply and generate", "GBX_W2WApply", "point", points)

    def image(self, point: Output, guided: bool = False, what: str = "") -> Output:
        """An image of the model with the weights of a point, or with identity guidance; its
        subgraph says what.
        """
        node, choices = ("GBX_W2WGuidance", GUIDED) if guided else ("GBX_W2WApply", {})

        def inside(w: Workflow, model: Output, point: Output, **given: Output) -> Output:
            return sampled(w, model=w.add(node, model=model, point=point, **choices)[0], **given)

        title = (
            f"Generate: {what}"
            if what
            else "Guide and generate"
            if guided
            else "W2W Apply and generate"
        )
        return self._image(title, inside, model=self.model, point=point)

    def another_lora(self) -> Output:
        """The LoRA of another point, in a subgraph."""

        def inside(w: Workflow, space: Output, seed: Output) -> Output:
            point, _, _ = w.add("GBX_W2WSample", space=space, seed=seed, source="random")
            return w.add("GBX_W2WToLoRA", point=point, filename_prefix="")[0]

        return self.w.subgraph("Another person's LoRA", inside, space=self.space, seed=8)

    def with_loras(self, **loras: Output) -> tuple[Output, ...]:
        """An image of the model with each LoRA in ComfyUI's own loader, in a subgraph."""
        return self._each("Load LoRA and generate", "LoraModelLoader", "lora", loras)

    def _each(
        self, title: str, node: str, takes: str, given: dict[str, Output]
    ) -> tuple[Output, ...]:
        def inside(w: Workflow, model: Output, **inputs: Output) -> dict[str, Output]:
            made = {
                name: w.add(node, **{"model": model, takes: inputs.pop(name)}) for name in given
            }
            models = {
                name: one if isinstance(one, Output) else one[0] for name, one in made.items()
            }
            return {name: sampled(w, model=one, **inputs) for name, one in models.items()}

        return self._image(title, inside, model=self.model, **given)

    def edited(self, point: Output, edits: str) -> Output:
        """An image of a point after an edit."""

        def inside(
            w: Workflow, model: Output, point: Output, edits: Output, **given: Output
        ) -> Output:
            edited, _ = w.add("GBX_W2WEdit", point=point, edits=edits)
            return sampled(w, model=w.add("GBX_W2WApply", model=model, point=edited)[0], **given)

        return self._image(
            "Edit, apply and generate", inside, model=self.model, point=point, edits=edits
        )

    def delayed(self, before: Output, after: Output, percent: float) -> Output:
        """An image of one point up to a percent of sampling, and of another from there on."""

        def inside(
            w: Workflow,
            model: Output,
            before: Output,
            after: Output,
            percent: Output,
            **given: Output,
        ) -> Output:
            first, *_ = w.add("GBX_W2WApply", model=model, point=before, end_percent=percent)
            both, *_ = w.add("GBX_W2WApply", model=first, point=after, start_percent=percent)
            return sampled(w, model=both, **given)

        points = {"before": before, "after": after, "percent": percent}
        return self._image("Change the point and generate", inside, model=self.model, **points)

    def _image(
        self,
        title: str,
        inside: Callable[..., Output],
        steps: int = STEPS,
        **given: Output | float | str,
    ) -> Output | tuple[Output, ...]:
        prompts = {"positive": self.positive, "negative": self.negative}
        return self.w.subgraph(
            title, inside, **given, **prompts, vae=self.vae, seed=53, steps=steps, cfg=3.0
        )

    def mixed(
        self, title: str, inside: Callable[..., dict], **given: Output | int
    ) -> tuple[Output, ...]:
        """What a subgraph makes of points with the demo model and the prompt."""
        return self._image(title, inside, model=self.model, **given)

    def save(self, images: Output, name: str, title: str | None = None) -> None:
        self.w.add(
            "SaveImage", images=images, filename_prefix=f"glassbox/weights_{name}", node_title=title
        )


def demo_weights_guidance(w: Workflow) -> None:
    w.note(
        "Identity guidance",
        f"**One identity and one edit** with W2W Apply and with identity guidance ({PAPER}). W2W "
        "Apply acts on both sides of CFG: the prompt is amplified, the identity is not. Guidance "
        "keeps the base model on the negative side, at the same number of evaluations.",
        "**The guider** sets cfg, identity and edit strength in one node; other strengths than 1 "
        "cost more evaluations per step, which its report counts. After `end_percent` the "
        "point acts on both sides of CFG: more natural colors, and eyes and a mouth that follow "
        "the prompt.",
        "**Try** `end_percent` 1; other strengths; another member; the model output of W2W "
        "Identity Guidance in your own sampler.",
    )
    demo = Demo(w, with_space=False)
    w.group("A point and an edit")
    person, _ = demo.directed_member()
    edited, _ = w.add("GBX_W2WEdit", point=person, edits="dark skin: 1")
    w.group("W2W Apply")
    demo.save(demo.image(person, what="identity"), "applied_identity", "Identity, W2W Apply")
    demo.save(demo.image(edited, what="edit"), "applied_edit", "Edit, W2W Apply")
    w.group("Identity guidance")
    model, _ = w.add("GBX_W2WGuidance", model=demo.model, point=person, **GUIDED)
    demo.save(demo.generate(model), "guided_identity", "Identity, guidance")
    guider, report = w.add(
        "GBX_W2WGuider",
        model=demo.model,
        positive=demo.positive,
        negative=demo.negative,
        cfg=3.0,
        point=person,
        edited_point=edited,
        **GUIDED,
    )
    w.add("PreviewAny", source=report, node_title="Evaluations per step")

    def guided(
        w: Workflow, guider: Output, model: Output, vae: Output, noise_seed: Output, steps: Output
    ) -> Output:
        samples, _ = w.add(
            "SamplerCustomAdvanced",
            noise=w.add("RandomNoise", noise_seed=noise_seed),
            guider=guider,
            sampler=w.add("KSamplerSelect", sampler_name=SAMPLER),
            sigmas=w.add(
                "BasicScheduler", model=model, scheduler="normal", steps=steps, denoise=1.0
            ),
            latent_image=w.add("EmptyLatentImage", width=128, height=128, batch_size=1),
        )
        return w.add("VAEDecode", samples=samples, vae=vae)

    numbers = {"noise_seed": 53, "steps": STEPS}
    image = w.subgraph(
        "Generate with a guider", guided, guider=guider, model=demo.model, vae=demo.vae, **numbers
    )
    demo.save(image, "guided_edit", "Edit, guidance")


def demo_weights_sweep(w: Workflow) -> None:
    w.note(
        "A grid of strengths",
        "**Along two directions** one person changes step by step: along a row the beard, down a "
        f"column dark skin ({PAPER}). Labeled Sheet puts the values on the axes.",
        "**Between two people** of the space a straight line leads from one to the other: a strip "
        "and an animation.",
        "**Try** `PC 1`, `PC 2` and so on instead of names: the axes of largest variance; or a "
        "count of 5.",
    )
    demo = Demo(w, with_space=False)
    w.group("A grid")

    def people(
        w: Workflow, space_name: Output, member_name: Output, seed: Output
    ) -> dict[str, Output]:
        space, _ = w.add("GBX_W2WLoadSpace", space_name=space_name)
        space, _ = w.add("GBX_W2WFitDirections", space=space)
        person, _, _ = w.add("GBX_W2WSample", space=space, source="member", member_name=member_name)
        another, _, _ = w.add("GBX_W2WSample", space=space, seed=seed, source="random")
        return {"member": person, "random person": another}

    person, another = w.subgraph("Two people", people, space_name=SPACE, member_name=MEMBER, seed=8)
    ends = {"min_strength": -1.0, "max_strength": 1.0}
    grid, labels = w.add(
        "GBX_W2WSweep",
        point=person,
        direction="beard",
        second_direction="dark skin",
        count=3,
        **ends,
    )
    w.group("Images of the grid")
    sheet, _ = w.add("GBX_W2WSheet", images=demo.image(grid), labels=labels)
    demo.save(sheet, "grid", "The grid")
    w.group("Interpolation")

    def inside(
        w: Workflow, model: Output, first: Output, second: Output, count: Output, **given: Output
    ):
        ends = {"start_fraction": 0.0, "end_fraction": 1.0}
        line, names = w.add(
            "GBX_W2WMix", first_point=first, second_point=second, count=count, **ends
        )
        images = sampled(w, model=w.add("GBX_W2WApply", model=model, point=line)[0], **given)
        sheet, frames = w.add("GBX_W2WSheet", images=images, labels=names)
        return {"strip": sheet, "frames": frames}

    strip, frames = demo.mixed("Mix and generate", inside, first=person, second=another, count=5)
    demo.save(strip, "line", "From one person to another")
    w.add(
        "SaveAnimatedWEBP",
        images=frames,
        filename_prefix="glassbox/weights_animation",
        fps=4.0,
        method="default",
    )


def demo_weights_invert(w: Workflow) -> None:
    w.note(
        "Inversion: an image as a point",
        "**One image** of a person who is not a member: W2W Invert trains the coefficients of a "
        f"point until its model restores the image from noise ({PAPER}, section 3.4). In a learned "
        "space 120 steps are enough; the paper takes 400. The caption says what is not the person.",
        "**Afterwards** the point works like any other: with another prompt, and with edits.",
        "**Try** more steps; another image; Finish now, which takes the point trained so far.",
    )
    demo = Demo(w, "portrait, blue hoodie, serious, plain green background", with_space=False)
    caption = w.add(
        "CLIPTextEncode",
        clip=demo.clip,
        text="portrait, yellow hoodie, smiling, dotted blue background",
        node_title="Caption of the image",
    )
    w.group("Image and space")
    image, mask, _ = w.add("GBX_DemoPicture", image_index=5, count=1)
    latent = w.add("VAEEncode", pixels=image, vae=demo.vae)
    space, _ = demo.directed_space()
    demo.save(image, "given", "Input image")
    w.group("Inversion")
    point, restored, _, _, report = w.add(
        "GBX_W2WInvert",
        model=demo.model,
        space=space,
        latent=latent,
        positive=caption,
        mask=mask,
        vae=demo.vae,
        gradient_checkpointing=False,
        preview_interval=15,
    )
    w.group("Images")
    w.add("PreviewAny", source=report, node_title="Report")
    demo.save(restored, "restored", "Restored from noise")
    demo.save(demo.image(point), "inverted", "Image of the inverted point")
    demo.save(demo.edited(point, "dark skin: 1"), "inverted_edited", "With darker skin")


def demo_weights_delayed_injection(w: Workflow) -> None:
    w.note(
        "An edit that starts late",
        f"**The same edit** from the start, from 20 % and from 50 % of sampling ({PAPER}, appendix "
        "I): a later start keeps more of the image and weakens the edit.",
        "**How:** one W2W Apply with the unedited point ends where another with the edited point "
        "starts.",
        "**Try** other percents. The paper's T is 1 - T / 999 here: T 800 is 0.199.",
    )
    demo = Demo(w, with_space=False)
    w.group("A point and an edit")
    person, _ = demo.directed_member()
    edited, _ = w.add("GBX_W2WEdit", point=person, edits="beard: 1")
    w.group("Images")
    demo.save(demo.image(person, what="the member"), "unedited", "A member")
    demo.save(demo.image(edited, what="edited"), "from_start", "Edited from the start")
    for percent in (0.2, 0.5):
        image = demo.delayed(person, edited, percent)
        demo.save(image, f"from_{percent:.0%}".replace("%", ""), f"Edited from {percent:.0%}")


def demo_weights_build_space(w: Workflow) -> None:
    w.note(
        "A space of your own LoRAs",
        f"**Eight LoRAs** become a space ({PAPER}, section 3.1). Here they are sampled from "
        "another space so that the workflow runs without files; set `folder` to a folder inside "
        "models/loras to use your own.",
        "**Any trainer, rank and kind** (LoRA, LoHa, LoKr, DoRA, OFT) of one base model: points "
        "are sums of the members' weight updates in one common basis per layer. The report names "
        "files that do not fit, files that are there twice, and what was lost. A handful of LoRAs "
        "makes a handful of axes: the paper has 65,000.",
        "**The file** lies in models/w2w; the report gives the error of storing it as int8.",
    )
    demo = Demo(w)
    w.group("LoRAs")
    points = demo.sample(seed=40, count=8, source="random")
    loras, _, _ = w.add("GBX_W2WToLoRA", point=points, filename_prefix="loras/glassbox_member")
    w.group("Space")
    space, report = w.add("GBX_W2WBuildSpace", filename="my-space", lora_1=loras)
    w.add("PreviewAny", source=report, node_title="Build report")
    saved, note = w.add("GBX_W2WSaveSpace", space=space, filename="my-space-int8", storage="int8")
    w.add("PreviewAny", source=note, node_title="Error of int8")
    w.group("A sampled point")
    person, _, _ = w.add("GBX_W2WSample", space=saved, seed=2, source="random")
    spectrum, places, _, _ = w.add("GBX_W2WReport", space=saved, point=person)
    w.add("PreviewImage", images=spectrum)
    w.add("PreviewImage", images=places)
    demo.save(demo.image(person), "own_space")


def demo_weights_label_members(w: Workflow) -> None:
    w.note(
        "Directions without typed labels",
        "**Forty members** of the space are generated with one prompt and one noise. W2W Label "
        "Members compares their images with words, W2W Fit Directions fits directions to these "
        f"labels ({PAPER}, section 3.3), and W2W Edit moves a person along one.",
        "**The demo model's CLIP** brings a judge of its own. With other models connect a CLIP "
        "with its projection to images (Load CLIP) and the CLIP_VISION that was trained with it.",
        "**Of your own LoRAs** the source file_names or metadata needs no images: words in file "
        "names, or the tags that kohya's trainer writes.",
        "**Try** more members: with forty, an edit takes other attributes along. The report says "
        "which directions are noise.",
    )
    demo = Demo(w)
    w.group("Images of members")
    images, names = demo.members(40)
    w.add("PreviewImage", images=images, node_title="Members")
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
    space, report = w.add("GBX_W2WFitDirections", space=demo.space, labels=table)
    w.add("PreviewAny", source=report, node_title="Accuracy and reliability of the directions")
    w.group("An edit by a fitted direction")

    def member(w: Workflow, space: Output, member_name: Output) -> Output:
        return w.add("GBX_W2WSample", space=space, source="member", member_name=member_name)[0]

    person = w.subgraph("A member", member, space=space, member_name=MEMBER)
    edited, _ = w.add("GBX_W2WEdit", point=person, edits="pale skin: -1")
    demo.save(demo.image(person, guided=True), "labeled_person", "A member")
    demo.save(demo.image(edited, guided=True), "labeled_edit", "Edited")


def demo_weights_to_lora(w: Workflow) -> None:
    w.note(
        "A point as an ordinary LoRA",
        "**One model** three ways: by W2W Apply, as a LoRA in ComfyUI's own loader, and as that "
        "LoRA projected back into the space. The images hardly differ: the file is rounded to "
        "float16.",
        "**The file** lies in output/loras: Load LoRA lists it after a refresh; Forge and "
        "diffusers read it too.",
        f"**W2W Style Merge** adds a style LoRA ({PAPER}, appendix H). Here it is a second person: "
        "two people mix.",
    )
    demo = Demo(w)
    w.group("A point and its LoRA")
    person = demo.sample(seed=3, source="random")
    lora, _, _ = w.add("GBX_W2WToLoRA", point=person, filename_prefix="loras/glassbox_person")
    w.group("Projected back")
    again, report = w.add("GBX_W2WProjectLoRA", space=demo.space, lora=lora)
    w.add("PreviewAny", source=report, node_title="Projection report")
    w.group("With another LoRA")
    merged, _, _ = w.add(
        "GBX_W2WStyleMerge", point=person, style_lora=demo.another_lora(), style_strength=0.5
    )
    w.group("Images")
    applied, projected = demo.images(applied=person, projected=again)
    stock, mixed = demo.with_loras(stock=lora, merged=merged)

    def sheet(w: Workflow, **images: Output) -> Output:
        names = ("W2W Apply", "the same as a LoRA", "LoRA, projected back", "with another person")
        return labeled(w, list(images.values()), names, 2, 320)

    images = {"applied": applied, "stock": stock, "projected": projected, "merged": mixed}
    show(
        w,
        w.subgraph("On one sheet", sheet, **images),
        "weights_lora",
        "One person as a LoRA",
        shape_of(2, 2, 320),
        480,
    )


def sampled(w: Workflow, **given: Output) -> Output:
    return sample(
        w,
        sampler=SAMPLER,
        latent_image=w.add("EmptyLatentImage", width=128, height=128, batch_size=1),
        **given,
    )
