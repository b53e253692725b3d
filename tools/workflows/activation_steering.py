"""More workflows of the activations family: steer, patch, compare models, score one's own
labels.
"""

from __future__ import annotations

from .activations import CUSTOM_IDS, PAPER, PHOTO, SD15, face, save, tap
from .authoring import Output, Workflow
from .sampling import encode, generate, generate_latents, sample, sampler_of

#: What the captions of the contrast hold beside the skin.
_OTHERS = (
    "short brown hair, shaven, no glasses, blue hoodie, smiling, open eyes, plain gray background",
    "long black hair, light beard, no glasses, white shirt, serious, open eyes, striped purple "
    "background",
    "blonde bob, shaven, round glasses, red sweater, sad, open eyes, plain blue background",
    "big pink hair, moustache, sunglasses, green overall, smiling, dotted yellow background",
)
_STEERED = f"portrait, {_OTHERS[0]}"
#: What the captions of the second slider's contrast hold beside the background.
_FACES = (
    "light skin, short brown hair, shaven, no glasses, blue hoodie, smiling, open eyes",
    "tanned skin, long black hair, light beard, no glasses, white shirt, serious, open eyes",
    "brown skin, blonde bob, shaven, round glasses, red sweater, sad, open eyes",
    "pale skin, gray bun, moustache, sunglasses, green overall, smiling",
)
_EVERY_LEVEL = "*-vit-out"
_CARRIER = "up-level2-repeat1-vit-out"
_WITHOUT = f"portrait, light skin, {_OTHERS[0]}"
_WITH = _WITHOUT.replace("no glasses", "sunglasses").replace("open eyes, ", "")
_POINTS = (
    "54, 62\n78, 62\n66, 72\n66, 82",
    "48, 57\n72, 57\n60, 66\n60, 77",
    "53, 68\n72, 68\n62, 75\n62, 84",
    "48, 64\n71, 64\n59, 72\n59, 83",
)

_IN_PERCENT = "\n\n".join(
    "\n".join(
        ", ".join(f"{float(one) / 1.28:.0f}%" for one in line.split(","))
        for line in block.splitlines()
    )
    for block in _POINTS
)
_PHOTOGRAPHED = ("a dog", "a house", "a street", "a mountain")


def demo_activations_steering(w: Workflow) -> None:
    w.note(
        "Steer along a direction",
        "**The direction** is the mean difference of activations between four captions with black "
        "skin and the same four with pale skin, at the output of every transformer (arXiv "
        "2308.10248, 2312.06681).",
        "**Without and with steering**: same noise, same caption, which says nothing of the skin. "
        "Strength 0 is identical to the plain model.",
        "**Not for free**: hair and background change too, as strength grows.",
        "**Try** strength 0.3 or -0.3, a mask, another contrast, or only the later half of the "
        "run.",
    )
    w.group("Model")
    model, clip, vae = w.add("GBX_LoadDemoModel")
    w.group("Direction")
    few = w.add("EmptyLatentImage", width=128, height=128, batch_size=3)
    direction, report = w.add(
        "GBX_PromptSteeringDirection",
        model=model,
        clip=clip,
        latent=few,
        toward_prompts="\n".join(f"portrait, black skin, {others}" for others in _OTHERS),
        away_prompts="\n".join(f"portrait, pale skin, {others}" for others in _OTHERS),
        preset=CUSTOM_IDS,
        ids=_EVERY_LEVEL,
        steps=8,
        seed=1000,
    )
    w.add("PreviewAny", source=report, node_title="The direction")
    file = w.add("GBX_SaveSteeringDirection", direction=direction)
    loaded, _ = w.add("GBX_LoadSteeringDirection", file=file)
    steered = w.add("GBX_ActivationSteering", model=model, direction=loaded, strength=0.5)
    side_by_side(w, (model, steered), clip, vae, _STEERED, "steering", ("Plain", "Steered"))


