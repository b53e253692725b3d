"""Scans inside a real ComfyUI: a crash, an error and Stop lose no prompt that was
done.
"""

import csv
import io

import pytest
import torch

SMALL = {"noise_samples": 2, "seed": 1, "timestep": "official_961", "width": 64, "height": 64}
PROMPTS = [
    f"portrait of {name}"
    for name in ("mirella thrum", "bandor pyke", "zorvex quill", "sybil orcrane")
]
UP = "output_blocks.5.1"


@pytest.fixture(scope="module")
def demo(app):
    return app.run("GBX_LoadDemoModel", weights="avatars-v2")


@pytest.fixture
def failing(app, monkeypatch):
    """Makes the evaluation of prompts fail, by their number from 0, and counts those that are
    evaluated.
    """
    first_step = app.module("nodes.neurons.first_step_comfy").at_first_step
    state = {"errors": {}, "count": 0}

    def evaluated(*args, **kwargs):
        number, state["count"] = state["count"], state["count"] + 1
        if number in state["errors"]:
            raise state["errors"][number]
        return first_step(*args, **kwargs)

    for name in ("detectors_comfy", "prompt_search_comfy"):
        monkeypatch.setattr(app.module(f"nodes.neurons.{name}"), "at_first_step", evaluated)
    return state


def score(app, demo, name):
    given = {
        "prompts": "\n".join(PROMPTS),
        "prompts_file": "",
        "threshold": 0.0,
        "text_norm": False,
        "filename_prefix": "",
    }
    return app.run(
        "GBX_MemorizationScore", model=demo[0], clip=demo[1], scan_file=name, **given, **SMALL
    )


