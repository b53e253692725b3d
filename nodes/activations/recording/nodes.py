"""Record activations while any sampler runs, and read them afterwards."""

from __future__ import annotations

from comfy_api.latest import io

from ...host.evaluate import timestep_of
from ...host.hooks import observe, refuse_compiled
from ...host.schema import schema
from ...host.sockets import ActivationRecording, Activations
from .. import moments, selection
from ..catalog import catalog
from ..inputs import CATEGORY, IDS, PAPER, POOL, PRECISION, PRECISIONS, PRESET
from ..recorder import Recorder
from ..tap import Keep

_ROWS = {"conditional": Keep(True, False), "unconditional": Keep(False, True), "both": Keep(True, True)}


class ActivationRecorder(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ActivationRecorder",
            display_name="Activation Recorder",
            category=CATEGORY,
            description="A MODEL that records activations while any sampler runs on it, without changing the "
            f"picture by a bit. Read Activations hands them out afterwards. {PAPER}.",
            search_aliases=["diffusion features", "hook", "record features", "capture during sampling"],
            inputs=[
                io.Model.Input("model", tooltip="Model with a U-Net or a readable transformer."),
                io.Combo.Input(**PRESET),
                io.String.Input(**IDS),
                io.String.Input(
                    "when", default="last", tooltip=f"When to record: {moments.EXAMPLE}. Steps count from 0."
                ),
                io.Combo.Input(
                    "rows",
                    options=list(_ROWS),
                    tooltip="Rows of the positive conditioning, of the negative one (there is none at CFG 1), or both.",
                ),
                io.Int.Input(**POOL),
                io.Combo.Input(**PRECISION),
            ],
            outputs=[
                io.Model.Output(display_name="model", tooltip="The same model, recording: for the sampler."),
                ActivationRecording.Output(display_name="recording", tooltip="For Read Activations."),
            ],
        )

    @classmethod
    def execute(cls, model, preset: str, ids: str, when: str, rows: str, pool: int, precision: str) -> io.NodeOutput:
        refuse_compiled(model)
        chosen = selection.select(catalog(model.model.diffusion_model), preset, ids)
        wanted = _ROWS[rows]
        keep = Keep(wanted.conditional, wanted.unconditional, pool, PRECISIONS[precision])
        recorder = Recorder(chosen, keep, moments.chooser(when), lambda sigma: timestep_of(model, sigma))
        return io.NodeOutput(observe(model, recorder), recorder)


class ReadActivations(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ReadActivations",
            display_name="Read Activations",
            category=CATEGORY,
            description="The activations that Activation Recorder has recorded in the run that made this latent. "
            f"{PAPER}.",
            search_aliases=["diffusion features", "recorded features"],
            inputs=[
                ActivationRecording.Input("recording", tooltip="Of Activation Recorder."),
                io.Latent.Input(
                    "samples", tooltip="The sampler's own output: it says which run is meant, and that the run is over."
                ),
                io.Int.Input(
                    "index",
                    default=0,
                    min=-1000,
                    max=1000,
                    tooltip="Which of the recorded steps: 0 is the first recorded, -1 the last.",
                ),
                io.Boolean.Input(
                    "average",
                    default=False,
                    optional=True,
                    tooltip="The mean over all recorded steps instead of one of them, such as for Token Heat Map.",
                ),
            ],
            outputs=[
                Activations.Output(
                    display_name="activations", tooltip="Rows of the positive conditioning first, then of the negative."
                ),
                io.Int.Output(display_name="step", tooltip="Number of the step in its run, from 0."),
                io.String.Output(
                    display_name="report", tooltip="Recorded steps, and one line an activation: ID, shape, type."
                ),
            ],
        )

    @classmethod
    def execute(cls, recording: Recorder, samples: dict, index: int, average: bool = False) -> io.NodeOutput:
        run = recording.run_of(samples["samples"])
        count = len(run.snapshots)
        if not count:
            raise ValueError(
                f"Nothing was recorded in this run of {run.steps} steps (0 to {run.steps - 1}): choose other steps "
                "in Activation Recorder, or conditional rows if CFG is 1."
            )
        if not -count <= index < count:
            raise ValueError(
                f"There is no recorded step {index}: the run has {count}, so take 0 to {count - 1}, or -1 for the last."
            )
        snapshot = run.snapshots[index]
        if average:
            snapshot = run.snapshots[-1]
        activations = run.average() if average else snapshot.activations
        recorded = ", ".join(str(one.step) for one in run.snapshots)
        which = "their mean" if average else f"step {snapshot.step}"
        report = f"recorded steps {recorded} of {run.steps}; this is {which}\n{activations.report()}"
        return io.NodeOutput(activations, snapshot.step, report)