def demo_activations_steering_sliders(w: Workflow) -> None:
    w.note(
        "Sliders for directions",
        "**Two directions**, mean differences between captions (arXiv 2308.10248, 2312.06681): "
        "black skin minus pale skin at the output of every transformer, and a green background "
        "minus a gray one at that of the first.",
        "**Mix Steering Directions** adds them up. Drag its sliders, or write the text.",
        "**Without and with steering**: same noise, same caption, which names neither skin nor "
        "background. With all sliders at 0 the model is the plain one.",
        "**Try** negative strengths, *Live*, or a third direction.",
    )
    w.group("Model")
    model, clip, vae = w.add("GBX_LoadDemoModel")
    w.group("Directions")
    contrasts = (
        (
            "black skin",
            _EVERY_LEVEL,
            [[f"{one} skin, {rest}" for rest in _OTHERS] for one in ("black", "pale")],
        ),
        (
            "green background",
            "down-level0-repeat0-vit-out",
            [[f"{rest}, plain {one} background" for rest in _FACES] for one in ("green", "gray")],
        ),
    )
    directions = {}
    for number, (name, ids, phrases) in enumerate(contrasts, 1):
        toward, away = ("\n".join(f"portrait, {one}" for one in some) for some in phrases)
        texts = {"name": name, "toward_prompts": toward, "away_prompts": away}
        directions[f"direction_{number}"] = _direction(
            w, number, model, clip, texts, 128, ids, steps=8, seed=1000
        )
    w.group("Sliders")
    direction, report = w.add(
        "GBX_MixSteeringDirections", edits="black skin: 0.5, green background: 0.4", **directions
    )
    w.add("PreviewAny", source=report, node_title="The sum")
    steered = w.add("GBX_ActivationSteering", model=model, direction=direction, strength=1.0)
    side_by_side(
        w,
        (model, steered),
        clip,
        vae,
        _FACES[0].replace("light skin", "portrait"),
        "sliders",
        ("Plain", "Steered"),
    )


def demo_activations_patching(w: Workflow) -> None:
    w.note(
        "Activations of one run in another",
        "**The first run** has sunglasses and is recorded at the output of every transformer.",
        "**The second prompt** says no glasses. Patched with one of the sixteen recorded "
        "activations, it has the sunglasses (causal tracing, arXiv 2202.05262).",
        "**The map** patches one ID at a time and measures how much of the first image that "
        "restores.",
        "**Try** another ID, other steps, or strength 0.5.",
    )
    w.group("Model and recorded run")
    model, clip, vae = w.add("GBX_LoadDemoModel")
    recording_model, recording = w.add(
        "GBX_ActivationRecorder",
        model=model,
        preset=CUSTOM_IDS,
        ids=_EVERY_LEVEL,
        recorded_steps="all",
        rows="both",
        node_size=(290, 332),
    )
    source, image, latent, negative, positive = _run(
        w, recording_model, clip, vae, _WITH, 128, 4, 8, 3.0
    )
    save(w, image, "patching_source", "First run")
    w.group("Patched run")
    patched, _ = w.add(
        "GBX_ActivationPatching", model=model, recording=recording, latent=source, ids=_CARRIER
    )
    without = w.add("CLIPTextEncode", clip=clip, text=_WITHOUT, node_title="Without sunglasses")
    sampler = sampler_of(w)

    def both(w: Workflow, plain: Output, patched: Output, **given: Output) -> dict[str, Output]:
        models = {"plain": plain, "patched": patched}
        return {
            name: sample(w, model=one, sampler=sampler, **given) for name, one in models.items()
        }

    given = {"positive": without, "negative": negative, "latent_image": latent, "vae": vae}
    images = w.subgraph(
        "Generate both", both, plain=model, patched=patched, **given, seed=0, steps=8, cfg=3.0
    )
    for name, image in zip(("plain", "patched"), images, strict=True):
        save(w, image, f"patching_{name}", f"Second, {name}")
    w.group("Which activation carries it")
    two = w.add("EmptyLatentImage", width=128, height=128, batch_size=2)
    figure, network, *_ = w.add(
        "GBX_PatchingMap",
        model=model,
        source_positive=positive,
        positive=without,
        negative=negative,
        latent=two,
        preset=CUSTOM_IDS,
        ids=_EVERY_LEVEL,
        steps=8,
    )
    save(w, figure, "patching_chart", "Restored fraction")
    save(w, network, "patching_map", "On the network's map")


