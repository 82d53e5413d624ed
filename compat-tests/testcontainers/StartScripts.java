import com.github.dockerjava.api.command.InspectContainerResponse;
import com.github.dockerjava.api.model.ContainerConfig;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import org.testcontainers.containers.GenericContainer;
import org.testcontainers.images.builder.Transferable;
import org.testcontainers.utility.DockerImageName;

/**
 * Prints how Testcontainers would start a Kafka container, without a container engine: its command, its
 * environment, the script that it copies into the container, and the log line that it waits for.
 *
 * <p>Each line of output has a key and its values in base64.
 */
public final class StartScripts {
    private static final String HOST = "broker";

    private StartScripts() {}

    public static void main(String[] arguments) throws Exception {
        switch (arguments[0]) {
            case "kafka" -> new Apache().tell();
            case "confluent" -> new Confluent().tell();
            case "old-zookeeper" -> new Old(false).tell();
            case "old-kraft" -> new Old(true).tell();
            default -> throw new IllegalArgumentException(arguments[0]);
        }
    }

    private static InspectContainerResponse inspected() {
        return new InspectContainerResponse() {
            @Override
            public ContainerConfig getConfig() {
                return new ContainerConfig().withHostName(HOST);
            }
        };
    }

    private static void print(String key, Object... values) {
        List<String> words = new ArrayList<>(List.of(key));
        for (Object value : values) {
            byte[] bytes = value.toString().getBytes(StandardCharsets.UTF_8);
            words.add(Base64.getEncoder().encodeToString(bytes));
        }
        System.out.println(String.join(" ", words));
    }

    private static Object field(Object of, Class<?> declared, String name) throws Exception {
        Field field = declared.getDeclaredField(name);
        field.setAccessible(true);
        return field.get(of);
    }

    private static void describe(GenericContainer<?> container, Object waiting) throws Exception {
        print("command", (Object[]) container.getCommandParts());
        container.getEnvMap().forEach((name, value) -> print("env", name, value));
        print("until", field(waiting, waiting.getClass(), "regEx"));
    }

    private static final class Apache extends org.testcontainers.kafka.KafkaContainer {
        Apache() {
            super(DockerImageName.parse("apache/kafka:4.0.0"));
            withListener("broker:19092");
        }

        void tell() throws Exception {
            configure();
            describe(this, field(this, GenericContainer.class, "waitStrategy"));
            containerIsStarting(inspected());
        }

        @Override
        public String getHost() {
            return "localhost";
        }

        @Override
        public Integer getMappedPort(int port) {
            return port;
        }

        @Override
        public void copyFileToContainer(Transferable file, String path) {
            print("script", path, new String(file.getBytes(), StandardCharsets.UTF_8));
        }
    }

    private static final class Confluent extends org.testcontainers.kafka.ConfluentKafkaContainer {
        Confluent() {
            super(DockerImageName.parse("confluentinc/cp-kafka:7.8.0"));
            withListener("broker:19092");
        }

        void tell() throws Exception {
            configure();
            describe(this, field(this, GenericContainer.class, "waitStrategy"));
            containerIsStarting(inspected());
        }

        @Override
        public String getHost() {
            return "localhost";
        }

        @Override
        public Integer getMappedPort(int port) {
            return port;
        }

        @Override
        public void copyFileToContainer(Transferable file, String path) {
            print("script", path, new String(file.getBytes(), StandardCharsets.UTF_8));
        }
    }

    @SuppressWarnings("deprecation")
    private static final class Old extends org.testcontainers.containers.KafkaContainer {
        Old(boolean withoutZooKeeper) {
            super(DockerImageName.parse("confluentinc/cp-kafka:7.3.0"));
            if (withoutZooKeeper) {
                withKraft();
            }
        }

        void tell() throws Exception {
            configure();
            Object definition = field(this, GenericContainer.class, "containerDef");
            Class<?> declared = definition.getClass().getSuperclass();
            print("entrypoint", (Object[]) (String[]) field(definition, declared, "entrypoint"));
            describe(this, field(definition, declared, "waitStrategy"));
            containerIsStarting(inspected());
        }

        @Override
        public String getHost() {
            return "localhost";
        }

        @Override
        public Integer getMappedPort(int port) {
            return port;
        }

        @Override
        public String getDockerImageName() {
            return "confluentinc/cp-kafka:7.3.0";
        }

        @Override
        public void copyFileToContainer(Transferable file, String path) {
            print("script", path, new String(file.getBytes(), StandardCharsets.UTF_8));
        }
    }
}
