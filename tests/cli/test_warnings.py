"""What ``sampleapp consume`` shows of the log."""

from __future__ import annotations

import json

from sampleapp.cli._consume_broker import warnings_on_stderr
from tests.support.command import sampleapp
from tests.support.kafka_log import produce
from tests.support.kafka_simulator import Cluster, FollowingSetup, values
from tests.support.mock_cluster import MockCluster


def test_a_batch_that_is_too_large_is_a_warning_on_stderr_and_the_others_are_printed():
    with MockCluster(brokers=1) as cluster:
        cluster.create_topic("t")
        for value in (b"before", b"x" * 100_000, b"y" * 100_000, b"after"):
            compression = "none" if len(value) < 10 else "zstd"
            produce(cluster.bootstrap, "t", [(None, value)], compression=compression)
        broker = f"kafka://{cluster.bootstrap}?max_batch_bytes=50000"
        stdout, stderr = sampleapp(None, "consume", "t", "--broker", broker, url="http://127.0.0.1:1/")
    printed = [json.loads(line) for line in stdout.splitlines()]
    assert [(each["offset"], each["content"]) for each in printed] == [(0, "before"), (3, "after")]
    assert stderr.splitlines() == [
        "Skipped 1 batch(es) of the topic t: after decompression they are larger than max_batch_bytes, 50000 "
        "bytes. Their records are not read. The last one is in partition 0, "
        f"from offset {offset} to {offset}."
        for offset in (1, 2)
    ]


def test_records_that_were_deleted_and_a_topic_that_is_read_again_are_warnings_as_well(capsys):
    cluster = Cluster()
    log = cluster.logs[0]
    log.append(*values(3))
    following = FollowingSetup(cluster)
    following.catch_up()
    with warnings_on_stderr():
        cluster.down = set(cluster.brokers)
        log.append(*values(5))
        log.append(*values(5))
        log.delete_before(8)
        cluster.run(1)
        cluster.mend()
        following.until(8)
        cluster.make_again()
        cluster.run(15)
    following.stop()
    deleted, again = capsys.readouterr().err.splitlines()
    assert deleted.startswith("Records of the topic t were deleted by Kafka")
    assert "offsets 3 to 7 of partition 0" in deleted
    assert again.endswith("The topic t is read again from its first record on.")
