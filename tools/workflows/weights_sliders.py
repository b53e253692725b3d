"""The workflows of Train Slider: sliders from two phrases and from pairs of images."""

from .authoring import Output, Workflow
from .front import labeled, shape_of, show
from .networks import Z_IMAGE
from .sampling import empty_latent, encode, sample
from .weights import GUIDED, MEMBER, SAMPLER, STEPS, Demo, sampled

PAPER = "Concept Sliders, arXiv 2311.12092"
#: Of Train Slider on the demo model: a minute and a half on one quiet core.
TRAINING = {
    "learning_rate": 0.01,
    "batch_size": 4,
    "images": 6,
    "sampling_steps": 12,
    "cfg": 3.0,
    "gradient_checkpointing": False,
    "preview_interval": 10,
    "filename_prefix": "loras/slider",
}
BASE_PROMPTS = """portrait
portrait, pale skin, smiling
portrait, blue hoodie
portrait, long brown hair, plain yellow background
portrait, black skin, red shirt
portrait, short gray hair, serious"""
#: Of Train Slider inside the demo's space: about two minutes on one quiet core, in bf16 less.
SPACE_TRAINING = {
    "guidance_scale": 1.0,
    "batch_size": 4,
    "images": 24,
    "sampling_steps": 12,
    "cfg": 3.0,
    "gradient_checkpointing": False,
    "preview_interval": 0,
    "filename_prefix": "",
}
SPACE_SECONDS = 150
SPACE_PROMPTS = """portrait, WORD, blue hoodie, smiling, open eyes, plain green background
portrait, WORD, red shirt, serious, squinting eyes, plain yellow background
portrait, WORD, white sweater, big smile, open eyes, striped blue background
portrait, WORD, green shirt, sad, surprised eyes, dotted gray background"""
#: In the demo model's images the shaven wear glasses more often: each of these values goes into
#: both phrases.
KEEP = "no glasses\nsunglasses\nround glasses"
_WITHOUT_GLASSES = "portrait, green sweater, no glasses, plain blue background"
STRENGTHS = (-1.0, -0.5, 0.0, 0.5, 1.0)


def train_slider(w: Workflow, fixed: dict, **given) -> tuple[Output, ...]:
    """A training in the subgraph "Train a slider": LoRA, file, previews and report; ``given``: the
    inputs that it shows.
    """

    def inside(w: Workflow, **given: Output) -> dict[str, Output]:
        _, lora, file, previews, _, _, report, _ = w.add("GBX_TrainSlider", **given, **fixed)
        return {"lora": lora, "file": file, "previews": previews, "report": report}

    return w.subgraph("Train a slider", inside, **given)


def _at_strengths(w: Workflow, strengths: tuple[float, ...], side: int, sampler: str, **given):
    """Images of the LoRA at each strength, by stock Load LoRA Model, on one sheet, in a
    subgraph.
    """

    def inside(w: Workflow, model, lora, positive, negative, vae, seed, steps, cfg) -> Output:
        latent = empty_latent(w, side, 1)
        images = []
        for strength in strengths:
            patched = w.add("LoraModelLoader", model=model, lora=lora, strength_model=strength)
            images.append(
                sample(
                    w,
                    vae,
                    sampler=sampler,
                    model=patched,
                    positive=positive,
                    negative=negative,
                    latent_image=latent,
                    seed=seed,
                    steps=steps,
                    cfg=cfg,
                )
            )
        labels = [f"{strength:+g}" if strength else "0" for strength in strengths]
        return labeled(w, images, labels, len(strengths), 320)

    return w.subgraph("At every strength", inside, **given)


