"""NeMo on the canvas: localize the neurons of a memorized prompt, and mask them."""

from __future__ import annotations

import enum
import functools
from typing import ClassVar

from comfy_api.latest import io

from ..host import folders
from ..host.evaluate import sigmas_of
from ..host.hooks import refuse_compiled
from ..host.image_output import new_figure, to_image
from ..host.progress import with_progress
from ..host.schema import NeuronMask as MaskSocket
from ..host.schema import NeuronStatistics as StatisticsSocket
from ..host.schema import float_input, schema, seed
from ..host.text_encoding import encode, literal
from . import nemo_inputs
from .first_step_comfy import embedding, latent_shape
from .image_similarity_comfy import Similarity
from .mask import CAVEATS, channel_factors, merge_masks
from .nemo_inputs import FirstStepInputs, PromptSyntax, collect_prompts
from .nemo_search import Criterion, Neurons, SearchSettings
from .neuron_attribution import Method, Ranking, StoppingRule
from .neuron_factors_comfy import with_scaled, with_scaled_by_prompt
from .neuron_layers import NeuronType, all_layers, neuron_layers, select_layers

CATEGORY, PAPER = nemo_inputs.CATEGORY, nemo_inputs.PAPER


class MaskedRows(enum.StrEnum):
    """Which rows of a batch under CFG a mask acts on."""

    BOTH = "both"
    POSITIVE = "positive"


class MaskedPrompts(enum.StrEnum):
    """Which prompts a mask acts on."""

    ALL = "all"
    OWN = "own"


