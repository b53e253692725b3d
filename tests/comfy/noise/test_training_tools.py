"""Buckets and the comparison of runs through the nodes, as Make Training Dataset and Train LoRA use
them.
"""

import pytest
import torch


def buckets(app, **given):
    values = {"resolution": [64], "step": [16]}
    return app.run("GBX_ResizeToBuckets", **{**values, **given})


def test_each_image_goes_to_its_own_shape_with_its_mask(app):
    wide, square = torch.rand(1, 50, 100, 3), torch.rand(2, 70, 70, 3)
    masks = [torch.ones(1, 50, 100), torch.zeros(2, 70, 70)]
    images, cut, report = buckets(app, images=[wide, square], masks=masks)
    assert [tuple(image.shape) for image in images] == [
        (1, 48, 80, 3),
        (1, 64, 64, 3),
        (1, 64, 64, 3),
    ]
    assert [tuple(mask.shape) for mask in cut] == [(1, 48, 80), (1, 64, 64), (1, 64, 64)]
    assert cut[0].min() > 0.999 and cut[1].max() == 0 and "64 x 64: 2 images" in report
    with pytest.raises(ValueError, match="1 masks do not fit 3 images"):
        buckets(app, images=[wide, square], masks=masks[:1])


@pytest.mark.parametrize("masks", [{}, {"masks": [None]}], ids=["no wire", "null through the API"])
def test_without_masks_their_output_rests(app, masks):
    from comfy_execution.graph import ExecutionBlocker

    assert isinstance(
        buckets(app, images=[torch.rand(1, 64, 64, 3)], **masks)[1][0], ExecutionBlocker
    )


def test_resizing_stops_before_the_next_image(app, monkeypatch):
    from comfy import model_management

    resized, training = [], app.module("nodes.common.training.aspect_buckets")

    def resize(image, size):
        resized.append(image)
        model_management.interrupt_current_processing()
        return image

    monkeypatch.setattr(training, "resize_and_crop", resize)
    with pytest.raises(model_management.InterruptProcessingException):
        buckets(app, images=[torch.rand(3, 64, 64, 3)])
    assert len(resized) == 1


def test_two_runs_in_one_figure(app):
    runs = [{"loss": [1.0, 0.5], "validation": [[0, 1.0], [2, last]]} for last in (0.5, 0.4)]
    how = {"loss_map_a": runs[0], "loss_map_b": runs[1], "name_b": "B"}
    figure, report = app.run("GBX_CompareTrainingRuns", name_a="A", **how)
    assert figure.shape == (1, 420, 1000, 3) and "At step 2 B is 20.00 % below A" in report
    with pytest.raises(ValueError, match="same name"):
        app.run("GBX_CompareTrainingRuns", name_a="B", **how)


def test_long_name_is_cut_in_the_figure_and_formulas_stay_text(app):
    run = {"loss": [1.0, 0.5], "validation": [[0, 1.0], [2, 0.5]]}

    def named(name):
        return app.run(
            "GBX_CompareTrainingRuns", loss_map_a=run, loss_map_b=run, name_a=name, name_b="B"
        )

    figures = [named("x" * length)[0] for length in (298, 301, 200_000)]
    assert torch.equal(figures[1], figures[2]) and not torch.equal(figures[0], figures[1])
    assert named("$\\frac{1")[0].shape == (1, 420, 1000, 3)  # no formula, and no error


def test_training_from_scratch_shows_both_networks_and_leaves_the_global_generator(app):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    how = {"batch_size": 32, "sample_steps": 1, "seed": 0}
    drawn, assigned, figure, report = app.run("GBX_TrainingFromScratch", steps=30, **how)
    assert torch.equal(before, torch.get_rng_state())
    assert drawn.shape == assigned.shape == (1, 288, 576, 3) and figure.shape == (1, 420, 1000, 3)
    assert not torch.equal(drawn, assigned) and "after 30 training steps" in report
    again = app.run("GBX_TrainingFromScratch", steps=30, **how)
    assert torch.equal(drawn, again[0]) and report == again[3]
