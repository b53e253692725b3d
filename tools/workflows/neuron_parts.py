"""The parts of the neurons workflows, for any model."""

from __future__ import annotations

from collections.abc import Callable

from .authoring import Output, Workflow
from .neuron_world import World
from .sampling import generate_each, sample

_ORDINARY = (
    "portrait, light skin, curly red hair, shaven, smiling, open eyes, blue hoodie, plain green "
    "background"
)


def find_and_mask(world: World, budget: float) -> None:
    """From the score to images with and without the mask."""
    w = world.w
    w.group("Is it memorized, and where?")
    _, verdict = world.score()
    world.show(verdict, "Verdict")
    mask, search, *_ = world.localize(budget)
    w.group("Before and after")
    masked = w.add("GBX_NemoNeuronMask", model=world.model, mask=mask, node_size=(320, 466))
    before, after, other = _compare(world, masked)
    w.group("Side by side")
    for place, (title, images) in enumerate(
        {"Without the mask": before, "With the mask": after}.items(), 1
    ):
        world.save(images, f"mask_{place}", title)
    batches = {
        "images_before": before,
        "images_after": after,
        "generic_images": other,
        "reference_image": before,
    }
    plots, report, _, sheet = w.add(
        "GBX_MemorizationReport",
        mask=mask,
        **batches,
        clip=world.clip,
        node_size=(250, 928),
    )
    world.save(plots, "report", "Mask and similarity")
    w.add("PreviewImage", images=search, node_title="The search")
    w.add("PreviewImage", images=sheet, node_title="At a glance")
    world.show(report, "Report", (230, 140))


def _compare(world: World, masked: Output) -> tuple[Output, ...]:
    """The suspect without the mask and with it, and a generic prompt, in a subgraph."""

    def inside(
        w: Workflow, model, masked, clip, vae, prompt, generic, **numbers
    ) -> dict[str, Output]:
        positive = w.add("CLIPTextEncode", clip=clip, text=prompt, node_title="Prompt")
        plain = w.add("CLIPTextEncode", clip=clip, text=generic, node_title="Generic prompt")
        negative = w.add("CLIPTextEncode", clip=clip, text="", node_title="Empty prompt")
        latent = w.add("EmptyLatentImage", **world.size, batch_size=4)
        given = {"negative": negative, "latent_image": latent, "vae": vae} | world.sampler | numbers
        before, after = (
            sample(w, model=one, positive=positive, **given) for one in (model, masked)
        )
        return {
            "before": before,
            "after": after,
            "generic": sample(w, model=model, positive=plain, **given),
        }

    return world.w.subgraph(
        "Generate without and with it",
        inside,
        model=world.model,
        masked=masked,
        clip=world.clip,
        vae=world.vae,
        prompt=world.kind.suspect,
        generic=world.kind.generic,
        seed=5,
        **world.numbers,
    )


def scan_list(world: World, suspects: str) -> None:
    """The threshold of ordinary prompts, and the scores of a list."""
    w = world.w
    w.group("Threshold")
    threshold, histogram, calibration = world.calibrate(1.0)
    w.group("Scan")
    bars, _, _, memorized, table, report, _, _ = w.add(
        "GBX_MemorizationScore",
        **world.given,
        prompts=suspects,
        threshold=threshold,
        **world.first_step,
    )
    w.group("Result")
    world.save(bars, "scan", "Scores")
    world.save(histogram, "threshold", "Threshold")
    world.show(memorized, "Over the threshold")
    world.show(report, "Report")
    world.show(calibration, "Threshold report")
    world.show(table, "Table")  # jobs of batch read the scores there
    w.batch("GBX_MemorizationScore.prompts", join=("scores",), chunk=16)


