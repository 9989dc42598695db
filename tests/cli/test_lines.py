"""Lines out of a file that comes in pieces."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sampleapp.cli._lines import LineSplitter


def split(chunks, *, max_bytes=1000):
    splitter = LineSplitter(max_bytes=max_bytes)
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    return lines + splitter.end()


# Short alphabets make line feeds, and lines that repeat, likely.
files = st.lists(st.sampled_from([b"\n", b"\r", b"a", b"bc", b"\xff", b"\xc3\xa4"]), max_size=30).map(
    b"".join
)


@given(file=files, data=st.data())
def test_however_a_file_is_cut_up_its_lines_are_the_same(file, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(file)), max_size=5)))
    bounds = [0, *cuts, len(file)]
    chunks = [file[start:end] for start, end in itertools.pairwise(bounds)]
    expected = file.removesuffix(b"\n").split(b"\n") if file else []
    for pieces in (chunks, [file], [file[i : i + 1] for i in range(len(file))]):
        lines = split(pieces)
        assert [line.content for line in lines] == expected
        assert [line.number for line in lines] == list(range(1, len(expected) + 1))
        assert sum(line.size for line in lines) == len(file)


def test_a_line_that_is_too_long_is_left_out_and_the_next_one_is_whole():
    lines = split([b"12345\n", b"123", b"456", b"789\n", b"12345"], max_bytes=5)
    assert [line.content for line in lines] == [b"12345", None, b"12345"]
    assert [line.size for line in lines] == [6, 10, 5]
