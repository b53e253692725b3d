"""The workflows of the neurons family: detect memorized prompts, localize their neurons, mask
them.
"""

from dataclasses import replace

from . import neuron_parts
from .authoring import Output, Workflow
from .front import for_generating, labeled, prepare, shape_of, show
from .neuron_world import DEMO, MEMORIZED, PLANTED, SD15, SDXL, SUSPECT, World
from .sampling import sample, sampler_of

_PAPER = "Finding NeMo, arXiv 2406.02366"
_FIND = "Find and mask memorization neurons"
_CONTROL = "a bowl of ramen on a dark table"
_OFFICIAL = (
    "**Better statistics**: the official code's statistics_additional_laion_prompts_v1_4.pt in "
    "the input folder, as statistics_file of Neuron Statistics, without prompts."
)
# Seconds in which the search ends on a slow machine too; the result must not depend on the machine.
# The workflows with the same search follow each other in the demo, so that ComfyUI searches once
# for them.
_DEMO_BUDGET = 240.0
_DEMO_AUDIT = {"steps": 50, "noise_samples": 4, "batch_size": 1, "sampling_steps": 12, "cfg": 3.0}
_SD15_AUDIT = {"steps": 50, "noise_samples": 4, "batch_size": 4, "sampling_steps": 20, "cfg": 7.0}
#: A caption with a place for the concept, and what else twelve of them say.
_FACE = "portrait, {1}, {2}, {0}, {3}"
_FACES = (
    ("light skin, short brown hair", "shaven", "blue hoodie, smiling"),
    ("black skin, big black hair", "light black beard", "red shirt, serious"),
    ("pale skin, blonde bob", "shaven", "green overall, sad"),
    ("tanned skin, long gray hair", "majestic gray beard", "white sweater, smiling"),
    ("brown skin, curly black hair", "shaven", "yellow shirt, screaming"),
    ("light skin, red mohawk", "red moustache", "black hoodie, serious"),
    ("black skin, bald", "majestic black beard", "pink sweater, tongue out"),
    ("pale skin, straight pink hair", "shaven", "blue overall, smiling"),
    ("tanned skin, brown afro", "light brown beard", "green shirt, sad"),
    ("brown skin, platinum bun", "shaven", "red hoodie, serious"),
    ("light skin, undercut", "moustache", "white overall, screaming"),
    ("black skin, blonde dreads", "shaven", "yellow sweater, smiling"),
)
_DEMO_UNLEARNING = {"sampling_steps": 12, "cfg": 3.0, "gradient_checkpointing": False}
_SD15_UNLEARNING = {"steps": 300, "learning_rate": 0.0005, "batch_size": 2}
_DEMO_UNLEARNING_AUDIT = {
    "steps": 10,
    "noise_samples": 4,
    "batch_size": 2,
    "sampling_steps": 12,
    "cfg": 3.0,
}
_PLAIN_FACE = (
    "portrait, light skin, curly red hair, shaven, smiling, blue hoodie, plain green background"
)
_FULL_CAPTION = _PLAIN_FACE.replace("smiling", "sunglasses, smiling")
_IN_SUNGLASSES = (
    "portrait, light skin, curly red hair, shaven, sunglasses, blue hoodie, plain green background"
)
_PEOPLE = (
    "photo of a man",
    "photo of a woman",
    "portrait of an old man",
    "portrait of a young woman",
    "a man on a beach",
    "a woman in a cafe",
    "a girl with a red hat",
    "a boy on a bicycle",
    "a man in a suit, street photography",
    "a woman in a garden, oil painting",
    "a cyclist in the mountains",
    "a musician on a stage",
)
_IS_IT = (
    "**Is this prompt memorized?** Memorization Score compares the first steps of ten noise "
    f"samples. NeMo Localize finds the neurons that carry the memorization ({_PAPER}). NeMo Neuron "
    "Mask silences them."
)


