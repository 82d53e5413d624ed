package example;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.ArrayList;
import java.util.Map;
import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/**
 * JUnit extension that provides a new Kafka broker for each test.
 *
 * <p>One kbroker process serves all tests of a run. The environment variable {@code KBROKER} has its
 * command, by default {@code kbroker}. A test fails if an armed fault did not occur. If a test fails,
 * the broker's report is printed.
 */
public final class Kbroker implements BeforeEachCallback, AfterEachCallback {
    private static final int START_MS = 30_000;
    private static Control server;

    private final Map<String, Integer> topics;
    private final Map<String, Object> config;
    private Control control;
    private String bootstrapServers;

    public Kbroker(Map<String, Integer> topics, Map<String, Object> config) {
        this.topics = topics;
        this.config = config;
    }

    public String bootstrapServers() {
        return bootstrapServers;
    }

    /** Sends a command of docs/reference/control-protocol.md: a verb, then alternating names and values. */
    public JsonNode command(String verb, Object... words) {
        return control.command(verb, words);
    }

    @Override
    public void beforeEach(ExtensionContext context) throws Exception {
        JsonNode opened = server().command("open", "topics", topics, "config", config);
        bootstrapServers = opened.get("bootstrap_servers").asText();
        control = new Control(opened);
    }

    @Override
    public void afterEach(ExtensionContext context) {
        if (context.getExecutionException().isPresent()) {
            System.err.println(command("report").get("report").asText());
        }
        command("close");
    }

    private static synchronized Control server() throws Exception {
        if (server == null) {
            Path file = Files.createTempDirectory("kbroker").resolve("ready.json");
            List<String> command =
                new ArrayList<>(List.of(System.getenv().getOrDefault("KBROKER", "kbroker").split(" ")));
            command.addAll(List.of("serve", "--memory", "--port", "0", "--control-port", "0",
                "--exit-with-parent", "--log-level", "warning", "--port-file", file.toString()));
            Process process = new ProcessBuilder(command)
                .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
            Runtime.getRuntime().addShutdownHook(new Thread(process::destroy));
            long deadline = System.currentTimeMillis() + START_MS;
            while (!Files.exists(file)) {
                if (!process.isAlive() || System.currentTimeMillis() > deadline) {
                    throw new IllegalStateException("kbroker did not start: " + command);
                }
                Thread.sleep(20);
            }
            server = new Control(new ObjectMapper().readTree(file.toFile()));
        }
        return server;
    }

    /** Connection for commands: one line with a JSON object per command and per response. */
    private static final class Control {
        private final ObjectMapper json = new ObjectMapper();
        private final OutputStream commands;
        private final BufferedReader responses;

        /** Connects to the address in a ready event or in the response to `open`. */
        Control(JsonNode ready) throws IOException {
            String address = ready.get("control").asText();
            int colon = address.lastIndexOf(':');
            int port = Integer.parseInt(address.substring(colon + 1));
            Socket socket = new Socket(address.substring(0, colon), port);
            commands = socket.getOutputStream();
            responses = new BufferedReader(
                new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8));
            String token = Files.readString(Path.of(ready.get("control_token_file").asText()));
            command("login", "token", token.strip());
        }

        JsonNode command(String verb, Object... words) {
            Map<String, Object> command = new HashMap<>(Map.of("do", verb));
            for (int i = 0; i < words.length; i += 2) {
                command.put((String) words[i], words[i + 1]);
            }
            try {
                commands.write((json.writeValueAsString(command) + "\n").getBytes(StandardCharsets.UTF_8));
                JsonNode response = json.readTree(responses.readLine());
                if (!response.get("ok").asBoolean()) {
                    throw new AssertionError(verb + ": " + response.get("error").asText());
                }
                return response;
            } catch (IOException gone) {
                throw new UncheckedIOException(gone);
            }
        }
    }
}
