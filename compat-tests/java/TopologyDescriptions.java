import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.coordinator.group.api.streams.StreamsGroupTopologyDescription;
import org.apache.kafka.coordinator.group.api.streams.StreamsGroupTopologyDescriptionPlugin;

/** Plugin of Apache Kafka 4.4 that keeps the topology descriptions of streams groups in memory. */
public class TopologyDescriptions implements StreamsGroupTopologyDescriptionPlugin {
    private final Map<String, StreamsGroupTopologyDescription> descriptions = new ConcurrentHashMap<>();

    @Override
    public CompletableFuture<Void> setTopology(
            String group, int epoch, StreamsGroupTopologyDescription description) {
        descriptions.put(group, description);
        return CompletableFuture.completedFuture(null);
    }

    @Override
    public CompletableFuture<Void> deleteTopology(String group) {
        descriptions.remove(group);
        return CompletableFuture.completedFuture(null);
    }

    @Override
    public CompletableFuture<StreamsGroupTopologyDescription> getTopology(String group, int epoch) {
        return CompletableFuture.completedFuture(descriptions.get(group));
    }

    @Override
    public void configure(Map<String, ?> settings) {}

    @Override
    public void close() {}
}