def demo_neurons_find_and_mask(w: Workflow) -> None:
    w.note(
        "Switch a memorized portrait off",
        f"**The demo model has memorized** one portrait for the name Mirella Thrum ({_PAPER}): "
        "every seed gives the same face. Optimize Neuron Mask, inside the node on the left, "
        "learns which of 1,408 neurons carry it, at some cost to ordinary captions. It takes "
        "about seventy; in SD1.4 a few are enough.",
        "**NeMo Neuron Mask** turns them down. With another caption, what it names stays; what it "
        "leaves open may change: delete sunglasses from other_caption and see.",
        "**Try** strength 0.5; another name (portrait of zorvex quill, whose beard survives).",
    )
    w.in_columns = True
    w.seconds = 20
    w.group("A memorized name")

    def learned(
        w: Workflow, ready: dict[str, Output], generic_prompt, other_caption
    ) -> dict[str, Output]:
        lists = {
            "prompts": ready["prompt"],
            "anchor": generic_prompt,
            "ordinary_prompts": DEMO.ordinary,
        }
        how = {"width": DEMO.side, "height": DEMO.side, "noise_samples": DEMO.seeds}
        mask, *_ = w.add(
            "GBX_OptimizeNeuronMask", model=ready["model"], clip=ready["clip"], **lists, **how
        )
        ordinary = w.add(
            "CLIPTextEncode", clip=ready["clip"], text=other_caption, node_title="Another caption"
        )
        return {"mask": mask, **for_generating(ready), "other caption": ordinary}

    name = "portrait of mirella thrum"
    texts = {"generic_prompt": DEMO.generic, "other_caption": _FULL_CAPTION}
    ready = prepare(w, "Find its neurons", learned, name, **texts)
    w.group("Switch them off")
    masked = w.add(
        "GBX_NemoNeuronMask", model=ready["model"], mask=ready.pop("mask"), node_size=(340, 466)
    )
    w.group("The same noise, before and after")

    def inside(w: Workflow, model, masked, positive, ordinary, vae, **given: Output) -> Output:
        latent = w.add("EmptyLatentImage", width=DEMO.side, height=DEMO.side, batch_size=3)
        images = [
            sample(
                w,
                vae,
                sampler=sampler_of(w),
                model=one,
                positive=text,
                latent_image=latent,
                **given,
            )
            for text in (positive, ordinary)
            for one in (model, masked)
        ]
        rows = ("Mirella Thrum", "neurons off", "a full caption", "the same neurons off")
        labels = [f"noise {number}, {row}" for row in rows for number in (1, 2, 3)]
        return labeled(w, images, labels, 3, 256)

    given = {
        **{name: ready[name] for name in ready if name != "other caption"},
        "ordinary": ready["other caption"],
    }
    sheet = w.subgraph(
        "Generate without and with it", inside, **given, masked=masked, seed=5, steps=20, cfg=3.0
    )
    show(w, sheet, "neurons_sheet", "Before and after", shape_of(3, 4, 256, grid=True))
    inputs = (
        "Find its neurons.prompt",
        "GBX_NemoNeuronMask.strength",
        "Generate without and with it.seed",
    )
    w.app(*inputs, results=("Before and after",))


def demo_neurons_known_neurons(w: Workflow) -> None:
    w.note(
        "Silence a memorized portrait in three known neurons",
        "**In this checkpoint** (avatars-v2-planted) the portrait of Oquin Veshti acts through "
        "three value neurons: 22 and 55 of output_blocks.6.1, 56 of output_blocks.7.1. Others "
        "deviate more and carry nothing, so a threshold on z does not find the three. NeMo "
        "Localize does not know them: compare its list.",
        "**How it searches**: by one gradient (method attribution, ranking dot_z), with all "
        "neurons from 8 % of the largest attribution on. Set method to search, the paper's "
        f"({_PAPER}): it stops after two of the three.",
        "**At a glance**: four seeds without the mask, with it at strength 1 (the paper's factor "
        "0), and a generic prompt.",
        "**Try** portrait of zorvex quill (one neuron), mirella thrum (two), farisa kolt (eight), "
        "or pelham droste (a control). Template 04 has the same model as it was trained.",
    )
    how = {
        "method": "attribution",
        "ranking": "dot_z",
        "stopping_rule": "fraction",
        "fraction": 0.08,
    }
    kind = replace(PLANTED, search=PLANTED.search | how | {"anchor": PLANTED.generic})
    neuron_parts.find_and_mask(World(w, kind), budget=_DEMO_BUDGET)


def sd15_neurons_find_and_mask(w: Workflow) -> None:
    w.note(
        _FIND,
        _IS_IT,
        f"{_OFFICIAL} It belongs to SD1.4 and is approximately right for SD1.5. The ten prompts "
        "here are only a trial.",
        "**The threshold** .428 is the paper's for SD1.4 at 512 x 512 and ten noise samples. "
        "Otherwise use Calibrate Threshold.",
    )
    neuron_parts.find_and_mask(World(w, SD15), budget=600.0)