def demo_activations_compare(w: Workflow) -> None:
    w.note(
        "Where does a LoRA act",
        "**Four models** are tapped on the same faces: the demo model, and the same with the LoRA "
        "of one person at strengths 0.5, 1 and 1.5.",
        "**The lines** show how much each activation differs, and how alike it is otherwise "
        f"(linear CKA, arXiv 1905.00414; IDs of {PAPER}). The maps share one scale.",
        "**Try** another person, or other strengths.",
    )
    w.group("Models")
    model, clip, vae = w.add("GBX_LoadDemoModel")
    space, _ = w.add("GBX_W2WLoadSpace", space_name="avatars-v2-w2w.safetensors")
    point = w.add("GBX_W2WSample", space=space, source="member", member_name="person_0013")[0]

    def applied(
        w: Workflow, model: Output, point: Output, **strengths: Output
    ) -> dict[str, Output]:
        given = {"model": model, "point": point}
        return {
            name: w.add("GBX_W2WApply", strength=one, **given)[0] for name, one in strengths.items()
        }

    strengths = {"strength_1": 0.5, "strength_2": 1.0, "strength_3": 1.5}
    changed = w.subgraph(
        "W2W Apply at three strengths", applied, model=model, point=point, **strengths
    )
    images, _, caption = w.add("GBX_DemoPicture", image_index=0, count=4)
    positive = w.add("CLIPTextEncode", clip=clip, text=caption, node_title="Caption")
    _compare(w, [model, *changed], positive, images, vae)


def demo_activations_score(w: Workflow) -> None:
    w.note(
        "Which activation is best for your labels",
        "**Points**: eyes, nose and mouth of four faces, typed by hand, are searched in the other "
        f"faces ({PAPER}).",
        "**Masks**: hair and skin, learned from four faces by the paper's pixel classifier and "
        "scored on four others.",
        "**The dashed line** is a guess without a model: the same place in the other image.",
        "**Try** your own images, points and masks. The best IDs go into a tap with preset "
        "custom_ids.",
    )
    w.group("Model and images")
    model, clip, vae = w.add("GBX_LoadDemoModel")
    few, _, _ = w.add("GBX_DemoPicture", image_index=0, count=4, node_title="Faces with points")

    def masked(w: Workflow, image_index: Output, count: Output) -> dict[str, Output]:
        given = {"image_index": image_index, "count": count}
        images, hair, _ = w.add("GBX_DemoPicture", **given, part="hair")
        return {
            "images": images,
            "hair": hair,
            "skin": w.add("GBX_DemoPicture", **given, part="skin")[1],
        }

    many, hair, skin = w.subgraph("Faces with masks", masked, image_index=4, count=8)
    positive = w.add("CLIPTextEncode", clip=clip, text="portrait", node_title="Caption")
    given = {"model": model, "positive": positive, "vae": vae}
    w.group("Points")
    tapped = _custom_tap(w, 1, few, "up-*-out\nup-*-self-k", **given)
    figure, _, ids, *_ = w.add(
        "GBX_ScoreActivations",
        measure="points",
        activations=tapped,
        image=few,
        points="\n\n".join(_POINTS),
        threshold=0.05,
    )
    save(w, figure, "score_points", "PCK of each ID")
    w.add("PreviewAny", source=ids, node_title="The best IDs")
    w.group("Masks")
    tapped = _custom_tap(w, 2, many, "up-*-vit-out", **given)
    figure, *_ = w.add(
        "GBX_ScoreActivations",
        measure="parts",
        activations=tapped,
        image=many,
        train_images=4,
        resolution=32,
        part_1=hair,
        part_2=skin,
    )
    save(w, figure, "score_masks", "Mean IoU of each ID")


