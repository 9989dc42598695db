"""Publish a message, bytes and records with a generated client."""

from base64 import b64encode
from io import BytesIO
from sys import argv

import httpx
from sampleapp_client import Client
from sampleapp_client.api.messages import publish, publish_to_topic
from sampleapp_client.models import BinaryProduceRequest, BinaryRecord, Message
from sampleapp_client.types import File


def raise_error(response: httpx.Response) -> None:
    """Raise errors: those of records have a form that the client does not expect."""
    response.read()
    response.raise_for_status()


hooks = {"response": [raise_error]}
client = Client(base_url=argv[1], httpx_args={"event_hooks": hooks})

message = Message(topic="readings", key="kitchen", content="21.5")
print(publish.sync(client=client, body=message))

image = File(payload=BytesIO(b"\x89PNG\r\n\x1a\n"))
print(publish_to_topic.sync("images", client=client, key="logo", body=image))

records = [
    BinaryRecord(key=b64encode(key).decode(), value=b64encode(value).decode())
    for key, value in [(b"kitchen", b"21.5"), (b"hall", b"19")]
]
batch = BinaryProduceRequest(records=records)
print(publish_to_topic.sync("readings", client=client, body=batch))
