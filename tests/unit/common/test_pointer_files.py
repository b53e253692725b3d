"""What lies in place of a file: a Git LFS pointer, a web page, nothing. Every reader says which."""

from __future__ import annotations

import file_kinds
import pytest
from file_kinds import FileKinds, suffix_of

POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)
CONTENTS = {
    "pointer": (POINTER, r"is a Git LFS pointer and not the file itself: run git lfs pull"),
    "page": (b"\n<!DOCTYPE html><p>404", "because it is a web page, not the download itself"),
    "nothing": (b"", "because it is empty"),
}
#: Kinds of safetensors files that come from elsewhere.
KINDS = ("space", "lora", "activations", "autoencoder", "direction", "statistics")


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    return FileKinds(file_kinds.build_space(tmp_path_factory.mktemp("space")))


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_lies_in_place_of_a_file_is_named(readers, tmp_path, kind, content):
    path = tmp_path / f"named{suffix_of(kind)}"
    assert path.suffix == ".safetensors"
    bytes_, sentence = CONTENTS[content]
    path.write_bytes(bytes_)
    with pytest.raises(ValueError, match=sentence) as caught:
        getattr(readers, f"read_{kind}")(path)
    message = str(caught.value)
    assert path.name in message
    assert "\n" not in message
