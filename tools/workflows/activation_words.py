"""The workflows of Edit by Words: change a word in an image, and change it late in a run, beside
their rivals.
"""

from __future__ import annotations

from .activations import SDXL, save
from .authoring import Output, Workflow
from .front import for_generating, labeled, prepare, shape_of, show
from .sampling import encode, sample

_EDITED, _CHANGED = "Edit by Words", "Changed prompt"
_DENOISE = 0.6
_LIVE = {"node_properties": {"glassbox_live": True}, "node_size": (360, 640)}
_FACE = (
    "portrait, light skin, short brown hair, shaven, no glasses, blue hoodie, smiling, open eyes, "
    "plain gray background"
)
_CAPTION = "portrait, light skin, short blonde hair, shaven, no glasses, yellow hoodie, smiling"
_SILENT = "portrait, light skin, long gray hair{}, smiling, blue hoodie, gray background"
_PHOTO = "a photo of a woman with brown hair in a red coat, a street in the background"


def demo_activations_edit_image_by_words(w: Workflow) -> None:
    w.note(
        "Change a word in an image",
        "**Image to Noise**, inside the node on the right, finds the noise that the face could "
        "have been made from: sampling from there at denoise 0.6 keeps it. **Edit by Words** adds "
        "the difference that the changed word makes in every cross-attention layer, twice. "
        "Strength 1 would be the changed prompt.",
        "**FlowEdit** gets both prompts and needs no strength. **For comparison** the sheet has "
        "the changed prompt from the same noise, from random noise, and at denoise 0.8, which "
        "loses more of the image.",
        "**Try** the sliders, or `yellow hoodie -> green hoodie: 2` with the same words in "
        "changed_prompt.",
    )
    w.in_columns = True
    w.group("An image and its prompt")

    def described(
        w: Workflow, ready: dict[str, Output], changed_prompt, image_index
    ) -> dict[str, Output]:
        image, _, _ = w.add("GBX_DemoPicture", image_index=image_index, count=1)
        changed = w.add(
            "CLIPTextEncode", clip=ready["clip"], text=changed_prompt, node_title="Changed prompt"
        )
        return {"clip": ready["clip"], **for_generating(ready), "changed": changed, "image": image}

    changed = _CAPTION.replace("no glasses", "sunglasses")
    ready = prepare(
        w, "Image, model and prompts", described, _CAPTION, changed_prompt=changed, image_index=2
    )
    w.group("Change words")
    how = {"edits": "no glasses -> sunglasses: 2", "prompt": _CAPTION}
    edited, _ = w.add(
        "GBX_EditByWords", model=ready["model"], clip=ready.pop("clip"), **how, **_LIVE
    )
    w.group("Before and after")

    def each(w: Workflow, **given: Output) -> Output:
        return _each_way(w, "edit_image", 3.0, **given)

    sheet = w.subgraph("Image to image each way", each, **ready, edited=edited, seed=0, steps=8)
    show(w, sheet, "edit_image", "Before and after", shape_of(3, 2, 320))


def sdxl_activations_edit_image_by_words(w: Workflow) -> None:
    w.note(
        "SDXL: change a word in an image",
        "**Load an image** and describe it in the prompt. **Image to Noise** finds the noise that "
        "it could have been made from: sampling from there keeps most of it.",
        "**Edit by Words** takes the difference that the changed word makes in every "
        "cross-attention layer and adds it twice. Strength 1 would be the changed prompt.",
        "**FlowEdit** gets both prompts. **Not measured on SDXL**: the strength, and "
        "source_cfg as half of target_cfg, are those of the demo model. Compare with the changed "
        "prompt.",
    )
    w.group("Model and image")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name=SDXL)
    loaded, _ = w.add("LoadImage", image="example.png")
    image = w.add(
        "ImageScale", image=loaded, upscale_method="lanczos", width=1024, height=1024, crop="center"
    )
    _image(
        w,
        (model, clip, vae),
        image,
        _PHOTO,
        "brown hair -> red hair: 2",
        6.0,
        25,
        "sdxl_edit_image",
    )


def demo_activations_edit_late_by_words(w: Workflow) -> None:
    w.note(
        "Change a word late in a run",
        "**The first quarter** of the steps decides much of the composition. A word that is "
        "changed after it changes less of the rest: **Edit by Words** at strength 2. From 37.5 % "
        "still less changes, and the edit reaches less.",
        "**The rival** needs stock nodes alone: the changed prompt from 25 % of the steps. For "
        "new images whose caption does not name the attribute it is the cheapest way, and Edit by "
        "Words is no better.",
        "**Try** other starts, and strengths from 1 to 3.",
    )
    w.group("Model and prompt")
    model, clip, vae = w.add("GBX_LoadDemoModel")
    _late(w, (model, clip, vae), _FACE, ("brown hair", "red hair"), 128, 3.0, 16, "edit_late")


