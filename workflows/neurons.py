"""The workflows of the neurons family: is a prompt memorised, which neurons carry it, and what a mask does."""

from .authoring import Output, Workflow

_PAPER = "Finding NeMo, arXiv 2406.02366"
_NOTHING = "Nothing (what CFG steers away from)"
_MEMORISED = "portrait of zorvex quill"
#: Where the demo model carries its names, by Layer Ablation.
_DEMO_LAYERS = "output_blocks.4.1, output_blocks.5.1"
_SD15 = "v1-5-pruned-emaonly-fp16.safetensors"
_DEMO_ORDINARY = """portrait, light skin, curly red hair, shaven, smiling
portrait, brown skin, bald, round glasses, sad, blue hoodie
portrait, black skin, short black hair, majestic beard
portrait, serious, green shirt, striped blue background
portrait, tanned skin, brown bob, no glasses, screaming
portrait, pale skin, long blonde hair, sunglasses
portrait, brown afro, moustache, tongue out, red shirt
portrait, light skin, undercut, light beard, smiling
portrait of pelham droste
portrait of nuvia karsk
portrait of jorrin habble
portrait of esmarel toov"""
_SD15_ORDINARY = """a small town by the sea at dusk, watercolour
portrait of an old fisherman, oil painting
a red bicycle leaning on a brick wall
aerial photo of a river delta
still life with pears and a blue jug
two dogs running on a beach
a modern kitchen with wooden shelves
snowy mountains under a clear sky
a bowl of ramen on a dark table
a steam train crossing a stone bridge"""
_SD15_SUSPECT = "The No Limits Business Woman Podcast"


class _World:
    """A model with the settings that its latents and its seconds allow."""

    def __init__(self, w: Workflow, demo: bool):
        self.w, self.demo = w, demo
        w.group("Model")
        loader = ("GBX_LoadDemoModel", {}) if demo else ("CheckpointLoaderSimple", {"ckpt_name": _SD15})
        self.model, self.clip, self.vae = w.add(loader[0], **loader[1])
        side = 128 if demo else 512
        self.size = {"width": side, "height": side}
        self.first_step = {**self.size, "seeds": 4 if demo else 10}
        self.threshold = 0.8 if demo else 0.428
        self.layers = _DEMO_LAYERS if demo else "down, middle"
        self.ordinary = _DEMO_ORDINARY if demo else _SD15_ORDINARY
        self.suspect = _MEMORISED if demo else _SD15_SUSPECT
        self.given = {"model": self.model, "clip": self.clip}

    def localize(self, budget: float, save_as: str = "") -> tuple[Output, ...]:
        """Statistics of ordinary prompts, and the neurons of the suspect: mask, figure, table, report."""
        statistics, _, self.saved = self.w.add(
            "GBX_NeuronStatistics", **self.given, prompts=self.ordinary, layers=self.layers, save_as=save_as
        )
        return self.w.add(
            "GBX_NemoLocalize", **self.given, statistics=statistics, prompts=self.suspect, layers=self.layers,
            threshold=self.threshold, time_budget=budget, **self.first_step,
        )  # fmt: skip

    def prompts(self) -> tuple[Output, Output]:
        """The suspect and the empty prompt, encoded."""
        positive = self.w.add("CLIPTextEncode", clip=self.clip, text=self.suspect, node_title="Prompt")
        return positive, self.w.add("CLIPTextEncode", clip=self.clip, text="", node_title=_NOTHING)

    def paint(self, model: Output, positive: Output, negative: Output, count: int = 4) -> Output:
        """Pictures of one seed."""
        latent = self.w.add("EmptyLatentImage", **self.size, batch_size=count)
        samples = self.w.add(
            "KSampler", model=model, positive=positive, negative=negative, latent_image=latent, seed=5,
            steps=12 if self.demo else 20, cfg=3.0 if self.demo else 7.0, sampler_name="euler", scheduler="normal",
        )  # fmt: skip
        return self.w.add("VAEDecode", samples=samples, vae=self.vae)

    def save(self, images: Output, name: str, title: str | None = None) -> None:
        self.w.add("SaveImage", images=images, filename_prefix=f"glassbox/neurons_{name}", node_title=title)

    def show(self, text: Output, title: str) -> None:
        self.w.add("PreviewAny", source=text, node_title=title)


def demo_neurons_find_and_mask(w: Workflow) -> None:
    w.note(
        "Find a memorised prompt's neurons, and switch them off",
        f"**The demo model has learnt by heart** what goes with the name Zorvex Quill. The score says so, NeMo "
        "Localize "
        f"finds the neurons that carry it ({_PAPER}), and NeMo Neuron Mask switches them off.",
        "**Side by side** are four noises without the mask and with it. Look closely: the mask changes the picture, "
        "yet all noises may still paint the same one, so it is not forgotten. The report measures both.",
        "**Try** strength .5; a control name (portrait of pelham droste); Neuron Mask Edit with a random control; more "
        "time for the search.",
    )
    _find_and_mask(_World(w, demo=True), budget=6.0)


