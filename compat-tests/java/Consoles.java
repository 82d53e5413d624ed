import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeAclsOptions;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.DescribeConsumerGroupsOptions;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Sends the requests of each page of kafbat UI and AKHQ with the Java clients.
 *
 * <p>Usage: java Consoles.java host:port topic group. Creates the topic, writes 30 records, commits offsets of the
 * group, and makes the calls. Prints a line of JSON per call: {"call": name, "answer": result} or {"call": name,
 * "error": class of the error}.
 */
public final class Consoles {
    private static final int PARTITIONS = 3;
    private static final int RECORDS = 30;
    private static final ObjectMapper JSON = new ObjectMapper();

    private final Admin admin;
    private final Map<String, Object> settings;
    private final String topic;
    private final String group;
    private final List<TopicPartition> partitions = new ArrayList<>();

    private Consoles(String address, String topic, String group) {
        this.settings = Map.of("bootstrap.servers", address, "client.id", "kafbat-ui-admin");
        this.admin = Admin.create(settings);
        this.topic = topic;
        this.group = group;
        for (int number = 0; number < PARTITIONS; number++) {
            partitions.add(new TopicPartition(topic, number));
        }
    }

    public static void main(String[] arguments) throws Exception {
        Consoles consoles = new Consoles(arguments[0], arguments[1], arguments[2]);
        consoles.prepare();
        consoles.askOfTheCluster();
        consoles.askOfTopics();
        consoles.readMessages();
        consoles.askOfGroups();
        consoles.askOfSecurity();
        consoles.change();
        consoles.admin.close();
    }

    private static void call(String name, Callable<Object> asked) throws Exception {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("call", name);
        try {
            line.put("answer", asked.call());
        } catch (ExecutionException error) {
            line.put("error", error.getCause().getClass().getSimpleName());
        }
        System.out.println(JSON.writeValueAsString(line));
    }