def demo_weights_train_slider(w: Workflow) -> None:
    w.note(
        "Make a slider from two phrases",
        "**Two phrases** become a LoRA whose strength is a slider: 1 moves towards the first, -1 "
        f"towards the second ({PAPER}). Nothing else is needed: the model generates the images "
        "that it is trained on. It takes about a minute and a half on two CPU cores.",
        "**keep** names what must not change along: without it sunglasses come at -1. What the "
        "prompt leaves open may still change, so it says no glasses.",
        "**The five images** differ in the strength alone, put on by ComfyUI's own Load LoRA "
        "Model. The file lies in output/loras; the node Sliders shows it, and any other LoRA, as "
        "a slider.",
        "**Open** Train a slider for its curve, Finish now and every setting.",
        "**Try** sunglasses / no glasses with `keep` empty and no glasses named in the prompt; one "
        "slider per line; more steps. For skin or hair open Train a slider and remove both from "
        "`base_prompt`.",
    )
    w.seconds = 90
    demo = Demo(w, prompt=_WITHOUT_GLASSES, with_space=False)
    w.group("Two phrases")
    lora, file, previews, report = train_slider(
        w,
        {**TRAINING, "base_prompt": BASE_PROMPTS},
        model=demo.model,
        clip=demo.clip,
        vae=demo.vae,
        latent=empty_latent(w, 128, 1),
        increase="majestic beard",
        decrease="shaven",
        keep=KEEP,
        steps=40,
    )
    w.add("PreviewAny", source=report, node_title="Report")
    w.add("PreviewAny", source=file, node_title="File")
    demo.save(previews, "slider_previews", "At -1, 0 and 1")
    _show_demo(w, demo, lora, "One slider, five strengths")


def _show_demo(w: Workflow, demo: Demo, lora: Output, title: str) -> None:
    """A sheet of the demo model with the LoRA at five strengths."""
    w.group("The slider")
    sheet = _at_strengths(
        w,
        STRENGTHS,
        128,
        SAMPLER,
        model=demo.model,
        lora=lora,
        positive=demo.positive,
        negative=demo.negative,
        vae=demo.vae,
        seed=53,
        steps=STEPS,
        cfg=3.0,
    )
    show(w, sheet, "weights_slider", title, shape_of(5, 1, 320), 800)


def demo_weights_train_slider_pairs(w: Workflow) -> None:
    w.note(
        "Make a slider from pairs of images",
        "**Pairs of images** become a LoRA whose strength is a slider: 1 moves towards the images "
        f"after, -1 towards those before ({PAPER}). Each pair differs in one thing alone.",
        "**Here** the model makes six pairs: the same noise, two prompts. Put your own in their "
        "place: photos before and after an edit, a drawing before and after a filter.",
        "**The five images** differ in the strength alone, put on by ComfyUI's own Load LoRA "
        "Model. Six pairs are few: sunglasses pass by halfway.",
        "**Try** the other pair_objective, and masks of what has changed: open Train a slider.",
    )
    demo = Demo(w, prompt="portrait, green sweater, plain blue background", with_space=False)
    w.group("Pairs")
    before, after = w.subgraph(
        "Make pairs",
        _pairs,
        model=demo.model,
        clip=demo.clip,
        vae=demo.vae,
        prompt_before="portrait, no glasses",
        prompt_after="portrait, round glasses",
        seed=11,
    )
    demo.save(before, "pairs_before", "Before")
    demo.save(after, "pairs_after", "After")
    w.group("Training")
    lora, _, previews, report = train_slider(
        w,
        {**TRAINING, "base_prompt": "portrait", "pair_objective": "visual"},
        model=demo.model,
        clip=demo.clip,
        vae=demo.vae,
        before=before,
        after=after,
        increase="round glasses",
        decrease="no glasses",
        steps=60,
    )
    w.add("PreviewAny", source=report, node_title="Report")
    demo.save(previews, "slider_previews", "At -1, 0 and 1")
    _show_demo(w, demo, lora, "One slider from six pairs")


def _pairs(
    w: Workflow,
    model: Output,
    clip: Output,
    vae: Output,
    prompt_before: Output,
    prompt_after: Output,
    seed: Output,
) -> dict[str, Output]:
    """Six images of each of two prompts from the same noise."""
    negative = w.add("CLIPTextEncode", clip=clip, text="", node_title="Negative prompt")
    images = {}
    for name, prompt in (("before", prompt_before), ("after", prompt_after)):
        positive = w.add("CLIPTextEncode", clip=clip, text=prompt, node_title=name.title())
        images[name] = sample(
            w,
            vae,
            model=model,
            positive=positive,
            negative=negative,
            latent_image=empty_latent(w, 128, 6),
            seed=seed,
            steps=20,
            cfg=3.0,
        )
    return images


