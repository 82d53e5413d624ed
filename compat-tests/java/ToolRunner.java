import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * Runs Kafka's command-line tools one after the other in one JVM, so that each takes milliseconds.
 *
 * <p>Requests are NDJSON on stdin: {"verb": "run", "arguments": {"main": class, "arguments": [...],
 * "stdin": string}}. Responses are NDJSON on stdout: {"result": {"status": n, "stdout": string,
 * "stderr": string}}. It ends when stdin does.
 *
 * <p>Tools call Kafka's {@code Exit.exit}, which here ends the main method instead of the process. Their
 * shutdown hooks run after that.
 */
public final class ToolRunner {
    private static final String TOOLS_PACKAGE = "org.apache.kafka.tools.";

    private final List<Integer> statuses = new ArrayList<>();

    public static void main(String[] arguments) throws Exception {
        BufferedReader requests =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        ObjectMapper json = new ObjectMapper();
        ToolRunner runner = new ToolRunner();
        runner.replaceExit();
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            Object result = runner.run(json.readTree(line).get("arguments"));
            answers.println(json.writeValueAsString(Map.of("result", result)));
        }
        System.exit(0);
    }

    /** Thrown when a tool exits. It is an Error, so that tools do not catch it. */
    private static final class Ended extends Error {
        Ended() {
            super("the tool has ended", null, false, false);
        }
    }

    /** Loads the classes of the tools for each run, because some have state in static fields. */
    private static final class FreshTools extends URLClassLoader {
        FreshTools(URL[] jar) {
            super(jar, ToolRunner.class.getClassLoader());
        }

        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            synchronized (getClassLoadingLock(name)) {
                if (name.startsWith(TOOLS_PACKAGE) && findLoadedClass(name) == null) {
                    try {
                        return findClass(name);
                    } catch (ClassNotFoundException elsewhere) {
                        return super.loadClass(name, resolve);
                    }
                }
                return super.loadClass(name, resolve);
            }
        }
    }

    /** Makes Kafka's Exit call {@link #end}. The class has another package since Kafka 4.4. */
    private void replaceExit() throws ReflectiveOperationException {
        Class<?> exit = exitClass();
        Class<?> procedure = Class.forName(exit.getName() + "$Procedure");
        Object end = Proxy.newProxyInstance(
            procedure.getClassLoader(),
            new Class<?>[] {procedure},
            (proxy, method, arguments) -> {
                end((int) arguments[0]);
                return null;
            });
        exit.getMethod("setExitProcedure", procedure).invoke(null, end);
        exit.getMethod("setHaltProcedure", procedure).invoke(null, end);
    }

    private static Class<?> exitClass() throws ClassNotFoundException {
        try {
            return Class.forName("org.apache.kafka.common.utils.internals.Exit");
        } catch (ClassNotFoundException before) {
            return Class.forName("org.apache.kafka.common.utils.Exit");
        }
    }

    private void end(int status) {
        statuses.add(status);
        System.out.flush();
        System.err.flush();
        // Discard output after the exit: a tool may catch the Error and print, which a process could not.
        System.setOut(new PrintStream(OutputStream.nullOutputStream()));
        System.setErr(new PrintStream(OutputStream.nullOutputStream()));
        throw new Ended();
    }

    private Map<String, Object> run(JsonNode request) throws IOException {
        List<String> words = new ArrayList<>();
        request.get("arguments").forEach(word -> words.add(word.asText()));
        byte[] text = request.get("stdin").asText().getBytes(StandardCharsets.UTF_8);
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        InputStream stdin = System.in;
        statuses.clear();
        System.setIn(new ByteArrayInputStream(text));
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        try (FreshTools loader = new FreshTools(new URL[] {toolsJar()})) {
            Thread.currentThread().setContextClassLoader(loader);
            call(loader, request.get("main").asText(), words.toArray(String[]::new));
            runShutdownHooks();
        } finally {
            System.out.flush();
            System.err.flush();
            System.setIn(stdin);
        }
        return Map.of(
            "status", statuses.isEmpty() ? 0 : statuses.get(0),
            "stdout", out.toString(StandardCharsets.UTF_8),
            "stderr", err.toString(StandardCharsets.UTF_8));
    }

    private void call(ClassLoader loader, String main, String[] words) {
        try {
            Class.forName(main, true, loader)
                .getMethod("main", String[].class)
                .invoke(null, (Object) words);
        } catch (InvocationTargetException thrown) {
            if (!(thrown.getCause() instanceof Ended)) {
                thrown.getCause().printStackTrace();
                statuses.add(1);
            }
        } catch (ReflectiveOperationException missing) {
            missing.printStackTrace();
            statuses.add(1);
        }
    }

    /** Returns the shutdown hooks of the tools. Some register theirs without {@code Exit}. */
    @SuppressWarnings("unchecked")
    private static void runShutdownHooks() {
        List<Thread> hooks;
        try {
            Field field = Class.forName("java.lang.ApplicationShutdownHooks").getDeclaredField("hooks");
            field.setAccessible(true);
            hooks = List.copyOf(((Map<Thread, Thread>) field.get(null)).keySet());
        } catch (ReflectiveOperationException changed) {
            throw new IllegalStateException("this JDK keeps its shutdown hooks elsewhere", changed);
        }
        for (Thread hook : hooks) {
            Runtime.getRuntime().removeShutdownHook(hook);
            hook.run();
        }
    }

    private static URL toolsJar() throws IOException {
        for (String path : System.getProperty("java.class.path").split(File.pathSeparator)) {
            if (new File(path).getName().matches("kafka-tools-\\d.*\\.jar")) {
                return new File(path).toURI().toURL();
            }
        }
        throw new IOException("kafka-tools is not on the class path");
    }
}