def sd15_neurons_find_and_mask(w: Workflow) -> None:
    w.note(
        "Find a memorised prompt's neurons, and switch them off",
        "**Is this prompt learnt by heart?** The score compares the first steps of ten noises; NeMo Localize finds the "
        f"neurons that carry it ({_PAPER}), and NeMo Neuron Mask switches them off.",
        "**Better statistics** for SD1.4, nearly right for SD1.5: put the official code's "
        "statistics_additional_laion_prompts_v1_4.pt into the input folder, and take Load Neuron Statistics in place "
        "of "
        "Neuron Statistics. Ten prompts, as here, are only enough to try.",
        "**The threshold** .428 is the paper's for SD1.4 at 512 x 512 and ten seeds; for others use Calibrate "
        "Threshold.",
    )
    _find_and_mask(_World(w, demo=False), budget=600.0)


def demo_neurons_scan_list(w: Workflow) -> None:
    w.note(
        "Scan a list of prompts for memorised ones",
        f"**Calibrate Threshold** scores prompts that are surely ordinary ({_PAPER}, section 3.1) and sets the "
        "threshold "
        "one standard deviation over their mean. **Memorization Score** then scans the list.",
        "**Red bars** are over the threshold. About one ordinary prompt in six is, too; the report says how many to "
        "expect.",
        "**Try** your own list: a .txt or .csv in ComfyUI's input folder, named in the field file.",
    )
    suspects = "portrait of mirella thrum\nportrait of teodric wane\nportrait of tarkun lode\nportrait of ottavia brusk"
    _scan_list(_World(w, demo=True), f"{_MEMORISED}\n{suspects}")


def sd15_neurons_scan_list(w: Workflow) -> None:
    w.note(
        "Scan a list of prompts for memorised ones",
        f"**Calibrate Threshold** scores prompts that are surely ordinary ({_PAPER}, section 3.1) and sets the "
        "threshold "
        "one standard deviation over their mean. **Memorization Score** then scans the list.",
        "**Red bars** are over the threshold. About one ordinary prompt in six is, too; the report says how many to "
        "expect. A few hundred ordinary prompts make it steady.",
        "**The list** may be a file in ComfyUI's input folder, such as the official memorized_laion_prompts.csv "
        "(SD1.4).",
    )
    _scan_list(_World(w, demo=False), f"{_SD15_SUSPECT}\na bowl of ramen on a dark table")


def demo_neurons_which_layers(w: Workflow) -> None:
    w.note(
        "Which layers carry a memorised prompt?",
        f"**Layer Ablation** silences the values of each cross-attention in turn ({_PAPER}, appendix C.8). Red "
        "layers are "
        "those to search.",
        "**In SD1.4** the paper searches the seven down and middle layers. In the demo model they do little: its up "
        "blocks carry the names. Look before you trust a default.",
        "**Try** an ordinary prompt, or several prompts, one a line: the bars are then their mean.",
    )
    world = _World(w, demo=True)
    w.group("Ablation")
    figure, layers, report = w.add("GBX_LayerAblation", **world.given, prompts=_MEMORISED,
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
    world = _World(w, demo=True)
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
    world = _World(w, demo=True)
    w.group("NeMo")
    mask, *_ = world.localize(4.0)
    masked = w.add("GBX_NemoNeuronMask", model=world.model, mask=mask)
    w.group("The others")
    positive, negative = world.prompts()
    scaled = w.add("GBX_AttentionScaling", model=world.model, clip=world.clip, prompt=_MEMORISED)
    adjusted, told = w.add("GBX_EmbeddingAdjustment", model=world.model, positive=positive, negative=negative,
                           target=1.0, steps=12, pictures=2, **world.size)  # fmt: skip
    random, words = w.add("GBX_RandomTokens", clip=world.clip, prompt=_MEMORISED, count=4, seed=2)
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
    world = _World(w, demo=True)
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


def _find_and_mask(world: _World, budget: float) -> None:
    w = world.w
    w.group("Is it memorised?")
    figure, *_, told = w.add("GBX_MemorizationScore", **world.given, prompts=world.suspect, threshold=world.threshold,
                             **world.first_step)  # fmt: skip
    world.show(told, "Verdict")
    w.group("Which neurons?")
    mask, search, _, report = world.localize(budget)
    world.show(report, "The search in words")
    w.group("Before and after")
    positive, negative = world.prompts()
    before = world.paint(world.model, positive, negative)
    masked = w.add("GBX_NemoNeuronMask", model=world.model, mask=mask)
    after = world.paint(masked, positive, negative)
    w.group("Side by side")
    world.save(before, "before", "Without the mask")
    world.save(after, "after", "With the mask")
    drawn, words, _ = w.add("GBX_NeuronReport", mask=mask, before=before, after=after, reference=before)
    world.save(drawn, "report", "The mask, and how alike the pictures are")
    w.add("PreviewImage", images=figure, node_title="Similarity of the seeds")
    w.add("PreviewImage", images=search, node_title="The search")
    world.show(words, "Report")


def _scan_list(world: _World, suspects: str) -> None:
    w = world.w
    w.group("From which score on?")
    threshold, histogram, told = w.add(
        "GBX_CalibrateThreshold", **world.given, prompts=world.ordinary, **world.first_step
    )
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