def sd15_activations_steering(w: Workflow) -> None:
    w.note(
        "Steer SD1.5 along a direction",
        "**Two runs are recorded**, a dog in winter and one in summer. The mean difference of "
        "their activations at the output of every transformer is the direction (arXiv 2308.10248, "
        "2312.06681).",
        "**Without and with steering**: same noise and a prompt that names no season.",
        "**Try** other strengths: 0.3 is a guess from the demo model. More prompts and seeds make "
        "a purer direction.",
    )
    w.group("Model")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name=SD15)
    w.group("Two recorded runs")
    recorded = [
        _recorded(w, number, model, clip, f"a photo of a dog {season}")
        for number, season in enumerate(("in winter, snow", "in summer, green grass"), 1)
    ]
    w.group("Direction")
    direction, report = w.add("GBX_SteeringDirection", toward=recorded[0], away=recorded[1])
    w.add("PreviewAny", source=report, node_title="The direction")
    file = w.add("GBX_SaveSteeringDirection", direction=direction)
    loaded, _ = w.add("GBX_LoadSteeringDirection", file=file)
    steered = w.add("GBX_ActivationSteering", model=model, direction=loaded, strength=0.3)
    side_by_side(
        w,
        (model, steered),
        clip,
        vae,
        "a photo of a dog",
        "sd15_steering",
        ("Plain", "Steered"),
        512,
        7.0,
    )


def sd15_activations_steering_sliders(w: Workflow) -> None:
    w.note(
        "Sliders for SD1.5",
        "**Two directions**, winter minus summer and night minus day: each the mean difference of "
        "activations between prompts that are sampled (arXiv 2308.10248, 2312.06681).",
        "**Mix Steering Directions** adds them up. Drag its sliders, or write the text.",
        "**Try** other phrases and strengths: 0.3 is a guess from the demo model.",
    )
    w.group("Model")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name=SD15)
    w.group("Directions")
    contrasts = (
        ("winter", "in winter, snow", "in summer, green grass"),
        ("night", "at night", "in bright daylight"),
    )
    directions = {}
    for number, (name, *phrases) in enumerate(contrasts, 1):
        toward, away = (
            "\n".join(f"a photo of {what} {one}" for what in _PHOTOGRAPHED) for one in phrases
        )
        texts = {"name": name, "toward_prompts": toward, "away_prompts": away}
        numbers = {"steps": 20, "cfg": 7.0}
        directions[f"direction_{number}"] = _direction(
            w, number, model, clip, texts, 512, _EVERY_LEVEL, **numbers
        )
    w.group("Sliders")
    direction, report = w.add(
        "GBX_MixSteeringDirections", edits="winter: 0.3, night: 0.3", **directions
    )
    w.add("PreviewAny", source=report, node_title="The sum")
    steered = w.add("GBX_ActivationSteering", model=model, direction=direction, strength=1.0)
    side_by_side(
        w,
        (model, steered),
        clip,
        vae,
        "a photo of a dog",
        "sd15_sliders",
        ("Plain", "Steered"),
        512,
        7.0,
    )


def sd15_activations_patching_map(w: Workflow) -> None:
    w.note(
        "Which activation of SD1.5 carries a word",
        "**Two prompts** differ in one word. The map patches one transformer at a time from the "
        "run of the first into that of the second, and measures how much of the first image that "
        "restores (arXiv 2202.05262).",
        "**It samples once for each ID**, so begin with few steps.",
        "**Try** other words, or the IDs of one level, such as up-level1-*-out.",
    )
    w.group("Model and prompts")
    model, clip, _ = w.add("CheckpointLoaderSimple", ckpt_name=SD15)
    first, negative = encode(w, clip, "a photo of a dog on a beach")
    second = w.add(
        "CLIPTextEncode", clip=clip, text="a photo of a cat on a beach", node_title="Second prompt"
    )
    latent = w.add("EmptyLatentImage", width=512, height=512, batch_size=2)
    w.group("Map")
    figure, network, *_ = w.add(
        "GBX_PatchingMap",
        model=model,
        source_positive=first,
        positive=second,
        negative=negative,
        latent=latent,
        preset=CUSTOM_IDS,
        ids=_EVERY_LEVEL,
        steps=10,
    )
    save(w, figure, "sd15_patching_chart", "Restored fraction")
    save(w, network, "sd15_patching_map", "On the network's map")


