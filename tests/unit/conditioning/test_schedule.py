"""Which metadata a schedule moves, where to, and for which prompt; and its report."""

import pytest
from glassbox.nodes.conditioning import metadata_report, size_metadata
from glassbox.nodes.conditioning.metadata_schedule import GateSchedule

METADATA = {
    "height": 256.0,
    "width": 512.0,
    "crop_h": 16.0,
    "crop_w": 8.0,
    "target_height": 768.0,
    "target_width": 640.0,
}
CANVAS = (1024, 1024)


def schedule(**changes):
    given = {
        "curve": "cosine",
        "exponent": 2.0,
        "fields": "original_size",
        "reference_width": 0,
        "reference_height": 0,
        "mode": "value",
        "apply_to": "both",
    }
    return GateSchedule(**{**given, **changes})


@pytest.mark.parametrize(
    ("fields", "moved"),
    [
        ("original_size", {"height": 640, "width": 768}),
        (
            "original_and_target_size",
            {"height": 640, "width": 768, "target_height": 896, "target_width": 832},
        ),
        (
            "sizes_and_crop",
            {
                "height": 640,
                "width": 768,
                "target_height": 896,
                "target_width": 832,
                "crop_h": 8,
                "crop_w": 4,
            },
        ),
    ],
)
def test_half_open_gate_is_half_way(fields, moved):
    assert schedule(fields=fields).gated(METADATA, CANVAS, 0.5) == {**METADATA, **moved}


def test_open_and_closed_gate():
    assert schedule(fields="all").gated(METADATA, CANVAS, 1.0) == METADATA
    closed = schedule(fields="all").gated({**METADATA, "mirror": 1.0}, (1024, 512), 0.0)
    assert closed == {
        "height": 512,
        "width": 1024,
        "crop_h": 0,
        "crop_w": 0,
        "target_height": 512,
        "target_width": 1024,
        "mirror": 0,
    }


def test_an_implicit_target_size_follows_the_original_size():
    """ComfyUI sets the target to the original size where none is set: a closed gate must hide it
    there too.
    """
    values = {**METADATA, "target_height": 256.0, "target_width": 512.0}
    closed = schedule().gated(values, CANVAS, 0.0, {"target_height", "target_width"})
    assert closed == {
        **METADATA,
        "height": 1024,
        "width": 1024,
        "target_height": 1024,
        "target_width": 1024,
    }
    prompt = metadata_report.PromptMetadata(
        values=values,
        canvas=CANVAS,
        role="positive",
        name="positive",
        implicit=frozenset({"target_height", "target_width"}),
    )
    assert metadata_report.values_at(prompt, [schedule()], 1.0)[0] == closed


def test_reference_size_replaces_the_canvas():
    moved = schedule(reference_width=100, reference_height=200)
    assert moved.gated(METADATA, CANVAS, 0.0) == {**METADATA, "height": 200, "width": 100}
    same = schedule(reference_width=512, reference_height=256)
    assert same.gated(METADATA, CANVAS, 0.3) == METADATA


def test_fields_that_a_model_lacks_are_not_added():
    assert schedule(fields="all").gated({"height": 1.0, "width": 2.0}, CANVAS, 0.0) == {
        "height": 1024,
        "width": 1024,
    }


@pytest.mark.parametrize(
    ("apply_to", "gated"),
    [("both", (True, True)), ("positive", (True, False)), ("negative", (False, True))],
)
def test_schedule_gates_the_chosen_prompts(apply_to, gated):
    acting = schedule(apply_to=apply_to)
    assert (acting.applies("positive", {"width"}), acting.applies("negative", {"width"})) == gated
    assert acting.applies("middle", {"width"}) == gated[0]


def test_a_negative_prompt_without_metadata_stays_stock():
    assert not schedule().applies("negative", set())
    assert not schedule(fields="original_size").applies("negative", {"crop_w"})
    assert schedule().applies("positive", set())


def test_half_a_reference_size_is_refused():
    with pytest.raises(ValueError, match="set both sides, or 0 for both"):
        schedule(reference_width=512)


def test_entries_and_unknown_fields():
    assert size_metadata.metadata_entries(512, 256, 0, 3, 0, 0, True) == {
        "width": 512,
        "height": 256,
        "crop_h": 3,
        "mirror": 1,
    }
    with pytest.raises(ValueError, match="original size is 512 x 0: set both sides"):
        size_metadata.metadata_entries(512, 0)
    with pytest.raises(ValueError, match="no input for a crop or mirroring: leave that"):
        size_metadata.check_fields(
            ["width", "crop_h", "crop_w", "mirror"], ["height", "width"], "This model"
        )


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"crop_w": 7}, "crop 7 left 0 top"),
        ({"crop_h": 11}, "crop 0 left 11 top"),
        ({}, ""),
        ({"height": 256, "width": 512, "mirror": 1}, "original 512 x 256, mirror 1"),
    ],
)
def test_format_metadata(values, text):
    assert size_metadata.format_metadata(values) == text


def test_gates_multiply_in_the_report():
    steps = [
        metadata_report.Step(10.0, 1.0),
        metadata_report.Step(1.0, 0.5),
        metadata_report.Step(0.1, 0.0),
    ]
    prompts = [
        metadata_report.PromptMetadata(
            values=METADATA, canvas=CANVAS, role="positive", name="positive"
        )
    ]
    two = [schedule(), schedule()]
    assert [round(metadata_report.values_at(prompts[0], two, step.u)[1], 6) for step in steps] == [
        0.0,
        0.25,
        1.0,
    ]
    assert metadata_report.values_at(prompts[0], two, 0.5)[0]["width"] == pytest.approx(
        1024 - 512 / 4
    )
    text = metadata_report.describe_conditioning("SDXL", prompts, two, steps)
    assert "gate 0.250  original 896 x 832" in text
    assert "at every step" in metadata_report.describe_conditioning(
        "SDXL", prompts, [schedule(apply_to="negative")], steps
    )
    assert "embedding of these numbers" in metadata_report.describe_conditioning(
        "SDXL", prompts, [schedule(mode="embedding")], steps
    )
    assert "one half at 50.0 %" in metadata_report.describe_schedule(schedule(), steps)
    assert "always open" in metadata_report.describe_schedule(schedule(exponent=0), steps)
