import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Runs Java's clients one after the other with debug logs.
 *
 * <p>Usage: java LoggedClients.java host:port. It prints "== NAME" to stderr before each client, and
 * "result NAME VALUE" for the results that do not depend on the broker.
 */
public final class LoggedClients {
    private static final String TOPIC = "talk";
    private static final int PARTITIONS = 3;
    private static final int RECORDS = 30;
    private static final long TIMEOUT_NS = 60_000_000_000L;

    private final String bootstrap;

    private LoggedClients(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    public static void main(String[] arguments) throws Exception {
        LoggedClients clients = new LoggedClients(arguments[0]);
        begin("create");
        try (Admin admin = clients.admin()) {
            admin.createTopics(List.of(new NewTopic(TOPIC, PARTITIONS, (short) 1))).all().get();
            awaitTopic(admin);
        }
        begin("producer");
        clients.produce(Map.of());
        begin("producer acks 1");
        clients.produce(Map.of("acks", "1", "enable.idempotence", false, "compression.type", "gzip"));
        begin("transactions");
        clients.transact();
        for (String protocol : List.of("classic", "consumer")) {
            begin(protocol + " consumer");
            clients.consume(protocol);
        }
        begin("share consumer");
        clients.share();
        begin("admin");
        try (Admin admin = clients.admin()) {
            clients.administrate(admin);
        }
        System.exit(0);
    }

    private static void begin(String name) {
        System.err.println("== " + name);
    }

    private static void awaitTopic(Admin admin) throws Exception {
        long end = System.nanoTime() + TIMEOUT_NS;
        while (System.nanoTime() < end && !admin.listTopics().names().get().contains(TOPIC)) {
            Thread.sleep(100);
        }
    }

    private Map<String, Object> settings(Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>(more);
        settings.put("bootstrap.servers", bootstrap);
        return settings;
    }

    private Admin admin() {
        return Admin.create(settings(Map.of()));
    }

    private KafkaProducer<String, String> producer(Map<String, Object> more) {
        StringSerializer text = new StringSerializer();
        return new KafkaProducer<>(settings(more), text, text);
    }

    private static void send(KafkaProducer<String, String> producer) {
        for (int number = 0; number < RECORDS; number++) {
            producer.send(new ProducerRecord<>(TOPIC, number % PARTITIONS, "k", "v" + number));
        }
        producer.flush();
    }

    private void produce(Map<String, Object> more) {
        try (KafkaProducer<String, String> producer = producer(more)) {
            producer.partitionsFor(TOPIC);
            send(producer);
        }
    }

    private void transact() throws Exception {
        Map<TopicPartition, OffsetAndMetadata> offsets =
            Map.of(new TopicPartition(TOPIC, 0), new OffsetAndMetadata(3));
        try (KafkaProducer<String, String> producer =
                producer(Map.of("transactional.id", "transfer"));
            Consumer<String, String> consumer = consumer("consumer", "of transactions")) {
            consumer.subscribe(List.of(TOPIC));
            poll(consumer);
            producer.initTransactions();
            for (boolean commits : new boolean[] {true, false}) {
                producer.beginTransaction();
                send(producer);
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                if (commits) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
        }
    }

    private Consumer<String, String> consumer(String protocol, String group) {
        Map<String, Object> more = new HashMap<>();
        more.put("group.protocol", protocol);
        more.put("group.id", group);
        more.put("auto.offset.reset", "earliest");
        more.put("isolation.level", "read_committed");
        StringDeserializer text = new StringDeserializer();
        return new KafkaConsumer<>(settings(more), text, text);
    }

    private static int poll(Consumer<String, String> consumer) {
        int read = 0;
        long end = System.nanoTime() + TIMEOUT_NS;
        while (read < RECORDS && System.nanoTime() < end) {
            read += consumer.poll(Duration.ofMillis(100)).count();
        }
        return read;
    }

    private void consume(String protocol) {
        TopicPartition first = new TopicPartition(TOPIC, 0);
        try (Consumer<String, String> consumer = consumer(protocol, "of " + protocol)) {
            consumer.subscribe(List.of(TOPIC));
            result(protocol, poll(consumer) >= RECORDS);
            consumer.commitSync();
            result(protocol, consumer.committed(Set.of(first)).get(first) != null);
            result(protocol, consumer.beginningOffsets(Set.of(first)));
            result(protocol, consumer.endOffsets(Set.of(first)));
            result(protocol, consumer.offsetsForTimes(Map.of(first, 0L)).get(first).offset());
            result(protocol, consumer.listTopics().keySet().contains(TOPIC));
            consumer.seekToBeginning(Set.of(first));
            poll(consumer);
            consumer.unsubscribe();
        }
    }

    private void share() throws Exception {
        try (Admin admin = admin()) {
            set(admin, ConfigResource.Type.GROUP, "of shares", "share.auto.offset.reset", "earliest");
        }
        StringDeserializer text = new StringDeserializer();
        Map<String, Object> more =
            Map.of("group.id", "of shares", "share.acknowledgement.mode", "explicit");
        try (KafkaShareConsumer<String, String> consumer =
            new KafkaShareConsumer<>(settings(more), text, text)) {
            consumer.subscribe(List.of(TOPIC));
            int read = 0;
            long end = System.nanoTime() + TIMEOUT_NS;
            while (read < RECORDS && System.nanoTime() < end) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    consumer.acknowledge(record, read == 0 ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT);
                    read++;
                }
                consumer.commitSync();
            }
            result("share", read >= RECORDS);
        }
    }

