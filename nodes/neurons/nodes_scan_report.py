"""The report of a scan: histogram, table, and a ranked sheet of images without and with the mask."""

from __future__ import annotations

import logging

from comfy_api.latest import io

from ..common.atomic_write import atomic_write
from ..host import folders
from ..host.evaluate import sample_images
from ..host.first_step import latent_shape
from ..host.image_output import new_figure, to_image
from ..host.progress import with_progress
from ..host.schema import NeuronMask as MaskSocket
from ..host.schema import schema
from ..host.text_encoding import encode
from . import nemo_inputs
from .scan_file import Pace


class ScanReport(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_ScanReport",
            advanced=("width", "height"),
            display_name="Memorization Scan Report",
            category=nemo_inputs.CATEGORY,
            description="Reports a scan of many prompts: a histogram of their scores, the searches of those over the "
            "threshold, and a ranked sheet with the first image of each prompt, without and with the mask. "
            f"{nemo_inputs.PAPER}.",
            search_aliases=["memorization", "nemo", "scan report", "image sheet"],
            inputs=[
                io.Model.Input("model", tooltip="The model that was scanned."),
                io.Clip.Input(**nemo_inputs.CLIP),
                io.Vae.Input("vae", tooltip="VAE of the model."),
                io.String.Input("table", force_input=True, tooltip="The table of Memorization Score."),
                io.Float.Input(**nemo_inputs.THRESHOLD),
                io.Int.Input(
                    "image_count",
                    default=16,
                    min=0,
                    max=200,
                    tooltip="How many prompts get images, those of the highest score first. 0: none.",
                ),
                io.Int.Input("steps", default=20, min=1, max=200, tooltip="Sampling steps, with Euler."),
                io.Float.Input("cfg", default=7.0, min=1.0, max=30.0, step=0.1, tooltip="CFG of the images."),
                io.Int.Input(**{**nemo_inputs.SEED, "tooltip": "Seed of the images, the same for every prompt."}),
                io.Int.Input(**nemo_inputs.WIDTH),
                io.Int.Input(**nemo_inputs.HEIGHT),
                io.String.Input(**nemo_inputs.FILENAME_PREFIX),
                MaskSocket.Input("mask", optional=True, tooltip="The mask of NeMo Localize, for the found neurons."),
                io.Model.Input(
                    "masked_model",
                    optional=True,
                    tooltip="The model with the mask: its image stands at the right of the untouched one.",
                ),
            ],
            outputs=[
                io.Image.Output(display_name="figure", tooltip="Histogram of the scores, and the threshold."),
                io.Image.Output(
                    display_name="sheet", tooltip="The first image of each prompt, the highest score first."
                ),
                io.String.Output(display_name="table", tooltip="CSV: prompt, score, verdict, neurons, convergence."),
                io.String.Output(
                    display_name="report", tooltip="How many prompts are memorized, and what was found for them."
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        model,
        clip,
        vae,
        table,
        threshold,
        image_count,
        steps,
        cfg,
        seed,
        width,
        height,
        filename_prefix,
        mask=None,
        masked_model=None,
    ) -> io.NodeOutput:
        from . import neuron_figures, neuron_reports

        scores = neuron_reports.read_scores(table)
        searches = {} if mask is None else {search.prompt: search for search in mask.searches}
        shown = [*scores][:image_count]
        models = [model] if masked_model is None else [model, masked_model]
        shape = latent_shape(model, width, height)
        images = len(shown) * len(models)
        rows = images * steps * (1 if cfg == 1 else 2)
        logging.info("Scan report: %d images, %d rows of the network.", images, rows)
        pace, negative, sampled = Pace(len(shown)), encode(clip, "")[1], []
        for text in with_progress(shown):
            positive = encode(clip, text)[1]
            how = {"steps": steps, "cfg": cfg}
            sampled.append([sample_images(one, vae, positive, negative, shape, 1, seed, **how)[0] for one in models])
            logging.info("Scan report: %s.", pace.step())
        figure = new_figure()
        neuron_figures.plot_histogram(figure, [*scores.values()], threshold)
        columns = neuron_figures.SHEET_COLUMNS
        sheet = new_figure(300 * columns * len(models), 60 + 340 * -(-len(shown) // columns))
        neuron_figures.plot_sheet(sheet, sampled, neuron_reports.sheet_titles(scores, threshold, searches))
        found = neuron_reports.scan_table(scores, threshold, searches)
        report = neuron_reports.scan_report(scores, threshold, searches)
        if filename_prefix.strip():
            path = folders.next_file(filename_prefix.strip(), ".csv")
            with atomic_write(path) as temporary:
                temporary.write_text(found, encoding="utf-8")
            report += f"\nSaved as {folders.relative(path)} in ComfyUI's output folder."
        return io.NodeOutput(to_image(figure), to_image(sheet), found, report)