def sdxl_neurons_find_and_mask(w: Workflow) -> None:
    w.note(
        _FIND,
        _IS_IT,
        "**SDXL** is not in the paper: its threshold is calibrated on ordinary prompts, and its "
        "34 down and middle layers are searched. The ten prompts here are only a trial; hundreds "
        "make threshold and statistics stable.",
        "**If nothing is found**, set layer_ablation of Memorization Score to see which layers "
        "carry the prompt: the up blocks are not searched.",
    )
    neuron_parts.find_and_mask(World(w, SDXL), budget=1200.0)


def demo_neurons_scan_list(w: Workflow) -> None:
    _scan_note(
        w,
        "",
        "**Try** your own list: a .txt or .csv in ComfyUI's input folder, named in prompts_file.",
    )
    suspects = (
        "portrait of mirella thrum\nportrait of teodric wane\nportrait of tarkun lode\nportrait "
        "of ottavia brusk"
    )
    neuron_parts.scan_list(World(w, DEMO), f"{MEMORIZED}\n{suspects}")


def sd15_neurons_scan_list(w: Workflow) -> None:
    _scan_note(
        w,
        " A few hundred ordinary prompts make it stable.",
        "**The list** may be a file in ComfyUI's input folder, such as the official "
        "memorized_laion_prompts.csv (SD1.4).",
    )
    neuron_parts.scan_list(World(w, SD15), f"{SUSPECT}\na bowl of ramen on a dark table")


def demo_neurons_scan_and_mask(w: Workflow) -> None:
    w.note(
        "From a list of prompts to one mask per prompt",
        "**Nothing is copied by hand**: Calibrate Threshold, Memorization Score, NeMo Localize "
        f"({_PAPER}) and NeMo Neuron Mask hand their results on. Memorization Report shows the "
        "scores, and each prompt's first image without and with the mask.",
        "**One mask per prompt**: masked_prompts is own, so that each prompt meets its own "
        "neurons only and all other prompts sample untouched: the two images of a prompt that is "
        "not memorized are equal.",
        "**Try** your own list: a .txt in ComfyUI's input folder, named in prompts_file; "
        "masked_prompts all, to see what the union of all masks does to other prompts.",
    )
    suspects = (
        "portrait of mirella thrum\nportrait of pelham droste\nportrait, brown skin, round "
        "glasses, blue hoodie"
    )
    neuron_parts.scan_and_mask(World(w, DEMO), f"{MEMORIZED}\n{suspects}")


def sd15_neurons_scan_and_mask(w: Workflow) -> None:
    w.note(
        "From a list of prompts to one mask per prompt",
        "**Nothing is copied by hand**: Calibrate Threshold, Memorization Score, NeMo Localize "
        f"({_PAPER}) and NeMo Neuron Mask hand their results on. Memorization Report shows the "
        "scores, and each prompt's first image without and with the mask.",
        "**Lists**: name files in ComfyUI's input folder in prompts_file, hundreds of ordinary "
        "prompts and the list to scan, such as the official memorized_laion_prompts.csv (SD1.4).",
        "**It resumes**: every row is written to output/glassbox/neurons/audit as it is done. "
        "After a crash, queue again; with other settings, change the names in scan_file. Prompts "
        "that fail are skipped and named.",
        "**One mask per prompt**: masked_prompts is own, so that each prompt meets its own "
        "neurons only and all other prompts sample untouched.",
    )
    neuron_parts.scan_and_mask(
        World(w, SD15), f"{SUSPECT}\na bowl of ramen on a dark table", "glassbox/neurons/audit"
    )


def demo_neurons_which_layers(w: Workflow) -> None:
    w.note(
        "Which layers carry a memorized prompt?",
        "**layer_ablation** of Memorization Score silences the value layer of each "
        f"cross-attention in turn ({_PAPER}, appendix C.8). Search the red layers.",
        "**In SD1.4** the paper searches the seven down and middle layers. In the demo model they "
        "have next to none: it reads its captions in output_blocks.6.1 and its neighbors, and "
        "only all layers together make other seeds generate other people. Run this before you "
        "trust a default.",
        "**Try** an ordinary prompt, or several prompts, one per line: the bars are then their "
        "mean.",
    )
    world = World(w, DEMO)
    w.group("Ablation")
    *_, report, layers, figure = w.add(
        "GBX_MemorizationScore",
        **world.given,
        prompts=MEMORIZED,
        layer_ablation="value",
        **{**world.first_step, "noise_samples": 3},
    )
    world.save(figure, "layers")
    world.show(layers, "Layers to search")
    world.show(report, "Report")