#: Words of the demo world for the ends of the directions that are found.
DISCOVERED_WORDS = """sunglasses
no glasses
round glasses
pale skin
tanned skin
black skin
majestic beard
shaven
bald
smiling
serious
screaming mouth"""


def demo_weights_discover_sliders(w: Workflow) -> None:
    w.note(
        "Let the model propose its sliders",
        "**One prompt, 96 seeds**: Discover Sliders finds the directions in which these images "
        "vary most, and pairs of images at the ends of each (after SliderSpace, arXiv 2502.01639). "
        "Train Slider runs once for each: two LoRAs, two files. It takes about three minutes on "
        "two CPU cores.",
        "**The figure** shows what lies at both ends. Words only name them.",
        "**The same four seeds** at -1.5 and 1.5, for each slider. Nothing holds the other "
        "attributes: what goes along in the pairs goes along in the slider.",
        "**Try** your own prompt, more seeds, more sliders; the files in the node Sliders.",
    )
    w.seconds = 180
    demo = Demo(w, prompt="portrait", with_space=False)

    def seeds(w: Workflow, **given: Output) -> Output:
        latent = empty_latent(w, 128, 96)
        return sample(w, latent_image=latent, steps=12, cfg=3.0, **given)

    w.group("What varies")
    images = w.subgraph(
        "Generate 96 seeds",
        seeds,
        model=demo.model,
        vae=demo.vae,
        positive=demo.positive,
        negative=demo.negative,
        seed=5,
    )
    before, after, high, low, figure, report = w.add(
        "GBX_DiscoverSliders", images=images, clip=demo.clip, sliders=2, words=DISCOVERED_WORDS
    )
    demo.save(figure, "sliders_discovered", "Both ends of each direction")
    w.add("PreviewAny", source=report, node_title="Report")
    w.group("A slider for each")
    lora, file, _, _ = train_slider(
        w,
        {**TRAINING, "base_prompt": "portrait", "preview_interval": 0},
        model=demo.model,
        clip=demo.clip,
        vae=demo.vae,
        before=before,
        after=after,
        increase=high,
        decrease=low,
        steps=60,
    )
    w.add("PreviewAny", source=file, node_title="Files")

    def ends(w: Workflow, model: Output, lora: Output, **given: Output) -> dict[str, Output]:
        latent = empty_latent(w, 128, 4)
        images = {}
        for name, strength in (("low_end", -1.5), ("high_end", 1.5)):
            patched = w.add("LoraModelLoader", model=model, lora=lora, strength_model=strength)
            images[name] = sample(w, sampler=SAMPLER, model=patched, latent_image=latent, **given)
        return images

    w.group("Both ends")
    low_end, high_end = w.subgraph(
        "At both ends",
        ends,
        model=demo.model,
        lora=lora,
        positive=demo.positive,
        negative=demo.negative,
        vae=demo.vae,
        seed=300,
        steps=STEPS,
        cfg=3.0,
    )
    demo.save(low_end, "sliders_discovered_low", "At -1.5")
    demo.save(high_end, "sliders_discovered_high", "At 1.5")