    private static void set(
        Admin admin, ConfigResource.Type type, String name, String key, String value) throws Exception {
        AlterConfigOp set = new AlterConfigOp(new ConfigEntry(key, value), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(new ConfigResource(type, name), List.of(set))).all().get();
    }

    /** Sends each kind of request that does not need several nodes. Errors are results as well. */
    private void administrate(Admin admin) {
        TopicPartition first = new TopicPartition(TOPIC, 0);
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, TOPIC);
        ClientQuotaEntity user = new ClientQuotaEntity(Map.of("user", "u"));
        attempt("describeTopics", () -> admin.describeTopics(List.of(TOPIC, "none")).allTopicNames());
        attempt("listTopics", () -> admin.listTopics().names());
        attempt("describeConfigs", () -> admin.describeConfigs(List.of(topic)).all());
        attempt("setConfig", () -> {
            set(admin, ConfigResource.Type.TOPIC, TOPIC, "retention.ms", "123456789");
            return null;
        });
        attempt("wrongConfig", () -> {
            set(admin, ConfigResource.Type.TOPIC, TOPIC, "retention.ms", "never");
            return null;
        });
        attempt("listConfigResources", () -> admin.listConfigResources().all());
        attempt("createPartitions", () ->
            admin.createPartitions(Map.of(TOPIC, NewPartitions.increaseTo(PARTITIONS + 1))).all());
        attempt("fewerPartitions", () ->
            admin.createPartitions(Map.of(TOPIC, NewPartitions.increaseTo(1))).all());
        attempt("existing", () ->
            admin.createTopics(List.of(new NewTopic(TOPIC, 1, (short) 1))).all());
        attempt("listOffsets", () -> admin.listOffsets(Map.of(first, OffsetSpec.latest())).all());
        attempt("listMaximum", () -> admin.listOffsets(Map.of(first, OffsetSpec.maxTimestamp())).all());
        attempt("deleteRecords", () ->
            admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(2))).all());
        attempt("describeCluster", () -> admin.describeCluster().nodes());
        attempt("describeFenced", () ->
            admin.describeCluster(new DescribeClusterOptions().includeFencedBrokers(true)).nodes());
        attempt("describeFeatures", () -> admin.describeFeatures().featureMetadata());
        attempt("describeMetadataQuorum", () -> admin.describeMetadataQuorum().quorumInfo());
        attempt("describeLogDirs", () -> admin.describeLogDirs(List.of(1)).allDescriptions());
        attempt("describeProducers", () -> admin.describeProducers(List.of(first)).all());
        attempt("listTransactions", () -> admin.listTransactions().all());
        attempt("describeTransactions", () -> admin.describeTransactions(List.of("transfer")).all());
        attempt("fenceProducers", () -> admin.fenceProducers(List.of("transfer")).all());
        attempt("electLeaders", () -> admin.electLeaders(ElectionType.PREFERRED, Set.of(first)).all());
        attempt("listReassignments", () -> admin.listPartitionReassignments().reassignments());
        attempt("reassign", () ->
            admin.alterPartitionReassignments(Map.of(first, Optional.empty())).all());
        attempt("describeAcls", () -> admin.describeAcls(AclBindingFilter.ANY).values());
        attempt("describeUsers", () -> admin.describeUserScramCredentials().all());
        attempt("describeTokens", () -> admin.describeDelegationToken().delegationTokens());
        attempt("setQuota", () -> admin.alterClientQuotas(List.of(new ClientQuotaAlteration(
            user, List.of(new ClientQuotaAlteration.Op("producer_byte_rate", 1e9))))).all());
        attempt("describeQuotas", () -> admin.describeClientQuotas(ClientQuotaFilter.all()).entities());
        attempt("unregisterBroker", () -> admin.unregisterBroker(77).all());
        administrateGroups(admin, first);
        attempt("deleteTopics", () -> admin.deleteTopics(List.of(TOPIC)).all());
        attempt("deleteNothing", () -> admin.deleteTopics(List.of("none")).all());
    }

    private void administrateGroups(Admin admin, TopicPartition first) {
        String group = "of classic";
        Map<TopicPartition, OffsetAndMetadata> offsets = Map.of(first, new OffsetAndMetadata(4));
        attempt("listGroups", () -> admin.listGroups().all());
        attempt("describeConsumerGroups", () ->
            admin.describeConsumerGroups(List.of(group, "of consumer")).all());
        attempt("describeNoGroup", () -> admin.describeConsumerGroups(List.of("none")).all());
        attempt("describeClassicGroups", () -> admin.describeClassicGroups(List.of(group)).all());
        attempt("listConsumerGroupOffsets", () -> admin.listConsumerGroupOffsets(
            Map.of(group, new ListConsumerGroupOffsetsSpec())).all());
        attempt("alterConsumerGroupOffsets", () -> admin.alterConsumerGroupOffsets(group, offsets).all());
        attempt("deleteConsumerGroupOffsets", () ->
            admin.deleteConsumerGroupOffsets(group, Set.of(first)).all());
        attempt("describeShareGroups", () -> admin.describeShareGroups(List.of("of shares")).all());
        attempt("listShareGroupOffsets", () -> admin.listShareGroupOffsets(
            Map.of("of shares", new ListShareGroupOffsetsSpec())).all());
        attempt("alterShareGroupOffsets", () ->
            admin.alterShareGroupOffsets("of shares", Map.of(first, 5L)).all());
        attempt("deleteShareGroupOffsets", () ->
            admin.deleteShareGroupOffsets("of shares", Set.of(TOPIC)).all());
        attempt("describeStreamsGroups", () -> admin.describeStreamsGroups(List.of("none")).all());
        attempt("deleteShareGroups", () -> admin.deleteShareGroups(List.of("of shares")).all());
        attempt("deleteConsumerGroups", () ->
            admin.deleteConsumerGroups(List.of(group, "none")).all());
    }

    private static void attempt(String name, Callable<KafkaFuture<?>> call) {
        String outcome = "done";
        try {
            KafkaFuture<?> future = call.call();
            if (future != null) {
                future.get();
            }
        } catch (Exception error) {
            Throwable cause = error.getCause() == null ? error : error.getCause();
            outcome = cause.getClass().getSimpleName() + ": " + cause.getMessage();
        }
        result(name, outcome);
    }

    private static void result(String name, Object value) {
        System.err.println("result " + name + " " + value);
    }
}
