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
 * Service that writes an invoice for each order, and rejects invalid orders.
 *
 * <p>Offsets are committed after the invoices are written, so no order is lost. After a failure, some
 * invoices are written again. Their key is the order ID, and readers use the last one. An order that
 * a producer sent twice produces one invoice if the same instance reads both.
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

    /** Creates the clients; the settings apply to both and must contain {@code bootstrap.servers}. */
    public InvoiceService(Map<String, Object> settings) {
        Map<String, Object> reading = new HashMap<>(settings);
        reading.put("group.id", "invoices");
        reading.put("enable.auto.commit", false);
        reading.put("auto.offset.reset", "earliest");
        consumer = new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer());
        producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    /** Processes orders until {@link #close} is called. */
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
        } catch (WakeupException wakeup) {
            // closed during poll
        }
    }

    /** Makes {@link #run} return soon. */
    @Override
    public void close() {
        closing = true;
        consumer.wakeup();
    }

    /** Processes one order; tests override this to delay it. */
    protected void handle(ConsumerRecord<String, String> record) {
        try {
            JsonNode order = json.readTree(record.value());
            String id = order.path("id").asText();
            BigDecimal net = order.path("net").decimalValue();
            if (id.isEmpty() || net.signum() <= 0) {
                throw new IllegalArgumentException("invalid order");
            }
            if (done.add(id)) {
                BigDecimal gross = net.multiply(WITH_VAT).setScale(2, RoundingMode.HALF_UP);
                String invoice = json.writeValueAsString(Map.of("id", id, "gross", gross));
                producer.send(new ProducerRecord<>(INVOICES, id, invoice));
            }
        } catch (JsonProcessingException | IllegalArgumentException invalid) {
            producer.send(new ProducerRecord<>(REJECTED, record.key(), record.value()));
        }
    }

    private void commit() {
        try {
            consumer.commitSync();
        } catch (RebalanceInProgressException | CommitFailedException rebalanced) {
            // The group has rebalanced: the new owners of the partitions get these orders again.
            done.clear();
        }
    }
}
