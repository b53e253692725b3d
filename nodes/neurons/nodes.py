"""NeMo on the canvas: find the neurons of a memorised prompt, and switch them off."""

from __future__ import annotations

import time

from comfy_api.latest import io

from ..host.figures import new_figure, to_image
from ..host.first_step import at_first_step, latent_shape
from ..host.hooks import refuse_compiled
from ..host.progress import Progress, Stopped
from ..host.prompts import encode
from ..host.sampling_range import sigmas_of
from ..host.schema import schema
from ..host.sockets import NeuronMask as MaskSocket
from ..host.sockets import NeuronStatistics as StatisticsSocket
from ..host.value_answers import answers, embedding, fingerprint
from ..host.value_hooks import with_scaled
from . import chart, drawing, inputs, localization, speculation, statistics, words
from .evaluation import CRITERIA, Evaluator, Neurons
from .findings import joined, mask_of
from .layers import choose, value_layers
from .mask import CAVEATS, factors
from .memorization import Score, difference, first_noise, pairwise
from .prompts import of_text

CATEGORY, PAPER = inputs.CATEGORY, inputs.PAPER
_MODES = {"fast": speculation.refine, "exact": localization.refine}
_BOTH, _CONDITIONAL = "both (paper)", "conditional only"


class NemoLocalize(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_NemoLocalize",
            display_name="NeMo Localize",
            category=CATEGORY,
            description="Finds the few value neurons without which a memorised prompt no longer replays its training "
            f"picture. {PAPER}, sections 3.2 and 3.3. The Stop button keeps the best so far. {CAVEATS[0]} "
            f"{CAVEATS[1]}",
            search_aliases=["nemo", "memorization neurons", "localize memorization"],
            inputs=[
                io.Model.Input("model", tooltip="SD1.x, SD2.x, SDXL or the demo model, with its LoRAs."),
                io.Clip.Input("clip", tooltip="Text encoder of that model."),
                StatisticsSocket.Input("statistics", tooltip="Of the same model and the same layers."),
                io.String.Input("prompts", default="", multiline=True,
                                tooltip="Memorised prompts, one a line. The mask joins the neurons of all."),
                io.String.Input(**inputs.LAYERS),
                io.Float.Input(**inputs.THRESHOLD),
                io.Float.Input(**inputs.BLOCKED_BELOW),
                io.Combo.Input("criterion", options=list(CRITERIA),
                               tooltip="When the prompt counts as blocked. Same seed: the first step has become unlike "
                               "the untouched one. Between seeds: the memorisation score itself has fallen; for small "
                               "models, whose first steps are alike at the same seed for any prompt."),
                io.Int.Input(**inputs.SEEDS),
                io.Int.Input(**inputs.SEED),
                io.Combo.Input(**inputs.TIMESTEP),
                io.Int.Input(**inputs.WIDTH),
                io.Int.Input(**inputs.HEIGHT),
                io.Combo.Input("mode", options=list(_MODES),
                               tooltip="Fast: the same decisions with far fewer evaluations (see the help page). "
                                       "Exact: "
                               "one after another, as the official code decides."),
                io.Float.Input("first_theta", default=5.0, min=1.0, max=100.0, step=0.25,
                               tooltip="How many deviations a neuron must stand out at first; loosened down to 1.25 "
                                       "in 15 "
                               "steps. Paper: 5. Raise it where many neurons stand out that far."),
                io.Float.Input("time_budget", default=0.0, min=0.0, max=86400.0, step=1.0,
                               tooltip="Seconds for each prompt, after which the best so far is handed on (more "
                                       "neurons "
                               "than needed). 0: no limit."),
            ],
            outputs=[
                MaskSocket.Output(display_name="mask", tooltip="For NeMo Neuron Mask and Save Neuron Mask."),
                io.Image.Output(display_name="figure", tooltip="How the score fell as more neurons were silenced."),
                io.String.Output(display_name="table", tooltip="CSV: layer, neuron, z, activation, why."),
                io.String.Output(display_name="report", tooltip="Converged or stalled, the search's trace, its cost."),
            ],
        )  # fmt: skip

    @classmethod
    def execute(cls, model, clip, statistics, prompts: str, layers: str, threshold: float, **how) -> io.NodeOutput:
        chosen = choose(value_layers(model.model.diffusion_model), layers)
        statistics.check(chosen)
        texts = of_text(prompts)
        if not texts:
            raise ValueError("There is no prompt to localise: write one memorised prompt a line.")
        search = _Search(model, clip, statistics, Neurons(tuple(chosen)), threshold, how)
        search.prompts(texts)
        mask, figure = joined(search.masks), new_figure()
        drawing.search(figure, search.traces, how["blocked_below"] or threshold)
        report = "\n".join([*search.reports, words.of_variant(search.side), words.caveats()])
        told = {"glassbox_neurons": [chart.outline(mask)]}
        return io.NodeOutput(mask, to_image(figure), words.mask_table(mask), report, ui=told)


