import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.StreamJoined;

/**
 * Two applications of Kafka Streams: one counts words, one joins orders with their payments.
 *
 * <p>Run it with {@code java StreamsApplication.java words|payments setting=value...}. The settings
 * are those of Kafka Streams. It prints a line per change of its state.
 */
public final class StreamsApplication {
    static final Duration WINDOW = Duration.ofSeconds(10);
    static final Duration GRACE = Duration.ofHours(1);

    private static final Serde<String> TEXT = Serdes.String();

    public static void main(String[] arguments) {
        Properties settings = new Properties();
        for (String argument : Arrays.asList(arguments).subList(1, arguments.length)) {
            String[] pair = argument.split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        StreamsBuilder builder = new StreamsBuilder();
        switch (arguments[0]) {
            case "words" -> countWords(builder);
            case "payments" -> joinPayments(builder);
            default -> throw new IllegalArgumentException("no application " + arguments[0]);
        }
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setStateListener((now, before) -> System.out.println(now));
        streams.setUncaughtExceptionHandler(StreamsApplication::giveUp);
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }

    /** Counts the words in lines, and writes each word with its count whenever it occurs. */
    static void countWords(StreamsBuilder builder) {
        builder.stream("lines", Consumed.with(TEXT, TEXT))
            .flatMapValues(line -> List.of(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with("words", TEXT, TEXT))
            .count(Materialized.as("counts"))
            .toStream()
            .mapValues(count -> count.toString())
            .to("counts", Produced.with(TEXT, TEXT));
    }

    /** Joins orders and payments, both "customer:number", of the same customer in a window. */
    static void joinPayments(StreamsBuilder builder) {
        byCustomer(builder, "orders")
            .join(
                byCustomer(builder, "payments"),
                (order, payment) -> order + " " + payment,
                JoinWindows.ofTimeDifferenceAndGrace(WINDOW, GRACE),
                StreamJoined.with(TEXT, TEXT, TEXT).withName("paid").withStoreName("paid"))
            .to("paid", Produced.with(TEXT, TEXT));
    }

    static KStream<String, String> byCustomer(StreamsBuilder builder, String topic) {
        return builder.stream(topic, Consumed.with(TEXT, TEXT))
            .selectKey((key, value) -> value.split(":")[0], Named.as("customer-of-" + topic));
    }

    static StreamThreadExceptionResponse giveUp(Throwable error) {
        error.printStackTrace();
        return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
    }
}
