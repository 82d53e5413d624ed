package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

// saramaClient is github.com/IBM/sarama, with the newest protocol version that it supports.
type saramaClient struct {
	bootstrap []string
	client    sarama.Client
	cluster   sarama.ClusterAdmin
}

func newSarama(bootstrap string) client {
	made := &saramaClient{bootstrap: []string{bootstrap}}
	var err error
	config, _ := saramaConfig("")
	if made.client, err = sarama.NewClient(made.bootstrap, config); err == nil {
		made.cluster, err = sarama.NewClusterAdminFromClient(made.client)
	}
	if err != nil {
		panic(err)
	}
	return made
}

// saramaConfig returns the configuration for a protocol version like "0.8.2" or "0.10", by default the newest.
func saramaConfig(version string) (*sarama.Config, error) {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Metadata.AllowAutoTopicCreation = false
	config.Net.TLS.Config = trusting()
	config.Net.TLS.Enable = config.Net.TLS.Config != nil
	switch mechanism, user, password := credentials(); mechanism {
	case "PLAIN":
		config.Net.SASL.Enable = true
		config.Net.SASL.User, config.Net.SASL.Password = user, password
	case "OAUTHBEARER":
		config.Net.SASL.Enable = true
		config.Net.SASL.Mechanism = sarama.SASLTypeOAuth
		config.Net.SASL.TokenProvider = tokens{}
	}
	if version == "" {
		return config, nil
	}
	parts := append(strings.Split(version, "."), "0", "0")
	var err error
	config.Version, err = sarama.ParseKafkaVersion(strings.Join(parts[:4], "."))
	return config, err
}

type tokens struct{}

func (tokens) Token() (*sarama.AccessToken, error) {
	text, err := token()
	return &sarama.AccessToken{Token: text}, err
}

func (s *saramaClient) errorCode(err error) *int {
	var known sarama.KError
	if !errors.As(err, &known) || known < 0 {
		return nil
	}
	code := int(known)
	return &code
}

func orNil(err sarama.KError) error {
	if err == sarama.ErrNoError {
		return nil
	}
	return err
}

// Records

func (s *saramaClient) produce(o produceOptions) ([]result, error) {
	config, err := saramaProducerConfig(o)
	if err != nil {
		return nil, err
	}
	producer, err := sarama.NewSyncProducer(s.bootstrap, config)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	results := make([]result, len(o.Records))
	messages := make([]*sarama.ProducerMessage, len(o.Records))
	for index, one := range o.Records {
		messages[index] = saramaMessage(o.Topic, one)
	}
	var failed sarama.ProducerErrors
	if err := producer.SendMessages(messages); err != nil && !errors.As(err, &failed) {
		return nil, err
	}
	for index, message := range messages {
		results[index] = result{message.Partition, message.Offset, nil}
		for _, one := range failed {
			if one.Msg == message {
				results[index].err = one.Err
			}
		}
	}
	return results, nil
}

func saramaProducerConfig(o produceOptions) (*sarama.Config, error) {
	codecs := map[string]sarama.CompressionCodec{
		"": sarama.CompressionNone, "gzip": sarama.CompressionGZIP,
		"snappy": sarama.CompressionSnappy, "lz4": sarama.CompressionLZ4,
		"zstd": sarama.CompressionZSTD,
	}
	codec, there := codecs[o.Codec]
	if !there {
		return nil, fmt.Errorf("%w: codec %s", errUnknown, o.Codec)
	}
	config, err := saramaConfig(o.Version)
	if err != nil {
		return nil, err
	}
	config.Metadata.AllowAutoTopicCreation = true
	config.Producer.Compression = codec
	config.Producer.Return.Successes = true
	config.Producer.MaxMessageBytes = 64 << 20
	config.Producer.Flush.Frequency = time.Duration(o.LingerMs) * time.Millisecond
	config.Producer.Timeout = time.Duration(o.RequestTimeoutMs) * time.Millisecond
	config.Producer.RequiredAcks = sarama.WaitForAll
	if number, is := o.Acks.(float64); is {
		config.Producer.RequiredAcks = sarama.RequiredAcks(number)
	}
	if o.Idempotent {
		config.Producer.Idempotent = true
		config.Net.MaxOpenRequests = 1
	}
	if o.Retries != nil {
		config.Producer.Retry.Max = *o.Retries
	}
	if o.manual() {
		config.Producer.Partitioner = sarama.NewManualPartitioner
	}
	return config, nil
}

