"""The AUROC that the study of detectors draws thousands of times."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from studies.neurons.detection import area_under_curve


@pytest.mark.parametrize("ties", [False, True])
def test_auroc_is_that_of_scikit_learn(ties):
    rng = np.random.default_rng(1)
    for count in (2, 9, 40):
        labels = rng.permutation([1] * count + [0] * (count + 3))
        values = labels * 0.3 + rng.normal(size=len(labels))
        values = values.round(1) if ties else values
        rows = np.stack([labels, values], axis=1)
        assert area_under_curve(rows) == pytest.approx(roc_auc_score(labels, values), abs=1e-12)


def test_a_draw_without_one_of_the_kinds_counts_as_separated():
    assert area_under_curve(np.array([(1, 0.2), (1, 0.4)])) == 1.0
