"""Which metadata a schedule moves, where to, and for whom; and how it is told in words."""

import pytest
from glassbox.nodes.conditioning import metadata, report
from glassbox.nodes.conditioning.schedule import Schedule

TOLD = {"height": 256.0, "width": 512.0, "crop_h": 16.0, "crop_w": 8.0, "target_height": 768.0, "target_width": 640.0}
CANVAS = (1024, 1024)


def schedule(**changes):
    given = {"curve": "cosine", "exponent": 2.0, "fields": "original size", "reference_width": 0,
             "reference_height": 0, "mode": "value", "apply_to": "both"}  # fmt: skip
    return Schedule(**{**given, **changes})


@pytest.mark.parametrize(
    ("fields", "moved"),
    [("original size", {"height": 640, "width": 768}),
     ("original and target size", {"height": 640, "width": 768, "target_height": 896, "target_width": 832}),
     ("sizes and crop", {"height": 640, "width": 768, "target_height": 896, "target_width": 832, "crop_h": 8,
                         "crop_w": 4})],
)  # fmt: skip
def test_half_open_is_half_way(fields, moved):
    assert schedule(fields=fields).told(TOLD, CANVAS, 0.5) == {**TOLD, **moved}


def test_open_and_closed():
    assert schedule(fields="all").told(TOLD, CANVAS, 1.0) == TOLD
    closed = schedule(fields="all").told({**TOLD, "mirror": 1.0}, (1024, 512), 0.0)
    assert closed == {"height": 512, "width": 1024, "crop_h": 0, "crop_w": 0, "target_height": 512,
                      "target_width": 1024, "mirror": 0}  # fmt: skip


def test_a_target_that_nobody_asked_for_follows_the_original_size():
    """ComfyUI tells the original size as target where none is said: a closed gate must not let it out that way."""
    told = {**TOLD, "target_height": 256.0, "target_width": 512.0}
    closed = schedule().told(told, CANVAS, 0.0, {"target_height", "target_width"})
    assert closed == {**TOLD, "height": 1024, "width": 1024, "target_height": 1024, "target_width": 1024}
    prompt = report.Prompt(told, CANVAS, "positive", "positive", frozenset({"target_height", "target_width"}))
    assert report.values_at(prompt, [schedule()], 1.0)[0] == closed


def test_a_reference_of_ones_own():
    moved = schedule(reference_width=100, reference_height=200)
    assert moved.told(TOLD, CANVAS, 0.0) == {**TOLD, "height": 200, "width": 100}
    same = schedule(reference_width=512, reference_height=256)
    assert same.told(TOLD, CANVAS, 0.3) == TOLD


def test_fields_that_a_model_lacks_are_not_invented():
    assert schedule(fields="all").told({"height": 1.0, "width": 2.0}, CANVAS, 0.0) == {"height": 1024, "width": 1024}


@pytest.mark.parametrize(("apply_to", "whom"), [("both", (True, True)), ("positive", (True, False)),
                                                ("negative", (False, True))])  # fmt: skip
def test_whom_it_gates(apply_to, whom):
    acting = schedule(apply_to=apply_to)
    assert (acting.applies("positive"), acting.applies("negative")) == whom
    assert acting.applies("middle") == whom[0]


def test_half_a_reference_size_is_refused():
    with pytest.raises(ValueError, match="give both sides, or 0 for both"):
        schedule(reference_width=512)


def test_what_was_asked():
    assert metadata.asked(512, 256, 0, 3, 0, 0, True) == {"width": 512, "height": 256, "crop_h": 3, "mirror": 1}
    with pytest.raises(ValueError, match="original size is 512 x 0: give both sides"):
        metadata.asked(512, 0, 0, 0, 0, 0, False)
    with pytest.raises(ValueError, match="no input for a crop or mirroring: leave that"):
        metadata.check_known(["width", "crop_h", "crop_w", "mirror"], ["height", "width"], "This model")


@pytest.mark.parametrize(
    ("values", "words"),
    [({"crop_w": 7}, "crop 7 left 0 top"), ({"crop_h": 11}, "crop 0 left 11 top"), ({}, ""),
     ({"height": 256, "width": 512, "mirror": 1}, "original 512 x 256, mirror 1")],
)  # fmt: skip
def test_words_for_what_is_said(values, words):
    assert metadata.described(values) == words


def test_gates_multiply_in_the_report():
    steps = [report.Step(10.0, 1.0), report.Step(1.0, 0.5), report.Step(0.1, 0.0)]
    prompts = [report.Prompt(TOLD, CANVAS, "positive", "positive")]
    two = [schedule(), schedule()]
    assert [round(report.values_at(prompts[0], two, step.u)[1], 6) for step in steps] == [0.0, 0.25, 1.0]
    assert report.values_at(prompts[0], two, 0.5)[0]["width"] == pytest.approx(1024 - 512 / 4)
    text = report.describe_told("SDXL", prompts, two, steps)
    assert "gate 0.250  original 896 x 832" in text
    assert "at every step" in report.describe_told("SDXL", prompts, [schedule(apply_to="negative")], steps)
    assert "embedding of these numbers" in report.describe_told("SDXL", prompts, [schedule(mode="embedding")], steps)
    assert "one half at 50.0 %" in report.describe_schedule(schedule(), steps)
    assert "always open" in report.describe_schedule(schedule(exponent=0), steps)
