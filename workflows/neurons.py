"""The workflows of the neurons family: is a prompt memorised, which neurons carry it, and what a mask does."""

from .authoring import Output, Workflow
from .neuron_world import DEMO, MEMORISED, SD15, SDXL, SUSPECT, World

_PAPER = "Finding NeMo, arXiv 2406.02366"
_FIND = "Find a memorised prompt's neurons, and switch them off"
_ORDINARY = "portrait, light skin, curly red hair, shaven, smiling, blue hoodie, plain green background"
_IS_IT = (
    "**Is this prompt learnt by heart?** The score compares the first steps of ten noises; NeMo Localize finds the "
    f"neurons that carry it ({_PAPER}), and NeMo Neuron Mask switches them off."
)


def demo_neurons_find_and_mask(w: Workflow) -> None:
    w.note(
        _FIND,
        f"**The demo model has learnt by heart** what goes with the name Zorvex Quill. The score says so, NeMo "
        f"Localize finds the neurons that carry it ({_PAPER}), and NeMo Neuron Mask switches them off.",
        "**Side by side** are four noises without the mask, at strength 1 (the paper's factor 0) and at 2 (factor -1): "
        "at 1 the portrait stays for most noises, at 2 it dissolves, and pictures part. It takes hundreds of neurons "
        "of all layers here, not SD1.4's few: the score **between seeds** must fall below that of ordinary prompts. "
        "More time leaves fewer neurons. **What it costs** is seen on an ordinary caption.",
        "**Try** strength .5 or 1.5; a control name (portrait of pelham droste); Neuron Mask Edit "
        "with a random control; the layers output_blocks.4.1, output_blocks.5.1 alone.",
    )
    _find_and_mask(World(w, DEMO), budget=8.0, stronger=2.0)


def sd15_neurons_find_and_mask(w: Workflow) -> None:
    w.note(
        _FIND,
        _IS_IT,
        "**Better statistics** for SD1.4, nearly right for SD1.5: put the official code's "
        "statistics_additional_laion_prompts_v1_4.pt into the input folder, and take Load Neuron Statistics in place "
        "of Neuron Statistics. Ten prompts, as here, are only enough to try.",
        "**The threshold** .428 is the paper's for SD1.4 at 512 x 512 and ten seeds; for others use Calibrate "
        "Threshold.",
    )
    _find_and_mask(World(w, SD15), budget=600.0)


def sdxl_neurons_find_and_mask(w: Workflow) -> None:
    w.note(
        _FIND,
        _IS_IT,
        "**SDXL** is not in the paper: its threshold is learnt from ordinary prompts, and its 34 down and middle "
        "layers are searched. Ten prompts, as here, are only enough to try; hundreds make both steady.",
        "**If nothing is found**, ask Layer Ablation which layers carry the prompt: the up blocks are not searched.",
    )
    _find_and_mask(World(w, SDXL), budget=1200.0)


def demo_neurons_scan_list(w: Workflow) -> None:
    _scan_note(w, "", "**Try** your own list: a .txt or .csv in ComfyUI's input folder, named in the field file.")
    suspects = "portrait of mirella thrum\nportrait of teodric wane\nportrait of tarkun lode\nportrait of ottavia brusk"
    _scan_list(World(w, DEMO), f"{MEMORISED}\n{suspects}")


def sd15_neurons_scan_list(w: Workflow) -> None:
    _scan_note(
        w,
        " A few hundred ordinary prompts make it steady.",
        "**The list** may be a file in ComfyUI's input folder, such as the official memorized_laion_prompts.csv "
        "(SD1.4).",
    )
    _scan_list(World(w, SD15), f"{SUSPECT}\na bowl of ramen on a dark table")


def demo_neurons_which_layers(w: Workflow) -> None:
    w.note(
        "Which layers carry a memorised prompt?",
        f"**Layer Ablation** silences the values of each cross-attention in turn ({_PAPER}, appendix C.8). Red "
        "layers are "
        "those to search.",
        "**In SD1.4** the paper searches the seven down and middle layers. In the demo model they do little alone: "
        "its up blocks do most, and only all together let other noises paint other people. Look before you trust a "
        "default.",
        "**Try** an ordinary prompt, or several prompts, one a line: the bars are then their mean.",
    )
    world = World(w, DEMO)
    w.group("Ablation")
    figure, layers, report = w.add("GBX_LayerAblation", **world.given, prompts=MEMORISED,
                                   **{**world.first_step, "seeds": 3})  # fmt: skip
    world.save(figure, "layers")
    world.show(layers, "Layers to search")
    world.show(report, "In words")


