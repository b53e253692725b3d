"""The measures of the study of variety, where their values are known."""

import numpy as np
import pytest

from studies.conditioning import variety


def test_vendi_score_counts_images_that_differ():
    """arXiv 2210.02410: n for n that have nothing in common, 1 for equal ones, k for k groups."""
    assert variety.vendi_score(np.eye(7)) == pytest.approx(7)
    assert variety.vendi_score(np.ones((7, 7))) == pytest.approx(1)
    groups = np.kron(np.eye(3), np.ones((2, 2)))
    assert variety.vendi_score(groups) == pytest.approx(3)


def test_vendi_score_of_two_by_hand():
    """Eigenvalues of [[1, a], [a, 1]] / 2 are (1 + a) / 2 and (1 - a) / 2."""
    high, low = 0.8, 0.2
    expected = np.exp(-(high * np.log(high) + low * np.log(low)))
    assert variety.vendi_score(np.array([[1, 0.6], [0.6, 1]])) == pytest.approx(expected)


def test_pairs_are_counted_once_each():
    labels = np.zeros((3, 12), int)
    labels[2, :4] = 1
    features = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    found = variety.variety(labels, features)
    columns = len(variety._COLUMNS)
    expected = (0 + 2 * sum(column < 4 for column in variety._COLUMNS) / columns) / 3
    assert found["attributes"] == pytest.approx(expected)
    assert found["features"] == pytest.approx(2 / 3)
    assert 1 < found["vendi"] < 2
