package example;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;

@Timeout(60)
class InvoiceServiceTest {
    private static final int SECONDS = 20;

    @RegisterExtension
    final Kbroker kbroker = new Kbroker(
        Map.of("orders", 2, "invoices", 1, "orders.rejected", 1),
        Map.of("log.retention.hours", 24));

    private final List<InvoiceService> services = new ArrayList<>();
    private final List<CompletableFuture<Void>> runs = new ArrayList<>();

    @AfterEach
    void closeServices() {
        services.forEach(InvoiceService::close);
        runs.forEach(run -> run.exceptionally(failed -> null).join());
    }

    @Test
    void ordersBecomeInvoices() {
        start(new InvoiceService(settings()));
        order(1, "100");
        order(2, "10.50");
        assertEquals(List.of("1: 119.00", "2: 12.50"), invoices(2));
        waitUntil("wait_for_lag", "group", "invoices");
    }

    @Test
    void brokerRestartLosesNoOrder() {
        start(new InvoiceService(settings()));
        order(1, "100");
        assertEquals(List.of("1: 119.00"), invoices(1));
        kbroker.command("restart");
        order(2, "100");
        assertEquals(List.of("1: 119.00", "2: 119.00"), invoices(2));
        waitUntil("wait_for_lag", "group", "invoices");
    }

    @Test
    void orderSentTwiceProducesOneInvoice() throws Exception {
        kbroker.command("fault", "api", "Produce", "topic", "orders", "at", "after", "effect", "disconnect");
        Map<String, Object> nonIdempotent = Map.of(
            "bootstrap.servers", kbroker.bootstrapServers(), "enable.idempotence", false,
            "retry.backoff.ms", 20, "reconnect.backoff.ms", 20);
        try (KafkaProducer<String, String> producer =
            new KafkaProducer<>(nonIdempotent, new StringSerializer(), new StringSerializer())) {
            producer.send(new ProducerRecord<>("orders", 0, null, orderOf(1, "100"))).get();
        }
        assertEquals(2, records("orders").size());
        start(new InvoiceService(settings()));
        waitUntil("wait_for_commit", "group", "invoices", "topic", "orders", "partition", 0, "offset", 2);
        assertEquals(1, records("invoices").size());
    }

    @Test
    void crashBeforeCommitWritesSameInvoiceAgain() {
        kbroker.command("fault", "api", "OffsetCommit", "error", "UNKNOWN_SERVER_ERROR");
        order(1, "100");
        CompletableFuture<Void> first = start(new InvoiceService(settings()));
        assertThrows(CompletionException.class, first::join);
        start(new InvoiceService(settings()));
        waitUntil("wait_for_lag", "group", "invoices");
        assertEquals(List.of("1: 119.00", "1: 119.00"), invoices(2));
    }

    @Test
    void rebalanceDuringProcessingLosesNoOrder() throws Exception {
        CountDownLatch inWork = new CountDownLatch(1);
        CountDownLatch resume = new CountDownLatch(1);
        start(new InvoiceService(settings()) {
            @Override
            protected void handle(ConsumerRecord<String, String> record) {
                inWork.countDown();
                await(resume);
                super.handle(record);
            }
        });
        order(1, "100");
        await(inWork);
        start(new InvoiceService(settings()));
        waitUntil("wait_for_group", "group", "invoices", "state", "PreparingRebalance");
        resume.countDown();
        waitUntil("wait_for_group", "group", "invoices", "members", 2);
        for (int partition = 0; partition < 2; partition++) {
            kbroker.command("produce", "topic", "orders", "partition", partition,
                "value", orderOf(2 + partition, "100"));
        }
        waitUntil("wait_until_idle", "group", "invoices");
        List<String> found = invoices(3);
        assertTrue(found.containsAll(List.of("1: 119.00", "2: 119.00", "3: 119.00")), found::toString);
    }

    @Test
    void invalidOrdersAreRejected() {
        List<String> invalid = List.of("no json", "{\"id\": \"7\"}", "{\"net\": 3}", "17");
        for (String text : invalid) {
            kbroker.command("produce", "topic", "orders", "partition", 0, "value", text);
        }
        order(1, "100");
        start(new InvoiceService(settings()));
        assertEquals(List.of("1: 119.00"), invoices(1));
        waitUntil("wait_for_lag", "group", "invoices");
        List<String> rejected = new ArrayList<>();
        records("orders.rejected").forEach(record -> rejected.add(record.get("value").asText()));
        assertEquals(invalid, rejected);
    }

    @Test
    void expiredOrdersDoNotStopService() {
        CompletableFuture<Void> running = start(new InvoiceService(settings()));
        order(1, "100");
        invoices(1);
        waitUntil("wait_for_lag", "group", "invoices");
        JsonNode before = waitUntil("wait_for_group", "group", "invoices").get("group");
        kbroker.command("advance", "hours", 25);
        assertEquals(0, records("orders").size(), "retention is one day");
        order(2, "100");
        assertEquals(List.of("2: 119.00"), invoices(1));
        assertEquals(before, waitUntil("wait_for_group", "group", "invoices").get("group"));

        services.get(0).close();
        running.join();
        order(3, "100");
        kbroker.command("advance", "hours", 25);
        order(4, "100");
        start(new InvoiceService(settings()));
        assertEquals(List.of("4: 119.00"), invoices(1), "order 3 expired before a service read it");
    }

    private CompletableFuture<Void> start(InvoiceService service) {
        services.add(service);
        runs.add(CompletableFuture.runAsync(service, command -> new Thread(command).start()));
        return runs.get(runs.size() - 1);
    }

    private Map<String, Object> settings() {
        return Map.of("bootstrap.servers", kbroker.bootstrapServers(),
            "retry.backoff.ms", 20, "reconnect.backoff.ms", 20);
    }

    private void order(int number, String net) {
        kbroker.command("produce", "topic", "orders", "value", orderOf(number, net));
    }

    private static String orderOf(int number, String net) {
        return "{\"id\": \"" + number + "\", \"net\": " + net + "}";
    }

    /** Waits for {@code count} invoices; returns all as "id: gross", sorted by ID. */
    private List<String> invoices(int count) {
        List<String> found = new ArrayList<>();
        JsonNode records = waitUntil("wait_for", "topic", "invoices", "count", count).get("records");
        for (JsonNode record : records) {
            String gross = record.get("value").asText().replaceAll(".*\"gross\":([\\d.]+).*", "$1");
            found.add(record.get("key").asText() + ": " + gross);
        }
        return found.stream().sorted().toList();
    }

    /** Sends a waiting command with a timeout that suits a busy machine. */
    private JsonNode waitUntil(String verb, Object... words) {
        List<Object> all = new ArrayList<>(List.of(words));
        all.addAll(List.of("timeout", SECONDS));
        return kbroker.command(verb, all.toArray());
    }

    private JsonNode records(String topic) {
        return kbroker.command("records", "topic", topic).get("records");
    }

    private static void await(CountDownLatch latch) {
        try {
            assertTrue(latch.await(SECONDS, TimeUnit.SECONDS));
        } catch (InterruptedException interrupted) {
            throw new IllegalStateException(interrupted);
        }
    }
}
