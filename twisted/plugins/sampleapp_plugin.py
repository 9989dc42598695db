"""Register ``twistd sampleapp``, without importing the service."""

from twisted.application.service import ServiceMaker

sampleapp = ServiceMaker(
    name="sampleapp",
    module="sampleapp.service.tap",
    description=(
        "An HTTP gateway to Apache Kafka: publish messages with POST, get the response once they are stored, "
        "and read topics as pages or event streams."
    ),
    tapname="sampleapp",
)
