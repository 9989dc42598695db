"""``If-Match`` and ``If-None-Match``."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from sampleapp.web.negotiation import match_fails, none_match_fails

ETAG = b'"abc"'

elements = st.sampled_from(
    [ETAG, b'W/"abc"', b'"other"', b'W/"other"', b'""', b"abc", b"", b"*", b'"*"', b'w/"abc"']
)
spaces = st.sampled_from([b"", b" ", b"\t", b" \t "])
lists = st.lists(st.tuples(spaces, elements, spaces).map(b"".join), min_size=1).map(b",".join)


@given(lists)
@example(b" * ")
def test_a_list_names_the_current_state_by_its_tag_or_a_star_alone(tags):
    named = {element.strip(b" \t") for element in tags.split(b",")}
    is_star = tags.strip(b" \t") == b"*"
    assert match_fails(tags, ETAG) == (not is_star and ETAG not in named)
    assert none_match_fails(tags, ETAG) == (is_star or bool({ETAG, b'W/"abc"'} & named))


@given(st.binary())
def test_what_names_it_strongly_names_it_weakly_too(tags):
    assert match_fails(tags, ETAG) or none_match_fails(tags, ETAG)
