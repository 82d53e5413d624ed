import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** Sends a record for each line "partition value" of the input, and prints each value that is acknowledged. */
public final class IdempotentProducer {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("enable.idempotence", "true");
        settings.put("acks", "all");
        settings.put("batch.size", "64");
        settings.put("retry.backoff.ms", "20");
        settings.put("delivery.timeout.ms", "600000");
        StringSerializer strings = new StringSerializer();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        PrintStream output = System.out;
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings, strings, strings)) {
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                String[] words = line.split(" ");
                int partition = Integer.parseInt(words[0]);
                String value = words[1];
                producer.send(
                        new ProducerRecord<>(arguments[1], partition, null, value),
                        (metadata, failure) -> output.println(failure == null ? value : "! " + failure));
            }
        }
    }
}