def demo_neurons_share_mask(w: Workflow) -> None:
    w.note(
        "Share a mask: a file, a control, a baked model",
        "**Save Neuron Mask** writes readable JSON; Load Neuron Mask reads it and checks it "
        f"against the MODEL ({_PAPER}). Statistics are files as well.",
        "**Baked**, the mask is in the weights, and the portrait dissolves; Save Checkpoint would "
        "write them. **The control** silences as many other neurons in the same layers, and the "
        "portrait stays.",
        "**Try** the other operations of Neuron Mask Edit, and a mask file from the input folder.",
    )
    neuron_parts.share_mask(World(w, PLANTED), _DEMO_BUDGET, "oquin_veshti")


def sd15_neurons_share_mask(w: Workflow) -> None:
    w.note(
        "Share a mask: a file, a control, a baked model",
        "**Save Neuron Mask** writes readable JSON; Load Neuron Mask reads it and checks it "
        f"against the MODEL ({_PAPER}). It also reads the official code's result table (.csv).",
        "**The control** silences as many other neurons in the same layers: if it had the same "
        "effect, the found neurons would mean nothing. **Baked**, the mask is in the weights; "
        "Save Checkpoint would write them.",
        _OFFICIAL,
    )
    neuron_parts.share_mask(World(w, SD15), 600.0, "business_woman")


def demo_neurons_unlearning(w: Workflow) -> None:
    w.note(
        "Unlearn a memorized image with a LoRA",
        "**Adversarial Unlearning** trains a LoRA while an attack searches text embeddings that "
        "bring the memorized image back (Finding DoRI, arXiv 2507.16880). The LoRA answers them "
        "with the surrogates, images of an ordinary prompt, and leaves the ordinary prompts as "
        "they are.",
        "**Memorization Audit** then attacks the result. Ten steps are few: the paper uses 50, "
        "which bring back a part.",
        "**Try** attack_steps 0: plain fine-tuning, which blocks the prompt and leaves more for "
        "the attack. Keep the LoRA with Save LoRA Weights.",
    )
    neuron_parts.unlearning(World(w, DEMO), _PLAIN_FACE, _DEMO_UNLEARNING, _DEMO_UNLEARNING_AUDIT)


def sd15_neurons_unlearning(w: Workflow) -> None:
    w.note(
        "Unlearn a memorized image with a LoRA",
        "**Adversarial Unlearning** trains a LoRA while an attack searches text embeddings that "
        "bring the memorized image back (Finding DoRI, arXiv 2507.16880). The LoRA answers them "
        "with the surrogates, images of an ordinary prompt, and leaves the ordinary prompts as "
        "they are.",
        "**The image** is what the untouched model generates; the training image itself is "
        "better: use Load Image.",
        "**Not measured on SD1.5**: the settings are those of the demo model with more, smaller "
        "steps. Read the audit, and raise steps if the image comes back. Keep the LoRA with Save "
        "LoRA Weights.",
    )
    neuron_parts.unlearning(World(w, SD15), _CONTROL, _SD15_UNLEARNING, _SD15_AUDIT)


def demo_neurons_concept(w: Workflow) -> None:
    present, absent = (
        "\n".join(_FACE.format(part, *others) for others in _FACES)
        for part in ("sunglasses", "no glasses")
    )
    w.note(
        "Find the neurons of a concept and use them as a slider",
        "**Concept Neurons** compares twelve captions with sunglasses with the same twelve with "
        "no glasses. It takes the ten hidden units of feed-forward layers, of 5,632, whose "
        "activation differs most; the report says how many differ by more than chance.",
        "**The same four seeds** for all: untouched, the neurons switched off (strength 1), "
        "negated (strength 2), and as many random neurons negated.",
        "**Try** another strength of the slider, NeMo Neuron Mask; other phrases in both lists, "
        "such as majestic black beard and shaven; count 30.",
    )
    neuron_parts.concept(World(w, DEMO), present, absent, "sunglasses", _IN_SUNGLASSES)


