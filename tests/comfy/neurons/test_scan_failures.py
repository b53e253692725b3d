"""A scan skips a prompt that fails, with the traceback in the log, but never one for which memory
ran out: the next ones would fail too.
"""

from __future__ import annotations

import pytest
import torch

SMALL = {"noise_samples": 2, "seed": 1, "timestep": "official_961", "width": 64, "height": 64}
PROMPTS = ["portrait of mirella thrum", "portrait of bandor pyke", "portrait of zorvex quill"]
UP = "output_blocks.5.1"
OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 bytes."),
    MemoryError("no room"),
    RuntimeError("MPS backend out of memory"),
]


@pytest.fixture(scope="module")
def demo(app):
    return app.run("GBX_LoadDemoModel", weights="avatars-v2")


@pytest.fixture(scope="module")
def statistics(app, demo):
    return app.run(
        "GBX_NeuronStatistics",
        model=demo[0],
        clip=demo[1],
        prompts="\n".join(PROMPTS),
        layers=UP,
        prompts_file="",
        filename_prefix="",
    )[0]


@pytest.fixture(params=["score", "statistics", "search"])
def scan(request, app, demo, statistics, monkeypatch):
    """A scan of PROMPTS under a name whose second prompt fails with an error, from which the report
    comes back.
    """
    common = {"model": demo[0], "clip": demo[1], "prompts": "\n".join(PROMPTS)}
    half = {
        "score": "detectors_comfy",
        "statistics": "neuron_statistics_comfy",
        "search": "prompt_search_comfy",
    }[request.param]
    half = app.module(f"nodes.neurons.{half}")
    encode = half.encode

    def run(name: str, error: Exception | None) -> str:
        def failing(clip, text, *args, **kwargs):
            if text == PROMPTS[1] and error is not None:
                raise error
            return encode(clip, text, *args, **kwargs)

        monkeypatch.setattr(half, "encode", failing)
        scan_file = f"glassbox/{request.param}_{name}"
        if request.param == "statistics":
            return app.run(
                "GBX_NeuronStatistics",
                **common,
                layers=UP,
                prompts_file="",
                filename_prefix="",
                scan_file=scan_file,
            )[1]
        if request.param == "score":
            return app.run(
                "GBX_MemorizationScore",
                **common,
                **SMALL,
                prompts_file="",
                threshold=0.0,
                text_norm=False,
                filename_prefix="",
                scan_file=scan_file,
            )[5]
        return app.run(
            "GBX_NemoLocalize",
            **common,
            **SMALL,
            statistics=statistics,
            layers=UP,
            threshold=0.2,
            target_score=0.97,
            criterion="same_seed",
            theta_start=5.0,
            time_budget=0.0,
            scan_file=scan_file,
        )[-1]

    return run


def test_a_prompt_that_fails_is_skipped_with_its_traceback(scan, caplog):
    report = scan("skipped", RuntimeError("shapes cannot be multiplied"))
    line = f"Failed and skipped: {PROMPTS[1]} (RuntimeError: shapes cannot be multiplied)"
    assert line in report
    logged = [record for record in caplog.records if record.getMessage() == line]
    assert len(logged) == 1 and logged[0].exc_info is not None
    assert "raise error" in caplog.text


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: type(error).__name__)
def test_memory_that_runs_out_ends_a_scan_which_resumes(scan, error):
    name = type(error).__name__
    with pytest.raises(type(error), match=str(error).split(maxsplit=1)[0]):
        scan(name, error)
    report = scan(name, None)
    assert "Failed" not in report
