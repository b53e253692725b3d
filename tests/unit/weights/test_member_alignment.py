"""Sources become members where their layers are the majority's."""

import pytest
from glassbox.nodes.common.lora_reader import LoraHeader
from glassbox.nodes.weights.member_alignment import align, read_candidates
from glassbox.nodes.weights.member_store import MemberSource

MATRIX = ((4,), (8,))
KERNEL = ((4, 1, 1), (8, 1, 1))


def header(shapes, text=None, base="", stems=None):
    """A header with these shapes by layer."""
    return LoraHeader(
        shapes=shapes,
        text=text or {},
        metadata={"ss_base_model_version": base} if base else {},
        stems=stems or {},
    )


def source(name, made, path=None, stamp="a"):
    def read_header():
        if isinstance(made, Exception):
            raise made
        return made

    return MemberSource(name=name, stamp=stamp, header=read_header, read=lambda: None, path=path)


@pytest.fixture
def skipped():
    return {}


def aligned(sources, skipped, with_text=False):
    skip = skipped.__setitem__
    return align(read_candidates(sources, with_text, skip, iter), skip)


def names(members):
    return [source.name for source in members.sources]


def test_layers_are_sorted_whatever_the_order_of_files(skipped):
    """The key of a build is made of them: it must be the same in every process."""
    layers = [f"layer{number * 7 % 40}" for number in range(40)]
    members = aligned([source("a", header(dict.fromkeys(layers, MATRIX)))], skipped)
    assert list(members.shapes) == sorted(layers)


def test_a_kernel_is_kept_where_others_have_a_matrix(skipped):
    sources = [source("a", header({"x": MATRIX})), source("b", header({"x": KERNEL}))]
    for order in (sources, sources[::-1]):
        members = aligned(order, skipped)
        assert members.shapes == {"x": KERNEL} and len(members.sources) == 2 and not skipped


def test_the_majority_decides_and_others_are_named(skipped):
    other = ((6,), (8,))
    sources = [
        source("a", header({"x": MATRIX, "y": MATRIX})),
        source("b", header({"x": MATRIX})),
        source("wider", header({"x": other})),
        source("strange", header({"z": MATRIX})),
        source("broken", ValueError("it is cut.")),
    ]
    members = aligned(sources, skipped)
    assert names(members) == ["a", "b"] and set(members.shapes) == {"x", "y"}
    assert skipped["broken"] == "it is cut."
    assert skipped["wider"] == f"x has inputs and outputs {other} here and {MATRIX} in most others."
    assert skipped["strange"].startswith("it shares no layer with most of the others")


def test_a_file_counts_once(skipped, tmp_path):
    made = header({"x": MATRIX})
    sources = [source(name, made, path=tmp_path / name) for name in ("a", "b")]
    assert names(aligned(sources, skipped)) == ["a"]
    assert skipped == {"b": "it is the same file as a."}
    skipped.clear()
    assert names(aligned([source(name, made) for name in ("a", "b")], skipped)) == ["a", "b"]


def test_layers_of_text_encoders_take_part_where_requested(skipped):
    made = header({"x": MATRIX}, text={"text": MATRIX})
    assert set(aligned([source("a", made)], skipped).shapes) == {"x"}
    assert set(aligned([source("a", made)], skipped, with_text=True).shapes) == {"x", "text"}


def test_stems_are_those_of_the_first_that_names_them(skipped):
    sources = [
        source("a", header({"x": MATRIX}, stems={"x": "first.x"})),
        source("b", header({"x": MATRIX, "y": MATRIX}, stems={"x": "second.x", "y": ""})),
    ]
    assert aligned(sources, skipped).stems == {"x": "first.x"}
