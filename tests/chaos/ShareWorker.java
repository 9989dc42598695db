import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Random;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Java's own worker of a share group: {@code java ShareWorker.java BOOTSTRAP TOPIC GROUP LOCK_MS BAD}.
 *
 * <p>It prints a line of JSON for each lease, when it has the messages, before it acknowledges them, and after it.
 * Messages whose offset can be divided by BAD are never accepted.
 */
public final class ShareWorker {
    private static final FileOutputStream OUT = new FileOutputStream(FileDescriptor.out);
    private static volatile boolean isStopped = false;

    public static void main(String[] arguments) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("group.id", arguments[2]);
        properties.put("share.acknowledgement.mode", "explicit");
        properties.put("max.poll.records", "20");
        properties.put("request.timeout.ms", "5000");
        properties.put("key.deserializer", StringDeserializer.class.getName());
        properties.put("value.deserializer", StringDeserializer.class.getName());
        KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(properties);
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            isStopped = true;
            consumer.wakeup();
            try {
                main.join();
            } catch (InterruptedException error) {
                throw new AssertionError(error);
            }
        }));
        try (consumer) {
            consumer.subscribe(List.of(arguments[1]));
            work(consumer, Long.parseLong(arguments[3]), Long.parseLong(arguments[4]));
        }
    }

    private static void work(KafkaShareConsumer<String, String> consumer, long lockMs, long bad) {
        Random random = new Random();
        // What a poll returns may have been acquired since the poll before the last one.
        double before = now();
        double last = now();
        long lease = System.currentTimeMillis();
        // The last line of one that was killed may have no end.
        print("");
        while (!isStopped) {
            ConsumerRecords<String, String> records;
            try {
                records = consumer.poll(Duration.ofMillis(500));
            } catch (WakeupException error) {
                return;
            } catch (KafkaException error) {
                System.err.println(error);
                pause(100);
                continue;
            }
            if (!records.isEmpty()) {
                lease += 1;
                show(lease, records, before);
                pause(random.nextInt(50) == 0 ? lockMs + 2000 : random.nextInt(100));
                acknowledge(lease, consumer, records, random, bad);
            }
            before = last;
            last = now();
        }
    }

    private static void show(long lease, ConsumerRecords<String, String> records, double begun) {
        List<String> messages = new ArrayList<>();
        for (ConsumerRecord<String, String> each : records) {
            messages.add(String.format(
                    "[%d, %d, %d, \"%s\"]",
                    each.partition(), each.offset(), each.deliveryCount().orElse((short) 0), each.value()));
        }
        print(
                "{\"lease\": %d, \"begun\": %.3f, \"ended\": %.3f, \"messages\": %s}",
                lease, begun, now(), messages);
    }

    private static void acknowledge(
            long lease,
            KafkaShareConsumer<String, String> consumer,
            ConsumerRecords<String, String> records,
            Random random,
            long bad) {
        List<String> verdicts = new ArrayList<>();
        for (ConsumerRecord<String, String> each : records) {
            int drawn = random.nextInt(100);
            AcknowledgeType type = each.offset() % bad == 0 || drawn < 5
                    ? AcknowledgeType.RELEASE
                    : drawn == 5 ? AcknowledgeType.REJECT : AcknowledgeType.ACCEPT;
            consumer.acknowledge(each, type);
            verdicts.add(String.format("[%d, %d, \"%s\"]", each.partition(), each.offset(), type));
        }
        print("{\"lease\": %d, \"begun\": %.3f, \"verdicts\": %s}", lease, now(), verdicts);
        List<String> outcomes = new ArrayList<>();
        try {
            for (Map.Entry<TopicIdPartition, Optional<KafkaException>> each : consumer.commitSync().entrySet()) {
                String outcome = each.getValue().map(error -> error.getClass().getSimpleName()).orElse("done");
                outcomes.add(String.format("[%d, \"%s\"]", each.getKey().partition(), outcome));
            }
        } catch (KafkaException error) {
            System.err.println(error);
        }
        print("{\"lease\": %d, \"ended\": %.3f, \"outcomes\": %s}", lease, now(), outcomes);
    }

    private static void print(String format, Object... values) {
        try {
            // In one piece: others write to the same file.
            OUT.write((String.format(format, values) + "\n").getBytes());
        } catch (IOException error) {
            throw new AssertionError(error);
        }
    }

    private static double now() {
        return System.currentTimeMillis() / 1000.0;
    }

    private static void pause(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException error) {
            throw new AssertionError(error);
        }
    }
}
