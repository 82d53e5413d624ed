import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Runs the Java client behind the verbs of clients/driver.py that transactions need.
 *
 * <p>Usage: java Driver.java host:port. Requests are NDJSON on stdin, and responses on stdout.
 */
public final class Driver {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final int SECONDS = 30;

    private final String bootstrap;
    private final Map<String, KafkaProducer<String, String>> producers = new HashMap<>();

    private Driver(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    public static void main(String[] arguments) throws Exception {
        Driver driver = new Driver(arguments[0]);
        ObjectMapper json = new ObjectMapper();
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err); // libraries may print to stdout
        BufferedReader requests =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            Map<String, Object> answer = new HashMap<>();
            try {
                JsonNode request = json.readTree(line);
                answer.put("result", driver.obey(request.get("verb").asText(), request.get("arguments")));
            } catch (Exception error) {
                answer.put("error", failure(error));
            }
            answers.println(json.writeValueAsString(answer));
        }
        System.exit(0);
    }

    private Object obey(String verb, JsonNode wanted) throws Exception {
        switch (verb) {
            case "read":
                return read(wanted);
            case "transactional":
                producers.put(wanted.get("producer").asText(), transactional(
                    wanted.get("identity").asText(), wanted.path("timeout_ms").asInt(60_000)));
                return null;
            case "begin":
                producer(wanted).beginTransaction();
                return null;
            case "send":
                return send(producer(wanted), wanted.get("topic").asText(), wanted.get("records"));
            case "end":
                end(producer(wanted), wanted.get("commit").asBoolean());
                return null;
            case "close":
                producers.remove(wanted.get("producer").asText()).close(Duration.ofSeconds(5));
                return null;
            case "transform":
                transform(wanted);
                return null;
            default:
                throw new IllegalArgumentException("this driver does not know the verb " + verb);
        }
    }

    private KafkaProducer<String, String> producer(JsonNode wanted) {
        return producers.get(wanted.get("producer").asText());
    }

    private KafkaProducer<String, String> transactional(String identity, int timeoutMs) {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", bootstrap,
            "transactional.id", identity,
            "transaction.timeout.ms", timeoutMs,
            "max.block.ms", 20_000);
        KafkaProducer<String, String> producer =
            new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        producer.initTransactions();
        return producer;
    }

    private static List<Object> send(
        KafkaProducer<String, String> producer, String topic, JsonNode records) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode record : records) {
            Integer partition = record.hasNonNull("partition") ? record.get("partition").asInt() : null;
            sent.add(producer.send(
                new ProducerRecord<>(topic, partition, null, record.get("value").asText())));
        }
        producer.flush();
        List<Object> answers = new ArrayList<>();
        for (Future<RecordMetadata> one : sent) {
            try {
                RecordMetadata there = one.get(SECONDS, TimeUnit.SECONDS);
                answers.add(Map.of("partition", there.partition(), "offset", there.offset()));
            } catch (ExecutionException failed) {
                answers.add(Map.of("error", failure(failed.getCause())));
            }
        }
        return answers;
    }

    private static void end(KafkaProducer<String, String> producer, boolean commit) {
        if (commit) {
            producer.commitTransaction();
        } else {
            producer.abortTransaction();
        }
    }

    private KafkaConsumer<String, String> consumer(Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>(more);
        settings.put("bootstrap.servers", bootstrap);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", false);
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    private List<Object> read(JsonNode wanted) {
        String topic = wanted.get("topic").asText();
        long end = System.nanoTime() + (long) (wanted.path("seconds").asDouble(20) * 1e9);
        List<Object> rows = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer =
            consumer(Map.of("isolation.level", wanted.get("isolation").asText()))) {
            List<TopicPartition> all = new ArrayList<>();
            for (PartitionInfo one : consumer.partitionsFor(topic)) {
                all.add(new TopicPartition(topic, one.partition()));
            }
            consumer.assign(all);
            consumer.seekToBeginning(all);
            while (rows.size() < wanted.get("count").asInt() && System.nanoTime() < end) {
                consumer.poll(POLL).forEach(record -> rows.add(row(record)));
            }
        }
        return rows;
    }

    private static Map<String, Object> row(ConsumerRecord<String, String> record) {
        Map<String, Object> row = new LinkedHashMap<>();
        row.put("topic", record.topic());
        row.put("partition", record.partition());
        row.put("offset", record.offset());
        row.put("timestamp", record.timestamp());
        row.put("key", record.key());
        row.put("value", record.value());
        row.put("headers", List.of());
        return row;
    }

    private void transform(JsonNode wanted) throws Exception {
        String group = wanted.get("group").asText();
        String source = wanted.get("source").asText();
        String target = wanted.get("target").asText();
        try (KafkaConsumer<String, String> consumer =
                consumer(Map.of("group.id", group, "isolation.level", "read_committed"));
            KafkaProducer<String, String> producer =
                transactional(wanted.get("identity").asText(), 60_000)) {
            consumer.subscribe(List.of(source));
            Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
            List<String> results = new ArrayList<>();
            while (results.size() < wanted.get("count").asInt()) {
                consumer.poll(POLL).forEach(record -> {
                    results.add(record.value().toUpperCase(Locale.ROOT));
                    positions.put(
                        new TopicPartition(source, record.partition()),
                        new OffsetAndMetadata(record.offset() + 1));
                });
            }
            producer.beginTransaction();
            for (String result : results) {
                producer.send(new ProducerRecord<>(target, result));
            }
            producer.flush(); // an abort discards unsent records
            producer.sendOffsetsToTransaction(positions, consumer.groupMetadata());
            end(producer, wanted.get("commit").asBoolean());
        }
    }

    /** Converts an error. The error code is that of the exception class, if it has one. */
    private static Map<String, Object> failure(Throwable error) {
        Errors known = Errors.forException(error);
        StringWriter trace = new StringWriter();
        error.printStackTrace(new PrintWriter(trace));
        Map<String, Object> failure = new TreeMap<>();
        failure.put("code", known == Errors.UNKNOWN_SERVER_ERROR ? null : known.code());
        failure.put("type", error.getClass().getSimpleName());
        failure.put("message", String.valueOf(error.getMessage()));
        failure.put("trace", trace.toString());
        return failure;
    }
}
