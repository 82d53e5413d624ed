import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A KafkaShareConsumer that reports deliveries and acknowledgements until it is killed or its stdin is closed.
 *
 * <p>Usage: java ShareWorker.java host:port group topic. The value of a record contains the acknowledgement
 * of each delivery, separated by commas: "accept", "reject" or "release". The last one is repeated. Prints lines
 * with partition P and offset O: "got T P O DELIVERIES DEED" before it acknowledges a record, then "settled T P O" if
 * the acknowledgement succeeded or "refused T P O WHY" if it failed, and "left" at the end. T is the time at which it
 * got the record or began to acknowledge it, in ns of the machine's monotonic clock.
 */
public final class ShareWorker {
    private static final Map<String, AcknowledgeType> DEEDS = Map.of(
        "accept", AcknowledgeType.ACCEPT,
        "reject", AcknowledgeType.REJECT,
        "release", AcknowledgeType.RELEASE);
    private static volatile boolean leaves;

    private static String deed(ConsumerRecord<byte[], byte[]> record) {
        String[] deeds = new String(record.value(), StandardCharsets.UTF_8).split(",");
        return deeds[Math.min(record.deliveryCount().orElseThrow(), deeds.length) - 1];
    }

    private static void work(KafkaShareConsumer<byte[], byte[]> consumer, PrintStream out) {
        List<ConsumerRecord<byte[], byte[]>> taken = new ArrayList<>();
        ConsumerRecords<byte[], byte[]> polled = consumer.poll(Duration.ofMillis(100));
        long polledAt = System.nanoTime();
        for (ConsumerRecord<byte[], byte[]> record : polled) {
            String deed = deed(record);
            out.println("got " + polledAt + " " + record.partition() + " " + record.offset() + " "
                + record.deliveryCount().orElseThrow() + " " + deed);
            consumer.acknowledge(record, DEEDS.get(deed));
            taken.add(record);
        }
        out.flush();
        Map<Integer, String> outcomes = new HashMap<>();
        long begunAt = System.nanoTime();
        Map<TopicIdPartition, Optional<KafkaException>> answer = consumer.commitSync();
        answer.forEach((place, error) -> outcomes.put(place.partition(),
            error.map(each -> each.getClass().getSimpleName()).orElse("")));
        for (ConsumerRecord<byte[], byte[]> record : taken) {
            String refusal = outcomes.getOrDefault(record.partition(), "nothing");
            String what = refusal.isEmpty() ? "settled " : "refused ";
            out.println(what + begunAt + " " + record.partition() + " " + record.offset() + " " + refusal);
        }
        out.flush();
    }

    public static void main(String[] target) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        System.setOut(System.err); // libraries may print to stdout
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", target[0]);
        settings.put("group.id", target[1]);
        settings.put("share.acknowledgement.mode", "explicit");
        settings.put("max.poll.records", 10);
        settings.put("reconnect.backoff.max.ms", 300);
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        Thread watch = new Thread(() -> {
            try {
                System.in.read();
            } catch (java.io.IOException error) {
                // treat an error of stdin like its end
            }
            leaves = true;
        });
        watch.setDaemon(true);
        watch.start();
        try (KafkaShareConsumer<byte[], byte[]> consumer =
                new KafkaShareConsumer<>(settings, bytes, bytes)) {
            consumer.subscribe(List.of(target[2]));
            while (!leaves) {
                work(consumer, out);
            }
        }
        out.println("left");
        out.flush();
        System.exit(0);
    }
}
