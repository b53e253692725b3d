"""The workflows of the neurons family: is a prompt memorised, which neurons carry it, and what a mask does."""

from . import neuron_parts
from .authoring import Workflow
from .neuron_world import DEMO, MEMORISED, PLANTED, SD15, SDXL, SUSPECT, World

_PAPER = "Finding NeMo, arXiv 2406.02366"
_FIND = "Find a memorised prompt's neurons, and switch them off"
_CONTROL = "a bowl of ramen on a dark table"
_OFFICIAL = (
    "**Better statistics**: the official code's statistics_additional_laion_prompts_v1_4.pt in the input folder, and "
    "Load Neuron Statistics in place of Neuron Statistics."
)
# Seconds in which the search ends on a slow machine too; what it finds must not hang on the machine. The workflows that
# search alike follow each other in the demo, so that ComfyUI searches once for them.
_DEMO_BUDGET = 240.0
_DEMO_AUDIT = {"steps": 6, "batch": 2, "pictures": 1, "sampling_steps": 10, "cfg": 3.0}
_SD15_AUDIT = {"steps": 50, "batch": 4, "pictures": 4, "sampling_steps": 20, "cfg": 7.0}
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
        "at 1 the portrait stays, at 2 it dissolves, and pictures part. It takes over a hundred neurons "
        "of all layers here, not SD1.4's few: the score **between seeds** must fall below that of ordinary prompts. "
        "**What it costs** is seen on an ordinary caption.",
        "**Try** strength .5 or 1.5; a control name (portrait of pelham droste); Neuron Mask Edit "
        "with a random control; the layers output_blocks.4.1, output_blocks.5.1 alone.",
    )
    neuron_parts.find_and_mask(World(w, DEMO), budget=_DEMO_BUDGET, stronger=2.0)


def demo_neurons_known_neurons(w: Workflow) -> None:
    w.note(
        "A memory in three neurons that are known",
        "**This checkpoint's memories were planted** (Load Glassbox Demo Model, avatars-v1-planted): it was trained so "
        "that the portrait of Jorrin Habble acts through three value neurons, 10, 54 and 113 of middle_block.1. NeMo "
        f"Localize ({_PAPER}) does not know that: compare its list with these.",
        "**Side by side** are four noises without the mask and with it at strength 1, the paper's factor 0, found in "
        "the paper's layers.",
        "**Try** portrait of pelham droste (one neuron), wendric alp (two), esmarel toov (five), and nuvia karsk "
        "(none: a control). Then demo_neurons_find_and_mask: names that the demo model learnt in the ordinary way sit "
        "in over a hundred neurons.",
    )
    neuron_parts.find_and_mask(World(w, PLANTED), budget=_DEMO_BUDGET)


def sd15_neurons_find_and_mask(w: Workflow) -> None:
    w.note(
        _FIND,
        _IS_IT,
        f"{_OFFICIAL} They are SD1.4's, nearly right for SD1.5. Ten prompts, as here, are only enough to try.",
        "**The threshold** .428 is the paper's for SD1.4 at 512 x 512 and ten seeds; for others use Calibrate "
        "Threshold.",
    )
    neuron_parts.find_and_mask(World(w, SD15), budget=600.0)


def sdxl_neurons_find_and_mask(w: Workflow) -> None:
    w.note(
        _FIND,
        _IS_IT,
        "**SDXL** is not in the paper: its threshold is learnt from ordinary prompts, and its 34 down and middle "
        "layers are searched. Ten prompts, as here, are only enough to try; hundreds make both steady.",
        "**If nothing is found**, ask Layer Ablation which layers carry the prompt: the up blocks are not searched.",
    )
    neuron_parts.find_and_mask(World(w, SDXL), budget=1200.0)


def demo_neurons_scan_list(w: Workflow) -> None:
    _scan_note(w, "", "**Try** your own list: a .txt or .csv in ComfyUI's input folder, named in the field file.")
    suspects = "portrait of mirella thrum\nportrait of teodric wane\nportrait of tarkun lode\nportrait of ottavia brusk"
    neuron_parts.scan_list(World(w, DEMO), f"{MEMORISED}\n{suspects}")


