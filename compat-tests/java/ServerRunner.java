import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import kafka.server.KafkaConfig;
import kafka.server.KafkaRaftServer;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.internals.Exit;

/**
 * Starts Apache Kafka with one configuration after the other in one JVM, so that a start takes
 * less than two seconds.
 *
 * <p>Requests are NDJSON on stdin: {"verb": "start", "arguments": {"properties": path}} or {"verb":
 * "stop", "arguments": {}}. Responses are NDJSON on stdout: {"result": {"refused": message}}. The
 * message is null if the server started. The program ends when stdin does.
 */
public final class ServerRunner {
    private KafkaRaftServer server;

    public static void main(String[] arguments) throws Exception {
        BufferedReader requests =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        ObjectMapper json = new ObjectMapper();
        ServerRunner runner = new ServerRunner();
        // A server that cannot start calls Exit. Ignore that, because `start` reports the cause.
        Exit.setExitProcedure((status, message) -> { });
        Exit.setHaltProcedure((status, message) -> { });
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JsonNode request = json.readTree(line);
            Map<String, Object> result = new HashMap<>();
            result.put("refused", runner.run(request));
            answers.println(json.writeValueAsString(Map.of("result", result)));
        }
        Runtime.getRuntime().halt(0);
    }

    private String run(JsonNode request) throws Exception {
        if (request.get("verb").asText().equals("start")) {
            return start(request.get("arguments").get("properties").asText());
        }
        stop();
        return null;
    }

    private String start(String path) throws Exception {
        Properties properties = new Properties();
        try (InputStream file = new FileInputStream(path)) {
            properties.load(file);
        }
        try {
            server = new KafkaRaftServer(KafkaConfig.fromProps(properties, false), Time.SYSTEM);
            server.startup();
            return null;
        } catch (Throwable error) {
            stop();
            Throwable cause = error;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            return error.getMessage() + " / " + cause;
        }
    }

    private void stop() {
        if (server != null) {
            server.shutdown();
            server.awaitShutdown();
            server = null;
        }
    }
}
