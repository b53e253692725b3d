"""Trainers compute in the precision that auto resolves to, report it, and never take up work of
another one.
"""

import pytest
import resumable
import torch

#: Number of the output ``report`` of each trainer that keeps its work.
REPORTS = {
    "GBX_TrainLoraImmiscible": 6,
    "GBX_W2WInvert": 4,
    "GBX_OptimizeNeuronMask": 3,
    "GBX_TrainSlider": 6,
    "GBX_W2WTrainSpace": 4,
}
#: Half precision is emulated on most CPUs, where a step takes twenty times one in fp32.
_FEW = {"steps": 2}


@pytest.fixture(scope="module", autouse=True)
def files(app, tmp_path_factory):
    resumable.make_files(app, tmp_path_factory.mktemp("precision"))


@pytest.fixture
def trained_in(app, monkeypatch):
    """The compute dtype of every training so far, and a switch for what the device multiplies."""
    mask = app.module("nodes.neurons.learned_factors_comfy")
    for name in ("_LATENT_STEPS", "_ANCHORS", "_MEMORIZED"):  # images to learn from are dear
        monkeypatch.setattr(mask, name, 1)
    trainer, precision = (
        app.module("nodes.host.training.trainer"),
        app.module("nodes.host.precision"),
    )
    real, dtypes = trainer.run, []

    def run(*args, dtype, **further):
        dtypes.append(str(dtype).removeprefix("torch."))
        return real(*args, dtype=dtype, **further)

    def device(has_units: bool):
        monkeypatch.setattr(precision, "multiplies_bf16", lambda device: has_units)

    monkeypatch.setattr(trainer, "run", run)
    return dtypes, device


@pytest.mark.parametrize("node", REPORTS)
def test_auto_is_resolved_reported_and_part_of_kept_work(app, monkeypatch, trained_in, node):
    inputs, file, _ = resumable.NODES[node]
    monkeypatch.setitem(resumable.NODES, node, (inputs, file, REPORTS[node]))
    dtypes, device = trained_in
    device(has_units=False)
    report = resumable.Queue(app, node).run(
        f"precision {node}", monkeypatch, precision="auto", **_FEW
    )
    assert dtypes == ["float32"] and "Precision: fp32, chosen by auto for this device." in report

    device(has_units=True)
    with pytest.raises(resumable.Failed, match="precision"):
        resumable.Queue(app, node).run(f"precision {node}", monkeypatch, precision="auto", **_FEW)
    report = resumable.Queue(app, node).run(
        f"precision {node} 16", monkeypatch, precision="auto", steps=1
    )
    assert dtypes[-1] == "bfloat16" and "Precision: bf16, chosen by auto for this device." in report

    device(has_units=False)
    report = resumable.Queue(app, node).run(
        f"precision {node}", monkeypatch, precision="fp32", **_FEW
    )
    assert "Precision: fp32." in report and "auto" not in report


def test_fp16_trains(app, monkeypatch, trained_in):
    """The explicit option for GPUs without bf16: the inverted point comes near the one of fp32."""
    dtypes, _ = trained_in
    points = {
        precision: resumable.Queue(app, "GBX_W2WInvert").run(
            f"inverted {precision}", monkeypatch, precision=precision, **_FEW
        )
        for precision in ("fp32", "fp16")
    }
    assert dtypes == ["float32", "float16"]
    # Adam's first steps are signs, so rounding turns the small coefficients: the points differ by a
    # tenth to a quarter of their length, as the processor sums. The direction stays.
    halves, reference = points["fp16"].coefficients, points["fp32"].coefficients
    assert not torch.equal(halves, reference)
    assert torch.cosine_similarity(halves.flatten(), reference.flatten(), dim=0) > 0.9


def test_the_options_of_schemas_are_the_precisions(app):
    options = app.module("nodes.host.schema").PRECISIONS
    assert list(options) == [str(value) for value in app.module("nodes.host.precision").Precision]