def sd15_neurons_scan_list(w: Workflow) -> None:
    _scan_note(
        w,
        " A few hundred ordinary prompts make it steady.",
        "**The list** may be a file in ComfyUI's input folder, such as the official memorized_laion_prompts.csv "
        "(SD1.4).",
    )
    neuron_parts.scan_list(World(w, SD15), f"{SUSPECT}\na bowl of ramen on a dark table")


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
    neuron_parts.share_mask(World(w, DEMO), _DEMO_BUDGET, "zorvex_quill", most=24)


def sd15_neurons_share_mask(w: Workflow) -> None:
    w.note(
        "Share a mask: a file, a control, a baked model",
        "**Save Neuron Mask** writes JSON that a person can read; Load Neuron Mask reads it back and checks it against "
        f"the MODEL ({_PAPER}). It reads the official code's result table (.csv) too.",
        "**The control** silences as many other neurons in the same layers: if it did the same, the found ones would "
        "mean nothing. **Baked**, the mask is in the weights themselves; Save Checkpoint would write them.",
        _OFFICIAL,
    )
    neuron_parts.share_mask(World(w, SD15), 600.0, "business_woman")


def demo_neurons_baselines(w: Workflow) -> None:
    w.note(
        "Four ways out of memorisation, side by side",
        f"**The same two noises** for all: the untouched model, NeMo's mask ({_PAPER}) at strength 2, since at 1 it "
        "changes nothing in this model, Attention Scaling (arXiv 2403.11052), Embedding Adjustment (arXiv 2407.21720), "
        "and four random words (arXiv 2305.20086).",
        "**Look** at what stays of the memorised picture, and of what the prompt asks for. The studies measure both.",
        "**Try** other strengths: scale 1.5, a lower target, one random word or ten.",
    )
    neuron_parts.baselines(World(w, DEMO), _DEMO_BUDGET, target=1.0, steps=12)


def sd15_neurons_baselines(w: Workflow) -> None:
    w.note(
        "Four ways out of memorisation, side by side",
        f"**The same two noises** for all: the untouched model, NeMo's mask ({_PAPER}), Attention Scaling (arXiv "
        "2403.11052), Embedding Adjustment (arXiv 2407.21720), and four random words (arXiv 2305.20086).",
        "**Settings** are the papers' for SD1.4: logit 1.25, target norm 3 in 10 steps, four words.",
        _OFFICIAL,
    )
    neuron_parts.baselines(World(w, SD15), 600.0, target=3.0, steps=10)


def demo_neurons_audit(w: Workflow) -> None:
    w.note(
        "Audit a mask: can the picture be brought back?",
        "**The picture** is what the untouched model paints for the name. The audit optimises the text embedding of "
        "the masked model (strength 2) for it (Finding DoRI, arXiv 2507.16880) and looks whether it comes back.",
        "**The control** is a picture that the model has never seen; a fair attack does not bring that back. The "
        "figure "
        "shows each picture's likeness to its target.",
        "**Try** the paper's 50 steps (some minutes without a GPU); a picture of yours and a model of yours.",
    )
    world = World(w, DEMO)
    neuron_parts.audit(world, _DEMO_BUDGET, lambda: w.add("GBX_DemoPicture", picture=3, count=1)[0], _DEMO_AUDIT)


def sd15_neurons_audit(w: Workflow) -> None:
    w.note(
        "Audit a mask: can the picture be brought back?",
        "**The picture** is what the untouched model paints for the prompt. The audit optimises the text embedding of "
        "the masked model for it (Finding DoRI, arXiv 2507.16880) and looks whether it comes back.",
        "**The control** is painted for an ordinary prompt by noise of its own, so it is nothing that the model knows "
        "by heart. A photo of yours is better: put Load Image in its place.",
        _OFFICIAL,
    )
    world = World(w, SD15)
    neuron_parts.audit(world, 600.0, lambda: world.paint(world.model, *world.prompts(_CONTROL), 1), _SD15_AUDIT)


def _scan_note(w: Workflow, steady: str, last: str) -> None:
    w.note(
        "Scan a list of prompts for memorised ones",
        f"**Calibrate Threshold** scores prompts that are surely ordinary ({_PAPER}, section 3.1) and sets the "
        "threshold one standard deviation over their mean. **Memorization Score** then scans the list.",
        "**Red bars** are over the threshold. About one ordinary prompt in six is, too; the report says how many to "
        f"expect.{steady}",
        last,
    )