def demo_weights_sliders(w: Workflow) -> None:
    w.note(
        "Several sliders on one panel",
        "**Two sliders** are learned in one training, one per line, and leave as a file each "
        f"({PAPER}).",
        "**Drag them** on the node Sliders: each move generates the image again, while Live is on. "
        "It equals ComfyUI's own Load LoRA, one after the other.",
        "**Try** Add a LoRA with any file of models/loras, or Sliders alone behind a checkpoint of "
        "your own.",
    )
    demo = Demo(w, prompt="portrait, green sweater, plain blue background", with_space=False)
    w.group("Training")
    _, file, _, report = train_slider(
        w,
        {**TRAINING, "base_prompt": BASE_PROMPTS},
        model=demo.model,
        clip=demo.clip,
        vae=demo.vae,
        latent=empty_latent(w, 128, 1),
        increase="majestic beard\nround glasses",
        decrease="shaven\nno glasses",
        steps=40,
    )
    w.add("PreviewAny", source=report, node_title="Report")
    w.group("Drag the sliders")
    patched, _, label = w.add(
        "GBX_Sliders",
        model=demo.model,
        files=file,
        edits="majestic_beard: 0.5, round_glasses: 0.5",
        node_properties={"glassbox_live": True},
        node_size=(360, 480),
    )

    def inside(w: Workflow, model: Output, label: Output, vae: Output, **given: Output) -> Output:
        latent = empty_latent(w, 128, 1)
        image = sample(w, vae, sampler=SAMPLER, model=model, latent_image=latent, **given)
        return w.add("GBX_W2WSheet", images=image, label_text=label, columns=1, image_width=320)[0]

    w.group("Image")
    sheet = w.subgraph(
        "Generate",
        inside,
        model=patched,
        label=label,
        positive=demo.positive,
        negative=demo.negative,
        vae=demo.vae,
        seed=53,
        steps=STEPS,
        cfg=3.0,
    )
    show(w, sheet, "weights_sliders", "Both sliders", shape_of(1, 1, 320), 420)


def demo_weights_space_sliders(w: Workflow) -> None:
    w.note(
        "Make sliders of a space from two phrases",
        "**Two phrases** become a direction of the space, without any label: what the phrase "
        f"changes in images of many people ({PAPER}, inside the space). The node W2W Edit shows "
        "it as a slider beside the others. It takes about two minutes on two CPU cores.",
        "**A person stays one person**, since only the point moves. WORD in a base prompt is where "
        "the phrases stand.",
        "**Try** other phrases of the demo world, one slider per line; more steps and images. "
        "A phrase that does nothing in a prompt does nothing here: red hair takes labels, as in "
        "W2W Fit Directions.",
    )
    w.seconds = SPACE_SECONDS
    demo = Demo(w)
    w.group("Two phrases")

    def inside(w: Workflow, **given: Output) -> dict[str, Output]:
        *_, report, space = w.add("GBX_TrainSlider", **given, **SPACE_TRAINING)
        return {"space": space, "report": report}

    space, report = w.subgraph(
        "Train sliders of the space",
        inside,
        model=demo.model,
        clip=demo.clip,
        latent=empty_latent(w, 128, 1),
        space=demo.space,
        increase="brown skin\nmajestic beard",
        decrease="pale skin\nshaven",
        base_prompt=SPACE_PROMPTS,
        steps=60,
    )
    w.add("PreviewAny", source=report, node_title="Report")
    w.group("Drag the sliders")
    point, *_ = w.add("GBX_W2WSample", space=space, source="member", member_name=MEMBER)
    edited, _ = w.add(
        "GBX_W2WEdit",
        point=point,
        edits="brown skin: 0.7",
        node_properties={"glassbox_live": True},
        node_size=(360, 480),
    )
    w.group("Before and after")

    def both(w: Workflow, model: Output, before: Output, after: Output, **given: Output) -> Output:
        images = [
            sampled(w, model=w.add("GBX_W2WGuidance", model=model, point=one, **GUIDED)[0], **given)
            for one in (before, after)
        ]
        return labeled(w, images, ("before", "after"), 2, 320)

    sheet = w.subgraph(
        "Generate both",
        both,
        model=demo.model,
        before=point,
        after=edited,
        positive=demo.positive,
        negative=demo.negative,
        vae=demo.vae,
        seed=5,
        steps=STEPS,
        cfg=3.0,
    )
    show(w, sheet, "weights_space_slider", "Before and after", shape_of(2, 1, 320), 640)