def sdxl_activations_edit_late_by_words(w: Workflow) -> None:
    w.note(
        "SDXL: change a word late in a run",
        "**The first quarter** of the steps decides much of the composition. A word that is "
        "changed after it changes less of the rest: Edit by Words at strength 2, beside the "
        "changed prompt from 25 %, which needs stock nodes alone.",
        "**Not measured on SDXL**: start and strength are those of the demo model.",
        "**Try** other starts, and strengths from 1 to 3.",
    )
    w.group("Model and prompt")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name=SDXL)
    _late(
        w, (model, clip, vae), _PHOTO, ("brown hair", "red hair"), 1024, 6.0, 25, "sdxl_edit_late"
    )


def demo_activations_timed_prompt(w: Workflow) -> None:
    w.note(
        "A timed prompt: the cheapest way to change a new image",
        "**The prompt changes at 25 %** of the steps. Until then the first prompt decides the "
        "composition. Two stock nodes do it: Conditioning (Set Timestep Range) for each prompt, "
        "and Combine.",
        "**Beside it** the image before, and the changed prompt from the first step, which "
        "reaches the words a little more often and changes more of the rest.",
        "**Try** other starts: 0.1 changes more, 0.4 often comes too late. For an existing image, "
        "or a later start, take Edit by Words.",
    )
    w.group("Model and prompts")
    model, clip, vae = w.add("GBX_LoadDemoModel")
    positive, negative = encode(w, clip, _SILENT.format(""))
    changed = w.add(
        "CLIPTextEncode",
        clip=clip,
        text=_SILENT.format(", round glasses"),
        node_title="Changed prompt",
    )
    latent = w.add("EmptyLatentImage", width=128, height=128, batch_size=3)
    w.group("Timed prompt")
    early = w.add("ConditioningSetTimestepRange", conditioning=positive, start=0.0, end=0.25)
    late = w.add("ConditioningSetTimestepRange", conditioning=changed, start=0.25, end=1.0)
    timed = w.add("ConditioningCombine", conditioning_1=early, conditioning_2=late)

    def each(
        w: Workflow, positive: Output, timed: Output, changed: Output, **given: Output
    ) -> Output:
        shown = _sampled(w, "timed", positive=positive, **given)
        for prompt in (timed, changed):
            made = _sampled(w, "timed", positive=prompt, **given)
            shown = w.add("ImageBatch", image1=shown, image2=made)
        labels = [text for text in ("before", "from 25 %", "from the start") for _ in range(3)]
        return w.add(
            "GBX_W2WSheet", images=shown, label_text="\n".join(labels), columns=3, image_width=256
        )[0]

    given = {
        "model": model,
        "positive": positive,
        "timed": timed,
        "changed": changed,
        "negative": negative,
    }
    given |= {
        "latent_image": latent,
        "vae": vae,
        "seed": 3,
        "steps": 16,
        "cfg": 3.0,
        "denoise": 1.0,
    }
    w.group("Before and after")
    sheet = w.subgraph("Generate each way", each, **given)
    size = {"node_size": (800, 760), "node_title": "Before and after"}
    w.add("SaveImage", images=sheet, filename_prefix="glassbox/timed_prompt", **size)


def _image(
    w: Workflow,
    loaded: tuple[Output, ...],
    image: Output,
    text: str,
    edit: str,
    cfg: float,
    steps: int,
    name: str,
) -> None:
    model, clip, vae = loaded
    words, _, strength = edit.partition(":")
    before, after = (one.strip() for one in words.split("->"))
    positive, negative = encode(w, clip, text)
    changed = w.add(
        "CLIPTextEncode", clip=clip, text=text.replace(before, after), node_title="Changed prompt"
    )
    w.group("Edit")
    edited, report = w.add(
        "GBX_EditByWords", model=model, clip=clip, edits=f"{words}:{strength}", prompt=text
    )
    w.add("PreviewAny", source=report, node_title="What is compared")

    def each(w: Workflow, **given: Output) -> Output:
        return _each_way(w, name, cfg, **given)

    given = {
        "model": model,
        "edited": edited,
        "positive": positive,
        "changed": changed,
        "negative": negative,
    }
    given |= {"image": image, "vae": vae, "seed": 0, "steps": steps}
    w.group("Before and after")
    sheet = w.subgraph("Image to image each way", each, **given)
    show(w, sheet, name, "Before and after", shape_of(3, 2, 320))