def scan_and_mask(world: World, suspects: str, folder: str = "", images: int = 16) -> None:
    """From a list of prompts to a mask for each of the memorized ones, and a report; scans in
    ``folder`` resume.
    """
    w, kind = world.w, world.kind
    scans = {
        name: f"{folder}/{name}" if folder else ""
        for name in ("threshold", "scores", "statistics", "masks")
    }

    def ordinary(w: Workflow, prompts: Output, **given: Output) -> dict[str, Output]:
        calibrated = {**given, "prompts": prompts, **world.first_step}
        found = {
            "threshold": w.add(
                "GBX_CalibrateThreshold", **calibrated, deviations=1.0, scan_file=scans["threshold"]
            )[0]
        }
        if kind.deviations is not None:
            found["target_score"] = w.add(
                "GBX_CalibrateThreshold", **calibrated, deviations=kind.deviations
            )[0]
        files = {"filename_prefix": "", "scan_file": scans["statistics"]}
        found["statistics"] = w.add(
            "GBX_NeuronStatistics", **given, prompts=prompts, layers=kind.layers, **files
        )[0]
        return found

    w.group("Ordinary prompts")
    threshold, *target, statistics = w.subgraph(
        "Threshold and statistics", ordinary, prompts=kind.ordinary, **world.given
    )

    def score(w: Workflow, **given: Output) -> dict[str, Output]:
        scored = w.add(
            "GBX_MemorizationScore", **given, scan_file=scans["scores"], **world.first_step
        )
        return {"memorized_prompts": scored[3], "table": scored[4]}

    def find(w: Workflow, **given: Output) -> dict[str, Output]:
        searching = {
            "layers": kind.layers,
            "scan_file": scans["masks"],
            **world.first_step,
            **kind.search,
        }
        mask, _, _, report = w.add("GBX_NemoLocalize", **given, **searching)
        return {"mask": mask, "report": report}

    w.group("Scan")
    memorized, table = w.subgraph(
        "Score a list", score, **world.given, prompts=suspects, prompts_file="", threshold=threshold
    )
    w.group("Neurons of all that are memorized")
    mask, _ = w.subgraph(
        "Find the neurons of each",
        find,
        **world.given,
        statistics=statistics,
        prompts=memorized,
        threshold=threshold,
        **({"target_score": target[0]} if target else {}),
    )
    masked = w.add(
        "GBX_NemoNeuronMask", model=world.model, mask=mask, masked_prompts="own", clip=world.clip
    )
    w.group("Report")
    figure, report, _, sheet = w.add(
        "GBX_MemorizationReport",
        **world.given,
        vae=world.vae,
        table=table,
        threshold=threshold,
        image_count=images,
        **world.numbers,
        **world.size,
        mask=mask,
        masked_model=masked,
        generic_prompt=world.kind.generic,
        filename_prefix=f"{folder}/report" if folder else "",
    )
    world.save(figure, "scan_and_mask_1", "Histogram of the scores")
    world.save(sheet, "scan_and_mask_2", "Ranked sheet")
    world.show(report, "Report")
    w.add("GBX_SaveNeuronMask", mask=mask, filename_prefix="glassbox/neurons/scan_and_mask")


def share_mask(world: World, budget: float, name: str) -> None:
    """Find, save, load, and bake a mask; beside it a random control."""
    w = world.w
    w.group("Find")
    mask, _, _, _, statistics = world.localize(budget, "glassbox/neurons/statistics")

    def read(w: Workflow, **given: Output) -> Output:
        return w.add("GBX_NeuronStatistics", **given)[1]

    about = w.subgraph("Read the statistics", read, model=world.model, statistics_file=statistics)
    w.group("Share")
    world.show(about, "The saved statistics")
    file, _ = w.add("GBX_SaveNeuronMask", mask=mask, filename_prefix=f"glassbox/neurons/{name}")
    loaded, _, report = w.add("GBX_LoadNeuronMask", file=file, model=world.model)
    control, _ = w.add(
        "GBX_NeuronMaskEdit", mask=loaded, model=world.model, operation="random_control", seed=3
    )
    world.show(report, "The loaded mask")
    w.group("Prompt")
    positive, negative = world.prompts()
    w.group("Baked, and the control")
    baked = w.add("GBX_BakeNeuronMask", model=world.model, mask=loaded)
    world.save(world.generate(baked, positive, negative, 2), "baked", "The mask, baked in")
    world.save(
        world.generate_masked(control, 1.0, positive, negative, 2), "control", "Random control"
    )
    w.batch("GBX_NemoLocalize.prompts", "Prompt.text", join=("masks", "images"))


def baselines(world: World, budget: float, target: float, steps: int) -> None:
    """The mask and other mitigations, on the same noise."""
    w, prompt = world.w, world.kind.suspect
    w.group("NeMo")
    mask, *_ = world.localize(budget)
    w.group("Other mitigations")
    positive, negative = world.prompts()
    scaled = w.add("GBX_AttentionScaling", model=world.model, clip=world.clip, prompt=prompt)
    adjusted, _ = w.add(
        "GBX_EmbeddingAdjustment",
        model=world.model,
        positive=positive,
        negative=negative,
        target_norm=target,
        steps=steps,
        noise_samples=2,
        **world.size,
    )
    random, _ = w.add("GBX_RandomTokens", clip=world.clip, prompt=prompt, count=4, seed=2)
    w.group("Images")
    given = {
        "model": world.model,
        "negative": negative,
        "vae": world.vae,
        "seed": 5,
        **world.numbers,
    }
    texts = {"untouched": positive, "adjusted": adjusted, "random": random}
    untouched, changed, longer = generate_each(w, texts, world.kind.side, 2, **given)
    masked = world.generate_masked(mask, world.kind.strength, positive, negative, 2)
    for name, title, images in (
        ("untouched", "Untouched", untouched),
        ("masked", "NeMo's mask", masked),
        ("scaled", "Attention scaling", world.generate(scaled, positive, negative, 2)),
        ("adjusted", "Embedding adjustment", changed),
        ("random", "Random words", longer),
    ):
        world.save(images, name, title)


