import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Injects faults through kbroker's control socket and checks that the Java client recovers from them.
 *
 * <p>Run it with {@code kbroker run --control -- java Faults.java}. It prints a line per successful
 * scenario.
 */
public final class Faults {
    private static final String TOPIC = "orders";

    /** Sends commands to one broker as NDJSON, with one line per response. */
    private static final class Control implements AutoCloseable {
        private final ObjectMapper json = new ObjectMapper();
        private final Socket socket;
        private final OutputStream commands;
        private final BufferedReader answers;

        Control(String address) throws IOException {
            int colon = address.lastIndexOf(':');
            socket = new Socket(address.substring(0, colon), Integer.parseInt(address.substring(colon + 1)));
            commands = socket.getOutputStream();
            answers = new BufferedReader(
                new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8));
            String token = Files.readString(Path.of(System.getenv("KBROKER_CONTROL_TOKEN_FILE")));
            command("login", "token", token.strip());
        }

        JsonNode command(String verb, Object... namesAndValues) throws IOException {
            Map<String, Object> command = new LinkedHashMap<>(Map.of("do", verb));
            for (int i = 0; i < namesAndValues.length; i += 2) {
                command.put((String) namesAndValues[i], namesAndValues[i + 1]);
            }
            commands.write((json.writeValueAsString(command) + "\n").getBytes(StandardCharsets.UTF_8));
            JsonNode answer = json.readTree(answers.readLine());
            check(answer.get("ok").asBoolean(), verb + ": " + answer.path("error").asText());
            return answer;
        }

        List<String> values() throws IOException {
            List<String> values = new ArrayList<>();
            command("records", "topic", TOPIC).get("records").forEach(
                record -> values.add(record.get("value").asText()));
            return values;
        }

        @Override
        public void close() throws IOException {
            socket.close();
        }
    }

    private interface Scenario {
        void run(Control control, String bootstrap) throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Scenario> scenarios = new LinkedHashMap<>();
        scenarios.put("a leader that moves", Faults::leaderMoves);
        scenarios.put("an answer that is lost", Faults::answerIsLost);
        scenarios.put("a fetch that is slow", Faults::fetchIsSlow);
        scenarios.put("a broker that restarts", Faults::brokerRestarts);
        try (Control first = new Control(System.getenv("KBROKER_CONTROL"))) {
            for (Map.Entry<String, Scenario> scenario : scenarios.entrySet()) {
                JsonNode fresh = first.command("open", "topics", Map.of(TOPIC, 1));
                try (Control control = new Control(fresh.get("control").asText())) {
                    scenario.getValue().run(control, fresh.get("bootstrap_servers").asText());
                    control.command("close"); // fails if a fault was never triggered
                }
                System.out.println(scenario.getKey());
            }
        }
    }

    static void leaderMoves(Control control, String bootstrap) throws Exception {
        int fault = control.command("fault", "api", "Produce", "topic", TOPIC,
            "error", "NOT_LEADER_OR_FOLLOWER", "times", 2).get("fault").asInt();
        try (KafkaProducer<String, String> producer = producer(bootstrap)) {
            send(producer, "x");
        }
        check(control.command("hits", "fault", fault).get("hits").asInt() == 2, "hits");
        check(control.values().equals(List.of("x")), control.values().toString());
    }

    static void answerIsLost(Control control, String bootstrap) throws Exception {
        control.command("fault", "api", "Produce", "at", "after", "effect", "disconnect");
        try (KafkaProducer<String, String> producer = producer(bootstrap)) { // idempotent by default
            send(producer, "first");
            send(producer, "second");
        }
        check(control.values().equals(List.of("first", "second")), control.values().toString());
    }

    static void fetchIsSlow(Control control, String bootstrap) throws Exception {
        control.command("produce", "topic", TOPIC, "value", "x");
        control.command("fault", "api", "Fetch", "effect", "delay", "ms", 300);
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap);
        try (KafkaConsumer<String, String> consumer =
            new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            List<TopicPartition> partitions = List.of(new TopicPartition(TOPIC, 0));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            long started = System.nanoTime();
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofSeconds(10));
            check(records.count() == 1, records.count() + " records");
            check(System.nanoTime() - started >= 300_000_000L, "it came too soon");
        }
    }

    static void brokerRestarts(Control control, String bootstrap) throws Exception {
        try (KafkaProducer<String, String> producer = producer(bootstrap)) {
            send(producer, "before");
            control.command("restart");
            send(producer, "after");
        }
        check(control.values().equals(List.of("before", "after")), control.values().toString());
    }

    static KafkaProducer<String, String> producer(String bootstrap) {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", bootstrap, "retry.backoff.ms", 20, "reconnect.backoff.ms", 20);
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    static void send(KafkaProducer<String, String> producer, String value) throws Exception {
        producer.send(new ProducerRecord<>(TOPIC, value)).get(10, TimeUnit.SECONDS);
    }

    static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }
}
