"""The models of the neurons workflows, and the nodes that every one of those workflows needs."""

from __future__ import annotations

from dataclasses import dataclass

from .authoring import Output, Workflow
from .sampling import encode, sample, sampler_of

MEMORIZED = "portrait of zorvex quill"
#: Where the demo model reads its captions (demo_neurons_which_layers); other layers carry nothing.
_DEMO_LAYERS = "input_blocks.1.1, output_blocks.6.1, output_blocks.7.1, output_blocks.8.1"
_SD15_FILE, _SDXL_FILE = "v1-5-pruned-emaonly-fp16.safetensors", "sd_xl_base_1.0.safetensors"
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
ORDINARY = """a small town by the sea at dusk, watercolor
portrait of an old fisherman, oil painting
a red bicycle leaning on a brick wall
aerial photo of a river delta
still life with pears and a blue jug
two dogs running on a beach
a modern kitchen with wooden shelves
snowy mountains under a clear sky
a bowl of ramen on a dark table
a steam train crossing a stone bridge"""
SUSPECT = "The No Limits Business Woman Podcast"


@dataclass(frozen=True)
class Kind:
    """A model with the settings that its latents and its seconds allow."""

    checkpoint: str | None  # None: a demo model
    side: int
    seeds: int
    threshold: float | None  # None: calibrated on ordinary prompts
    layers: str
    ordinary: str
    suspect: str
    search: dict[str, str | float]
    strength: float  # at which a mask is compared with other mitigations and audited
    deviations: (
        float | None
    )  # target score, in deviations from the ordinary mean; None: the threshold
    demo: str = "avatars-v2"
    generic: str = "portrait"


DEMO = Kind(
    None,
    128,
    4,
    0.8,
    _DEMO_LAYERS,
    _DEMO_ORDINARY,
    MEMORIZED,
    {"criterion": "between_seeds"},
    1.0,
    -1.5,
)
PLANTED = Kind(
    None,
    128,
    4,
    0.8,
    _DEMO_LAYERS,
    _DEMO_ORDINARY,
    "portrait of oquin veshti",
    {"criterion": "between_seeds"},
    1.0,
    0.5,
    "avatars-v2-planted",
)
SD15 = Kind(
    _SD15_FILE,
    512,
    10,
    0.428,
    "down, middle",
    ORDINARY,
    SUSPECT,
    {},
    1.0,
    None,
    generic="podcast cover",
)
SDXL = Kind(
    _SDXL_FILE,
    1024,
    10,
    None,
    "down, middle",
    ORDINARY,
    SUSPECT,
    {},
    1.0,
    None,
    generic="podcast cover",
)


