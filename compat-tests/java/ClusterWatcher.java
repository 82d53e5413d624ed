import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A consumer of all partitions that prints "topics NAMES" whenever the topics at its address change.
 *
 * <p>Usage: java ClusterWatcher.java host:port setting=value... It runs until it is killed.
 */
public final class ClusterWatcher {
    public static void main(String[] arguments) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("allow.auto.create.topics", false);
        settings.put("reconnect.backoff.max.ms", 200);
        for (int index = 1; index < arguments.length; index++) {
            String[] pair = arguments[index].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        TreeSet<String> known = new TreeSet<>();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, bytes, bytes)) {
            while (true) {
                try {
                    Map<String, List<PartitionInfo>> found = consumer.listTopics(Duration.ofSeconds(5));
                    TreeSet<String> names = new TreeSet<>(found.keySet());
                    if (!names.isEmpty() && !names.equals(known)) {
                        System.out.println("topics " + String.join(",", names));
                        known = names;
                    }
                    List<TopicPartition> partitions = new ArrayList<>();
                    found.values().forEach(rows -> rows.forEach(
                        row -> partitions.add(new TopicPartition(row.topic(), row.partition()))));
                    consumer.assign(partitions);
                    consumer.poll(Duration.ofMillis(100));
                } catch (KafkaException error) {
                    // the broker is down, or the topic is gone
                }
            }
        }
    }
}