def sd15_activations_score(w: Workflow) -> None:
    w.note(
        "Which activation of SD1.5 is best for your labels",
        f"**Points** of four images are searched in the others with every activation ({PAPER}).",
        "**Replace** the demo faces by a batch of your images, one block of points for each image "
        "in percent, and name what they show in the text. For parts, connect masks instead of "
        "points.",
        "**The best IDs** go into a tap with preset custom_ids. The dashed line is a guess "
        "without a model.",
    )
    w.group("Model and images")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name=SD15)
    positive = w.add("CLIPTextEncode", clip=clip, text=PHOTO, node_title="What the images show")
    images, _, _ = w.add("GBX_DemoPicture", image_index=0, count=4)
    images = w.add(
        "ImageScale", image=images, upscale_method="bicubic", width=512, height=512, crop="disabled"
    )
    w.group("Score")
    given = {"model": model, "positive": positive, "vae": vae}
    tapped = tap(w, images, preset="all_features", **given)
    figure, _, ids, *_ = w.add(
        "GBX_ScoreActivations",
        measure="points",
        activations=tapped,
        image=images,
        points=_IN_PERCENT,
    )
    save(w, figure, "sd15_score_points", "PCK of each ID")
    w.add("PreviewAny", source=ids, node_title="The best IDs")


def sd15_activations_patching(w: Workflow) -> None:
    w.note(
        "Carry features of one image into another with SD1.5",
        "**The first run** is recorded at a residual output of the up-stage and one of its "
        "transformers.",
        "**Patched**: another prompt with these activations in the first half of the run, which "
        "keeps the layout (plug-and-play features; causal tracing, arXiv 2202.05262).",
        "**Try** fewer steps for a freer image, other IDs, or a mask.",
    )
    w.group("Model")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name=SD15)
    w.group("Recorded run")
    recording_model, recording = w.add(
        "GBX_ActivationRecorder",
        model=model,
        preset=CUSTOM_IDS,
        ids="up-level1-repeat1-res-out\nup-level1-repeat1-vit-block0-self-q\nup-level1-repeat1-vit-block0-self-k",
        recorded_steps="0-9",
        rows="both",
    )
    source, image, latent, negative, _ = _run(
        w, recording_model, clip, vae, "a photo of a horse on a beach", 512, 1, 20, 7.0
    )
    save(w, image, "sd15_patching_source", "Recorded run")
    w.group("Patched run")
    patched, report = w.add(
        "GBX_ActivationPatching",
        model=model,
        recording=recording,
        latent=source,
        patched_steps="0-9",
    )
    w.add("PreviewAny", source=report, node_title="What is patched")
    other = w.add(
        "CLIPTextEncode",
        clip=clip,
        text="a bronze sculpture of a horse in a museum",
        node_title="Prompt",
    )
    for name, one in (("plain", model), ("patched", patched)):
        image = generate(w, one, other, negative, latent, vae, what=name, seed=0, steps=20, cfg=7.0)
        save(w, image, f"sd15_patching_{name}", f"Second run, {name}")


def sd15_activations_compare(w: Workflow) -> None:
    w.note(
        "Where do two SD1.5 checkpoints differ",
        "**Two checkpoints** are tapped on the same image, at the same noise.",
        "**The bars** show how much each activation differs, and linear CKA (arXiv 1905.00414; "
        f"IDs of {PAPER}).",
        "**For a LoRA**, replace the second loader by Load LoRA behind the first one.",
    )
    w.group("Models")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name=SD15)
    changed, _, _ = w.add(
        "CheckpointLoaderSimple", ckpt_name="realisticVisionV51_v51VAE.safetensors"
    )
    positive = w.add("CLIPTextEncode", clip=clip, text=PHOTO, node_title="What the image shows")
    _compare(w, [model, changed], positive, face(w, 0, 512), vae)


def _compare(
    w: Workflow, models: list[Output], positive: Output, images: Output, vae: Output
) -> None:
    w.group("Tap")
    given = {"image": images, "positive": positive, "vae": vae, "preset": "all_features"}
    reference, activations, *others = (tap(w, model=one, **given) for one in models)
    w.group("Compare")
    others = {f"activations_{number}": one for number, one in enumerate(others, 2)}
    figure, _, ids, _, network = w.add(
        "GBX_ScoreActivations",
        measure="difference",
        model=models[0],
        reference=reference,
        activations=activations,
        **others,
    )
    save(w, figure, "compare_chart", "Difference and CKA")
    save(w, network, "compare_map", "Difference on the map of the network")
    w.add("PreviewAny", source=ids, node_title="Where they differ most")


