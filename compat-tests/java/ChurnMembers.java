import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Members of one group that join and leave, each in its own thread.
 *
 * <p>Usage: java ChurnMembers.java host:port topic group. Reads the commands "join NAME PROTOCOL" and "leave
 * NAME" from stdin. Prints what each member does: "NAME read PARTITION OFFSET", "NAME commit PARTITION OFFSET"
 * for an acknowledged commit, "NAME lose PROTOCOL WHY PARTITION..." for partitions lost without a commit, and
 * "NAME left".
 */
public final class ChurnMembers implements Runnable, ConsumerRebalanceListener {
    private static final long COMMIT_NANOS = 500_000_000L;
    private static PrintStream out;

    private final String name;
    private final String protocol;
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
    private final Thread thread = new Thread(this);
    private volatile boolean leaves;

    private ChurnMembers(String[] target, String name, String protocol) {
        this.name = name;
        this.protocol = protocol;
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", target[0]);
        settings.put("group.id", target[2]);
        settings.put("group.protocol", protocol);
        settings.put("enable.auto.commit", false);
        settings.put("auto.offset.reset", "earliest");
        settings.put("reconnect.backoff.max.ms", 500);
        settings.put("fetch.max.wait.ms", 50);
        if (protocol.equals("classic")) {
            settings.put("session.timeout.ms", 10_000);
            settings.put("heartbeat.interval.ms", 500);
            // The same assignors as librdkafka, because all members of a group must support a common one.
            settings.put("partition.assignment.strategy",
                "org.apache.kafka.clients.consumer.RangeAssignor");
        }
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        consumer = new KafkaConsumer<>(settings, bytes, bytes);
        consumer.subscribe(List.of(target[1]), this);
    }

    @Override
    public void run() {
        long last = System.nanoTime();
        while (!leaves) {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(50))) {
                out.println(name + " read " + record.partition() + " " + record.offset());
                positions.put(new TopicPartition(record.topic(), record.partition()),
                    new OffsetAndMetadata(record.offset() + 1));
            }
            if (System.nanoTime() - last > COMMIT_NANOS) {
                last = System.nanoTime();
                commit(Map.copyOf(positions), false);
            }
        }
        consumer.close();
        out.println(name + " left");
    }

    private void commit(Map<TopicPartition, OffsetAndMetadata> offsets, boolean isLast) {
        if (offsets.isEmpty()) {
            return;
        }
        try {
            consumer.commitSync(offsets);
        } catch (KafkaException error) {
            if (isLast) {
                lose(error.getClass().getSimpleName(), offsets.keySet());
            }
            return; // rebalance, or the broker is down: the next commit includes these offsets
        }
        offsets.forEach((place, offset) ->
            out.println(name + " commit " + place.partition() + " " + offset.offset()));
    }

    private void lose(String why, Collection<TopicPartition> gone) {
        String places = gone.stream()
            .map(each -> String.valueOf(each.partition())).collect(Collectors.joining(" "));
        out.println(name + " lose " + protocol + " " + why + " " + places);
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        positions.keySet().removeAll(partitions);
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        Map<TopicPartition, OffsetAndMetadata> gone = new HashMap<>(positions);
        gone.keySet().retainAll(partitions);
        positions.keySet().removeAll(partitions);
        commit(gone, true);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        lose("fenced", partitions);
        positions.keySet().removeAll(partitions);
    }

    public static void main(String[] target) throws Exception {
        out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err); // libraries may print to stdout
        Map<String, ChurnMembers> members = new HashMap<>();
        BufferedReader orders =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("join")) {
                ChurnMembers member = new ChurnMembers(target, words[1], words[2]);
                members.put(words[1], member);
                member.thread.start();
            } else {
                members.remove(words[1]).leaves = true;
            }
        }
        System.exit(0);
    }
}
