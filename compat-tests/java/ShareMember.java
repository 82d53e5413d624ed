import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A KafkaShareConsumer that reads in its own thread.
 *
 * <p>Usage: java ShareMember.java host:port group topic... Requests are NDJSON on stdin, and responses on
 * stdout. "rows" returns the accepted records, "release" makes it release the next records and end, "ended"
 * waits for that, and "leave" ends it.
 */
public final class ShareMember implements Runnable {
    private final KafkaShareConsumer<String, String> consumer;
    private final List<Object> rows = new ArrayList<>();
    private final Thread thread = new Thread(this, "reader");
    private volatile boolean leaves;
    private volatile boolean releases;
    private Exception failure;

    private ShareMember(String bootstrap, String group, List<String> topics) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("share.acknowledgement.mode", "explicit");
        settings.put("max.poll.records", 10);
        StringDeserializer text = new StringDeserializer();
        consumer = new KafkaShareConsumer<>(settings, text, text);
        consumer.subscribe(topics);
    }

    @Override
    public void run() {
        try (consumer) {
            while (!leaves) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                    take(record);
                }
                consumer.commitSync();
            }
        } catch (Exception error) {
            synchronized (rows) {
                failure = error;
            }
        }
    }

    private void take(ConsumerRecord<String, String> record) {
        if (releases) {
            consumer.acknowledge(record, AcknowledgeType.RELEASE);
            leaves = true;
            return;
        }
        consumer.acknowledge(record, AcknowledgeType.ACCEPT);
        synchronized (rows) {
            rows.add(Map.of(
                "value", record.value(),
                "partition", record.partition(),
                "deliveries", record.deliveryCount().map(Short::intValue).orElse(0)));
        }
    }

    private Object obey(String verb) throws Exception {
        switch (verb) {
            case "rows":
                synchronized (rows) {
                    if (failure != null) {
                        throw failure;
                    }
                    return List.copyOf(rows);
                }
            case "release":
                releases = true;
                return null;
            case "ended":
                thread.join();
                return null;
            case "leave":
                leaves = true;
                thread.join();
                return null;
            default:
                throw new IllegalArgumentException(verb);
        }
    }

    public static void main(String[] arguments) throws Exception {
        List<String> words = List.of(arguments);
        ShareMember member =
            new ShareMember(words.get(0), words.get(1), words.subList(2, words.size()));
        ObjectMapper json = new ObjectMapper();
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err); // libraries may print to stdout
        BufferedReader requests =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        member.thread.start();
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            Map<String, Object> answer = new HashMap<>();
            try {
                JsonNode request = json.readTree(line);
                answer.put("result", member.obey(request.get("verb").asText()));
            } catch (Exception error) {
                answer.put("error", Map.of("type", error.getClass().getSimpleName(), "code", -1,
                    "message", String.valueOf(error.getMessage()), "trace", ""));
            }
            answers.println(json.writeValueAsString(answer));
        }
        System.exit(0);
    }
}
