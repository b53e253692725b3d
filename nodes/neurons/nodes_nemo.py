"""NeMo on the canvas: localize the neurons of a memorized prompt, and mask them."""

from __future__ import annotations

import enum
import functools
from typing import TYPE_CHECKING, ClassVar

from comfy_api.latest import io

from ..host import folders
from ..host.evaluate import sigmas_of
from ..host.hooks import refuse_compiled
from ..host.image_output import new_figure, to_image
from ..host.progress import with_progress
from ..host.schema import float_input, precision_input, schema, seed
from ..host.sockets import NeuronMask as MaskSocket
from ..host.sockets import NeuronStatistics as StatisticsSocket
from ..host.text_encoding import encode, literal
from . import nemo_inputs
from .first_step_comfy import embedding, latent_shape, layers_of_type
from .image_similarity_comfy import Similarity
from .mask import CAVEATS, channel_factors, merge_masks
from .nemo_inputs import FirstStepInputs, PromptSyntax, collect_prompts
from .nemo_search import Criterion, Neurons, SearchSettings
from .neuron_attribution import Method, Ranking, StoppingRule
from .neuron_factors_comfy import with_scaled, with_scaled_by_prompt
from .neuron_layers import NeuronType, all_layers, select_layers

if TYPE_CHECKING:
    from ..host.socket_types import CLIP, VAE, ClipVisionModel, ModelPatcher
    from .mask import NeuronMask
    from .neuron_statistics import Statistics