class NemoLocalize(io.ComfyNode):
    READS: ClassVar = {"sscd_file": functools.partial(folders.input_stamp, what="SSCD model")}
    WRITES: ClassVar = {"scan_file": functools.partial(folders.named_file, suffix=".csv")}

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_NemoLocalize",
            advanced=(
                "target_score",
                "criterion",
                "timestep",
                "width",
                "height",
                "theta_start",
                "time_budget",
                "fraction",
                "anchor",
                "ranking",
                "stopping_rule",
                "prompt_syntax",
                "cfg",
                "similarity",
                "sscd_file",
            ),
            display_name="NeMo Localize",
            category=CATEGORY,
            description="Finds the few neurons that make a memorized prompt replicate its training image, by the "
            f"search of {PAPER}, sections 3.2 and 3.3, or by a gradient. Finish now keeps the best so far. "
            f"{CAVEATS[0]} {CAVEATS[1]}",
            search_aliases=[
                "nemo",
                "memorization neurons",
                "localize memorization",
                "find neurons",
                "which neurons memorize",
            ],
            inputs=[
                io.Model.Input(**nemo_inputs.MODEL),
                io.Clip.Input(**nemo_inputs.CLIP),
                StatisticsSocket.Input(
                    "statistics",
                    optional=True,
                    tooltip="From Neuron Statistics, of the same model and layers. Needed for z: for search, and for "
                    "rankings with z.",
                ),
                io.String.Input(
                    "prompts",
                    default="",
                    multiline=True,
                    tooltip="Memorized prompts, one per line. The mask is the union of all their neurons.",
                ),
                io.String.Input(**nemo_inputs.LAYERS),
                io.Float.Input(**nemo_inputs.THRESHOLD),
                io.Float.Input(**nemo_inputs.TARGET_SCORE),
                io.Combo.Input(
                    "criterion",
                    options=Criterion,
                    tooltip="What must fall to the target score. same_seed (paper): the similarity of the first step "
                    "to the untouched one. between_seeds: the memorization score itself; for small models, whose "
                    "first steps are similar at the same seed for any prompt.",
                ),
                io.Int.Input(**nemo_inputs.NOISE_SAMPLES),
                seed(nemo_inputs.SEED_TOOLTIP, 1, control=False),
                io.Combo.Input(**nemo_inputs.TIMESTEP),
                io.Int.Input(**nemo_inputs.WIDTH),
                io.Int.Input(**nemo_inputs.HEIGHT),
                float_input(
                    "theta_start",
                    5.0,
                    (1.0, 100.0, 0.25),
                    "Initial z-score threshold; lowered to 1.25 in 15 steps. Paper: 5. Raise it where many "
                    "neurons exceed it.",
                ),
                float_input(
                    "time_budget",
                    0.0,
                    (0.0, 86400.0, 1.0),
                    "Seconds per prompt; then the search returns the best so far (more neurons than needed). "
                    "0: no limit.",
                ),
                io.String.Input(**nemo_inputs.SCAN_FILE),
                io.Combo.Input(**nemo_inputs.NEURON_TYPE),
                io.Combo.Input(
                    "method",
                    options=Method,
                    default=Method.SEARCH,
                    optional=True,
                    tooltip="search: the paper's, by z and activation, with hundreds of evaluations. attribution: "
                    "neurons are ranked by a gradient, and as many taken as are needed, with few evaluations, some of "
                    "them with gradients.",
                ),
                io.Combo.Input(
                    "ranking",
                    options=Ranking,
                    optional=True,
                    tooltip="For attribution. multi: what moves the prediction from that of the anchor to the "
                    "prompt's, at four timesteps. dot: what makes first steps of different seeds similar. With _z: "
                    "times the size of z.",
                ),
                io.Combo.Input(
                    "stopping_rule",
                    options=StoppingRule,
                    optional=True,
                    tooltip="For attribution. score: as few neurons of the ranking as bring the criterion to the "
                    "target score. fraction: those of at least a fraction of the largest attribution. gone: as few as "
                    "leave no more of the image than images of the anchor have of it; needs vae.",
                ),
                float_input(
                    "fraction",
                    0.3,
                    (0.0, 1.0, 0.01),
                    "For the stopping rule fraction: lower takes more neurons.",
                    optional=True,
                ),
                io.String.Input(
                    "anchor",
                    default="",
                    optional=True,
                    tooltip="For multi and gone: a generic prompt of what the prompts are about, such as portrait. Its "
                    "image is what a blocked prompt moves to.",
                ),
                io.Combo.Input(**nemo_inputs.PROMPT_SYNTAX),
                io.Vae.Input("vae", optional=True, tooltip="For the stopping rule gone: VAE of the model."),
                float_input(
                    "cfg", 7.0, (1.0, 30.0, 0.1), "For the stopping rule gone: CFG of the images.", optional=True
                ),
                io.Combo.Input(options=Similarity, **nemo_inputs.SIMILARITY),
                io.String.Input(**nemo_inputs.SSCD_FILE),
                io.ClipVision.Input(
                    "clip_vision", optional=True, tooltip="For the stopping rule gone: compares images."
                ),
            ],
            outputs=[
                MaskSocket.Output(display_name="mask", tooltip="For NeMo Neuron Mask and Save Neuron Mask."),
                io.Image.Output(display_name="figure", tooltip="The score over the number of silenced neurons."),
                io.String.Output(
                    display_name="table", tooltip="CSV: prompt, layer, neuron, factor, z, activation, selected_by."
                ),
                io.String.Output(display_name="report", tooltip="Converged or stalled, the search's trace, its cost."),
            ],
        )

    @classmethod
    def execute(
        cls,
        model,
        clip,
        prompts,
        layers,
        threshold,
        target_score,
        criterion,
        noise_samples,
        seed,
        timestep,
        width,
        height,
        theta_start,
        time_budget,
        scan_file="",
        neuron_type=NeuronType.VALUE,
        statistics=None,
        method=Method.SEARCH,
        ranking=Ranking.MULTI,
        stopping_rule=StoppingRule.SCORE,
        fraction=0.3,
        anchor="",
        prompt_syntax=PromptSyntax.LITERAL,
        vae=None,
        cfg=7.0,
        similarity=Similarity.AUTO,
        sscd_file="",
        clip_vision=None,
    ) -> io.NodeOutput:
        from . import neuron_figures, neuron_reports
        from .gone_images_comfy import image_judge_of, judge_identity
        from .prompt_search_comfy import AttributionSettings, MaskScan, PromptSearches, search_prompts

        texts, known = collect_prompts(prompts), neuron_layers(model.model.diffusion_model, neuron_type)
        neurons = Neurons(tuple(select_layers(known, layers)))
        clip = literal(clip) if prompt_syntax == PromptSyntax.LITERAL else clip
        step = FirstStepInputs(latent_shape(model, width, height), noise_samples, seed, timestep)
        settings = SearchSettings(threshold, target_score or threshold, Criterion(criterion), theta_start)
        how = AttributionSettings(Ranking(ranking), StoppingRule(stopping_rule), fraction, anchor)
        judge = image_judge_of(vae, similarity, sscd_file, clip_vision, clip, cfg)
        given = (model, clip, neurons, step, settings, statistics, Method(method), how, time_budget)
        common = PromptSearches(*given, judge)
        identity = common.fingerprint()
        saved = common.saved(width, height) | {"prompt_syntax": prompt_syntax}
        images = judge_identity(vae, cfg, similarity, sscd_file, clip_vision) if common.gone else {}
        scan = MaskScan(scan_file, saved | common.identity() | images | {"neuron_type": str(neuron_type)})
        masks, traces, searched = search_prompts(common, texts, scan, saved, identity)
        mask, figure = merge_masks(masks), new_figure()
        neuron_figures.plot_search(figure, traces, settings.target_score)
        lines = [*common.remarks(identity), *searched, neuron_reports.score_variant(step.side)]
        ui = {"glassbox_neurons": [neuron_reports.mask_chart(mask)]}
        report = "\n".join([*lines, neuron_reports.caveats()])
        return io.NodeOutput(mask, to_image(figure), neuron_reports.mask_table(mask), report, ui=ui)


