"""What workflows of the neurons family have in common, whichever model they are for."""

from __future__ import annotations

from collections.abc import Callable

from .authoring import Output
from .neuron_world import World

_ORDINARY = "portrait, light skin, curly red hair, shaven, smiling, blue hoodie, plain green background"


def find_and_mask(world: World, budget: float, stronger: float | None = None) -> None:
    """From the score to pictures with and without the mask."""
    w = world.w
    w.group("Is it memorised?")
    figure, *_, told = w.add(
        "GBX_MemorizationScore",
        **world.given,
        prompts=world.kind.suspect,
        threshold=world.threshold,
        **world.first_step,
    )
    world.show(told, "Verdict")
    w.group("Which neurons?")
    mask, search, _, report = world.localize(budget)
    world.show(report, "The search in words")
    w.group("Before and after")
    positive, negative = world.prompts()
    before = world.paint(world.model, positive, negative)
    after = world.paint(w.add("GBX_NemoNeuronMask", model=world.model, mask=mask), positive, negative)
    pictures = {"Without the mask": before, "With the mask": after}
    if stronger is not None:
        masked = w.add("GBX_NemoNeuronMask", model=world.model, mask=mask, strength=stronger)
        pictures[f"With the mask at strength {stronger:g}"] = after = world.paint(masked, positive, negative)
    w.group("Side by side")
    for place, (title, images) in enumerate(pictures.items(), 1):
        world.save(images, f"mask_{place}", title)
    drawn, words, _ = w.add("GBX_NeuronReport", mask=mask, before=before, after=after, reference=before)
    world.save(drawn, "report", "The mask, and how alike the pictures are")
    w.add("PreviewImage", images=figure, node_title="Similarity of the seeds")
    w.add("PreviewImage", images=search, node_title="The search")
    world.show(words, "Report")
    if stronger is not None:
        _cost(world, mask, masked)


def _cost(world: World, mask: Output, masked: Output) -> None:
    """An ordinary caption with and without the mask, and how much of it is still painted."""
    w = world.w
    w.group("What it costs: an ordinary caption")
    positive = w.add("CLIPTextEncode", clip=world.clip, text=_ORDINARY, node_title="Ordinary caption")
    negative = w.add("CLIPTextEncode", clip=world.clip, text="", node_title="Nothing")
    before, after = (world.paint(model, positive, negative, 2) for model in (world.model, masked))
    world.save(before, "ordinary_1", "The caption without the mask")
    world.save(after, "ordinary_2", "The caption with the mask")
    _, words, _ = w.add("GBX_NeuronReport", mask=mask, before=before, after=after, prompt=_ORDINARY, clip=world.clip)
    world.show(words, "How much of the caption is painted")


def scan_list(world: World, suspects: str) -> None:
    """A threshold of ordinary prompts, and the scores of a list."""
    w = world.w
    w.group("From which score on?")
    threshold, histogram, told = world.calibrate(1.0)
    w.group("Scan")
    bars, _, _, over, table, report = w.add(
        "GBX_MemorizationScore", **world.given, prompts=suspects, threshold=threshold, **world.first_step
    )
    w.group("Result")
    world.save(bars, "scan", "Scores")
    world.save(histogram, "threshold", "Threshold")
    world.show(over, "Over the threshold")
    world.show(report, "In words")
    world.show(told, "The threshold in words")
    world.show(table, "Table")


def share_mask(world: World, budget: float, name: str, most: int = 0) -> None:
    """Find, save, load, and bake a mask (its ``most`` largest z, where it is large), with a control beside it."""
    w = world.w
    w.group("Find")
    mask, _, table, _ = world.localize(budget, "glassbox/neurons/statistics")
    _, about = w.add("GBX_LoadNeuronStatistics", model=world.model, file=world.saved)
    world.show(about, "The saved statistics")
    w.group("Share")
    if most:
        mask, _ = w.add("GBX_NeuronMaskEdit", mask=mask, operation="largest z", count=most)
    file, _ = w.add("GBX_SaveNeuronMask", mask=mask, filename_prefix=f"glassbox/neurons/{name}")
    loaded, _, report = w.add("GBX_LoadNeuronMask", file=file, model=world.model)
    control, _ = w.add("GBX_NeuronMaskEdit", mask=loaded, operation="random control", model=world.model, seed=3)
    world.show(table, "The neurons")
    world.show(report, "What was loaded")
    w.group("Prompt")
    positive, negative = world.prompts()
    w.group("Baked, and the control")
    baked = w.add("GBX_BakeNeuronMask", model=world.model, mask=loaded)
    other = w.add("GBX_NemoNeuronMask", model=world.model, mask=control)
    world.save(world.paint(baked, positive, negative, 2), "baked", "The mask, baked in")
    world.save(world.paint(other, positive, negative, 2), "control", "Random control")


def baselines(world: World, budget: float, target: float, steps: int) -> None:
    """The mask and the other ways out, on the same noise."""
    w, prompt = world.w, world.kind.suspect
    w.group("NeMo")
    mask, *_ = world.localize(budget)
    masked = w.add("GBX_NemoNeuronMask", model=world.model, mask=mask, strength=world.kind.strength)
    w.group("The others")
    positive, negative = world.prompts()
    scaled = w.add("GBX_AttentionScaling", model=world.model, clip=world.clip, prompt=prompt)
    adjusted, told = w.add("GBX_EmbeddingAdjustment", model=world.model, positive=positive, negative=negative,
                           target=target, steps=steps, pictures=2, **world.size)  # fmt: skip
    random, words = w.add("GBX_RandomTokens", clip=world.clip, prompt=prompt, count=4, seed=2)
    world.show(told, "What the adjustment did")
    world.show(words, "The prompt with random words")
    w.group("Pictures")
    for name, title, model, text in (
        ("untouched", "Untouched", world.model, positive),
        ("masked", "NeMo's mask", masked, positive),
        ("scaled", "Attention scaling", scaled, positive),
        ("adjusted", "Embedding adjustment", world.model, adjusted),
        ("random", "Random words", world.model, random),
    ):
        world.save(world.paint(model, text, negative, 2), name, title)


def audit(world: World, budget: float, control: Callable[[], Output], how: dict) -> None:
    """Find a mask and attack it; ``control()`` adds the picture that the model has never seen."""
    w = world.w
    w.group("Mask")
    mask, *_ = world.localize(budget)
    masked = w.add("GBX_NemoNeuronMask", model=world.model, mask=mask, strength=world.kind.strength)
    w.group("Prompt and pictures")
    positive, negative = world.prompts()
    picture = world.paint(world.model, positive, negative, 1)
    unseen = control()
    w.group("Audit")
    images, _, _, figure, report = w.add(
        "GBX_MemorizationAudit", model=masked, vae=world.vae, positive=positive, negative=negative, picture=picture,
        control=unseen, seed=1, **how,
    )  # fmt: skip
    world.save(images, "audit", "Before, after, control")
    world.save(figure, "audit_figure", "Did it come back?")
    world.show(report, "Verdict")
