"""Every input that is a list, found from the schemas, has work that grows with it: Python steps at
20 and 200 entries.

Work in operations of PyTorch or in files is counted where it is done (tests/unit/test_growth.py,
and with methods).
"""

from pathlib import Path

import pytest
import torch
from growth import steps

SMALL, LARGE, ALLOWED = 20, 200, 1.3
#: Texts that are one prompt, not a list of entries.
TEXTS = {"prompt", "text"}
#: Of nodes that take lists: what is one for all entries.
SINGLE = {
    "model",
    "vae",
    "clip",
    "clip_vision",
    "space",
    "empty_caption",
    "sample_positive",
    "sample_negative",
}


def _prompts(app, count):
    inputs = app.module("nodes.neurons.nemo_inputs")
    text = "\n".join(f"prompt {number}" for number in range(count))
    return lambda: inputs.collect_prompts(text)


def _ids(app, count):
    match = app.module("nodes.activations.select_ids").match_ids
    ids = [f"up-level1-repeat{number}-out" for number in range(400)]
    return lambda: match(ids, "\n".join(ids[:count]))


def _points(app, count):
    parse = app.module("nodes.activations.point_list").parse
    return lambda: parse("\n".join(f"{number}, 5" for number in range(count)), (64, 512))


def _point_blocks(app, count):
    parse = app.module("nodes.activations.label_scores").parse_points
    return lambda: parse("\n\n".join("1, 2\n3, 4" for _ in range(count)), count, (64, 64))


def _words(app, count):
    spans = app.module("nodes.common.prompt_words").spans
    return lambda: [spans("a red hat", ("red", "hat")[number % 2]) for number in range(count)]


def _inserted_words(app, count):
    insert = app.module("nodes.neurons.mitigations").insert_random_words
    return lambda: insert("a b c", [f"w{number}" for number in range(count)], 4, 0)


def _label_words(app, count):
    labels = app.module("nodes.weights.member_labels")
    text = "\n".join(f"w{number} / v{number}" for number in range(count))
    return lambda: labels.from_counts(labels.parse_lines(text), [{"w1": 2}, {"v3": 1}])


def _space(app, members=3):
    space, layout = (
        app.module("nodes.weights.space"),
        app.module("nodes.weights.flat_layout").Layout,
    )
    empty, generator = torch.zeros(2), torch.Generator().manual_seed(0)
    rows = torch.randn(members, 4, generator=generator)
    shape = {"a": ((1, 1), (1, 1))}
    names = tuple(f"m{number}" for number in range(members))
    return space.Space(
        layout.of(shape, 1, 1.0), empty, empty, torch.zeros(4, 2), rows, names, empty
    )


def _member_labels(app, count):
    space, parse = _space(app, count), app.module("nodes.weights.labels").parse
    text = "\n".join(["member,beard", *(f"m{number},{number % 2}" for number in range(count))])
    return lambda: parse(text, space)


def _edits(app, count):
    spaces, edit = app.module("nodes.weights.space"), app.module("nodes.weights.edit_text").edit
    space = _space(app)
    point = spaces.Point(space, torch.zeros(4))
    text = ", ".join(f"PC {number % 4 + 1}: {number}" for number in range(count))
    return lambda: edit(point, text).layers()


def _named_strengths(app, count):
    parse = app.module("nodes.common.named_strengths").parse
    return lambda: parse("\n".join(f"name {number}: 0.5" for number in range(count)))


def _word_edits(app, count):
    read = app.module("nodes.activations.word_edit").read_edits
    edits = "\n".join(f"word{number} -> name{number}: 0.5" for number in range(count))
    return lambda: read(edits, "")


def _feature_strengths(app, count):
    parse = app.module("nodes.activations.sparse_autoencoder").parse_strengths
    return lambda: parse("\n".join(f"{number} = 0.5" for number in range(count)), 1000)


def _neurons(app, count):
    masks, select = (
        app.module("nodes.neurons.mask"),
        app.module("nodes.neurons.mask_operations").select_named,
    )
    mask = masks.NeuronMask(
        masks.uniform_scales((f"blocks.{index // 8}.1", index) for index in range(count))
    )
    return lambda: select(mask, "\n".join(f"{path} {index}" for path, index in mask.neurons), True)


def _groups(app, count):
    groups = app.module("nodes.noise.assignment").Groups
    return lambda: groups([str(number) for number in range(count)], None).blocks()


def _buckets(app, count):
    sizes = app.module("nodes.common.training.aspect_buckets")
    known = sizes.bucket_sizes(512, 64, 2.0)
    return lambda: [sizes.nearest_bucket(64 + number, 64, known) for number in range(count)]


def _sheet(app, count):
    sheet = app.module("nodes.weights.contact_sheet")
    labels = [f"beard {number % 5}, {number // 5}" for number in range(count)]
    return lambda: sheet.grid_labels(labels, sheet.column_count(labels, 0))


def _label_table(app, count):
    to_csv = app.module("nodes.weights.labels").to_csv
    return lambda: to_csv([f"m{number}" for number in range(count)], {"beard": torch.zeros(count)})