class NemoNeuronMask(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_NemoNeuronMask",
            display_name="NeMo Neuron Mask",
            category=CATEGORY,
            description="Silences neurons while a MODEL samples, so that a memorized prompt generates something "
            f"else. {PAPER}, section 3. Connect LoRAs first; several masks stack; an empty mask changes no bit. "
            f"{CAVEATS[0]} {CAVEATS[1]}",
            search_aliases=["nemo", "deactivate neurons", "memorization mitigation", "unlearn", "switch off neurons"],
            inputs=[
                io.Model.Input("model", tooltip="The model that the mask was made for."),
                MaskSocket.Input(**nemo_inputs.MASK),
                io.Float.Input(**nemo_inputs.STRENGTH),
                float_input(
                    "start_percent", 0.0, (0.0, 1.0, 0.01), "Start of the mask in the sampling range. 0 is pure noise."
                ),
                float_input(
                    "end_percent",
                    1.0,
                    (0.0, 1.0, 0.01),
                    "End of the mask in the sampling range. 1 is the finished image.",
                ),
                io.Combo.Input(
                    "apply_to",
                    options=MaskedRows,
                    tooltip="Under CFG: both masks the positive and the negative prompt, as the paper does; positive "
                    "masks the positive prompt only.",
                ),
                io.Combo.Input(
                    "masked_prompts",
                    options=MaskedPrompts,
                    optional=True,
                    tooltip="all: the neurons of all prompts act on every prompt. own: the neurons found for a prompt "
                    "act while that prompt is sampled; every other prompt samples untouched. Needs clip.",
                ),
                io.Clip.Input(
                    "clip", optional=True, tooltip="For own: the text encoder of the prompts that are sampled."
                ),
            ],
            outputs=[io.Model.Output(display_name="model", tooltip="For any sampler.")],
        )

    @classmethod
    def execute(
        cls,
        model,
        mask,
        strength,
        start_percent,
        end_percent,
        apply_to,
        masked_prompts=MaskedPrompts.ALL,
        clip=None,
    ) -> io.NodeOutput:
        from . import neuron_reports

        refuse_compiled(model)
        if start_percent > end_percent:
            raise ValueError("The mask ends before it starts: set end_percent to start_percent or more.")
        layers, sigmas = all_layers(model.model.diffusion_model), sigmas_of(model, start_percent, end_percent)
        factors, positive_only = channel_factors(mask, layers, strength), apply_to == MaskedRows.POSITIVE
        if factors and masked_prompts == MaskedPrompts.OWN:
            if clip is None:
                raise ValueError("masked_prompts own compares the prompts that are sampled: connect the model's clip.")
            prompts = [
                (embedding(encode(reader, text)[1]), channel_factors(of_prompt, layers, strength))
                for text, of_prompt in with_progress(mask.by_prompt().items())
                for reader in ((clip, literal(clip)) if "(" in text or ")" in text else (clip,))
            ]
            model = with_scaled_by_prompt(model, prompts, sigmas, positive_only)
        elif factors:
            model = with_scaled(model, factors, sigmas, positive_only)
        return io.NodeOutput(model, ui={"glassbox_neurons": [neuron_reports.mask_chart(mask)]})


NODES = [NemoLocalize, NemoNeuronMask]
