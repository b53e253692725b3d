"""Optimize Neuron Mask: factors of neurons, learned by gradient under a price."""

from __future__ import annotations

import dataclasses

from comfy_api.latest import io

from ..common.resume import digest
from ..host.folders import named_file
from ..host.image_output import new_figure, to_image
from ..host.schema import NeuronMask as MaskSocket
from ..host.schema import float_input, int_input, schema, seed
from ..host.text_encoding import literal
from . import nemo_inputs
from .first_step_comfy import latent_shape, probe_outputs
from .mask import CAVEATS
from .nemo_inputs import FirstStepInputs, PromptSyntax, collect_prompts
from .nemo_search import Neurons
from .neuron_layers import NeuronType, neuron_layers, select_layers

#: What is kept at a price where nothing else is written: things of many kinds.
ORDINARY = (
    "portrait of a woman",
    "an old man with a hat",
    "a city street at night",
    "a bowl of fruit on a table",
    "a dog on a beach",
    "mountains and a lake",
    "an oil painting of a house",
    "a red car",
)


class OptimizeNeuronMask(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_OptimizeNeuronMask",
            advanced=(
                "layers",
                "learning_rate",
                "removal",
                "keep",
                "sparsity",
                "batch_size",
                "noise_samples",
                "width",
                "height",
                "neuron_type",
                "prompt_syntax",
                "gradient_checkpointing",
            ),
            display_name="Optimize Neuron Mask",
            category=nemo_inputs.CATEGORY,
            description="Learns by gradient how much each neuron is scaled, so that memorized prompts generate what a "
            "generic prompt does, at a price for what ordinary prompts lose and for the size of the mask. Finish now "
            "keeps the mask learned so far. No paper: the neurons are those of Finding NeMo. "
            f"{CAVEATS[0]} {CAVEATS[1]}",
            search_aliases=["nemo", "learn neuron mask", "memorization mitigation", "unlearn", "neuron attribution"],
            inputs=[
                io.Model.Input(**nemo_inputs.MODEL),
                io.Clip.Input(**nemo_inputs.CLIP),
                io.String.Input(
                    "prompts",
                    default="",
                    multiline=True,
                    tooltip="Memorized prompts, one per line. One mask is learned for all of them.",
                ),
                io.String.Input(
                    "anchor",
                    default="",
                    tooltip="A generic prompt of what the prompts are about, such as portrait: what they generate "
                    "under the mask. Empty: the empty prompt.",
                ),
                io.String.Input(
                    "ordinary_prompts",
                    default="\n".join(ORDINARY),
                    multiline=True,
                    tooltip="Prompts that should stay as they are, one per line: some of the kind that the model is "
                    "used for.",
                ),
                io.String.Input(**{**nemo_inputs.LAYERS, "default": "all"}),
                int_input("steps", 60, (1, 10_000), "Steps of Adam; the last 30 % at a quarter of the rate."),
                float_input("learning_rate", 0.08, (0.0001, 1.0, 0.0001), "Learning rate of Adam."),
                float_input(
                    "min_factor",
                    -1.0,
                    (-1.0, 1.0, 0.05),
                    "Smallest factor of a neuron; the largest is 1, which changes nothing. 0: neurons are "
                    "silenced at most. Below 0 they may be negated: fewer neurons are enough, and other prompts "
                    "change more.",
                ),
                float_input(
                    "removal",
                    20.0,
                    (0.0, 1000.0, 0.1),
                    "Weight in the loss of what is left of the memorized prompts: raise it where the image stays.",
                ),
                float_input(
                    "keep",
                    1.0,
                    (0.0, 1000.0, 0.1),
                    "Weight in the loss of how far ordinary prompts change: raise it where they change too much.",
                ),
                float_input(
                    "sparsity",
                    0.04,
                    (0.0, 10.0, 0.001),
                    "Weight of the sum of 1 - factor over all neurons: more gives smaller masks.",
                ),
                int_input(
                    "max_neurons",
                    0,
                    (0, 1_000_000),
                    "At most this many neurons, those of the smallest factors. 0: no limit.",
                ),
                int_input(
                    "batch_size",
                    2,
                    (1, 256),
                    "Noised images of memorized prompts per step, and as many of ordinary ones.",
                ),
                io.Int.Input(
                    **{**nemo_inputs.NOISE_SAMPLES, "tooltip": "Noise samples of the memorization score in the report."}
                ),
                seed("Seed of the noise.", 1, control=False),
                io.Int.Input(**nemo_inputs.WIDTH),
                io.Int.Input(**nemo_inputs.HEIGHT),
                io.String.Input(
                    "checkpoint_name",
                    default="",
                    tooltip="Name of a file in the output folder, such as glassbox/neurons/learned. After Stop the "
                    "workflow queued again resumes from it exactly. Empty: no checkpoint.",
                ),
                MaskSocket.Input(
                    "mask",
                    optional=True,
                    tooltip="Where to start, such as a mask of NeMo Localize. None: no neuron.",
                ),
                io.Combo.Input(**nemo_inputs.NEURON_TYPE),
                io.Combo.Input(**nemo_inputs.PROMPT_SYNTAX),
                io.Boolean.Input(
                    "gradient_checkpointing",
                    default=False,
                    optional=True,
                    tooltip="Recompute activations instead of keeping them: slower, with less memory.",
                ),
            ],
            outputs=[
                MaskSocket.Output(display_name="mask", tooltip="For NeMo Neuron Mask and Save Neuron Mask."),
                io.Image.Output(display_name="figure", tooltip="Loss over steps."),
                io.String.Output(
                    display_name="table", tooltip="CSV: prompt, layer, neuron, factor, z, activation, selected_by."
                ),
                io.String.Output(display_name="report", tooltip="Neurons, sum, score, price and cost."),
            ],
        )

    @classmethod
    def execute(
        cls,
        model,
        clip,
        prompts,
        anchor,
        ordinary_prompts,
        layers,
        steps,
        learning_rate,
        min_factor,
        removal,
        keep,
        sparsity,
        max_neurons,
        batch_size,
        noise_samples,
        seed,
        width,
        height,
        checkpoint_name,
        mask=None,
        neuron_type=NeuronType.VALUE,
        prompt_syntax=PromptSyntax.LITERAL,
        gradient_checkpointing=False,
    ) -> io.NodeOutput:
        from ..host.identity import clip_digest, model_digest
        from . import learned_factors, neuron_figures, neuron_reports, neuron_statistics
        from .learned_factors_comfy import MaskLearning, learned_mask

        ordinary = collect_prompts(ordinary_prompts, least=1, name="ordinary_prompts")
        texts = (collect_prompts(prompts, least=1), anchor.strip(), ordinary)
        chosen = select_layers(neuron_layers(model.model.diffusion_model, neuron_type), layers)
        paths, timestep = [layer.path for layer in chosen], next(iter(nemo_inputs.TIMESTEPS))
        step = FirstStepInputs(latent_shape(model, width, height), noise_samples, seed, timestep)
        how = (steps, learning_rate, min_factor, removal, keep, sparsity, batch_size, max_neurons, seed)
        settings = learned_factors.LearningSettings(*how)
        saved = {**dataclasses.asdict(settings), "prompts": texts[0], "anchor": texts[1], "ordinary_prompts": texts[2]}
        saved |= {"layers": paths, "width": width, "height": height, "prompt_syntax": str(prompt_syntax)}
        path = named_file(checkpoint_name, ".safetensors") if checkpoint_name.strip() else None
        depends = {"model": model_digest(model), "clip": clip_digest(clip), "mask": digest(mask)} if path else {}
        reader = literal(clip) if prompt_syntax == PromptSyntax.LITERAL else clip
        neurons, inputs = Neurons(tuple(chosen)), digest([saved, noise_samples, gradient_checkpointing])
        run = MaskLearning(model, reader, *texts, neurons, step, settings, path, saved | depends, inputs)
        run.checkpointing = gradient_checkpointing
        learning, figure = run.run(mask), new_figure()
        found = learned_mask(learning, run, saved, neuron_statistics.fingerprint(probe_outputs(model, paths)), mask)
        neuron_figures.plot_learning(figure, learning.losses)
        report = "\n".join([run.report(found, learning), neuron_reports.caveats()])
        ui = {"glassbox_neurons": [neuron_reports.mask_chart(found)]}
        return io.NodeOutput(found, to_image(figure), neuron_reports.mask_table(found), report, ui=ui)


NODES = [OptimizeNeuronMask]