func saramaMessage(topic string, one record) *sarama.ProducerMessage {
	message := &sarama.ProducerMessage{Topic: topic, Timestamp: one.time()}
	if one.Key != nil {
		message.Key = sarama.ByteEncoder(one.Key)
	}
	if one.Value != nil {
		message.Value = sarama.ByteEncoder(one.Value)
	}
	if one.Partition != nil {
		message.Partition = *one.Partition
	}
	for _, each := range one.Headers {
		made := sarama.RecordHeader{Key: []byte(each.name), Value: each.value}
		message.Headers = append(message.Headers, made)
	}
	return message
}

func (s *saramaClient) read(o readOptions, deadline time.Time, more func(...row) bool) error {
	config, err := saramaConfig(o.Version)
	if err != nil {
		return err
	}
	config.Consumer.Return.Errors = true
	config.Consumer.MaxWaitTime = time.Duration(o.FetchWaitMs) * time.Millisecond
	config.Consumer.Fetch.Default = o.PartitionBytes
	if o.Isolation == "read_committed" {
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	consumer, err := sarama.NewConsumer(s.bootstrap, config)
	if err != nil {
		return err
	}
	defer consumer.Close()
	messages := make(chan *sarama.ConsumerMessage)
	failures := make(chan error)
	over := make(chan struct{})
	defer close(over)
	for number, at := range o.starts {
		one, err := consumer.ConsumePartition(o.Topic, number, at)
		if err != nil {
			return err
		}
		defer one.AsyncClose()
		go forward(one, messages, failures, over)
	}
	timeout := time.After(time.Until(deadline))
	for {
		select {
		case message := <-messages:
			if !more(saramaRow(message)) {
				return nil
			}
		case err := <-failures:
			return err
		case <-timeout:
			return nil
		}
	}
}

// forward passes on the records of one partition until over is closed.
func forward(
	from sarama.PartitionConsumer, messages chan<- *sarama.ConsumerMessage,
	failures chan<- error, over <-chan struct{},
) {
	for {
		select {
		case message, open := <-from.Messages():
			if !open {
				return
			}
			select {
			case messages <- message:
			case <-over:
			}
		case failed, open := <-from.Errors():
			if !open {
				return
			}
			select {
			case failures <- failed:
			case <-over:
			}
		case <-over:
			return
		}
	}
}

func saramaRow(message *sarama.ConsumerMessage) row {
	headers := []header{}
	for _, each := range message.Headers {
		headers = append(headers, header{string(each.Key), each.Value})
	}
	return row{
		message.Topic, message.Partition, message.Offset, milliseconds(message.Timestamp),
		message.Key, message.Value, headers,
	}
}

func (s *saramaClient) partitions(topic string) ([]int32, error) {
	if err := s.client.RefreshMetadata(topic); err != nil {
		return nil, err
	}
	return s.client.Partitions(topic)
}

func (s *saramaClient) offsets(
	topic string, at position, isolation string,
) (map[int32]*int64, error) {
	numbers, err := s.partitions(topic)
	if err != nil {
		return nil, err
	}
	options := &sarama.ListOffsetsOptions{}
	if isolation == "read_committed" {
		options.IsolationLevel = sarama.ReadCommitted
	}
	wanted := map[int32]int64{}
	for _, number := range numbers {
		wanted[number] = int64(at)
	}
	found, err := s.cluster.ListOffsets(map[string]map[int32]int64{topic: wanted}, options)
	all := map[int32]*int64{}
	for number, one := range found[topic] {
		if !errors.Is(one.Err, sarama.ErrNoError) && one.Err != nil {
			return nil, one.Err
		}
		all[number] = nil
		if one.Offset >= 0 {
			all[number] = &one.Offset
		}
	}
	return all, err
}

// Groups

type saramaMember struct {
	group   sarama.ConsumerGroup
	topics  []string
	inbox   inbox
	mutex   sync.Mutex
	session sarama.ConsumerGroupSession
	over    context.CancelFunc
	ended   chan struct{}
	refused chan error
}

func (s *saramaClient) join(o joinOptions) (member, error) {
	strategies := map[string]sarama.BalanceStrategy{
		"range":       sarama.NewBalanceStrategyRange(),
		"roundrobin":  sarama.NewBalanceStrategyRoundRobin(),
		"cooperative": sarama.NewBalanceStrategyCooperativeSticky(),
	}
	if o.Pattern != "" {
		return nil, fmt.Errorf("%w: patterns", errUnknown)
	}
	config, err := saramaConfig("")
	if err != nil {
		return nil, err
	}
	config.Consumer.Return.Errors = true
	config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{
		strategies[o.Strategy],
	}
	config.Consumer.Group.Session.Timeout = o.session()
	config.Consumer.Group.Heartbeat.Interval = o.heartbeat()
	config.Consumer.Group.InstanceId = o.Instance
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = o.AutoCommit
	config.Consumer.Offsets.AutoCommit.Interval = 100 * time.Millisecond
	config.Metadata.RefreshFrequency = time.Second
	group, err := sarama.NewConsumerGroup(s.bootstrap, o.Group, config)
	if err != nil {
		return nil, err
	}
	ctx, over := context.WithCancel(context.Background())
	one := &saramaMember{
		group: group, topics: o.Topics, over: over,
		ended: make(chan struct{}), refused: make(chan error, 100),
	}
	go one.run(ctx)
	go func() {
		for err := range group.Errors() {
			select {
			case one.refused <- err:
			default:
			}
		}
	}()
	return one, nil
}

func (m *saramaMember) run(ctx context.Context) {
	defer close(m.ended)
	for ctx.Err() == nil {
		err := m.group.Consume(ctx, m.topics, m)
		var known sarama.KError
		if errors.As(err, &known) {
			m.inbox.fail(err)
			return
		}
		if err != nil {
			time.Sleep(100 * time.Millisecond)
		}
	}
}

// Setup, Cleanup and ConsumeClaim are called by sarama.
func (m *saramaMember) Setup(session sarama.ConsumerGroupSession) error {
	m.keep(session)
	m.inbox.told("assigned", pairsOf(session.Claims()))
	return nil
}

func (m *saramaMember) Cleanup(session sarama.ConsumerGroupSession) error {
	m.keep(nil)
	m.inbox.told("revoked", pairsOf(session.Claims()))
	return nil
}

func (m *saramaMember) ConsumeClaim(
	session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim,
) error {
	for message := range claim.Messages() {
		m.inbox.add(saramaRow(message))
		session.MarkMessage(message, "")
	}
	return nil
}

func (m *saramaMember) keep(session sarama.ConsumerGroupSession) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.session = session
}

