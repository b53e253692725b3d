"""What it takes to extend the pack: small additions as edits of its files, by which
`tools/gates.py` counts the files.

tests/unit/tools/test_gates.py makes each edit in a copy and runs the program that uses what was
added.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

#: Files that hold what a person reads; they come on top of the others.
TEXTS = ("locales/", "web/", "docs/")


@dataclass(frozen=True)
class Trial:
    """An addition: by file, pairs of a text and what it is replaced by; and a program that fails
    without it.

    The program knows the pack as the package ``edited``.
    """

    edits: dict[str, list[tuple[str, str]]]
    program: str

    @property
    def files(self) -> list[str]:
        """The files to touch, without those that hold texts alone."""
        return [name for name in self.edits if not name.startswith(TEXTS)]

    def apply(self, root: Path, copy: Path) -> None:
        """Copy nodes/ and kernels/ of a repository with the edits made; raises ValueError where one
        has no place.
        """
        for folder in ("nodes", "kernels"):
            shutil.copytree(
                root / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__")
            )
        for name, pairs in self.edits.items():
            text = (root / name).read_text("utf-8")
            for old, new in pairs:
                if text.count(old) != 1:
                    raise ValueError(
                        f"{name} has {text.count(old)} places {old!r}: write the trial again."
                    )
                text = text.replace(old, new)
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_text(text, "utf-8")


TRIALS = {
    "the guidance formula": Trial(
        {
            "nodes/weights/identity_guidance.py": [
                (
                    "    terms = [(identity, point)] if",
                    "    edit = identity * edit\n    terms = [(identity, point)] if",
                )
            ]
        },
        """
from edited.nodes.weights import identity_guidance
identity_guidance.check_same_space = lambda *points: None
terms = identity_guidance.guidance_terms("point", "edited", 0.5, 0.5)
assert terms == (0.5, [(0.25, "point"), (0.25, "edited")])
""",
    ),
    "a direction fitter": Trial(
        {
            "nodes/weights/directions.py": [
                ('    RIDGE = "ridge"\n', '    RIDGE = "ridge"\n    COVARIANCE = "covariance"\n'),
                (
                    "    FitMethod.RIDGE: fit_ridge,\n",
                    "    FitMethod.RIDGE: fit_ridge,\n    FitMethod.COVARIANCE: lambda numbers, "
                    "target: (target - target.mean()) @ numbers / len(target),\n",
                ),
            ],
            "nodes/weights/nodes_labels.py": [
                (
                    "linear classifiers of scikit-learn. ",
                    "linear classifiers of scikit-learn. covariance: from the covariances. ",
                )
            ],
            "locales/zh/nodeDefs.json": [
                ("svm 和 logistic_regression", "covariance, svm 和 logistic_regression")
            ],
        },
        """
import numpy as np
from edited.nodes.weights import directions
numbers, target = np.array([[2.0, 0.5], [0.0, 1.0]]), np.array([1.0, 0.0])
assert directions.fit_normal(numbers, target, "covariance").tolist() == [0.5, -0.125]
""",
    ),
    "a network's blocks and attention": Trial(
        {
            "nodes/activations/catalog_transformer.py": [
                (
                    "_BLOCK_READERS = (\n",
                    "def _trial(block: Any) -> Iterator[ActivationSpec]:\n"
                    '    yield _part("out", "", block.mix.out_features)\n\n\n'
                    '_BLOCK_READERS = (\n    (("mix.weight", "mix.bias"), _trial),\n',
                )
            ]
        },
        """
from torch import nn
from edited.nodes.activations.catalog_transformer import transformer_specs
network = nn.Module()
network.patch_size, network.blocks = 2, nn.ModuleList([nn.Module(), nn.Module()])
for block in network.blocks:
    block.mix = nn.Linear(4, 6)
assert [spec.id for spec in transformer_specs(network)] == ["vit-block0-out", "vit-block1-out"]
""",
    ),
    "a detector of memorization": Trial(
        {
            "nodes/neurons/detectors.py": [
                (
                    '    "local_norm": Detector(',
                    '    "spread": Detector(\n'
                    '        ("spread",), lambda of: of.difference.flatten(1).std(1), once=1\n'
                    "    ),\n"
                    '    "local_norm": Detector(',
                )
            ],
            "nodes/neurons/nodes_detection.py": [
                (
                    '                io.Boolean.Input(\n                    "sharpness",',
                    '                io.Boolean.Input(\n                    "spread",'
                    ' default=False, optional=True, tooltip="It."\n                ),\n'
                    '                io.Boolean.Input(\n                    "sharpness",',
                )
            ],
        },
        """
import torch
from edited.nodes.neurons import detectors
noise = torch.randn(3, 2, 8, 9, generator=torch.Generator().manual_seed(0))
score = detectors.score_with_detectors(
    lambda x, t: 2 * x, lambda x, t: x, noise, 961, {"spread": True}
)
assert score.detectors.keys() == {"spread"} and "spread" in detectors.INPUTS
assert abs(score.detectors["spread"] - float(noise.flatten(1).std(1).mean())) < 1e-6
""",
    ),
    "a rescale law": Trial(
        {
            "nodes/conditioning/noise_rescale.py": [
                (
                    "def describe_rescale(",
                    "def scaled_logarithm(factor: float, sigma: torch.Tensor) -> torch.Tensor:\n"
                    "    return sigma ** factor\n\n\ndef describe_rescale(",
                )
            ],
            "nodes/conditioning/noise_rescale_comfy.py": [
                (
                    "    if not isinstance(base, _NOISE_SAMPLES) or",
                    "    if isinstance(base, comfy.model_sampling.EPS):\n"
                    "        law = noise_rescale.scaled_logarithm\n"
                    "    if not isinstance(base, _NOISE_SAMPLES) or",
                )
            ],
        },
        """
import torch
from edited.nodes.conditioning import noise_rescale
assert noise_rescale.scaled_logarithm(0.5, torch.tensor([4.0, 9.0])).tolist() == [2.0, 3.0]
""",
    ),
}