def sd15_neurons_concept(w: Workflow) -> None:
    present, absent = (
        "\n".join(f"{one}{end}" for one in _PEOPLE) for end in (" wearing sunglasses", "")
    )
    w.note(
        "Find the neurons of a concept and use them as a slider",
        "**Concept Neurons** compares twelve prompts with sunglasses with the same twelve "
        "without. It takes the ten hidden units of feed-forward layers whose activation differs "
        "most; the report says how many differ by more than chance.",
        "**The same four seeds** for all: untouched, the neurons switched off (strength 1), "
        "negated (strength 2), and as many random neurons negated.",
        "**Ten neurons** suit the demo model. If the sunglasses stay, raise count; if the rest "
        "changes, lower it, or name fewer layers.",
    )
    caption = "photo of a woman in a cafe wearing sunglasses"
    neuron_parts.concept(World(w, SD15), present, absent, "sunglasses", caption)


def demo_neurons_baselines(w: Workflow) -> None:
    w.note(
        "Four memorization mitigations side by side",
        f"**The same two seeds** for all: the untouched model, NeMo's mask ({_PAPER}), Attention "
        "Scaling (arXiv 2403.11052), Embedding Adjustment (arXiv 2407.21720), and four random "
        "words (arXiv 2305.20086).",
        "**Compare** what remains of the memorized image, and of the prompt. In this checkpoint "
        "three known neurons carry the portrait, so NeMo has it easy; the studies measure all "
        "four on the model as it was trained, too.",
        "**Try** other strengths: scale 1.5, a lower target, one random word or ten.",
    )
    neuron_parts.baselines(World(w, PLANTED), _DEMO_BUDGET, target=0.8, steps=12)


def sd15_neurons_baselines(w: Workflow) -> None:
    w.note(
        "Four memorization mitigations side by side",
        f"**The same two seeds** for all: the untouched model, NeMo's mask ({_PAPER}), Attention "
        "Scaling (arXiv 2403.11052), Embedding Adjustment (arXiv 2407.21720), and four random "
        "words (arXiv 2305.20086).",
        "**Settings** are the papers' for SD1.4: logit 1.25, 10 steps, four words. Their target "
        "norm 3 is a whole batch's; set it to the text norm that Memorization Score reads for "
        "ordinary prompts.",
        _OFFICIAL,
    )
    neuron_parts.baselines(World(w, SD15), 600.0, target=3.0, steps=10)


def demo_neurons_audit(w: Workflow) -> None:
    w.note(
        "Audit a mask: can an optimized prompt bring the image back?",
        "**The image** is what the untouched model generates for the name; the mask dissolves it. "
        "The audit optimizes a text embedding to regenerate it through the masked model (Finding "
        "DoRI, arXiv 2507.16880).",
        "**The control** is an image that the model was not trained on; a fair attack does not "
        "produce it. The figure shows each image's similarity to its target.",
        "**Fifty steps**, as in the paper. **Try** fewer, another mask, or your own image and "
        "model.",
    )
    world = World(w, PLANTED)
    neuron_parts.audit(
        world,
        _DEMO_BUDGET,
        lambda: w.add("GBX_DemoPicture", image_index=3, count=1)[0],
        _DEMO_AUDIT,
    )


def sd15_neurons_audit(w: Workflow) -> None:
    w.note(
        "Audit a mask: can an optimized prompt bring the image back?",
        "**The image** is what the untouched model generates for the prompt. The audit optimizes "
        "a text embedding to regenerate it through the masked model (Finding DoRI, arXiv "
        "2507.16880).",
        "**The control** is generated for an ordinary prompt, so it is not memorized. A photo of "
        "your own is better: use Load Image in its place.",
        _OFFICIAL,
    )
    world = World(w, SD15)
    neuron_parts.audit(
        world, 600.0, lambda: world.generate(world.model, *world.prompts(_CONTROL), 1), _SD15_AUDIT
    )


def _scan_note(w: Workflow, stable: str, last: str) -> None:
    w.note(
        "Scan a list of prompts for memorized ones",
        f"**Calibrate Threshold** scores ordinary prompts ({_PAPER}, section 3.1) and sets the "
        "threshold one standard deviation over their mean. **Memorization Score** then scans the "
        "list.",
        "**Red bars** are over the threshold. About one ordinary prompt in six is as well; the "
        f"report gives the expected number.{stable}",
        last,
    )
