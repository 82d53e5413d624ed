import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.avro.Schema;
import org.apache.avro.SchemaCompatibility;

/** Says of pairs of lines, a reader's schema and a writer's, what Avro's own library makes of them. */
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