class World:
    """A model on the canvas, and the nodes that every workflow needs of it."""

    def __init__(self, w: Workflow, kind: Kind):
        self.w, self.kind = w, kind
        w.group("Model")
        if kind.checkpoint is None:
            self.model, self.clip, self.vae = w.add("GBX_LoadDemoModel", weights=kind.demo)
        else:
            self.model, self.clip, self.vae = w.add(
                "CheckpointLoaderSimple", ckpt_name=kind.checkpoint
            )
        self.sampler = {"sampler": sampler_of(w)}
        self.numbers = (
            {"steps": 20, "cfg": 3.0} if kind.checkpoint is None else {"steps": 20, "cfg": 7.0}
        )
        self.size = {"width": kind.side, "height": kind.side}
        self.first_step = {**self.size, "noise_samples": kind.seeds}
        self.given = {"model": self.model, "clip": self.clip}
        self.threshold = self._calibrated() if kind.threshold is None else kind.threshold

    def _calibrated(self) -> Output:
        def inside(w: Workflow, **given: Output) -> Output:
            return w.add("GBX_CalibrateThreshold", deviations=1.0, **given, **self.first_step)[0]

        return self.w.subgraph(
            "Threshold of ordinary prompts", inside, **self.given, prompts=self.kind.ordinary
        )

    def calibrate(self, deviations: float) -> tuple[Output, ...]:
        """The threshold of the ordinary prompts, its figure and report."""
        return self.w.add(
            "GBX_CalibrateThreshold",
            **self.given,
            prompts=self.kind.ordinary,
            deviations=deviations,
            **self.first_step,
        )

    def localize(self, budget: float, prefix: str = "") -> tuple[Output, ...]:
        """The neurons of the suspect, found in a subgraph: mask, figure, table, report, and the
        file of statistics.
        """
        kind = self.kind

        def inside(w: Workflow, ordinary_prompts, **given: Output) -> dict[str, Output]:
            ordinary = {"model": given["model"], "clip": given["clip"], "prompts": ordinary_prompts}
            given["statistics"], _, file = w.add(
                "GBX_NeuronStatistics", **ordinary, layers=kind.layers, filename_prefix=prefix
            )
            if kind.deviations is not None:
                given["target_score"], *_ = w.add(
                    "GBX_CalibrateThreshold",
                    **ordinary,
                    deviations=kind.deviations,
                    **self.first_step,
                )
            mask, figure, table, report = w.add(
                "GBX_NemoLocalize", layers=kind.layers, **given, **self.first_step, **kind.search
            )
            return {
                "mask": mask,
                "figure": figure,
                "table": table,
                "report": report,
                "statistics file": file,
            }

        return self.w.subgraph(
            "Find the neurons",
            inside,
            **self.given,
            prompts=kind.suspect,
            ordinary_prompts=kind.ordinary,
            threshold=self.threshold,
            time_budget=budget,
        )

    def score(self) -> tuple[Output, Output]:
        """How memorized the suspect is, in a subgraph: a figure and the verdict."""

        def inside(w: Workflow, **given: Output) -> dict[str, Output]:
            scored = w.add("GBX_MemorizationScore", **given, **self.first_step)
            return {"figure": scored[0], "verdict": scored[5]}

        given = {"prompts": self.kind.suspect, "threshold": self.threshold}
        return self.w.subgraph("Score a prompt", inside, **self.given, **given)

    def prompts(self, text: str | None = None) -> tuple[Output, Output]:
        """The suspect, or another text, and the empty prompt, encoded."""
        return encode(self.w, self.clip, text or self.kind.suspect)

    def generate(self, model: Output, positive: Output, negative: Output, count: int = 4) -> Output:
        """Images of one seed."""

        def inside(w: Workflow, **given: Output) -> Output:
            latent = w.add("EmptyLatentImage", **self.size, batch_size=count)
            return sample(w, latent_image=latent, **self.sampler, **given)

        given = {"model": model, "positive": positive, "negative": negative, "vae": self.vae}
        return self.w.subgraph("Generate", inside, **given, seed=5, **self.numbers)

    def generate_masked(
        self, mask: Output, strength: float, positive: Output, negative: Output, count: int = 4
    ) -> Output:
        """The same with a mask at a strength, all in a subgraph."""

        def inside(w: Workflow, model, mask, strength, **given: Output) -> Output:
            masked = w.add("GBX_NemoNeuronMask", model=model, mask=mask, strength=strength)
            latent = w.add("EmptyLatentImage", **self.size, batch_size=count)
            return sample(w, model=masked, latent_image=latent, **self.sampler, **given)

        given = {
            "model": self.model,
            "mask": mask,
            "strength": strength,
            "positive": positive,
            "negative": negative,
        }
        return self.w.subgraph(
            "Mask and generate", inside, **given, vae=self.vae, seed=5, **self.numbers
        )

    def save(
        self,
        images: Output,
        name: str,
        title: str | None = None,
        node_size: tuple[int, int] | None = None,
    ) -> None:
        prefix = f"glassbox/neurons_{name}"
        self.w.add(
            "SaveImage",
            images=images,
            filename_prefix=prefix,
            node_title=title,
            node_size=node_size,
        )

    def show(self, text: Output, title: str, node_size: tuple[int, int] | None = None) -> None:
        self.w.add("PreviewAny", source=text, node_title=title, node_size=node_size)
