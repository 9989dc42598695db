"""Make ``twistd sampleapp`` known to Twisted; nothing of the service is imported for that."""

from twisted.application.service import ServiceMaker

sampleapp = ServiceMaker(
    name="sampleapp",
    module="sampleapp.tap",
    description="The front door between plain HTTP and Apache Kafka.",
    tapname="sampleapp",
)
