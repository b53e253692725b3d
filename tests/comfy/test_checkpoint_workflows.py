"""Workflows for real checkpoints (sd15_, sdxl_, sd3_, flux_, zimage_ ...) on random weights of
their architecture.
"""

import checkpoint_runs
import pytest
import reduced
import repository
import todays_networks

from tools.launcher import workflow
from tools.workflows import canvas


@pytest.fixture
def checkpoint_nodes(app):
    """object_info of ComfyUI's own nodes in this process, as far as these workflows need it."""
    return _Described(app.classes)


class _Described(dict):
    """Describes a node class on demand as /object_info does."""

    def __init__(self, classes):
        super().__init__()
        self._classes = classes

    def get(self, name, default=None):
        return self[name] if name in self._classes else default

    def __contains__(self, name):
        return name in self._classes

    def __missing__(self, name):
        node = self._classes[name]
        if hasattr(node, "GET_NODE_INFO_V1"):
            return node.GET_NODE_INFO_V1()
        return {
            "input": node.INPUT_TYPES(),
            "output": list(node.RETURN_TYPES),
            "output_name": list(getattr(node, "RETURN_NAMES", node.RETURN_TYPES)),
            "display_name": name,
        }


def _prompt_to_image(w):
    """The plainest workflow of a checkpoint, as an example of those to come."""
    w.note("Example", "One.", "Two.", "Three.")
    w.group("All")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name=f"{w.name}.safetensors")
    positive = w.add("CLIPTextEncode", clip=clip, text="a (red:1.2) house")
    negative = w.add("CLIPTextEncode", clip=clip, text="")
    latent = w.add(
        "EmptyLatentImage" if w.name != "flux" else "EmptySD3LatentImage", width=1024, height=1024
    )
    samples = w.add(
        "KSampler", model=model, positive=positive, negative=negative, latent_image=latent, cfg=2.0
    )
    w.add("PreviewImage", images=w.add("VAEDecode", samples=samples, vae=vae))


def _run(saved, architecture, info, monkeypatch, models):
    prompt = checkpoint_runs.cut(workflow.to_prompt(saved, info))
    checkpoint_runs.offer_files(prompt, models, architecture)
    checkpoint_runs.swap_loaders(monkeypatch, architecture)
    return checkpoint_runs.execute(prompt)


@pytest.mark.parametrize("architecture", reduced.ARCHITECTURES)
def test_the_machinery_runs_each_architecture(
    checkpoint_nodes, architecture, monkeypatch, tmp_path
):
    saved = canvas.make(architecture, _prompt_to_image, checkpoint_nodes)
    shown = _run(saved, architecture, checkpoint_nodes, monkeypatch, tmp_path)
    assert [len(output["images"]) for output in shown.values()] == [1]


def test_a_file_that_is_not_there_is_refused(checkpoint_nodes):
    prompt = workflow.to_prompt(
        canvas.make("absent", _prompt_to_image, checkpoint_nodes), checkpoint_nodes
    )
    with pytest.raises(AssertionError, match="not in list"):
        checkpoint_runs.validate(prompt)


#: Krea 2 came after ComfyUI 0.3.75: its workflows are those of Z-Image with other files.
_WITHOUT_NETWORK = ("krea2",)


def _known_architecture(path):
    architecture = checkpoint_runs.architecture(path)
    if architecture in _WITHOUT_NETWORK:
        pytest.skip("the network is newer than the ComfyUI that these tests build in small")
    return architecture


def _each(paths):
    return pytest.mark.parametrize("path", paths, ids=repository.name_of)


_TWINS = list(filter(repository.has_a_twin, repository.CHECKPOINT_WORKFLOWS))


@_each([path for path in repository.CHECKPOINT_WORKFLOWS if path not in _TWINS])
def test_checkpoint_workflow_runs(checkpoint_nodes, path, monkeypatch, tmp_path):
    architecture = _known_architecture(path)
    assert architecture in (*reduced.ARCHITECTURES, *todays_networks.ARCHITECTURES)
    assert _run(workflow.load(path), architecture, checkpoint_nodes, monkeypatch, tmp_path)


@_each(_TWINS)
def test_a_twin_is_accepted_by_the_queue(checkpoint_nodes, path, tmp_path):
    """It has the nodes of a workflow that runs above, with other files and values."""
    architecture = _known_architecture(path)
    prompt = checkpoint_runs.cut(workflow.to_prompt(workflow.load(path), checkpoint_nodes))
    checkpoint_runs.offer_files(prompt, tmp_path, architecture)
    checkpoint_runs.validate(prompt)
