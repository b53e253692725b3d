"""Words of a hundred kinds of prompts and their tokens, in the tokenizers of CLIP, T5 and Qwen, and
embeddings by name.

The words are written down in tests/data/prompt_words.json. That a word has the right tokens is read
from the tokenizer's own decoding of them, which knows nothing of how they were found.
"""

import importlib
import json
import types
import unicodedata
from pathlib import Path

import pytest
import torch

PROMPTS = json.loads((Path(__file__).parents[2] / "data/prompt_words.json").read_text("utf-8"))
TOKENIZERS = {
    "clip": ("comfy.sd1_clip", "SD1Tokenizer", "clip_l"),
    "t5": ("comfy.text_encoders.pixart_t5", "PixArtTokenizer", "clip_t5xxl"),
    "qwen": ("comfy.text_encoders.qwen_image", "QwenImageTokenizer", "qwen25_7b"),
}
REFUSED = 2  # of the hundred, at most


@pytest.fixture(scope="module")
def reader(app):
    read_prompt = app.module("nodes.host.text_encoding").read_prompt

    def positions(clip, prompt, words):
        read = read_prompt(clip, prompt)
        return read.find(words), read.length

    return positions


def text_model(name, **given):
    module, kind, own = TOKENIZERS[name]
    tokenizer = getattr(importlib.import_module(module), kind)(**given)
    clip = types.SimpleNamespace(
        tokenizer=tokenizer,
        tokenize=tokenizer.tokenize_with_weights,
        cond_stage_model=types.SimpleNamespace(),
    )
    return clip, getattr(tokenizer, own)


def tokens_at(clip, prompt, positions):
    entries = [entry[0] for chunk in next(iter(clip.tokenize(prompt).values())) for entry in chunk]
    return [entries[position] for position in positions]


def plain(text):
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return "".join(one for one in decomposed if one.isalnum() or one == "_")


@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_word_of_a_hundred_prompts_is_found_with_its_tokens(reader, name):
    clip, own = text_model(name)
    unknown = getattr(own.tokenizer, "unk_token_id", None)
    refused, wrong = [], []
    for case in PROMPTS:
        try:
            found, _ = reader(clip, case["prompt"], "")
        except ValueError as error:
            refused.append((case["prompt"], str(error)))
            continue
        if list(found) != case["words"]:
            wrong.append((case["prompt"], list(found)))
            continue
        for word, positions in found.items():
            ids = tokens_at(clip, case["prompt"], positions)
            again = plain(own.tokenizer.decode(ids))
            times = again.count(plain(word)) if plain(word) else 1
            if (unknown not in ids or name == "clip") and (
                not times or again != plain(word) * times
            ):
                wrong.append((case["prompt"], word, again))
    assert not wrong, (len(wrong), wrong)
    assert len(refused) <= REFUSED, refused


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize(
    ("prompt", "words", "expected"),
    [
        ("a sign that says 'stop'", "'stop', sign", ["'stop'", "sign"]),
        ("a red cat and a red dog", "red cat", ["red cat"]),
        ("saber \\(fate\\), hat", "saber \\(fate\\)", ["saber \\(fate\\)"]),
        ("a (red hair:1.3) girl", "(red hair:1.3)", ["(red hair:1.3)"]),
        ("红发女孩\uff0c帽子", "女孩\uff0c帽子", ["女孩", "帽子"]),
    ],
)
def test_named_words(reader, name, prompt, words, expected):
    clip, _ = text_model(name)
    found, _ = reader(clip, prompt, words)
    assert list(found) == expected and all(found.values())


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_part_of_a_word_is_not_that_word(reader, name):
    clip, _ = text_model(name)
    with pytest.raises(ValueError, match="'art' is not in the prompt"):
        reader(clip, "party hat", "art")


def test_tokens_around_the_text(reader):
    assert reader(text_model("clip")[0], "a red cat", "<start>, cat, <end>")[0] == {
        "<start>": [0],
        "cat": [3],
        "<end>": [4],
    }
    assert reader(text_model("t5")[0], "a red cat", "<end>")[0] == {"<end>": [4]}
    with pytest.raises(ValueError, match="<start>"):
        reader(text_model("t5")[0], "a red cat", "<start>")


@pytest.mark.parametrize(
    "prompt", ["a embedding:mine hat", "embedding:mine, hat", "a (embedding:mine:1.2) hat"]
)
def test_an_embedding_is_a_word_by_its_name(reader, tmp_path, prompt):
    torch.save({"emb_params": torch.randn(3, 768)}, tmp_path / "mine.pt")
    clip, _ = text_model("clip", embedding_directory=str(tmp_path))
    found, length = reader(clip, prompt, "")
    first = found["embedding:mine"][0]
    assert found["embedding:mine"] == [first, first + 1, first + 2] and length == 77
    assert all(torch.is_tensor(one) for one in tokens_at(clip, prompt, found["embedding:mine"]))
    assert reader(clip, prompt, "embedding:mine, hat")[0]["hat"] == found["hat"]


def test_a_word_across_two_chunks(reader):
    clip, _ = text_model("clip")
    found, length = reader(clip, "portrait, " * 40 + "hat", "hat, portrait")
    assert length == 154 and found["hat"][0] > 78 and len(found["portrait"]) == 40


def test_a_template_that_an_empty_prompt_lacks_is_cut_away(reader):
    """As Lens's, whose words are those of the prompt, too."""
    clip, own = text_model("clip")
    real = clip.tokenize

    def tokenize(text, **given):
        return real(f"describe a cat: {text} and a cat", **given) if text else {"l": [[]]}

    clip.tokenize = tokenize
    positions, length = reader(clip, "a dog, a cat", "cat, dog")
    tokens = {word: tokens_at(clip, "a dog, a cat", places) for word, places in positions.items()}
    names = {word: [own.inv_vocab[token] for token in each] for word, each in tokens.items()}
    assert names == {"cat": ["cat</w>"], "dog": ["dog</w>"]}
    assert positions == {"cat": [9], "dog": [6]} and length == 77