CATEGORY = nemo_inputs.CATEGORY
PAPER = nemo_inputs.PAPER


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
                "gradient_checkpointing",
                "precision",
            ),
            display_name="NeMo Localize",
            category=CATEGORY,
            description=(
                "Finds the few neurons that make a memorized prompt replicate its training "
                f"image, by the search of {PAPER}, sections 3.2 and 3.3, or by gradient "
                f"attribution. Finish now returns the best mask so far. {CAVEATS[0]} {CAVEATS[1]}"
            ),
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
                    tooltip=(
                        "From Neuron Statistics, for the same model and layers. Required for "
                        "search, and for rankings with z."
                    ),
                ),
                io.String.Input(
                    "prompts",
                    default="",
                    multiline=True,
                    tooltip=(
                        "Memorized prompts, one per line. The mask is the union of all their "
                        "neurons."
                    ),
                ),
                io.String.Input(**nemo_inputs.LAYERS),
                io.Float.Input(**nemo_inputs.THRESHOLD),
                io.Float.Input(**nemo_inputs.TARGET_SCORE),
                io.Combo.Input(
                    "criterion",
                    options=Criterion,
                    tooltip=(
                        "Similarity to bring below the target score. same_seed (paper): first "
                        "step with and without the mask. between_seeds: the memorization score "
                        "itself; for small models, where first steps at the same seed are "
                        "similar for any prompt."
                    ),
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
                    "Initial z-score threshold; lowered to 1.25 in 15 steps. Paper: 5. Raise it "
                    "if many neurons exceed it.",
                ),
                float_input(
                    "time_budget",
                    0.0,
                    (0.0, 86400.0, 1.0),
                    "Time limit in seconds per prompt; the search then returns the best so far "
                    "(more neurons than needed). 0: no limit.",
                ),
                io.String.Input(**nemo_inputs.SCAN_FILE),
                io.Combo.Input(**nemo_inputs.NEURON_TYPE),
                io.Combo.Input(
                    "method",
                    options=Method,
                    default=Method.SEARCH,
                    optional=True,
                    tooltip=(
                        "search: the paper's, by z and activation, with hundreds of evaluations. "
                        "attribution: ranks neurons by gradient and takes the top ones; few "
                        "evaluations, some with gradients."
                    ),
                ),
                io.Combo.Input(
                    "ranking",
                    options=Ranking,
                    default=Ranking.DOT_Z,
                    optional=True,
                    tooltip=(
                        "For attribution. multi: gradient attribution of the difference between "
                        "the prompt's and the anchor's noise prediction, averaged over four "
                        "timesteps. dot: attribution of the between-seed similarity at the first "
                        "step. *_z: weighted by |z|."
                    ),
                ),
                io.Combo.Input(
                    "stopping_rule",
                    options=StoppingRule,
                    optional=True,
                    tooltip=(
                        "For attribution: how many top-ranked neurons to keep. gap: all before "
                        "the largest relative drop of the ranking, more where target_score needs "
                        "them. score: the fewest that reach target_score. fraction: all above "
                        "this fraction of the top attribution. gone: the fewest that make the "
                        "output no closer to the memorized image than the anchor's outputs are "
                        "(samples images; needs vae)."
                    ),
                ),
                float_input(
                    "fraction",
                    0.08,
                    (0.0, 1.0, 0.01),
                    "For the stopping rule fraction: lower keeps more neurons.",
                    optional=True,
                ),
                io.String.Input(
                    "anchor",
                    default="",
                    optional=True,
                    tooltip=(
                        "For multi and gone: generic prompt used as baseline (e.g. "
                        '"portrait"). Masked prompts move towards its image.'
                    ),
                ),
                io.Combo.Input(**nemo_inputs.PROMPT_SYNTAX),
                io.Vae.Input(
                    "vae", optional=True, tooltip="For the stopping rule gone: VAE of the model."
                ),
                float_input(
                    "cfg",
                    7.0,
                    (1.0, 30.0, 0.1),
                    "For the stopping rule gone: CFG of the images.",
                    optional=True,
                ),
                io.Combo.Input(options=Similarity, **nemo_inputs.SIMILARITY),
                io.String.Input(**nemo_inputs.SSCD_FILE),
                io.ClipVision.Input(
                    "clip_vision",
                    optional=True,
                    tooltip="For the stopping rule gone: image encoder for the similarity.",
                ),
                io.Boolean.Input(
                    "gradient_checkpointing",
                    default=True,
                    optional=True,
                    tooltip=(
                        "For attribution: recompute activations instead of storing them: slower, "
                        "less memory."
                    ),
                ),
                precision_input("For attribution.", optional=True),
            ],
            outputs=[
                MaskSocket.Output(
                    display_name="mask", tooltip="For NeMo Neuron Mask and Save Neuron Mask."
                ),
                io.Image.Output(
                    display_name="figure", tooltip="Score against the number of silenced neurons."
                ),
                io.String.Output(
                    display_name="table",
                    tooltip="CSV: prompt, layer, neuron, factor, z, activation, selected_by.",
                ),
                io.String.Output(
                    display_name="report",
                    tooltip="Converged or stalled, trace of the search, and its cost.",
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        clip: CLIP,
        prompts: str,
        layers: str,
        threshold: float,
        target_score: float,
        criterion: str,
        noise_samples: int,
        seed: int,
        timestep: str,
        width: int,
        height: int,
        theta_start: float,
        time_budget: float,
        scan_file: str = "",
        neuron_type: str = NeuronType.VALUE,
        statistics: Statistics | None = None,
        method: str = Method.SEARCH,
        ranking: str = Ranking.DOT_Z,
        stopping_rule: str = StoppingRule.GAP,
        fraction: float = 0.08,
        anchor: str = "",
        prompt_syntax: str = PromptSyntax.LITERAL,
        vae: VAE | None = None,
        cfg: float = 7.0,
        similarity: str = Similarity.AUTO,
        sscd_file: str = "",
        clip_vision: ClipVisionModel | None = None,
        gradient_checkpointing: bool = True,
        precision: str = "auto",
    ) -> io.NodeOutput:
        from ..host.identity import embeddings_by_text
        from ..host.precision import describe_precision, resolve_precision
        from . import neuron_figures, neuron_reports
        from .gone_images_comfy import image_judge_of, judge_identity
        from .prompt_search_comfy import (
            AttributionSettings,
            MaskScan,
            PromptSearches,
            search_prompts,
        )

        texts = collect_prompts(prompts)
        shape = latent_shape(model, width, height)
        first = texts[0] if texts else ""
        known = layers_of_type(
            model, neuron_type, conditioning=lambda: encode(clip, first)[1], shape=shape
        )
        neurons = Neurons(tuple(select_layers(known, layers)))
        clip = literal(clip) if prompt_syntax == PromptSyntax.LITERAL else clip
        step = FirstStepInputs(
            shape=shape,
            noise_samples=noise_samples,
            seed=seed,
            timestep_name=timestep,
        )
        settings = SearchSettings(
            threshold=threshold,
            target_score=target_score or threshold,
            criterion=Criterion(criterion),
            theta_start=theta_start,
        )
        resolved = resolve_precision(precision, model.load_device)
        how = AttributionSettings(
            ranking=Ranking(ranking),
            stopping_rule=StoppingRule(stopping_rule),
            fraction=fraction,
            anchor=anchor,
            precision=str(resolved),
        )
        judge = image_judge_of(
            vae, similarity, sscd_file=sscd_file, clip_vision=clip_vision, clip=clip, cfg=cfg
        )
        common = PromptSearches(
            model=model,
            clip=clip,
            neurons=neurons,
            step=step,
            settings=settings,
            statistics=statistics,
            method=Method(method),
            attribution=how,
            time_budget=time_budget,
            judge=judge,
            checkpointing=gradient_checkpointing,
        )
        identity = common.fingerprint()
        saved = common.saved(width, height) | {"prompt_syntax": prompt_syntax}
        images = (
            judge_identity(
                vae, cfg, similarity=similarity, sscd_file=sscd_file, clip_vision=clip_vision
            )
            if common.gone
            else {}
        )
        settings_of_scan = saved | common.identity() | images | {"neuron_type": str(neuron_type)}
        embeddings = embeddings_by_text(clip, texts) if scan_file.strip() else {}
        scan = MaskScan(scan_file, settings_of_scan, embeddings)
        masks, traces, searched = search_prompts(
            common, texts, scan=scan, saved=saved, identity=identity
        )
        mask = merge_masks(masks)
        figure = new_figure()
        neuron_figures.plot_search(figure, traces, settings.target_score)
        lines = [*common.remarks(identity), *searched, neuron_reports.score_variant(step.side)]
        if common.method == Method.ATTRIBUTION:
            lines.append(describe_precision(precision, resolved))
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
            description=(
                "Silences neurons while a MODEL samples, so a memorized prompt generates a "
                f"different image. {PAPER}, section 3. Connect LoRAs first; several masks stack; "
                f"an empty mask is bit-identical to the unmasked model. {CAVEATS[0]} {CAVEATS[1]}"
            ),
            search_aliases=[
                "nemo",
                "deactivate neurons",
                "memorization mitigation",
                "unlearn",
                "switch off neurons",
            ],
            inputs=[
                io.Model.Input("model", tooltip="The model of the mask."),
                MaskSocket.Input(**nemo_inputs.MASK),
                io.Float.Input(**nemo_inputs.STRENGTH),
                float_input(
                    "start_percent",
                    0.0,
                    (0.0, 1.0, 0.01),
                    "Start of the mask in the sampling range. 0 is pure noise.",
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
                    tooltip=(
                        "Under CFG: both masks the positive and the negative prompt, as in the "
                        "paper; positive masks the positive prompt only."
                    ),
                ),
                io.Combo.Input(
                    "masked_prompts",
                    options=MaskedPrompts,
                    optional=True,
                    tooltip=(
                        "all: the neurons of all prompts act on every prompt. own: each prompt "
                        "is masked with its own neurons only, and any other prompt samples "
                        "unmasked. Needs clip."
                    ),
                ),
                io.Clip.Input(
                    "clip",
                    optional=True,
                    tooltip="For own: the text encoder of the sampled prompts.",
                ),
            ],
            outputs=[io.Model.Output(display_name="model", tooltip="For any sampler.")],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        mask: NeuronMask,
        strength: float,
        start_percent: float,
        end_percent: float,
        apply_to: str,
        masked_prompts: str = MaskedPrompts.ALL,
        clip: CLIP | None = None,
    ) -> io.NodeOutput:
        from . import neuron_reports

        refuse_compiled(model)
        if start_percent > end_percent:
            raise ValueError(
                "The mask ends before it starts: set end_percent to start_percent or more."
            )
        layers = all_layers(model.model.diffusion_model)
        sigmas = sigmas_of(model, start_percent, end_percent)
        factors = channel_factors(mask, layers, strength)
        positive_only = apply_to == MaskedRows.POSITIVE
        if factors and masked_prompts == MaskedPrompts.OWN:
            if clip is None:
                raise ValueError(
                    "masked_prompts own compares the prompts that are sampled: connect the "
                    "model's clip."
                )
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