def side_by_side(
    w: Workflow,
    models,
    clip,
    vae,
    text: str,
    name: str,
    titles: tuple[str, str],
    side: int = 128,
    cfg: float = 3.0,
) -> None:
    w.group("Without and with")
    positive, negative = encode(w, clip, text)
    latent = w.add("EmptyLatentImage", width=side, height=side, batch_size=4)
    for model, title in zip(models, titles, strict=True):
        numbers = {"seed": 0, "steps": 8 if side == 128 else 20, "cfg": cfg}
        how = {"what": title.lower(), "sampler": sampler_of(w)}
        image = generate(w, model, positive, negative, latent, vae, **how, **numbers)
        save(w, image, f"{name}_{title.lower()}", title)


def _direction(
    w: Workflow,
    number: int,
    model: Output,
    clip: Output,
    texts: dict[str, str],
    side: int,
    ids: str,
    **numbers: float,
) -> Output:
    """A direction between prompts, in a subgraph of its own: front end 1.32 shows a text once for
    each.
    """

    def inside(w: Workflow, **given: Output) -> Output:
        latent = w.add("EmptyLatentImage", width=side, height=side, batch_size=2)
        chosen = {"preset": CUSTOM_IDS, "ids": ids}
        return w.add("GBX_PromptSteeringDirection", latent=latent, **chosen, **numbers, **given)[0]

    return w.subgraph(f"Direction {number}", inside, model=model, clip=clip, **texts)


def _run(
    w: Workflow, model, clip, vae, text: str, side: int, count: int, steps: int, cfg: float
) -> tuple[Output, Output, Output, Output, Output]:
    """Samples, their image, empty latent, negative and positive prompt of a run."""
    positive, negative = encode(w, clip, text)
    latent = w.add("EmptyLatentImage", width=side, height=side, batch_size=count)
    numbers = {"seed": 0, "steps": steps, "cfg": cfg}
    samples, image = generate_latents(
        w, model, positive, negative, latent, vae, sampler=sampler_of(w), **numbers
    )
    return samples, image, latent, negative, positive


def _recorded(w: Workflow, number: int, model: Output, clip: Output, text: str) -> Output:
    """The mean activations of a run, in a subgraph of its own: front end 1.32 shows a text once for
    each.
    """

    def inside(w: Workflow, model, clip, prompt, **numbers) -> Output:
        recording_model, recording = w.add(
            "GBX_ActivationRecorder",
            model=model,
            preset=CUSTOM_IDS,
            ids=_EVERY_LEVEL,
            recorded_steps="all",
            mean_only=True,
            precision="fp32",
        )
        samples = w.add(
            "KSampler",
            model=recording_model,
            positive=w.add("CLIPTextEncode", clip=clip, text=prompt, node_title="Prompt"),
            negative=w.add("CLIPTextEncode", clip=clip, text="", node_title="Empty prompt"),
            latent_image=w.add("EmptyLatentImage", width=512, height=512, batch_size=4),
            sampler_name="euler",
            scheduler="normal",
            **numbers,
        )
        return w.add("GBX_ReadActivations", recording=recording, latent=samples)[0]

    return w.subgraph(
        f"Record run {number}",
        inside,
        model=model,
        clip=clip,
        prompt=text,
        seed=0,
        steps=20,
        cfg=7.0,
    )


def _custom_tap(w: Workflow, number: int, image: Output, ids: str, **given: Output) -> Output:
    """The activations of the named IDs, tapped in a subgraph of its own: front end 1.32 shows a
    text once for each.
    """

    def inside(w: Workflow, ids: Output, **given: Output) -> Output:
        return w.add("GBX_LayerActivationTap", preset=CUSTOM_IDS, ids=ids, **given)[0]

    return w.subgraph(f"Tap {number}", inside, image=image, **given, ids=ids)
