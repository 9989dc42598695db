"""What is wrong with the command line of the service is said with what would be right."""

from __future__ import annotations

import pytest
from twisted.python.usage import UsageError

from sampleapp.options import Options


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--port", "9090"],
            (
                "option --port not recognized; give the port with --listen, such as "
                "--listen tcp:9090:interface=127.0.0.1"
            ),
        ),
        (
            ["-p", "9090"],
            (
                "option -p not recognized; give the port with --listen, such as "
                "--listen tcp:9090:interface=127.0.0.1"
            ),
        ),
        (["--reading-topic=r"], "option --reading-topic not recognized; did you mean --readings-topic?"),
        (["--colour"], "option --colour not recognized"),
        (["--broker"], "option --broker requires argument"),
    ],
)
def test_an_option_that_is_not_known_is_refused_with_the_one_that_was_meant(arguments, sentence):
    with pytest.raises(UsageError) as caught:
        Options().parseOptions(arguments)
    assert str(caught.value) == sentence