def sdxl_weights_train_slider(w: Workflow) -> None:
    w.note(
        "Make a slider from two phrases with SDXL",
        f"**Two phrases** become a LoRA whose strength is a slider ({PAPER}): 1 moves towards the "
        "first, -1 towards the second. The model generates the images that it is trained on.",
        "**keep** names what must not change along: with man and woman the slider does not learn "
        "that old people are men. Keep the phrases short and opposite.",
        "**Learning rate and steps** were only tuned on the demo model: watch the previews. A "
        "stopped run resumes exactly from its checkpoint.",
        "Tested with random weights of this architecture, not with real images.",
    )
    w.group("Model")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name="sd_xl_base_1.0.safetensors")
    positive, negative = encode(w, clip, "photo of a person in a garden")
    w.group("Two phrases")
    lora, file, previews, report = train_slider(
        w,
        {"batch_size": 1, "images": 6, "learning_rate": 0.0002, "cfg": 6.0},
        model=model,
        clip=clip,
        vae=vae,
        latent=empty_latent(w, 1024, 1),
        increase="very old, wrinkled",
        decrease="very young",
        base_prompt="photo of a person\nportrait of a person outdoors",
        keep="man\nwoman",
        steps=300,
        checkpoint_name="glassbox/slider",
    )
    w.add("PreviewAny", source=report, node_title="Report")
    w.add("PreviewAny", source=file, node_title="File")
    w.add(
        "SaveImage", images=previews, filename_prefix="glassbox/slider", node_title="At -1, 0 and 1"
    )
    w.group("The slider")
    sheet = _at_strengths(
        w,
        (-1.0, 0.0, 1.0),
        1024,
        "euler",
        model=model,
        lora=lora,
        positive=positive,
        negative=negative,
        vae=vae,
        seed=5,
        steps=30,
        cfg=6.0,
    )
    w.add(
        "SaveImage",
        images=sheet,
        filename_prefix="glassbox/slider_strengths",
        node_title="One slider, three strengths",
    )


def zimage_weights_train_slider(w: Workflow) -> None:
    w.note(
        "Make a slider from two phrases with Z-Image",
        f"**Two phrases** become a LoRA whose strength is a slider ({PAPER}): 1 moves towards the "
        "first, -1 towards the second. The model generates the images that it is trained on.",
        "**Z-Image Turbo is distilled**: cfg is 1 and sampling_steps 8, as it was made for. The "
        "target is the model's own prediction, so the slider needs no training adapter.",
        "**keep** names what must not change along: with man and woman the slider does not learn "
        "that old people are men. Keep the phrases short and opposite.",
        "**Learning rate and steps** were only tuned on the demo model: watch the previews. A "
        "stopped run resumes exactly from its checkpoint. Tested with random weights of this "
        "architecture, not with the real files.",
    )
    w.group("Model")
    model, clip, vae = Z_IMAGE.load(w)
    positive, negative = Z_IMAGE.encode(w, clip, "photo of a person in a garden")
    w.group("Two phrases")
    lora, file, previews, report = train_slider(
        w,
        {
            "batch_size": 1,
            "images": 6,
            "learning_rate": 0.0002,
            "cfg": Z_IMAGE.cfg,
            "sampling_steps": Z_IMAGE.steps,
        },
        model=model,
        clip=clip,
        vae=vae,
        latent=Z_IMAGE.latent(w),
        increase="very old, wrinkled",
        decrease="very young",
        base_prompt="photo of a person\nportrait of a person outdoors",
        keep="man\nwoman",
        steps=300,
        checkpoint_name="glassbox/slider_zimage",
    )
    w.add("PreviewAny", source=report, node_title="Report")
    w.add("PreviewAny", source=file, node_title="File")
    w.add(
        "SaveImage", images=previews, filename_prefix="glassbox/slider", node_title="At -1, 0 and 1"
    )
    w.group("The slider")

    def each_strength(w: Workflow, model: Output, lora: Output, vae: Output, **given: Output):
        images = []
        for strength in (-1.0, 0.0, 1.0):
            patched = w.add("LoraModelLoader", model=model, lora=lora, strength_model=strength)
            samples = Z_IMAGE.sample(w, model=patched, latent=Z_IMAGE.latent(w), **given)
            images.append(w.add("VAEDecode", samples=samples, vae=vae))
        return labeled(w, images, ("-1", "0", "+1"), 3, 320)

    given = {"positive": positive, "negative": negative, "vae": vae, "seed": 5}
    sheet = w.subgraph("At every strength", each_strength, model=model, lora=lora, **given)
    w.add(
        "SaveImage",
        images=sheet,
        filename_prefix="glassbox/slider_strengths",
        node_title="One slider, three strengths",
    )