def demo_neurons_share_mask(w: Workflow) -> None:
    w.note(
        "Share a mask: a file, a control, a baked model",
        "**Save Neuron Mask** writes JSON that a person can read; Load Neuron Mask reads it back and checks it against "
        f"the MODEL ({_PAPER}). Statistics are files as well.",
        "**The control** silences as many other neurons in the same layers: if it did the same, the found ones would "
        "mean "
        "nothing. **Baked**, the mask is in the weights themselves; Save Checkpoint would write them.",
        "**Try** the edit's other operations, and a file that somebody gave you (in the input folder).",
    )
    world = World(w, DEMO)
    w.group("Find")
    mask, _, table, _ = world.localize(4.0, "glassbox/neurons/statistics")
    _, about = w.add("GBX_LoadNeuronStatistics", model=world.model, file=world.saved)
    world.show(about, "The saved statistics")
    w.group("Share")
    strong, _ = w.add("GBX_NeuronMaskEdit", mask=mask, operation="largest z", count=24)
    file, _ = w.add("GBX_SaveNeuronMask", mask=strong, filename_prefix="glassbox/neurons/zorvex_quill")
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


def demo_neurons_baselines(w: Workflow) -> None:
    w.note(
        "Four ways out of memorisation, side by side",
        f"**The same two noises** for all: the untouched model, NeMo's mask ({_PAPER}), Attention Scaling (arXiv "
        "2403.11052), Embedding Adjustment (arXiv 2407.21720), and four random words (arXiv 2305.20086).",
        "**Look** at what stays of the memorised picture, and of what the prompt asks for. The studies measure both.",
        "**Try** other strengths: scale 1.5, a lower target, one random word or ten.",
    )
    world = World(w, DEMO)
    w.group("NeMo")
    mask, *_ = world.localize(4.0)
    masked = w.add("GBX_NemoNeuronMask", model=world.model, mask=mask)
    w.group("The others")
    positive, negative = world.prompts()
    scaled = w.add("GBX_AttentionScaling", model=world.model, clip=world.clip, prompt=MEMORISED)
    adjusted, told = w.add("GBX_EmbeddingAdjustment", model=world.model, positive=positive, negative=negative,
                           target=1.0, steps=12, pictures=2, **world.size)  # fmt: skip
    random, words = w.add("GBX_RandomTokens", clip=world.clip, prompt=MEMORISED, count=4, seed=2)
    world.show(told, "What the adjustment did")
    world.show(words, "The prompt with random words")
    w.group("Pictures")
    for name, title, model, prompt in (
        ("untouched", "Untouched", world.model, positive),
        ("masked", "NeMo's mask", masked, positive),
        ("scaled", "Attention scaling", scaled, positive),
        ("adjusted", "Embedding adjustment", world.model, adjusted),
        ("random", "Random words", world.model, random),
    ):
        world.save(world.paint(model, prompt, negative, 2), name, title)


def demo_neurons_audit(w: Workflow) -> None:
    w.note(
        "Audit a mask: can the picture be brought back?",
        "**The picture** is what the untouched model paints for the name. The audit optimises the text embedding of "
        "the "
        "masked model for it (Finding DoRI, arXiv 2507.16880) and looks whether it comes back.",
        "**The control** is a picture that the model has never seen; a fair attack does not bring that back. The "
        "figure "
        "shows each picture's likeness to its target.",
        "**Try** the paper's 50 steps (some minutes without a GPU); a picture of yours and a model of yours.",
    )
    world = World(w, DEMO)
    w.group("Mask")
    mask, *_ = world.localize(4.0)
    masked = w.add("GBX_NemoNeuronMask", model=world.model, mask=mask)
    w.group("Prompt and pictures")
    positive, negative = world.prompts()
    picture = world.paint(world.model, positive, negative, 1)
    control, _, _ = w.add("GBX_DemoPicture", picture=3, count=1)
    w.group("Audit")
    images, _, _, figure, report = w.add(
        "GBX_MemorizationAudit", model=masked, vae=world.vae, positive=positive, negative=negative, picture=picture,
        control=control, steps=6, batch=2, pictures=1, sampling_steps=10, cfg=3.0, seed=1,
    )  # fmt: skip
    world.save(images, "audit", "Before, after, control")
    world.save(figure, "audit_figure", "Did it come back?")
    world.show(report, "Verdict")


def _scan_note(w: Workflow, steady: str, last: str) -> None:
    w.note(
        "Scan a list of prompts for memorised ones",
        f"**Calibrate Threshold** scores prompts that are surely ordinary ({_PAPER}, section 3.1) and sets the "
        "threshold one standard deviation over their mean. **Memorization Score** then scans the list.",
        "**Red bars** are over the threshold. About one ordinary prompt in six is, too; the report says how many to "
        f"expect.{steady}",
        last,
    )


def _find_and_mask(world: World, budget: float, stronger: float | None = None) -> None:
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


def _scan_list(world: World, suspects: str) -> None:
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
