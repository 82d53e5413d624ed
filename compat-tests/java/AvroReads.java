import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.avro.Schema;
import org.apache.avro.SchemaCompatibility;

/** Checks pairs of lines, a reader's and a writer's schema, for compatibility with Avro's library. */
public final class AvroReads {
    private AvroReads() {}

    public static void main(String[] arguments) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String reader;
        while ((reader = lines.readLine()) != null) {
            String writer = lines.readLine();
            String said;
            try {
                Schema ours = new Schema.Parser().parse(reader);
                Schema theirs = new Schema.Parser().parse(writer);
                said = SchemaCompatibility.checkReaderWriterCompatibility(ours, theirs).getType()
                    + "\t" + ours;
            } catch (RuntimeException error) {
                said = "INVALID\t" + error.getMessage();
            }
            System.out.println(said.replace("\n", " "));
        }
    }
}