func (m *saramaMember) current() sarama.ConsumerGroupSession {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.session
}

func (m *saramaMember) assigned() []pair {
	if session := m.current(); session != nil {
		return pairsOf(session.Claims())
	}
	return []pair{}
}

// commit waits for the response. Errors are sent to the error channel of the group. It retries
// after a lost connection, as applications have to.
func (m *saramaMember) commit() error {
	var lost error
	for range 3 {
		session := m.current()
		if session == nil {
			return sarama.ErrRebalanceInProgress
		}
		m.forget()
		session.Commit()
		select {
		case lost = <-m.refused:
			var known sarama.KError
			if errors.As(lost, &known) {
				return lost
			}
		case <-time.After(20 * time.Millisecond):
			return nil
		}
	}
	return lost
}

// forget discards earlier errors, such as connections that were lost while reading.
func (m *saramaMember) forget() {
	for len(m.refused) > 0 {
		<-m.refused
	}
}

func (m *saramaMember) leave() error {
	m.over()
	<-m.ended
	return m.group.Close()
}

func (m *saramaMember) seen() *inbox { return &m.inbox }

func (s *saramaClient) commitAs(group, topic string, offsets map[int32]int64) error {
	wanted := map[int32]sarama.OffsetAndMetadata{}
	for number, at := range offsets {
		wanted[number] = sarama.OffsetAndMetadata{Offset: at, LeaderEpoch: -1}
	}
	answer, err := s.cluster.AlterConsumerGroupOffsets(
		group, map[string]map[int32]sarama.OffsetAndMetadata{topic: wanted}, nil,
	)
	if err != nil {
		return err
	}
	for _, one := range answer.Errors[topic] {
		if orNil(one) != nil {
			return one
		}
	}
	return nil
}

