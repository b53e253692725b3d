"""Small tokenizers in the formats of real ones, for networks whose file brings the tokenizer."""

from __future__ import annotations

import base64
import functools
import io
import json

import torch

_SENTENCES = 20  # copies of each order of the words, so that every word becomes a token
_PIECES = 2000
_SPECIAL = 1000  # ids that Mistral's format keeps in front for special tokens
_WORDS = ["a", "red", "cat", "and", "blue", "dog", "one", "man", "photo", "of", "on"]


def _sentences() -> list[str]:
    orders = [" ".join(_WORDS[first:] + _WORDS[:first]) for first in range(len(_WORDS))]
    return orders * _SENTENCES


def _as_tensor(data: bytes) -> torch.Tensor:
    """The bytes (N,) uint8 as a checkpoint holds them."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


@functools.cache
def sentence_pieces() -> torch.Tensor:
    """A SentencePiece model, as of Gemma and mT5."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*_sentences(), *map(chr, range(33, 127))]),
        model_writer=model,
        vocab_size=_PIECES,
        hard_vocab_limit=False,
        model_type="bpe",
        byte_fallback=True,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        add_dummy_prefix=False,
        minloglevel=2,
    )
    return _as_tensor(model.getvalue())


@functools.cache
def tekken() -> torch.Tensor:
    """Mistral's format, with a token for each byte and each word."""
    tokens = [bytes([byte]) for byte in range(256)]
    for word in _WORDS:
        spelled = f" {word}".encode()
        tokens += [spelled[:end] for end in range(2, len(spelled) + 1)]
    unique = list(dict.fromkeys(tokens))
    vocabulary = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate(unique)
    ]
    special = [
        {"rank": rank, "token_str": name}
        for rank, name in enumerate(["<unk>", "<s>", "</s>", "[INST]", "[/INST]"])
    ]
    special.append({"rank": 11, "token_str": "<pad>"})
    described = {
        "config": {
            "pattern": r"[^\s]+|\s+",
            "num_vocab_tokens": len(vocabulary),
            "default_vocab_size": _SPECIAL + len(vocabulary),
            "default_num_special_tokens": _SPECIAL,
            "version": "v3",
        },
        "vocab": vocabulary,
        "special_tokens": special,
    }
    return _as_tensor(json.dumps(described).encode())


@functools.cache
def harmony() -> torch.Tensor:
    """GPT-OSS's format: bytes and words, and the special tokens of its chats."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_PIECES,
        special_tokens=["<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sentences(), trainer)
    return _as_tensor(tokenizer.to_str().encode())
