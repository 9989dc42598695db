"""Publishing of one record, and printing of its metadata."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sampleapp.cli._output import CommandFailed, OutputLost, note, print_result
from sampleapp.cli._run import command_failure, note_waiting, run
from sampleapp.cli._token_option import new_client

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from sampleapp.client import Client
    from sampleapp.model import RecordMetadata

__all__ = ["ResponseLost", "publish_record"]

REPEAT_FOR_S = 60.0


class ResponseLost(CommandFailed):
    """Published, but the response could not be printed. Publishing again would make a duplicate."""

    exit_code = 3


def publish_record(
    request: Callable[[Client], Deferred[RecordMetadata]], *, what: str, url: str, token: str | None
) -> None:
    """
    Publish a record, and print its topic, partition and offset.

    :param request: publishes it with the client.
    :param what: names the record in error messages: ``"message"``.
    """

    async def command(reactor: Any) -> None:
        from twisted.internet.defer import CancelledError

        from sampleapp.client import ClientError
        from sampleapp.errors import InvalidMessage

        said: list[str] = []

        def say_once(error: ClientError) -> None:
            if str(error) not in said:
                said.append(str(error))
                note(f"{error} Sending again for up to {REPEAT_FOR_S:g} seconds.")

        client = new_client(
            url=url, reactor=reactor, token=token, repeat_for_s=REPEAT_FOR_S, on_repeat=say_once
        )
        try:
            metadata = await note_waiting(request(client), clock=reactor, url=url)
        except ClientError as error:
            outcome = f"The {what} may have been published." if error.possibly_published else ""
            raise command_failure(error, outcome=outcome) from error
        except InvalidMessage as error:
            raise CommandFailed(str(error)) from error
        except CancelledError as error:
            doubt = getattr(error, "possibly_published", True)
            note(f"Interrupted. {f'The {what} may have been' if doubt else 'Nothing was'} published.")
            raise
        try:
            print_result(metadata)
        except OutputLost as error:
            raise ResponseLost(
                f"The {what} was published (partition {metadata.partition}, offset {metadata.offset}). "
                f"{error.message}"
            ) from error

    run(command)
