"""Optimize Neuron Mask: factors of neurons, learned by gradient under a price."""

from __future__ import annotations

from typing import TYPE_CHECKING

from comfy_api.latest import io

from ..common.resume import digest, settings_identity
from ..host.folders import named_file
from ..host.image_output import new_figure, to_image
from ..host.schema import float_input, int_input, precision_input, schema, seed
from ..host.sockets import NeuronMask as MaskSocket
from ..host.text_encoding import encode, literal
from . import nemo_inputs
from .first_step_comfy import latent_shape, layers_of_type, probe_outputs
from .mask import CAVEATS
from .nemo_inputs import FirstStepInputs, PromptSyntax, collect_prompts
from .nemo_search import Neurons
from .neuron_layers import NeuronType, select_layers

if TYPE_CHECKING:
    from ..host.socket_types import CLIP, ModelPatcher
    from .mask import NeuronMask

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
                "precision",
            ),
            display_name="Optimize Neuron Mask",
            category=nemo_inputs.CATEGORY,
            description=(
                "Optimizes a per-neuron scale so that memorized prompts behave like a generic "
                "prompt, with penalties for changing ordinary prompts and for mask size. Finish "
                "now returns the mask so far. No paper: the neurons are those of Finding NeMo. "
                f"{CAVEATS[0]} {CAVEATS[1]}"
            ),
            search_aliases=[
                "nemo",
                "learn neuron mask",
                "memorization mitigation",
                "unlearn",
                "neuron attribution",
            ],
            inputs=[
                io.Model.Input(**nemo_inputs.MODEL),
                io.Clip.Input(**nemo_inputs.CLIP),
                io.String.Input(
                    "prompts",
                    default="",
                    multiline=True,
                    tooltip=(
                        "Memorized prompts, one per line. One mask is optimized for all of them."
                    ),
                ),
                io.String.Input(
                    "anchor",
                    default="",
                    tooltip=(
                        'Generic prompt used as target (e.g. "portrait"): masked memorized '
                        "prompts should behave like it. Empty: the empty prompt."
                    ),
                ),
                io.String.Input(
                    "ordinary_prompts",
                    default="\n".join(ORDINARY),
                    multiline=True,
                    tooltip=(
                        "Ordinary prompts to leave unchanged, one per line; use typical prompts "
                        "of this model."
                    ),
                ),
                io.String.Input(**{**nemo_inputs.LAYERS, "default": "all"}),
                int_input(
                    "steps",
                    60,
                    (1, 10_000),
                    "Optimization steps (Adam); the last 30 % at a quarter of the rate.",
                ),
                float_input("learning_rate", 0.08, (0.0001, 1.0, 0.0001), "Learning rate of Adam."),
                float_input(
                    "min_factor",
                    -1.0,
                    (-1.0, 1.0, 0.05),
                    "Minimum scale of a neuron; the maximum is 1 (unchanged). 0: neurons are "
                    "silenced at most. Below 0 they may be negated: fewer neurons suffice, but "
                    "other prompts change more.",
                ),
                float_input(
                    "removal",
                    20.0,
                    (0.0, 1000.0, 0.1),
                    "Loss weight of the remaining memorization: raise it if the image remains.",
                ),
                float_input(
                    "keep",
                    1.0,
                    (0.0, 1000.0, 0.1),
                    "Loss weight of changes to ordinary prompts: raise it if they change too much.",
                ),
                float_input(
                    "sparsity",
                    0.04,
                    (0.0, 10.0, 0.001),
                    "Weight of the sparsity penalty, the sum of 1 - scale over all neurons: "
                    "higher gives smaller masks.",
                ),
                int_input(
                    "max_neurons",
                    0,
                    (0, 1_000_000),
                    "Maximum number of neurons; the ones with the smallest scale are kept. 0: no "
                    "limit.",
                ),
                int_input(
                    "batch_size",
                    2,
                    (1, 256),
                    "Noised images of memorized prompts per step, and as many of ordinary prompts.",
                ),
                io.Int.Input(
                    **{
                        **nemo_inputs.NOISE_SAMPLES,
                        "tooltip": "Noise samples for the memorization score in the report.",
                    }
                ),
                seed("Seed of the noise.", 1, control=False),
                io.Int.Input(**nemo_inputs.WIDTH),
                io.Int.Input(**nemo_inputs.HEIGHT),
                io.String.Input(
                    "checkpoint_name",
                    default="",
                    tooltip=(
                        "Checkpoint file in the output folder, e.g. glassbox/neurons/learned. "
                        "After Stop, queue the same workflow again to resume exactly. Empty: no "
                        "checkpoint."
                    ),
                ),
                MaskSocket.Input(
                    "mask",
                    optional=True,
                    tooltip=(
                        "Initial mask, e.g. from NeMo Localize. Not connected: all neurons "
                        "unchanged."
                    ),
                ),
                io.Combo.Input(**nemo_inputs.NEURON_TYPE),
                io.Combo.Input(**nemo_inputs.PROMPT_SYNTAX),
                io.Boolean.Input(
                    "gradient_checkpointing",
                    default=False,
                    optional=True,
                    tooltip="Recompute activations instead of storing them: slower, less memory.",
                ),
                precision_input("The scales are always float32.", optional=True),
            ],
            outputs=[
                MaskSocket.Output(
                    display_name="mask", tooltip="For NeMo Neuron Mask and Save Neuron Mask."
                ),
                io.Image.Output(display_name="figure", tooltip="Loss over steps."),
                io.String.Output(
                    display_name="table",
                    tooltip="CSV: prompt, layer, neuron, factor, z, activation, selected_by.",
                ),
                io.String.Output(
                    display_name="report",
                    tooltip=(
                        "Number of neurons, sum of 1 - scale, score, change of ordinary prompts, "
                        "and cost."
                    ),
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelPatcher,
        clip: CLIP,
        prompts: str,
        anchor: str,
        ordinary_prompts: str,
        layers: str,
        steps: int,
        learning_rate: float,
        min_factor: float,
        removal: float,
        keep: float,
        sparsity: float,
        max_neurons: int,
        batch_size: int,
        noise_samples: int,
        seed: int,
        width: int,
        height: int,
        checkpoint_name: str,
        mask: NeuronMask | None = None,
        neuron_type: str = NeuronType.VALUE,
        prompt_syntax: str = PromptSyntax.LITERAL,
        gradient_checkpointing: bool = False,
        precision: str = "auto",
    ) -> io.NodeOutput:
        from ..host.identity import clip_digest, embedding_digest, model_digest
        from ..host.precision import describe_precision, resolve_precision
        from . import learned_factors, neuron_figures, neuron_reports, neuron_statistics
        from .learned_factors_comfy import MaskLearning, learned_mask

        ordinary = collect_prompts(ordinary_prompts, least=1, name="ordinary_prompts")
        memorized = collect_prompts(prompts, least=1)
        anchor = anchor.strip()
        shape = latent_shape(model, width, height)
        known = layers_of_type(
            model, neuron_type, conditioning=lambda: encode(clip, memorized[0])[1], shape=shape
        )
        chosen = select_layers(known, layers)
        paths = [layer.path for layer in chosen]
        timestep = next(iter(nemo_inputs.TIMESTEPS))
        step = FirstStepInputs(
            shape=shape,
            noise_samples=noise_samples,
            seed=seed,
            timestep_name=timestep,
        )
        settings = learned_factors.LearningSettings(
            steps=steps,
            learning_rate=learning_rate,
            low=min_factor,
            erase=removal,
            keep=keep,
            size=sparsity,
            rows=batch_size,
            count=max_neurons,
            seed=seed,
        )
        resolved = resolve_precision(precision, model.load_device)
        saved = {
            **settings_identity(settings),
            "prompts": memorized,
            "anchor": anchor,
            "ordinary_prompts": ordinary,
            "precision": str(resolved),
            "layers": paths,
            "width": width,
            "height": height,
            "prompt_syntax": str(prompt_syntax),
        }
        path = named_file(checkpoint_name, ".safetensors") if checkpoint_name.strip() else None
        reader = literal(clip) if prompt_syntax == PromptSyntax.LITERAL else clip
        depends: dict[str, str | None] = {}
        if path:
            depends |= {"model": model_digest(model), "clip": clip_digest(clip)}
            depends["mask"] = digest(mask)
            depends["embedding"] = embedding_digest(reader, [*memorized, anchor, *ordinary])
        neurons = Neurons(tuple(chosen))
        inputs = digest([saved, noise_samples, gradient_checkpointing])
        run = MaskLearning(
            model=model,
            clip=reader,
            prompts=memorized,
            anchor=anchor,
            ordinary=ordinary,
            neurons=neurons,
            step=step,
            settings=settings,
            path=path,
            identity=saved | depends,
            inputs=inputs,
            checkpointing=gradient_checkpointing,
            precision=resolved,
        )
        learning = run.run(mask)
        figure = new_figure()
        found = learned_mask(
            learning,
            run,
            settings=saved,
            fingerprint=neuron_statistics.fingerprint(probe_outputs(model, paths)),
            start=mask,
        )
        neuron_figures.plot_learning(figure, learning.losses)
        lines = [
            run.report(found, learning),
            describe_precision(precision, resolved),
            neuron_reports.caveats(),
        ]
        report = "\n".join(lines)
        ui = {"glassbox_neurons": [neuron_reports.mask_chart(found)]}
        return io.NodeOutput(
            found, to_image(figure), neuron_reports.mask_table(found), report, ui=ui
        )


NODES = [OptimizeNeuronMask]
