import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;

/** Writes records with every codec and reads them in a group, with the client API of Kafka 0.9. */
public class OldClient {
    static final int RECORDS = 500;
    static final int SECONDS = 10;

    /** Arguments: host:port, and a topic per codec, as codec=topic. */
    public static void main(String[] arguments) throws Exception {
        for (String pair : Arrays.copyOfRange(arguments, 1, arguments.length)) {
            String[] parts = pair.split("=");
            write(arguments[0], parts[0], parts[1]);
            read(arguments[0], parts[1]);
            System.out.println(parts[0] + " ok");
        }
    }

    static void write(String bootstrap, String codec, String topic) throws Exception {
        Properties settings = settings(bootstrap, "serializer", "Serializer");
        settings.put("acks", "all");
        settings.put("compression.type", codec);
        settings.put("linger.ms", "5");
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (int i = 0; i < RECORDS; i++) {
            sent.add(producer.send(new ProducerRecord<>(topic, 0, key(i), value(i))));
        }
        for (int i = 0; i < RECORDS; i++) {
            check(sent.get(i).get(SECONDS, TimeUnit.SECONDS).offset() == i, "offset of record " + i);
        }
        producer.close();
    }

    static void read(String bootstrap, String topic) {
        Properties settings = settings(bootstrap, "deserializer", "Deserializer");
        settings.put("group.id", "group-of-" + topic);
        settings.put("auto.offset.reset", "earliest");
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings);
        consumer.subscribe(Arrays.asList(topic));
        long end = System.currentTimeMillis() + SECONDS * 1000;
        int next = 0;
        while (next < RECORDS && System.currentTimeMillis() < end) {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(100)) {
                check(record.offset() == next, "read offset " + record.offset() + " for " + next);
                check(Arrays.equals(record.key(), key(next)), "key of record " + next);
                check(Arrays.equals(record.value(), value(next)), "value of record " + next);
                next++;
            }
        }
        check(next == RECORDS, "only " + next + " records came");
        consumer.commitSync();
        consumer.close();
    }

    static Properties settings(String bootstrap, String role, String kind) {
        String name = "org.apache.kafka.common.serialization.ByteArray" + kind;
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("key." + role, name);
        settings.put("value." + role, name);
        return settings;
    }

    static byte[] key(int number) {
        return number % 3 == 0 ? null : ("key " + number).getBytes();
    }

    static byte[] value(int number) {
        return number % 7 == 0 ? null : ("value " + number + " of many that look alike").getBytes();
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new IllegalStateException(what);
        }
    }
}
