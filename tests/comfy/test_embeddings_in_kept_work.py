"""Work that is kept under a name, after an embedding that its prompts name was rewritten: refused
by a sentence.

Three rewrites, as in test_files_behind_inputs.py, each met by a fresh executor, as after a restart
of the server.
"""

import os
from pathlib import Path

import pytest
import resumable
import torch
from safetensors.torch import save_file

_NAME = "gbxstyle"
_TEXT = f"portrait embedding:{_NAME}"
_PROMPTS = "\n".join(
    [_TEXT, "portrait of mirella thrum", "portrait of bandor pyke", "portrait, red hair"]
)
#: What each node that encodes texts and keeps work is given.
INPUTS = {
    "GBX_MemorizationScore": {"prompts": _PROMPTS},
    "GBX_CalibrateThreshold": {"prompts": _PROMPTS},
    "GBX_NeuronStatistics": {"prompts": _PROMPTS},
    "GBX_TrainSparseAutoencoder": {"prompts": _PROMPTS},
    "autoencoder of images": {
        "prompts": _TEXT,
        "image_folder": "resumable images",
        "vae": ["world", 2],
    },
    "GBX_NemoLocalize": {"prompts": "\n".join([_TEXT, "portrait of mirella thrum"])},
    "anchor of a search": {
        "anchor": _TEXT,
        "method": "attribution",
        "prompts": "portrait of mirella thrum",
    },
    "GBX_OptimizeNeuronMask": {"ordinary_prompts": _PROMPTS},
    "anchor of a mask": {"anchor": _TEXT},
    "GBX_TrainLoraImmiscible": {"clip": ["world", 1], "captions": ["text", 0]},
    "GBX_TrainSlider": {"increase": _TEXT},
    "GBX_W2WTrainSpace": {"prompt": _TEXT},
}
NODES = {
    "autoencoder of images": "GBX_TrainSparseAutoencoder",
    "anchor of a search": "GBX_NemoLocalize",
    "anchor of a mask": "GBX_OptimizeNeuronMask",
}
#: How the embedding is rewritten: its vectors, and whether the time is set back.
WAYS = {"other size": (2, False), "same size": (1, False), "same size and time": (1, True)}
_TEXTS = {"text": ("PrimitiveStringMultiline", {"value": _TEXT})}


@pytest.fixture(scope="module")
def embedding(app, tmp_path_factory):
    """Writes the embedding: vectors of a seed, on request with the times of the file before."""
    import folder_paths

    resumable.make_files(app, tmp_path_factory.mktemp("kept"))
    folder = tmp_path_factory.mktemp("embeddings")
    folder_paths.add_model_folder_path("embeddings", str(folder), is_default=True)
    path = folder / f"{_NAME}.safetensors"
    width = app.module("nodes.demo.architecture").TEXT["hidden_size"]

    def write(seed: int, vectors: int, keep_time: bool = False) -> Path:
        times = path.stat() if keep_time else None
        numbers = 5 * torch.randn(vectors, width, generator=torch.Generator().manual_seed(seed))
        save_file({"emb_params": numbers}, path)
        if times is not None:
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        return path

    return write


def test_the_table_has_every_node_that_encodes_texts_and_keeps_work(app):
    encoding = set()
    for node in resumable.NODES:
        kinds = {field.get_io_type() for field in app.classes[node].GET_SCHEMA().inputs}
        if "CLIP" in kinds:
            encoding.add(node)
    assert encoding == {NODES.get(case, case) for case in INPUTS}


@pytest.mark.parametrize("case", INPUTS)
def test_a_rewritten_embedding_is_refused(app, embedding, monkeypatch, case):
    node, given = NODES.get(case, case), INPUTS[case]
    name = f"embedded {case}"
    embedding(0, 1)
    first = resumable.Queue(app, node).run(name, monkeypatch, _TEXTS, **given)
    again = resumable.Queue(app, node)
    assert resumable.equal(again.run(name, monkeypatch, _TEXTS, **given), first)
    for number, (vectors, keep_time) in enumerate(WAYS.values(), 1):
        embedding(number, vectors, keep_time)
        with pytest.raises(resumable.Failed, match="was made with another "):
            resumable.Queue(app, node).run(name, monkeypatch, _TEXTS, **given)
        embedding(0, 1)
    assert resumable.equal(
        resumable.Queue(app, node).run(name, monkeypatch, _TEXTS, **given), first
    )


def test_a_rewritten_embedding_changes_what_is_made(app, embedding, monkeypatch):
    """The same node in one server, without a file: no name keeps the result, and the cache may not
    either.
    """
    queue = resumable.Queue(app, "GBX_MemorizationScore")
    embedding(0, 1)
    tables = [queue.run("", monkeypatch, prompts=_PROMPTS)]
    queue.run("", monkeypatch, prompts=_PROMPTS)
    assert queue.cached
    for number, (vectors, keep_time) in enumerate(WAYS.values(), 1):
        embedding(number, vectors, keep_time)
        tables.append(queue.run("", monkeypatch, prompts=_PROMPTS))
        assert not queue.cached
    assert len(set(map(str, tables))) == 4


def test_prompts_with_embeddings_may_join_a_scan(app, embedding, monkeypatch):
    embedding(0, 1)
    resumable.Queue(app, "GBX_MemorizationScore").run(
        "joined", monkeypatch, prompts="portrait, red hair"
    )
    queue = resumable.Queue(app, "GBX_MemorizationScore")
    queue.run("joined", monkeypatch, prompts=f"portrait, red hair\n{_TEXT}")
    fresh = resumable.Queue(app, "GBX_MemorizationScore")
    fresh.run("fresh", monkeypatch, prompts=f"portrait, red hair\n{_TEXT}")
    assert 0 < queue.work < fresh.work