def audit(world: World, budget: float, control: Callable[[], Output], how: dict) -> None:
    """Find a mask and attack it; ``control()`` adds the image that the model was not trained on."""
    w = world.w
    w.group("Mask")
    mask, *_ = world.localize(budget)
    masked = w.add("GBX_NemoNeuronMask", model=world.model, mask=mask, strength=world.kind.strength)
    w.group("Prompt and images")
    positive, negative = world.prompts()
    image = world.generate(world.model, positive, negative, 1)
    unseen = control()
    w.group("Audit")
    images, _, _, figure, report = w.add(
        "GBX_MemorizationAudit",
        model=masked,
        vae=world.vae,
        positive=positive,
        negative=negative,
        image=image,
        control_image=unseen,
        seed=1,
        **how,
    )
    world.save(images, "audit", "Before, after, control")
    world.save(figure, "audit_figure", "Was it replicated?")
    world.show(report, "Verdict")
    w.batch("GBX_NemoLocalize.prompts", "Prompt.text", join=("images",))


def unlearning(world: World, caption: str, training: dict, how: dict) -> None:
    """Train a LoRA under attack with images of an ordinary caption as surrogates, and audit it;
    ``how``: the audit.
    """
    w = world.w
    w.group("Memorized image and surrogates")
    positive, negative = world.prompts()
    ordinary, _ = world.prompts(caption)
    before = world.generate(world.model, positive, negative)
    surrogates = world.generate(world.model, ordinary, negative)
    w.group("Train under attack")
    given = {"clip": world.clip, "positive": positive, "image": before, "surrogates": surrogates}
    model, _, figure, _ = w.add(
        "GBX_AdversarialUnlearning",
        model=world.model,
        vae=world.vae,
        **given,
        prompts=world.kind.ordinary,
        **training,
        node_size=(280, 740),
    )
    w.group("Audit")
    after = {"positive": positive, "negative": negative, "image": before}
    attacked, *_, verdict = w.add(
        "GBX_MemorizationAudit", model=model, vae=world.vae, **after, seed=1, **how
    )
    w.group("Result")
    shown = {
        "before": ("Untouched", before),
        "after": ("LoRA, then attacked", attacked),
        "ordinary": ("Ordinary, with the LoRA", world.generate(model, ordinary, negative)),
        "untouched": ("Ordinary, untouched", surrogates),
        "figure": ("Losses", figure),
    }
    for name, (title, images) in shown.items():
        world.save(images, f"unlearning_{name}", title, (230, 226))
    world.show(verdict, "Verdict")


def concept(world: World, present: str, absent: str, name: str, caption: str) -> None:
    """Find the neurons of a concept, and images of a caption with it: untouched, switched off,
    negated, and a control.

    ``present`` and ``absent``: prompts with the concept and without it, line by line.
    """
    w = world.w
    w.group("Find the concept's neurons")
    lists = {"concept_prompts": present, "neutral_prompts": absent, "concept": name}
    mask, report = w.add("GBX_ConceptNeurons", **world.given, **lists, **world.size)
    world.show(report, "Report")
    w.group("The slider")
    slider = w.add("GBX_NemoNeuronMask", model=world.model, mask=mask, strength=2.0)

    def inside(w: Workflow, model, slider, mask, clip, vae, prompt, **numbers) -> dict[str, Output]:
        control, _ = w.add(
            "GBX_NeuronMaskEdit", mask=mask, model=model, operation="random_control", seed=3
        )
        models = {
            "untouched": model,
            "off": w.add("GBX_NemoNeuronMask", model=model, mask=mask, strength=1.0),
            "slider": slider,
            "control": w.add("GBX_NemoNeuronMask", model=model, mask=control, strength=2.0),
        }
        positive = w.add("CLIPTextEncode", clip=clip, text=prompt, node_title="Prompt")
        negative = w.add("CLIPTextEncode", clip=clip, text="", node_title="Empty prompt")
        latent = w.add("EmptyLatentImage", **world.size, batch_size=4)
        given = {"positive": positive, "negative": negative, "latent_image": latent, "vae": vae}
        given |= world.sampler | numbers
        return {title: sample(w, model=one, **given) for title, one in models.items()}

    images = w.subgraph(
        "Generate without and with it",
        inside,
        model=world.model,
        slider=slider,
        mask=mask,
        clip=world.clip,
        vae=world.vae,
        prompt=caption,
        seed=5,
        **world.numbers,
    )
    w.group("Images")
    titles = ("Untouched", "Strength 1: off", "Slider at 2", "Random neurons, negated")
    for place, (title, one) in enumerate(zip(titles, images, strict=True), 1):
        world.save(one, f"concept_{place}", title)