func (s *saramaClient) committed(group, topic string) (map[int32]int64, error) {
	numbers, err := s.partitions(topic)
	if err != nil {
		return nil, err
	}
	found, err := s.cluster.ListConsumerGroupOffsets(group, map[string][]int32{topic: numbers})
	if err != nil {
		return nil, err
	}
	offsets := map[int32]int64{}
	for _, number := range numbers {
		if block := found.GetBlock(topic, number); block != nil && block.Offset >= 0 {
			offsets[number] = block.Offset
		}
	}
	return offsets, nil
}

// Admin calls

func (s *saramaClient) createTopic(
	name string, partitions, replication int, configs map[string]string,
) error {
	wanted := map[string]*string{}
	for key, value := range configs {
		wanted[key] = &value
	}
	return s.cluster.CreateTopic(name, &sarama.TopicDetail{
		NumPartitions:     int32(partitions),
		ReplicationFactor: int16(replication),
		ConfigEntries:     wanted,
	}, false)
}

func (s *saramaClient) deleteTopic(name string) error { return s.cluster.DeleteTopic(name) }

func (s *saramaClient) topics() ([]string, error) {
	found, err := s.cluster.ListTopics()
	return slices.Sorted(maps.Keys(found)), err
}

func (s *saramaClient) describeTopic(name string) (topicDescription, error) {
	found, err := s.cluster.DescribeTopics([]string{name})
	if err != nil {
		return topicDescription{}, err
	}
	one := found[0]
	answer := topicDescription{Internal: one.IsInternal}
	for _, each := range one.Partitions {
		answer.Partitions = append(answer.Partitions, partitionDescription{
			each.ID, each.Leader, each.Replicas, each.Isr,
		})
	}
	slices.SortFunc(answer.Partitions, func(a, b partitionDescription) int {
		return int(a.Number - b.Number)
	})
	return answer, orNil(one.Err)
}

func (s *saramaClient) topicConfigs(name string) (map[string]string, error) {
	return s.configs(sarama.TopicResource, name)
}

func (s *saramaClient) brokerConfigs(node int) (map[string]string, error) {
	return s.configs(sarama.BrokerResource, fmt.Sprint(node))
}

func (s *saramaClient) configs(
	kind sarama.ConfigResourceType, name string,
) (map[string]string, error) {
	found, err := s.cluster.DescribeConfig(sarama.ConfigResource{Type: kind, Name: name})
	configs := map[string]string{}
	for _, one := range found {
		configs[one.Name] = one.Value
	}
	return configs, err
}

func (s *saramaClient) alterTopicConfigs(name string, configs map[string]*string) error {
	wanted := map[string]sarama.IncrementalAlterConfigsEntry{}
	for key, value := range configs {
		operation := sarama.IncrementalAlterConfigsOperationSet
		if value == nil {
			operation = sarama.IncrementalAlterConfigsOperationDelete
		}
		wanted[key] = sarama.IncrementalAlterConfigsEntry{Operation: operation, Value: value}
	}
	return s.cluster.IncrementalAlterConfig(sarama.TopicResource, name, wanted, false)
}

func (s *saramaClient) addPartitions(name string, total int) error {
	return s.cluster.CreatePartitions(name, int32(total), nil, false)
}

func (s *saramaClient) describeCluster() (clusterDescription, error) {
	brokers, controller, err := s.cluster.DescribeCluster()
	nodes := []int32{}
	for _, one := range brokers {
		nodes = append(nodes, one.ID())
	}
	slices.Sort(nodes)
	return clusterDescription{nodes, controller}, err
}

