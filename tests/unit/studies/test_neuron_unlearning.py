"""The study of unlearning: what it counts, on measurements that are made up."""

import numpy as np
import pytest

pytest.importorskip("python_avatars")
from glassbox.nodes.neurons.unlearning import UnlearningSettings

from studies.neurons import unlearning

ROWS = {
    "a": {
        "NeMo mask": [0.5, 0.8],
        "unlearning": [0.4, 0.5, 0.9],
        "plain fine-tuning": [0.4, 0.7, 0.8],
    },
    "b": {
        "NeMo mask": [0.7, 0.9],
        "unlearning": [0.5, 0.6, 0.7],
        "plain fine-tuning": [0.4, 0.9, 0.6],
    },
}


@pytest.fixture
def numbers(monkeypatch, tmp_path):
    class World:
        model, names = "untouched", {"verbatim": ["piloted", "a", "b"]}

        def __init__(self, seeds, ordinary):
            pass

        def statistics(self, layers):
            return None

    rows = {name: {**row, "control image": [0.45]} for name, row in ROWS.items()}
    monkeypatch.setattr(unlearning.results, "KEPT", tmp_path)
    monkeypatch.setattr(unlearning, "World", World)
    monkeypatch.setattr(unlearning, "alignment", lambda world, model, count: np.array([0.9, 1.0]))
    monkeypatch.setattr(unlearning, "of_name", lambda world, text, *_: rows[text])
    return unlearning.measure(False)


def test_similarities_are_averaged_over_names(numbers):
    assert numbers["similarity without an attack, NeMo mask"]["value"] == pytest.approx(0.6)
    assert numbers["similarity under attack, unlearning"]["value"] == pytest.approx(0.55)
    assert numbers["similarity under attack, control image"]["value"] == pytest.approx(0.45)
    assert "similarity without an attack, control image" not in numbers


def test_differences_are_paired_by_name(numbers):
    found = numbers["difference under attack, unlearning less NeMo mask"]
    assert found["value"] == pytest.approx(-0.3)
    found = numbers["difference under attack, unlearning less plain fine-tuning"]
    assert (found["value"], found["n"]) == pytest.approx((-0.25, 2))


def test_alignment_is_compared_on_the_same_captions(numbers):
    assert numbers["prompt alignment, nothing"]["value"] == pytest.approx(0.95)
    assert numbers["prompt alignment, unlearning less nothing"]["value"] == pytest.approx(-0.15)
    assert numbers["prompt alignment, plain fine-tuning"]["value"] == pytest.approx(0.7)


def test_the_study_measures_the_default_settings():
    default, training = UnlearningSettings(), unlearning.TRAINING
    assert default.attack_steps == unlearning.ATTACK_STEPS
    for name in ("steps", "learning_rate", "batch_size", "keep", "restart"):
        assert training[name] == getattr(default, name)
    assert training["noise_samples"] == default.attack.noise_samples
