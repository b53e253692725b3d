"""Prompt lists, the calibrated threshold and layer ablation."""

import numpy as np
import pytest
from glassbox.nodes.neurons import layer_ablation, nemo_inputs, score_threshold
from glassbox.nodes.neurons.layer_ablation import LayerEffect
from glassbox.nodes.neurons.neuron_layers import NeuronLayer
from sklearn.metrics import roc_auc_score
from toy_neurons import LAYERS, Toy


def test_empty_lines_are_no_prompts():
    assert nemo_inputs.parse_prompts(" a cat \n\n a dog") == ["a cat", "a dog"]


def test_too_few_prompts_are_a_sentence_where_a_number_is_needed(tmp_path):
    (tmp_path / "a.txt").write_text("three")
    assert nemo_inputs.collect_prompts(" \n") == []
    both = nemo_inputs.collect_prompts("one\ntwo", tmp_path / "a.txt", least=3)
    assert both == ["one", "two", "three"]
    with pytest.raises(ValueError, match="lines needs 3 or more prompts and has 2: write one"):
        nemo_inputs.collect_prompts("one\ntwo", least=3, name="lines")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", "one\n\ntwo, three\n"),
        ("a.csv", 'Caption,URL\none,x\n"two, three",y\n'),
        ("a.csv", "URL;prompt\nx;one\ny;two, three\n"),
        ("a.csv", '\ufeffcaption\none\n"two, three"\n'),
    ],
)
def test_prompts_are_read_from_files(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert nemo_inputs.read_prompts(tmp_path / name) == ["one", "two, three"]


def test_prompts_are_read_from_a_folder(tmp_path):
    for name, text in (("b.txt", "two,\nthree"), ("a.txt", "one"), ("c.png", "x")):
        (tmp_path / name).write_text(text)
    assert nemo_inputs.read_prompts(tmp_path) == ["one", "two, three"]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", b"caption\n" + b"x" * 200_000, "as a table"),
        ("a.csv", b"x,y\n1,2\n", "no column"),
        ("a.json", b"[]", "not a list"),
        ("a.txt", b"\xff\xfe\x00", "UTF-8"),
    ],
)
def test_files_without_prompts_are_refused(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        nemo_inputs.read_prompts(tmp_path / name)


def test_the_threshold_is_mean_and_deviation():
    scores = np.random.default_rng(0).normal(0.358, 0.07, 400).tolist()
    found = score_threshold.calibrate(scores, 1.0, [0.9, 0.8])
    assert found.value == pytest.approx(np.mean(scores) + np.std(scores, ddof=1))
    fraction, low, high = found.false_positives
    assert low < 0.159 < high and low < fraction < high
    assert found.auroc == 1.0 and score_threshold.calibrate(scores).auroc is None
    with pytest.raises(ValueError, match="three ordinary prompts"):
        score_threshold.calibrate([0.1, 0.2])


def test_equal_scores_give_no_false_positive():
    assert score_threshold.calibrate([0.5, 0.5, 0.5]).false_positives[0] == 0


def test_auroc_is_that_of_scikit_learn():
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 8, 20), rng.integers(0, 6, 30)
    expected = roc_auc_score([1] * 20 + [0] * 30, [*a, *b])
    assert score_threshold.auroc(tuple(a), tuple(b)) == pytest.approx(expected)


def test_ablation_of_the_toy():
    toy = Toy()
    untouched, effects = layer_ablation.ablate_layers(toy, toy.noise(), list(LAYERS))
    assert [effect.name for effect in effects][:4] == ["down", "middle", "down, middle", "all"]
    by_name = {effect.name: effect for effect in effects}
    assert by_name["all"].score < untouched
    assert all(effect.same_seed <= 1 + 1e-6 for effect in effects)
    again = layer_ablation.average_effects([(untouched, effects), (untouched, effects)])
    assert again[1][0].score == pytest.approx(effects[0].score)


def effects(changes, parts):
    """Effects that change the first step by so much each, alone and in their parts."""
    layers = [NeuronLayer(f"{part}{number}", part, 4) for number, part in enumerate(parts)]
    made = [
        LayerEffect(layer.name, (layer,), 0.5, 1 - change)
        for layer, change in zip(layers, changes, strict=True)
    ]
    for name, wanted in (
        ("down, middle", ("down", "middle")),
        ("up", ("up",)),
        ("all", ("down", "middle", "up")),
    ):
        chosen = tuple(layer for layer in layers if layer.part in wanted)
        total = sum(
            change for layer, change in zip(layers, changes, strict=True) if layer in chosen
        )
        made.append(LayerEffect(name, chosen, 0.5, 1 - total))
    return made


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((0.3, 0.05, 0.2, 0.01), ["down0", "middle2"]),
        ((0.01, 0.0, 0.01, 0.3), ["up3"]),
        ((0.2, 0.0, 0.0, 0.3), None),
    ],
)
def test_layers_to_search_are_suggested(changes, expected):
    found = layer_ablation.suggest_layers(effects(changes, ("down", "down", "middle", "up")))
    assert [layer.path for layer in found] == (expected or ["down0", "up3"])