func (s *saramaClient) groups() ([]string, error) {
	found, err := s.cluster.ListConsumerGroups()
	return slices.Sorted(maps.Keys(found)), err
}

func (s *saramaClient) describeGroup(group string) (groupDescription, error) {
	found, err := s.cluster.DescribeConsumerGroups([]string{group})
	if err != nil {
		return groupDescription{}, err
	}
	one := found[0]
	return groupDescription{one.State, len(one.Members), &one.Protocol}, orNil(one.Err)
}

func (s *saramaClient) deleteGroup(group string) error {
	return s.cluster.DeleteConsumerGroup(group)
}

func (s *saramaClient) deleteOffsets(group, topic string, partition int32) error {
	return s.cluster.DeleteConsumerGroupOffset(group, topic, partition)
}

// deleteRecords requests the new low watermark separately, because sarama does not return it.
func (s *saramaClient) deleteRecords(topic string, partition int32, before int64) (int64, error) {
	if err := s.cluster.DeleteRecords(topic, map[int32]int64{partition: before}); err != nil {
		return 0, err
	}
	return s.client.GetOffset(topic, partition, sarama.OffsetOldest)
}

// Transactions

type saramaTransactional struct {
	producer sarama.SyncProducer
}

func (s *saramaClient) transactional(
	identity string, timeout time.Duration,
) (transactional, error) {
	return s.newTransactional(identity, timeout)
}

func (s *saramaClient) newTransactional(
	identity string, timeout time.Duration,
) (*saramaTransactional, error) {
	config, err := saramaConfig("")
	if err != nil {
		return nil, err
	}
	config.Producer.Return.Successes = true
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Transaction.ID = identity
	config.Producer.Transaction.Timeout = timeout
	config.Net.MaxOpenRequests = 1
	producer, err := sarama.NewSyncProducer(s.bootstrap, config)
	return &saramaTransactional{producer}, err
}

func (t *saramaTransactional) begin() error {
	return t.producer.BeginTxn()
}

func (t *saramaTransactional) send(topic string, records []record) ([]result, error) {
	results := []result{}
	for _, one := range records {
		partition, offset, err := t.producer.SendMessage(saramaMessage(topic, one))
		results = append(results, result{partition, offset, err})
	}
	return results, nil
}

func (t *saramaTransactional) end(commit bool) error {
	if commit {
		return t.producer.CommitTxn()
	}
	return t.producer.AbortTxn()
}

func (t *saramaTransactional) close() error {
	return t.producer.Close()
}

func (s *saramaClient) transform(o transformOptions) error {
	joined, err := s.join(joinOptions{
		Topics: []string{o.Source}, Group: o.Group, Reset: "earliest", Strategy: "range",
		SessionMs: 10_000,
	})
	if err != nil {
		return err
	}
	defer joined.leave()
	deadline := time.Now().Add(callSeconds)
	for len(joined.seen().copyOfRows()) < o.Count {
		if err := joined.seen().failed(); err != nil || time.Now().After(deadline) {
			return fmt.Errorf("too few records: %w", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	producer, err := s.newTransactional(o.Identity, transformTimeout)
	if err != nil {
		return err
	}
	defer producer.close()
	if err := producer.begin(); err != nil {
		return err
	}
	next := map[int32]*sarama.PartitionOffsetMetadata{}
	for _, one := range joined.seen().copyOfRows() {
		sent := saramaMessage(o.Target, record{Value: capitals(one.Value)})
		if _, _, err := producer.producer.SendMessage(sent); err != nil {
			return err
		}
		next[one.Partition] = &sarama.PartitionOffsetMetadata{
			Partition: one.Partition, Offset: one.Offset + 1,
		}
	}
	offsets := map[string][]*sarama.PartitionOffsetMetadata{
		o.Source: slices.Collect(maps.Values(next)),
	}
	if err := producer.producer.AddOffsetsToTxn(offsets, o.Group); err != nil {
		return err
	}
	return producer.end(o.Commit)
}