def test_a_scan_of_scores_skips_failures_and_resumes(app, demo, failing):
    whole = score(app, demo, "")
    failing.update(count=0, errors={1: RuntimeError("bad shape"), 3: KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        score(app, demo, "glassbox/scan_1")
    failing.update(count=0, errors={})
    _, _, _, _, table, report, _, _ = score(app, demo, "glassbox/scan_1")
    assert failing["count"] == 2  # the one that failed, and the one that crashed
    assert table == whole[4] and "Failed" not in report
    failing.update(count=0)
    assert score(app, demo, "glassbox/scan_1")[4] == whole[4] and failing["count"] == 0


def test_the_cost_is_logged_before_it_and_the_time_left_during_it(app, demo, failing, caplog):
    """One row for each prompt and noise sample."""
    caplog.set_level("INFO")
    score(app, demo, "")
    lines = [record.getMessage() for record in caplog.records]
    first = lines.index("4 prompts to score: 8 rows of the network, 2 for each.")
    assert [
        line.partition(",")[0] for line in lines[first + 1 :] if "Memorization scores" in line
    ] == [f"Memorization scores: {number} of 4 prompts" for number in range(1, 5)]


def test_failures_are_named(app, demo, failing):
    failing.update(count=0, errors={1: RuntimeError("bad shape")})
    _, _, _, _, table, report, _, _ = score(app, demo, "glassbox/scan_2")
    assert f"Failed and skipped: {PROMPTS[1]} (RuntimeError: bad shape)" in report
    assert [row["prompt"] for row in csv.DictReader(io.StringIO(table))] == [
        PROMPTS[0],
        *PROMPTS[2:],
    ]
    failing.update(count=0, errors={0: RuntimeError("bad shape")})
    with pytest.raises(RuntimeError, match="bad shape"):
        score(app, demo, "")


def test_a_scan_of_searches_resumes_with_the_masks(app, demo, failing):
    model, clip, _ = demo
    given = {"model": model, "clip": clip, "prompts": "\n".join(PROMPTS), "layers": UP}
    statistics = app.run("GBX_NeuronStatistics", prompts_file="", filename_prefix="", **given)[0]
    given |= {
        "threshold": 0.2,
        "target_score": 0.97,
        "criterion": "same_seed",
        "theta_start": 5.0,
        "time_budget": 0.0,
    }

    def localize(name):
        return app.run("GBX_NemoLocalize", statistics=statistics, scan_file=name, **given, **SMALL)

    failing.update(count=0, errors={1: RuntimeError("bad shape"), 2: KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        localize("glassbox/scan_3")
    failing.update(count=0, errors={})
    mask, _, table, report = localize("glassbox/scan_3")
    assert failing["count"] == 3 and "searched in an earlier run" in report
    whole = localize("")
    assert (mask.scales, table) == (whole[0].scales, whole[2])
    failing.update(count=0)
    assert localize("glassbox/scan_3")[0].scales == mask.scales and failing["count"] == 0


def test_a_scan_of_statistics_resumes_to_the_same_moments(app, demo, monkeypatch):
    half = app.module("nodes.neurons.neuron_statistics_comfy")
    monkeypatch.setattr(half, "_BATCH", 2)
    given = {
        "model": demo[0],
        "clip": demo[1],
        "layers": UP,
        "prompts_file": "",
        "filename_prefix": "",
    }
    texts, encode, errors, encoded = [*PROMPTS, "portrait"], half.encode, {}, []

    def failing_encode(clip, text):
        encoded.append(text)
        if text in errors:
            raise errors[text]
        return encode(clip, text)

    monkeypatch.setattr(half, "encode", failing_encode)

    def statistics(name, prompts=texts):
        encoded.clear()
        return app.run("GBX_NeuronStatistics", prompts="\n".join(prompts), scan_file=name, **given)

    whole, _, _ = statistics("", [texts[index] for index in (0, 2, 3, 4, 1)])
    errors.update({texts[1]: RuntimeError("bad shape"), texts[4]: KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        statistics("glassbox/scan_4")
    del errors[texts[4]]
    part, report, _ = statistics("glassbox/scan_4")
    assert part.count == 4 and f"Failed and skipped: {texts[1]} (RuntimeError: bad shape)" in report
    errors.clear()
    found, report, _ = statistics("glassbox/scan_4")
    assert encoded == [texts[1]] and "Failed" not in report
    assert statistics("glassbox/scan_4")[0].count == found.count == 5 and not encoded
    for path, moments in whole.layers.items():
        torch.testing.assert_close(found.layers[path].mean, moments.mean, rtol=1e-12, atol=0)
        torch.testing.assert_close(found.deviation(path), whole.deviation(path), rtol=1e-9, atol=0)


def test_rows_without_their_moments_are_measured_again(app, demo, monkeypatch):
    """As after a crash between the two files."""
    names = ("neuron_statistics_comfy", "statistics_file")
    half, statistics_file = (app.module(f"nodes.neurons.{name}") for name in names)
    given = {
        "model": demo[0],
        "clip": demo[1],
        "layers": UP,
        "prompts_file": "",
        "filename_prefix": "",
    }
    given |= {"prompts": "\n".join(PROMPTS), "scan_file": "glassbox/scan_5"}
    write = statistics_file.write
    monkeypatch.setattr(half, "_BATCH", 2)
    monkeypatch.setattr(
        statistics_file,
        "write",
        lambda found, path: (
            write(found, path) if found.count == 2 else (_ for _ in ()).throw(KeyboardInterrupt)
        ),
    )
    with pytest.raises(KeyboardInterrupt):
        app.run("GBX_NeuronStatistics", **given)
    monkeypatch.setattr(statistics_file, "write", write)
    resumed = app.run("GBX_NeuronStatistics", **given)[0]
    whole = app.run("GBX_NeuronStatistics", **{**given, "scan_file": ""})[0]
    assert resumed.count == 4
    assert all(
        torch.equal(resumed.layers[path].squares, of.squares) for path, of in whole.layers.items()
    )


def test_the_report_ranks_prompts_and_shows_both_models(app, demo, monkeypatch):
    nodes, sampled = app.module("nodes.neurons.nodes_report"), []

    def sample(model, vae, positive, negative, shape, count, seed, **how):
        sampled.append((model, shape, count, seed, how))
        return torch.zeros(1, 64, 64, 3)

    monkeypatch.setattr(nodes, "sample_images", sample)
    table, masked = (
        'prompt,score,is_memorized\na,0.5,False\n"b, c",0.9,True\nd,0.7,True\n',
        demo[0].clone(),
    )
    mask_module = app.module("nodes.neurons.mask")
    record = mask_module.SearchRecord(
        "b, c", {f"{UP}.transformer_blocks.0.attn2.to_v": (1, 5)}, True
    )
    mask = mask_module.NeuronMask({}, (record,))
    given = {
        "model": demo[0],
        "clip": demo[1],
        "vae": demo[2],
        "table": table,
        "threshold": 0.6,
        "seed": 3,
    }
    given |= {
        "steps": 2,
        "cfg": 3.0,
        "width": 64,
        "height": 64,
        "filename_prefix": "glassbox/report",
    }
    given |= {"image_count": 2, "mask": mask, "masked_model": masked}
    figure, report, found, sheet = app.run("GBX_MemorizationReport", **given)
    assert [model is masked for model, *_ in sampled] == [False, True, False, True]
    assert {(count, seed) for _, _, count, seed, _ in sampled} == {(1, 3)}
    assert found.splitlines() == [
        "prompt,score,is_memorized,neurons,converged",
        '"b, c",0.900000,True,2,True',
        "d,0.700000,True,,",
        "a,0.500000,False,,",
    ]
    assert report.startswith(
        "2 of 3 prompt(s) score over 0.600 and count as memorized.\n1 of them have a mask; 1 "
    )
    assert "Saved as glassbox/report_00001_.csv" in report
    assert figure.shape[0] == 1 and sheet.shape[2] > sheet.shape[1]
    app.run("GBX_MemorizationReport", **(given | {"image_count": 0}))
    assert len(sampled) == 4
    with pytest.raises(ValueError, match="holds no scores"):
        app.run("GBX_MemorizationReport", **(given | {"table": "not a table"}))
    for changes, message in (
        ({"vae": None}, "connect model, clip and vae"),
        ({"images_after": sheet}, "generates its own images"),
        ({"table": None, "mask": None}, "nothing to report"),
    ):
        with pytest.raises(ValueError, match=message):
            app.run("GBX_MemorizationReport", **(given | changes))


def test_the_report_says_which_images_are_gone_beside_a_generic_prompt(app, demo, monkeypatch):
    """Two prompts' masked images are that of the generic prompt, one's is the memorized one, the
    last shows no face.
    """
    nodes, similarity = (
        app.module("nodes.neurons.nodes_report"),
        app.module("nodes.neurons.image_similarity"),
    )
    masked, shown = (
        demo[0].clone(),
        {"gone": 0.2, "gone too": 0.2, "kept": 0.4, "broken": 0.6, "portrait": 0.8},
    )
    texts = [*shown]

    def sample(model, vae, positive, negative, shape, count, seed, **how):
        value = (
            shown[texts.pop(0)] if model is not masked else {0.2: 0.8, 0.4: 0.4, 0.6: 0.0}[last[-1]]
        )
        last.append(value)
        return torch.full((1, 64, 64, 3), value)

    last: list[float] = []
    monkeypatch.setattr(nodes, "sample_images", sample)
    monkeypatch.setattr(
        nodes,
        "image_judge",
        lambda *given: (
            None,
            lambda images: torch.stack(
                [torch.cos(images[:, 0, 0, 0] * 3), torch.sin(images[:, 0, 0, 0] * 3)], 1
            ),
        ),
    )
    read = lambda images: (torch.ones(len(images), 2), (images[:, 0, 0, 0] > 0).long())  # noqa: E731
    monkeypatch.setattr(nodes, "image_reader", lambda clip: read)
    table = (
        "prompt,score,is_memorized\ngone,0.95,True\ngone "
        "too,0.9,True\nkept,0.8,True\nbroken,0.7,True\n"
    )
    given = {
        "model": demo[0],
        "clip": demo[1],
        "vae": demo[2],
        "table": table,
        "threshold": 0.6,
        "seed": 3,
    }
    given |= {
        "steps": 2,
        "cfg": 3.0,
        "width": 64,
        "height": 64,
        "filename_prefix": "",
        "image_count": 4,
    }
    _, report, found, _ = app.run(
        "GBX_MemorizationReport", **given, masked_model=masked, generic_prompt="portrait"
    )
    head, *rows = (line.split(",") for line in found.splitlines())
    assert head[-7:] == [
        "similarity",
        "labels",
        "one_face",
        "generic_similarity",
        "generic_labels",
        "generic_one_face",
        "image",
    ]
    assert [row[-1] for row in rows] == [similarity.GONE, "gone", "not gone", similarity.BROKEN]
    assert (
        float(rows[0][5])
        == float(rows[0][8])
        == pytest.approx(torch.cos(torch.tensor(1.8)).item(), abs=1e-3)
    )
    assert float(rows[2][5]) == 1 and [row[7] for row in rows] == [
        "1.0000",
        "1.0000",
        "1.0000",
        "0.0000",
    ]
    assert "Of 4 images under the mask 2 are gone, 1 not gone, 1 broken" in report
    assert not texts  # the generic prompt is sampled once, by the untouched model


@pytest.mark.parametrize(
    "text", ["portrait (red hair)", "portrait, red hair)(", "a \\(b\\) (c:1.3)"]
)
def test_brackets_are_literal(app, demo, text):
    """What the encoder is given is what CLIP Text Encode is given for escaped brackets, without
    weights.
    """
    clip, encoding = demo[1], app.module("nodes.host.text_encoding")
    tokens = encoding.literal(clip).tokenize(text)
    (chunk,) = next(iter(tokens.values()))
    assert {weight for _, weight in chunk} == {1.0}
    assert tokens == clip.tokenize(text.replace("(", r"\(").replace(")", r"\)"))
    assert clip.tokenize("portrait") == encoding.literal(clip).tokenize("portrait")


def test_a_prompt_with_brackets_scores_by_its_syntax(app, demo):
    def scored(prompt, syntax):
        given = {
            "prompts": prompt,
            "prompts_file": "",
            "threshold": 0.0,
            "text_norm": False,
            "filename_prefix": "",
        }
        how = {"prompt_syntax": syntax, **given, **SMALL}
        return app.run("GBX_MemorizationScore", model=demo[0], clip=demo[1], **how)[1]

    weighted = scored("portrait, (red hair:3)", "weighted")
    assert weighted != scored("portrait, (red hair:3)", "literal")
    assert scored("portrait, red hair", "weighted") == scored("portrait, red hair", "literal")