class NemoNeuronMask(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_NemoNeuronMask",
            display_name="NeMo Neuron Mask",
            category=CATEGORY,
            description="Switches value neurons off while a MODEL samples, so that a memorised prompt paints something "
            f"else. {PAPER}, section 3. After LoRAs; several masks stack; an empty mask changes no bit. {CAVEATS[0]} "
            f"{CAVEATS[1]}",
            search_aliases=["nemo", "deactivate neurons", "memorization mitigation", "unlearn"],
            inputs=[
                io.Model.Input("model", tooltip="The model that the mask was made for."),
                MaskSocket.Input(**inputs.MASK),
                io.Float.Input(**inputs.STRENGTH),
                io.Float.Input("start_percent", default=0.0, min=0.0, max=1.0, step=0.01,
                               tooltip="From where in the run the mask acts. 0 is pure noise."),
                io.Float.Input("end_percent", default=1.0, min=0.0, max=1.0, step=0.01,
                               tooltip="To where in the run the mask acts. 1 is the finished picture."),
                io.Combo.Input("rows", options=[_BOTH, _CONDITIONAL],
                               tooltip="Under CFG, mask the positive and the negative prompt, as the paper does, or "
                                       "the "
                               "positive one only."),
            ],
            outputs=[io.Model.Output(display_name="MODEL", tooltip="For any sampler.")],
        )  # fmt: skip

    @classmethod
    def execute(
        cls, model, mask, strength: float, start_percent: float, end_percent: float, rows: str
    ) -> io.NodeOutput:
        refuse_compiled(model)
        if start_percent > end_percent:
            raise ValueError("The mask ends before it starts: give an end_percent that is not below start_percent.")
        known = value_layers(model.model.diffusion_model)
        changing = factors(mask, known, strength)
        told = {"glassbox_neurons": [chart.outline(mask)]}
        if not changing:
            return io.NodeOutput(model, ui=told)
        span = sigmas_of(model, start_percent, end_percent)
        return io.NodeOutput(with_scaled(model, changing, span, conditional_only=rows == _CONDITIONAL), ui=told)


class _Search:
    """Localises one prompt after another with the same settings, and collects what there is to show."""

    def __init__(self, model, clip, reference, neurons: Neurons, threshold: float, how: dict):
        self._model, self._clip, self._reference, self._neurons = model, clip, reference, neurons
        self._threshold, self._how = threshold, how
        self._shape = latent_shape(model, how["width"], how["height"])
        self._noise = first_noise(self._shape, how["seeds"], how["seed"])
        self.side = min(self._shape[1:])
        self._fingerprint = fingerprint(model, [layer.path for layer in neurons.layers])
        known = statistics.same_model(reference.fingerprint, self._fingerprint)
        self.masks, self.reports, self.traces = [], [] if known else [words.OTHER_STATISTICS], {}
        self._share = lambda share: None
        self._stopped = False

    def prompts(self, texts: list[str]) -> None:
        """Localise prompts until all are done or the user presses Stop, which keeps what was found."""
        bar = Progress(100 * len(texts))
        for number, text in enumerate(texts):
            self._share = lambda share, before=number: bar.show(round(100 * (before + share)))
            try:
                self._prompt(text)
            except Stopped:
                if not self.masks:
                    raise
                self._stopped = True
            if self._stopped:
                self.reports.append(f"Stopped: {number + 1} of {len(texts)} prompt(s) were looked at.")
                return
            self._share(1.0)

    def _prompt(self, text: str) -> None:
        """Localise a prompt; one that does not look memorised is skipped with a word."""
        conditioning = encode(self._clip, text)[1]
        paths = [layer.path for layer in self._neurons.layers]
        seen = answers(self._model, embedding(conditioning), paths)
        activations = [statistics.activations(seen[path][0]).cpu() for path in paths]
        z = [self._reference.z(path, values) for path, values in zip(paths, activations, strict=True)]
        step = inputs.STEPS[self._how["timestep"]]
        begun = time.monotonic()
        result = at_first_step(self._model, conditioning, self._shape, step, lambda p: self._found(p, z, activations))
        if result is None:
            self.reports.append(f"{text}: not memorised (no pair of seeds over {self._threshold:.3f}), skipped.")
            return
        found, evaluator = result
        self._stopped = found.stopped
        cost = f"{evaluator.rows} rows in {evaluator.calls} evaluations, {time.monotonic() - begun:.1f} s."
        self.reports.append(words.search_report(text, found, self._how["blocked_below"] or self._threshold, cost))
        self.traces[text] = found.trace
        settings = {"threshold": self._threshold, "layers": paths, **self._how}
        self.masks.append(mask_of(text, found, self._neurons, z, activations, settings, self._fingerprint))

    def _found(self, predict, z, activations):
        """The search among the seeds that look memorised; None when there is none."""
        kept = Score(pairwise(difference(predict(self._noise), self._noise))).kept(self._threshold)
        if not kept:
            return None
        criterion = self._how["criterion"]
        evaluator = Evaluator(predict, self._noise[kept], self._neurons, 0.0, criterion)
        settings = localization.Settings(
            self._how["blocked_below"] or self._threshold, first_theta=self._how["first_theta"]
        )
        refiner = _MODES[self._how["mode"]]
        clock = self._clock()
        return localization.search(z, activations, evaluator, settings, refiner, clock, (Stopped,)), evaluator

    def _clock(self):
        budget, begun = self._how["time_budget"], time.monotonic()

        def checkpoint(share: float) -> None:
            self._share(share)
            if budget and time.monotonic() - begun > budget:
                raise localization.OutOfTimeError

        return checkpoint