def _each_way(
    w: Workflow,
    name: str,
    cfg: float,
    model: Output,
    edited: Output,
    positive: Output,
    changed: Output,
    image: Output,
    seed: Output,
    steps: Output,
    **given: Output,
) -> Output:
    """The image, the edit from the image's own noise, and its rivals on one sheet."""
    latent = w.add("VAEEncode", pixels=image, vae=given["vae"])
    own_noise, *_ = w.add(
        "GBX_ImageToNoise",
        model=model,
        positive=positive,
        latent=latent,
        steps=steps,
        scheduler="normal",
        denoise=_DENOISE,
        seed=seed,
    )
    flow_edited = w.add(
        "GBX_FlowEdit",
        model=model,
        source=positive,
        target=changed,
        negative=given["negative"],
        latent=latent,
        steps=steps,
        target_cfg=cfg,
        source_cfg=cfg / 2,
        seed=seed,
    )
    rows = {
        _EDITED: (edited, positive, own_noise, _DENOISE),
        "changed prompt": (model, changed, own_noise, _DENOISE),
        "changed prompt, random noise": (model, changed, latent, _DENOISE),
        "changed prompt, denoise 0.8": (model, changed, latent, 0.8),
    }
    decoded = w.add("VAEDecode", samples=flow_edited, vae=given["vae"])
    shown = [_shown(w, image, name), _shown(w, decoded, name)]
    labels = ["before", "FlowEdit", *rows]
    for sampled_model, prompt, start, denoise in rows.values():
        shown.append(
            _sampled(
                w,
                name,
                model=sampled_model,
                positive=prompt,
                cfg=cfg,
                denoise=denoise,
                latent_image=start,
                seed=seed,
                steps=steps,
                **given,
            )
        )
    # Edit by Words beside the image, then FlowEdit, then the changed prompt.
    for listed in (shown, labels):
        listed.insert(1, listed.pop(2))
    return labeled(w, shown, labels, 3, 320)


def _late(
    w: Workflow,
    loaded,
    text: str,
    words: tuple[str, str],
    side: int,
    cfg: float,
    steps: int,
    name: str,
) -> None:
    model, clip, vae = loaded
    before, after = words
    positive, negative = encode(w, clip, text)
    changed = w.add(
        "CLIPTextEncode", clip=clip, text=text.replace(before, after), node_title="Changed prompt"
    )
    latent = w.add("EmptyLatentImage", width=side, height=side, batch_size=2)
    w.group("Edit")
    given = {"edits": f"{before} -> {after}: 2", "prompt": text, "start_percent": 0.25}
    edited, report = w.add("GBX_EditByWords", model=model, clip=clip, **given)
    w.add("PreviewAny", source=report, node_title="What is compared")

    def each(
        w: Workflow,
        model: Output,
        edited: Output,
        positive: Output,
        changed: Output,
        **given: Output,
    ):
        early = w.add("ConditioningSetTimestepRange", conditioning=positive, start=0.0, end=0.25)
        late = w.add("ConditioningSetTimestepRange", conditioning=changed, start=0.25, end=1.0)
        timed = w.add("ConditioningCombine", conditioning_1=early, conditioning_2=late)
        runs = {
            "before": (model, positive),
            "edit": (edited, positive),
            "timed": (model, timed),
            "changed": (model, changed),
        }
        return {
            title: _sampled(w, name, model=own, positive=prompt, denoise=1.0, **given)
            for title, (own, prompt) in runs.items()
        }

    given = {
        "model": model,
        "edited": edited,
        "positive": positive,
        "changed": changed,
        "negative": negative,
    }
    given |= {"latent_image": latent, "vae": vae, "seed": 0, "steps": steps, "cfg": cfg}
    w.group("Before and after")
    titles = ("Before", f"{_EDITED} from 25 %", f"{_CHANGED} from 25 %", _CHANGED)
    for number, (made, title) in enumerate(
        zip(w.subgraph("Generate each way", each, **given), titles, strict=True)
    ):
        save(w, made, f"{name}_{number}", title)


def _sampled(w: Workflow, name: str, vae: Output, **given: Output | float) -> Output:
    return _shown(w, sample(w, vae, **given), name)


def _shown(w: Workflow, image: Output, name: str) -> Output:
    """Enlarged, where it is of the demo model, so that it can be seen."""
    if name.startswith("sdxl"):
        return image
    return w.add(
        "ImageScale", image=image, upscale_method="lanczos", width=384, height=384, crop="disabled"
    )