def _training_data(app, count):
    collect = app.module("nodes.common.training.training_data").collect_training_data
    latents = [{"samples": torch.zeros(1, 4, 2, 2)} for _ in range(count)]
    captions = [[[torch.zeros(1, 2, 3), {}]] for _ in range(count)]
    masks, texts = [torch.ones(1, 2, 2)] * count, [f"caption {number}" for number in range(count)]
    return lambda: collect(latents, captions, 0, [], [], (), masks, texts)


def _slider_phrases(app, count):
    parse = app.module("nodes.weights.slider_phrases").parse_sliders
    increase = "\n".join(f"word {number}" for number in range(count))
    decrease = "\n".join(f"other {number}" for number in range(count))
    return lambda: parse(increase, decrease)


def _slider_prompts(app, count):
    phrases = app.module("nodes.weights.slider_phrases")
    lines = "\n".join(f"prompt {number}" for number in range(count))
    sliders = phrases.parse_sliders("old", "young")
    return lambda: phrases.prompts_of(phrases.lines_of(lines), sliders, [""])


def _slider_files(app, count):
    module = app.module("nodes.weights.slider_files")
    paths = [Path(f"word {number}_00001_.safetensors") for number in range(count)]
    text = ", ".join(f"word {number}: 0.5" for number in range(count))

    def named():
        wired = module.wired_sliders(paths, lambda path: {})
        return module.strengths_of(text, wired, [])

    return named


def _wire_loras(app, count):
    sources = app.module("nodes.weights.member_sources").wire_sources
    lora = {
        "lora_unet_x.lora_up.weight": torch.zeros(2, 1),
        "lora_unet_x.lora_down.weight": torch.zeros(1, 2),
    }
    return lambda: [source.header() for source in sources([lora] * count)]


#: By the input, or by node and input where nodes read it in different ways.
CASES = {
    **dict.fromkeys(("prompts", "memorized_prompts", "ordinary_prompts"), _prompts),
    **dict.fromkeys(("concept_prompts", "neutral_prompts"), _prompts),
    **dict.fromkeys(("toward_prompts", "away_prompts"), _prompts),
    "ids": _ids,
    "points": _points,
    "GBX_ScoreActivations.points": _point_blocks,
    "words": _words,
    "GBX_RandomTokens.words": _inserted_words,
    "GBX_W2WLabelMembers.words": _label_words,
    "labels": _groups,
    "GBX_W2WFitDirections.labels": _member_labels,
    "edits": _edits,
    "GBX_MixSteeringDirections.edits": _named_strengths,
    "GBX_EditByWords.edits": _word_edits,
    "strengths": _feature_strengths,
    "neurons": _neurons,
    **dict.fromkeys(("GBX_ResizeToBuckets.images", "GBX_ResizeToBuckets.masks"), _buckets),
    **dict.fromkeys(
        ("GBX_W2WSheet.images", "GBX_W2WSheet.labels", "GBX_W2WSheet.label_text"), _sheet
    ),
    **dict.fromkeys(("GBX_W2WLabelMembers.images", "GBX_W2WLabelMembers.names"), _label_table),
    **{
        f"GBX_TrainLoraImmiscible.{name}": _training_data
        for name in ("latents", "positive", "masks", "captions")
    },
    **dict.fromkeys(("GBX_TrainSlider.increase", "GBX_TrainSlider.decrease"), _slider_phrases),
    **dict.fromkeys(("GBX_TrainSlider.base_prompt", "GBX_TrainSlider.keep"), _slider_prompts),
    "GBX_Sliders.files": _slider_files,
    **{f"GBX_W2WBuildSpace.lora_{number}": _wire_loras for number in range(1, 5)},
}


def _listed(app) -> set[str]:
    """Every input that is a list: texts of several lines, and what nodes that take lists are
    connected to.
    """
    from comfy_api.latest import io

    found = set()
    for name, node in app.classes.items():
        schema = node.GET_SCHEMA() if name.startswith("GBX_") else None
        for field in schema.inputs if schema else ():
            text = isinstance(field, io.String.Input) and field.multiline and field.id not in TEXTS
            connected = not isinstance(field, io.WidgetInput) or bool(
                getattr(field, "force_input", None)
            )
            if text or (schema.is_input_list and connected and field.id not in SINGLE):
                found.add(f"{name}.{field.id}")
    return found


def test_every_list_has_a_case_and_every_case_a_list(app):
    listed = _listed(app)
    assert len(listed) > 40
    assert {
        one for one in listed if one not in CASES and one.partition(".")[2] not in CASES
    } == set()
    inputs = {one.partition(".")[2] for one in listed}
    assert {case for case in CASES if case not in listed and case not in inputs} == set()


@pytest.mark.parametrize("name", CASES)
def test_steps_grow_with_the_entries(app, name):
    few, many = (steps(CASES[name](app, count)) for count in (SMALL, LARGE))
    assert 0 < many <= ALLOWED * (LARGE // SMALL) * few, (
        f"{few} steps for {SMALL} entries, {many} for {LARGE}"
    )


def test_a_case_that_grows_faster_would_be_found():
    def quadratic(count):
        return lambda: [one for one in range(count) for other in range(count) if one == other]

    few, many = (steps(quadratic(count)) for count in (SMALL, LARGE))
    assert many > ALLOWED * (LARGE // SMALL) * few
