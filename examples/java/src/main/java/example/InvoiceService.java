package example;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.math.BigDecimal;
import java.math.RoundingMode;
import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Makes an invoice of each order, and puts aside what is no order.
 *
 * <p>It commits what it read once its invoices are written. So no order is lost, and after a failure
 * some invoices are written again; they have the order's id as key, and readers take the last one.
 * An order that a producer sent twice makes one invoice, as long as the same instance gets both.
 */
public class InvoiceService implements Runnable, AutoCloseable {
    static final String ORDERS = "orders";
    static final String INVOICES = "invoices";
    static final String REJECTED = "orders.rejected";
    private static final BigDecimal WITH_VAT = new BigDecimal("1.19");
    private static final Duration POLL = Duration.ofMillis(200);

    private final ObjectMapper json = new ObjectMapper();
    private final KafkaConsumer<String, String> consumer;
    private final KafkaProducer<String, String> producer;
    private final Set<String> done = new HashSet<>();
    private volatile boolean closing;

    /** The settings are those that both clients have, {@code bootstrap.servers} first of all. */
    public InvoiceService(Map<String, Object> settings) {
        Map<String, Object> reading = new HashMap<>(settings);
        reading.put("group.id", "invoices");
        reading.put("enable.auto.commit", false);
        reading.put("auto.offset.reset", "earliest");
        consumer = new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer());
        producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    /** Works until it is closed. */
    @Override
    public void run() {
        try (consumer; producer) {
            consumer.subscribe(List.of(ORDERS));
            while (!closing) {
                ConsumerRecords<String, String> records = consumer.poll(POLL);
                for (ConsumerRecord<String, String> record : records) {
                    handle(record);
                }
                producer.flush();
                if (!records.isEmpty()) {
                    commit();
                }
            }
        } catch (WakeupException asked) {
            // closed while it waited
        }
    }

    /** Asks it to end; {@link #run} returns soon after. */
    @Override
    public void close() {
        closing = true;
        consumer.wakeup();
    }

    /** One order; a test may hold it up. */
    protected void handle(ConsumerRecord<String, String> record) {
        try {
            JsonNode order = json.readTree(record.value());
            String id = order.path("id").asText();
            BigDecimal net = order.path("net").decimalValue();
            if (id.isEmpty() || net.signum() <= 0) {
                throw new IllegalArgumentException("no order");
            }
            if (done.add(id)) {
                BigDecimal gross = net.multiply(WITH_VAT).setScale(2, RoundingMode.HALF_UP);
                String invoice = json.writeValueAsString(Map.of("id", id, "gross", gross));
                producer.send(new ProducerRecord<>(INVOICES, id, invoice));
            }
        } catch (JsonProcessingException | IllegalArgumentException nonsense) {
            producer.send(new ProducerRecord<>(REJECTED, record.key(), record.value()));
        }
    }

    private void commit() {
        try {
            consumer.commitSync();
        } catch (RebalanceInProgressException | CommitFailedException moved) {
            // Whoever has the partitions now gets these orders again.
            done.clear();
        }
    }
}