    private void prepare() throws Exception {
        NewTopic made = new NewTopic(topic, PARTITIONS, (short) 1).configs(Map.of("retention.ms", "-1"));
        admin.createTopics(List.of(made)).all().get();
        StringSerializer texts = new StringSerializer();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings, texts, texts)) {
            for (int number = 0; number < RECORDS; number++) {
                producer.send(new ProducerRecord<>(topic, number % PARTITIONS, (long) number, "k" + number, "v" + number));
            }
        }
        Map<String, Object> member = new HashMap<>(settings);
        member.put("group.id", group);
        member.put("auto.offset.reset", "earliest");
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(member)) {
            consumer.subscribe(List.of(topic));
            int seen = 0;
            while (seen < RECORDS) {
                seen += consumer.poll(Duration.ofMillis(100)).count();
            }
            Map<TopicPartition, OffsetAndMetadata> offsets = partitions.stream()
                .collect(Collectors.toMap(each -> each, each -> new OffsetAndMetadata(4)));
            consumer.commitSync(offsets);
        }
    }

    private static KafkaConsumer<byte[], byte[]> consumer(Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(settings);
        all.put("enable.auto.commit", "false");
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        return new KafkaConsumer<>(all, bytes, bytes);
    }

    private void askOfTheCluster() throws Exception {
        call("describeCluster", () -> {
            var told = admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true));
            return Map.of("nodes", told.nodes().get().size(), "controller", told.controller().get() != null,
                "id", !told.clusterId().get().isEmpty());
        });
        call("describeFeatures", () ->
            admin.describeFeatures().featureMetadata().get().finalizedFeatures().containsKey("metadata.version"));
        call("describeConfigs of brokers", () -> {
            Collection<ConfigEntry> found = configs(ConfigResource.Type.BROKER, String.valueOf(node()));
            Set<String> names = found.stream().map(ConfigEntry::name).collect(Collectors.toCollection(TreeSet::new));
            return Map.of("usual ones",
                names.containsAll(Set.of("delete.topic.enable", "log.retention.ms", "message.max.bytes")),
                "version", names.contains("inter.broker.protocol.version"));
        });
        call("describeMetadataQuorum", () ->
            admin.describeMetadataQuorum().quorumInfo().get().voters().size());
        call("describeLogDirs", () -> {
            var directories = admin.describeLogDirs(List.of(node())).allDescriptions().get().get(node());
            return directories.values().stream().flatMap(each -> each.replicaInfos().entrySet().stream())
                .filter(each -> each.getKey().topic().equals(topic))
                .filter(each -> each.getValue().size() > 0).count();
        });
    }

    private int node() throws Exception {
        return admin.describeCluster().nodes().get().iterator().next().id();
    }

    private Collection<ConfigEntry> configs(ConfigResource.Type kind, String name) throws Exception {
        ConfigResource resource = new ConfigResource(kind, name);
        DescribeConfigsOptions options = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        return admin.describeConfigs(List.of(resource), options).all().get().get(resource).entries();
    }

    private void askOfTopics() throws Exception {
        call("listTopics", () ->
            admin.listTopics(new ListTopicsOptions().listInternal(true)).names().get()
                .containsAll(Set.of(topic, "__consumer_offsets")));
        call("describeTopics", () -> {
            DescribeTopicsOptions options = new DescribeTopicsOptions().includeAuthorizedOperations(true);
            TopicDescription told = admin.describeTopics(List.of(topic), options).allTopicNames().get().get(topic);
            return Map.of("partitions", told.partitions().size(), "internal", told.isInternal(),
                "led", told.partitions().stream().filter(each -> each.leader() != null).count());
        });
        call("describeConfigs of topics", () -> {
            Map<String, Object> found = new TreeMap<>();
            for (ConfigEntry each : configs(ConfigResource.Type.TOPIC, topic)) {
                if (Set.of("cleanup.policy", "retention.ms").contains(each.name())) {
                    found.put(each.name(), each.value());
                    found.put(each.name() + " is told", each.documentation() != null && !each.synonyms().isEmpty());
                }
            }
            return found;
        });
        call("listOffsets", () -> Map.of("earliest", offsets(OffsetSpec.earliest()), "latest",
            offsets(OffsetSpec.latest()), "at 15 ms", offsets(OffsetSpec.forTimestamp(15)), "newest record",
            offsets(OffsetSpec.maxTimestamp())));
        call("describeProducers", () ->
            admin.describeProducers(partitions).all().get().values().stream()
                .mapToInt(each -> each.activeProducers().size()).sum());
        call("listPartitionReassignments", () -> admin.listPartitionReassignments().reassignments().get().size());
    }

    private Map<String, Long> offsets(OffsetSpec which) throws Exception {
        Map<TopicPartition, OffsetSpec> asked =
            partitions.stream().collect(Collectors.toMap(each -> each, each -> which));
        return new TreeMap<>(admin.listOffsets(asked).all().get().entrySet().stream()
            .collect(Collectors.toMap(each -> each.getKey().toString(), each -> each.getValue().offset())));
    }

    /** Reads like a page of messages: without a group, from an offset to an end offset known in advance. */
    private void readMessages() throws Exception {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(settings)) {
            call("beginningOffsets and endOffsets", () -> {
                long first = consumer.beginningOffsets(partitions).values().stream().mapToLong(each -> each).sum();
                return List.of(first, consumer.endOffsets(partitions).values().stream().mapToLong(each -> each).sum());
            });
            call("offsetsForTimes", () ->
                consumer.offsetsForTimes(partitions.stream().collect(Collectors.toMap(each -> each, each -> 15L)))
                    .values().stream().mapToLong(each -> each.offset()).sum());
            call("messages from the oldest", () -> {
                consumer.assign(partitions);
                consumer.seekToBeginning(partitions);
                return values(consumer, RECORDS);
            });
            call("messages from the newest", () -> {
                consumer.endOffsets(partitions).forEach((each, end) -> consumer.seek(each, end - 2));
                return values(consumer, 2 * PARTITIONS);
            });
            call("partitionsFor", () -> consumer.partitionsFor(topic).size());
        }
    }

    private static List<String> values(KafkaConsumer<byte[], byte[]> consumer, int count) {
        List<String> found = new ArrayList<>();
        while (found.size() < count) {
            for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofSeconds(1))) {
                found.add(new String(each.value(), StandardCharsets.UTF_8));
            }
        }
        found.sort(null);
        return found;
    }

    private void askOfGroups() throws Exception {
        call("listConsumerGroups", () ->
            admin.listConsumerGroups().all().get().stream().filter(each -> each.groupId().equals(group))
                .map(each -> String.valueOf(each.groupState().orElse(null))).toList());
        call("describeConsumerGroups", () -> {
            DescribeConsumerGroupsOptions options =
                new DescribeConsumerGroupsOptions().includeAuthorizedOperations(true);
            var told = admin.describeConsumerGroups(List.of(group), options).all().get().get(group);
            return List.of(told.groupState().toString(), told.members().size(), told.coordinator() != null);
        });
        call("listConsumerGroupOffsets", () -> {
            var told = admin.listConsumerGroupOffsets(Map.of(group, new ListConsumerGroupOffsetsSpec())).all().get();
            return told.get(group).values().stream().mapToLong(OffsetAndMetadata::offset).sum();
        });
    }

    private void askOfSecurity() throws Exception {
        call("describeAcls", () ->
            admin.describeAcls(AclBindingFilter.ANY, new DescribeAclsOptions()).values().get().size());
        call("describeClientQuotas", () -> admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get().size());
        call("describeUserScramCredentials", () -> admin.describeUserScramCredentials().all().get().size());
    }

    /** Makes the calls of their buttons. */
    private void change() throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        call("incrementalAlterConfigs", () -> {
            AlterConfigOp set =
                new AlterConfigOp(new ConfigEntry("retention.ms", "7200000"), AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(set))).all().get();
            return configs(ConfigResource.Type.TOPIC, topic).stream()
                .filter(each -> each.name().equals("retention.ms")).map(ConfigEntry::value).toList();
        });
        call("createPartitions", () -> {
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(PARTITIONS + 1))).all().get();
            return null;
        });
        call("alterPartitionReassignments", () -> {
            admin.alterPartitionReassignments(Map.of(partitions.get(0), Optional.empty())).all().get();
            return null;
        });
        call("alterReplicaLogDirs", () -> {
            TopicPartitionReplica replica = new TopicPartitionReplica(topic, 0, node());
            admin.alterReplicaLogDirs(Map.of(replica, "/no/such/directory")).all().get();
            return null;
        });
        call("deleteRecords", () ->
            admin.deleteRecords(Map.of(partitions.get(0), RecordsToDelete.beforeOffset(5)))
                .lowWatermarks().get(partitions.get(0)).get().lowWatermark());
        call("alterConsumerGroupOffsets", () -> {
            Map<TopicPartition, OffsetAndMetadata> moved = Map.of(partitions.get(1), new OffsetAndMetadata(9));
            admin.alterConsumerGroupOffsets(group, moved).all().get();
            return admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
                .get(partitions.get(1)).offset();
        });
        call("deleteConsumerGroupOffsets", () -> {
            admin.deleteConsumerGroupOffsets(group, Set.of(partitions.get(2))).all().get();
            return admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
                .containsKey(partitions.get(2));
        });
        call("deleteConsumerGroups", () -> admin.deleteConsumerGroups(List.of(group)).all().get());
        call("deleteTopics", () -> admin.deleteTopics(List.of(topic)).all().get());
    }
}
