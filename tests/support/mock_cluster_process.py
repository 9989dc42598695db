"""
librdkafka's mock cluster, in a process of its own; started by `tests.support.mock_cluster.MockCluster`.

    python mock_cluster_process.py LIBRARY FD BROKERS

The descriptor is one end of a pipe of `multiprocessing`: in come pairs of a method of `Cluster` and its
arguments, out go pairs of what it returned and what was wrong. The process ends when the other end does.
"""

from __future__ import annotations

import ctypes
import os
import queue
import socket
import struct
import sys
import threading
import time
from ctypes import POINTER, c_char_p, c_int, c_int16, c_int32, c_int64, c_size_t, c_void_p
from multiprocessing.connection import Connection

PRODUCE, FETCH, LIST_OFFSETS, API_VERSIONS = 0, 1, 2, 18
# What Kafka 4 has taken away (KIP-896), as far as a producer or a reader meets it.
LOWEST = {PRODUCE: 3, FETCH: 4, LIST_OFFSETS: 1}

# rdkafka.h and rdkafka_mock.h; the mock cluster is outside of librdkafka's promises, but has kept these.
FUNCTIONS = {
    "rd_kafka_conf_new": (c_void_p, []),
    "rd_kafka_conf_set": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
    "rd_kafka_new": (c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
    "rd_kafka_err2str": (c_char_p, [c_int]),
    "rd_kafka_mock_cluster_new": (c_void_p, [c_void_p, c_int]),
    "rd_kafka_mock_cluster_bootstraps": (c_char_p, [c_void_p]),
    "rd_kafka_mock_topic_create": (c_int, [c_void_p, c_char_p, c_int, c_int]),
    "rd_kafka_mock_topic_set_error": (None, [c_void_p, c_char_p, c_int]),
    "rd_kafka_mock_partition_set_leader": (c_int, [c_void_p, c_char_p, c_int32, c_int32]),
    "rd_kafka_mock_broker_set_down": (c_int, [c_void_p, c_int32]),
    "rd_kafka_mock_broker_set_up": (c_int, [c_void_p, c_int32]),
    "rd_kafka_mock_broker_set_rtt": (c_int, [c_void_p, c_int32, c_int]),
    "rd_kafka_mock_set_apiversion": (c_int, [c_void_p, c_int16, c_int16, c_int16]),
    "rd_kafka_mock_push_request_errors_array": (None, [c_void_p, c_int16, c_size_t, POINTER(c_int)]),
    "rd_kafka_mock_clear_request_errors": (None, [c_void_p, c_int16]),
    "rd_kafka_mock_start_request_tracking": (None, [c_void_p]),
    "rd_kafka_mock_clear_requests": (None, [c_void_p]),
    "rd_kafka_mock_get_requests": (POINTER(c_void_p), [c_void_p, POINTER(c_size_t)]),
    "rd_kafka_mock_request_id": (c_int32, [c_void_p]),
    "rd_kafka_mock_request_api_key": (c_int16, [c_void_p]),
    "rd_kafka_mock_request_timestamp": (c_int64, [c_void_p]),
    "rd_kafka_mock_request_destroy_array": (None, [POINTER(c_void_p), c_size_t]),
}


class Cluster:
    """The cluster, whose brokers have the node ids 1, 2, …; every public method is a command."""

    def __init__(self, library, brokers):
        self._library = ctypes.CDLL(library)
        for name, (result, arguments) in FUNCTIONS.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
        message = ctypes.create_string_buffer(512)
        configuration = self._library.rd_kafka_conf_new()
        # Errors only, such as a request in a version that is not offered.
        self._library.rd_kafka_conf_set(configuration, b"log_level", b"3", message, len(message))
        client = self._library.rd_kafka_new(0, configuration, message, len(message))
        if not client:
            raise RuntimeError(message.value.decode())
        self._cluster = self._library.rd_kafka_mock_cluster_new(client, brokers)
        if not self._cluster:
            raise RuntimeError("the mock cluster could not be made")
        self._implemented = offered(self.addresses()[0])
        for api_key in LOWEST:
            self.restore_api_version(api_key)

    def _call(self, name, *arguments):
        # Most calls are handed to the mock's thread, which overlooks one that comes while it finishes the
        # one before, and then finds it a second later.
        time.sleep(0.001)
        result = getattr(self._library, f"rd_kafka_mock_{name}")(self._cluster, *arguments)
        if isinstance(result, int) and result != 0:
            raise RuntimeError(f"{name}{arguments}: {self._library.rd_kafka_err2str(result).decode()}")

    def addresses(self):
        bootstraps = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode().split(",")
        return [(host, int(port)) for host, _, port in (each.rpartition(":") for each in bootstraps)]

    def create_topic(self, name, partitions, replicas):
        self._call("topic_create", name.encode(), partitions, replicas)

    def set_topic_error(self, name, code):
        self._call("topic_set_error", name.encode(), code)

    def set_leader(self, topic, partition, broker):
        self._call("partition_set_leader", topic.encode(), partition, broker)

    def broker_down(self, broker):
        self._call("broker_set_down", broker)

    def broker_up(self, broker):
        self._call("broker_set_up", broker)

    def set_round_trip(self, broker, milliseconds):
        self._call("broker_set_rtt", broker, milliseconds)

    def set_api_version(self, api_key, lowest, highest):
        self._call("set_apiversion", api_key, lowest, highest)

    def restore_api_version(self, api_key):
        lowest, highest = self._implemented[api_key]
        self.set_api_version(api_key, LOWEST.get(api_key, lowest), highest)

    def push_errors(self, api_key, codes):
        self._call("push_request_errors_array", api_key, len(codes), (c_int * len(codes))(*codes))

    def clear_errors(self, api_key):
        self._call("clear_request_errors", api_key)

    def track_requests(self):
        self._call("clear_requests")
        self._call("start_request_tracking")

    def requests(self):
        count = c_size_t()
        found = self._library.rd_kafka_mock_get_requests(self._cluster, ctypes.byref(count))
        try:
            return [
                (
                    self._library.rd_kafka_mock_request_id(found[index]),
                    self._library.rd_kafka_mock_request_api_key(found[index]),
                    self._library.rd_kafka_mock_request_timestamp(found[index]) / 1e6,
                )
                for index in range(count.value)
            ]
        finally:
            self._library.rd_kafka_mock_request_destroy_array(found, count)


def offered(address):
    """The versions of each request that a broker takes, by its API key."""
    with socket.create_connection(address, timeout=5) as connection, connection.makefile("rwb") as stream:
        stream.write(struct.pack(">ihhih", 10, API_VERSIONS, 0, 0, -1))
        stream.flush()
        (length,) = struct.unpack(">i", stream.read(4))
        answer = stream.read(length)
    _, _, count = struct.unpack_from(">ihi", answer)
    ranges = struct.iter_unpack(">hhh", answer[10 : 10 + 6 * count])
    return {api_key: (lowest, highest) for api_key, lowest, highest in ranges}


def main(library, descriptor, brokers):
    pipe = Connection(int(descriptor))
    commands = queue.SimpleQueue()

    def read():
        # In a thread, so that the end of the tests is also the end of a command that hangs.
        try:
            while True:
                commands.put(pipe.recv())
        except (EOFError, OSError):
            os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    cluster = Cluster(library, int(brokers))
    while True:
        method, arguments = commands.get()
        try:
            pipe.send((getattr(cluster, method)(*arguments), None))
        except RuntimeError as error:
            pipe.send((None, str(error)))


if __name__ == "__main__":
    main(*sys.argv[1:])
