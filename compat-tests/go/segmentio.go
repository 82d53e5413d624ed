package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
)

// segmentio is github.com/segmentio/kafka-go: its Writer, Reader, ConsumerGroup and Client.
type segmentio struct {
	bootstrap string
	client    *kafka.Client
}

func newSegmentio(bootstrap string) client {
	return &segmentio{bootstrap, &kafka.Client{
		Addr:      kafka.TCP(bootstrap),
		Timeout:   callSeconds,
		Transport: &kafka.Transport{MetadataTTL: 250 * time.Millisecond, TLS: trusting(), SASL: mechanism()},
	}}
}

func mechanism() sasl.Mechanism {
	name, user, password := credentials()
	if name != "PLAIN" {
		return nil
	}
	return plain.Mechanism{Username: user, Password: password}
}

func dialer() *kafka.Dialer {
	return &kafka.Dialer{Timeout: callSeconds, DualStack: true, TLS: trusting(), SASLMechanism: mechanism()}
}

func (s *segmentio) errorCode(err error) *int {
	var known kafka.Error
	if !errors.As(err, &known) || known < 0 {
		return nil
	}
	code := int(known)
	return &code
}

// Records

func (s *segmentio) produce(o produceOptions) ([]result, error) {
	writer, err := s.writer(o)
	if err != nil {
		return nil, err
	}
	results := make([]result, len(o.Records))
	var mutex sync.Mutex
	writer.Completion = func(messages []kafka.Message, err error) {
		mutex.Lock()
		defer mutex.Unlock()
		for _, one := range messages {
			index := one.WriterData.(int)
			results[index] = result{int32(one.Partition), one.Offset, err}
		}
	}
	messages := make([]kafka.Message, len(o.Records))
	for index, one := range o.Records {
		messages[index] = kafka.Message{
			Key: one.Key, Value: one.Value, Time: one.time(), WriterData: index,
		}
		for _, each := range one.Headers {
			made := kafka.Header{Key: each.name, Value: each.value}
			messages[index].Headers = append(messages[index].Headers, made)
		}
	}
	ctx, cancel := limited()
	defer cancel()
	err = writer.WriteMessages(ctx, messages...)
	var each kafka.WriteErrors
	if err != nil && !errors.As(err, &each) {
		if closing := writer.Close(); closing != nil {
			return nil, closing
		}
		return failures(len(o.Records), err), nil
	}
	return results, writer.Close()
}

// failures returns the results of a request that failed as a whole.
func failures(count int, err error) []result {
	results := make([]result, count)
	for index := range results {
		results[index].err = err
	}
	return results
}

func (s *segmentio) writer(o produceOptions) (*kafka.Writer, error) {
	codecs := map[string]kafka.Compression{
		"": 0, "gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4, "zstd": kafka.Zstd,
	}
	codec, there := codecs[o.Codec]
	if !there || o.Idempotent {
		return nil, fmt.Errorf("%w: codec %s, idempotent %v", errUnknown, o.Codec, o.Idempotent)
	}
	writer := &kafka.Writer{
		Addr:                   kafka.TCP(s.bootstrap),
		Topic:                  o.Topic,
		Balancer:               &kafka.Murmur2Balancer{},
		BatchBytes:             64 << 20,
		BatchSize:              1_000,
		BatchTimeout:           time.Duration(max(o.LingerMs, 1)) * time.Millisecond,
		WriteTimeout:           time.Duration(o.RequestTimeoutMs) * time.Millisecond,
		RequiredAcks:           kafka.RequireAll,
		Compression:            codec,
		AllowAutoTopicCreation: true,
		Transport:              s.client.Transport,
	}
	if number, is := o.Acks.(float64); is {
		writer.RequiredAcks = kafka.RequiredAcks(number)
	}
	if o.Retries != nil {
		writer.MaxAttempts = *o.Retries + 1
	}
	if o.manual() {
		writer.Balancer = kafka.BalancerFunc(func(one kafka.Message, _ ...int) int {
			return int(*o.Records[one.WriterData.(int)].Partition)
		})
	}
	return writer, nil
}

func (s *segmentio) reader(topic string, partition int32, o readOptions) *kafka.Reader {
	config := kafka.ReaderConfig{
		Brokers:               []string{s.bootstrap},
		Dialer:                dialer(),
		Topic:                 topic,
		Partition:             int(partition),
		MinBytes:              1,
		MaxBytes:              max(int(o.PartitionBytes), 1<<20),
		MaxWait:               time.Duration(o.FetchWaitMs) * time.Millisecond,
		ReadBackoffMin:        10 * time.Millisecond,
		ReadBackoffMax:        100 * time.Millisecond,
		OffsetOutOfRangeError: o.Reset == "none",
	}
	if o.Isolation == "read_committed" {
		config.IsolationLevel = kafka.ReadCommitted
	}
	return kafka.NewReader(config)
}

func (s *segmentio) read(o readOptions, deadline time.Time, more func(...row) bool) error {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	messages := make(chan kafka.Message)
	failed := make(chan error)
	defer cancel()
	for number, at := range o.starts {
		reader := s.reader(o.Topic, number, o)
		if err := reader.SetOffset(at); err != nil {
			return err
		}
		go readAll(ctx, reader, messages, failed)
	}
	for {
		select {
		case message := <-messages:
			if !more(segmentioRow(message)) {
				return nil
			}
		case err := <-failed:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// readAll passes on the records of a reader until the context ends. Then it closes the reader, which
// takes as long as the broker holds back the last fetch response.
func readAll(
	ctx context.Context, reader *kafka.Reader, messages chan<- kafka.Message, failed chan<- error,
) {
	defer reader.Close()
	for {
		message, err := reader.FetchMessage(ctx)
		if err != nil {
			select {
			case failed <- err:
			case <-ctx.Done():
			}
			return
		}
		select {
		case messages <- message:
		case <-ctx.Done():
			return
		}
	}
}

func segmentioRow(message kafka.Message) row {
	headers := []header{}
	for _, each := range message.Headers {
		headers = append(headers, header{each.Key, each.Value})
	}
	return row{
		message.Topic, int32(message.Partition), message.Offset, milliseconds(message.Time),
		message.Key, message.Value, headers,
	}
}

func (s *segmentio) topic(name string) (kafka.Topic, error) {
	ctx, cancel := limited()
	defer cancel()
	found, err := s.client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{name}})
	if err != nil {
		return kafka.Topic{}, err
	}
	return found.Topics[0], found.Topics[0].Error
}

func (s *segmentio) partitions(topic string) ([]int32, error) {
	found, err := s.topic(topic)
	numbers := []int32{}
	for _, one := range found.Partitions {
		numbers = append(numbers, int32(one.ID))
	}
	slices.Sort(numbers)
	return numbers, err
}

func (s *segmentio) offsets(
	topic string, at position, isolation string,
) (map[int32]*int64, error) {
	numbers, err := s.partitions(topic)
	if err != nil {
		return nil, err
	}
	wanted := &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{}}
	if isolation == "read_committed" {
		wanted.IsolationLevel = kafka.ReadCommitted
	}
	for _, number := range numbers {
		one := kafka.OffsetRequest{Partition: int(number), Timestamp: int64(at)}
		wanted.Topics[topic] = append(wanted.Topics[topic], one)
	}
	ctx, cancel := limited()
	defer cancel()
	found, err := s.client.ListOffsets(ctx, wanted)
	if err != nil {
		return nil, err
	}
	all := map[int32]*int64{}
	for _, one := range found.Topics[topic] {
		if one.Error != nil {
			return nil, one.Error
		}
		all[int32(one.Partition)] = offsetIn(one, int64(at))
	}
	return all, nil
}

func offsetIn(found kafka.PartitionOffsets, at int64) *int64 {
	switch at {
	case earliest:
		return &found.FirstOffset
	case latest:
		return &found.LastOffset
	}
	for offset := range found.Offsets {
		if offset >= 0 {
			return &offset
		}
	}
	return nil
}

// Groups

type segmentioMember struct {
	group  *kafka.ConsumerGroup
	inbox  inbox
	mutex  sync.Mutex
	now    *kafka.Generation
	marked map[string]map[int]int64
	over   context.CancelFunc
	ended  chan struct{}
}

func (s *segmentio) join(o joinOptions) (member, error) {
	balancers := map[string]kafka.GroupBalancer{
		"range": kafka.RangeGroupBalancer{}, "roundrobin": kafka.RoundRobinGroupBalancer{},
	}
	balancer, there := balancers[o.Strategy]
	if !there || o.Pattern != "" || o.Instance != "" || o.AutoCommit {
		return nil, fmt.Errorf("%w: strategy, pattern, static or automatic", errUnknown)
	}
	group, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID:                     o.Group,
		Brokers:                []string{s.bootstrap},
		Dialer:                 dialer(),
		Topics:                 o.Topics,
		GroupBalancers:         []kafka.GroupBalancer{balancer},
		HeartbeatInterval:      o.heartbeat(),
		SessionTimeout:         o.session(),
		JoinGroupBackoff:       100 * time.Millisecond,
		PartitionWatchInterval: time.Second,
		WatchPartitionChanges:  true,
		StartOffset:            kafka.FirstOffset,
	})
	if err != nil {
		return nil, err
	}
	ctx, over := context.WithCancel(context.Background())
	one := &segmentioMember{group: group, over: over, ended: make(chan struct{})}
	go one.run(ctx, s)
	return one, nil
}

func (m *segmentioMember) run(ctx context.Context, s *segmentio) {
	defer close(m.ended)
	for {
		generation, err := m.group.Next(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			m.missed(err)
			continue
		}
		m.enter(generation)
		for topic, partitions := range generation.Assignments {
			for _, one := range partitions {
				generation.Start(func(ctx context.Context) { m.consume(ctx, s, topic, one) })
			}
		}
		generation.Start(func(ctx context.Context) {
			<-ctx.Done()
			m.enter(nil)
		})
	}
}

// missed stores permanent errors of the coordinator. The library retries after all others.
func (m *segmentioMember) missed(err error) {
	if errors.Is(err, kafka.InvalidSessionTimeout) ||
		errors.Is(err, kafka.InconsistentGroupProtocol) {
		m.inbox.fail(err)
	}
}

func (m *segmentioMember) enter(generation *kafka.Generation) {
	m.mutex.Lock()
	before := m.now
	m.now, m.marked = generation, map[string]map[int]int64{}
	m.mutex.Unlock()
	if before != nil {
		m.inbox.told("revoked", segmentioPairs(before))
	}
	if generation != nil {
		m.inbox.told("assigned", segmentioPairs(generation))
	}
}

func (m *segmentioMember) consume(
	ctx context.Context, s *segmentio, topic string, from kafka.PartitionAssignment,
) {
	reader := s.reader(topic, int32(from.ID), readOptions{FetchWaitMs: 500})
	defer reader.Close()
	if err := reader.SetOffset(from.Offset); err != nil {
		m.inbox.fail(err)
		return
	}
	for {
		message, err := reader.FetchMessage(ctx)
		if ctx.Err() != nil || errors.Is(err, io.EOF) {
			return
		}
		var known kafka.Error
		if errors.As(err, &known) {
			m.inbox.fail(err)
			return
		}
		if err != nil {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		m.inbox.add(segmentioRow(message))
		m.mark(message)
	}
}

func (m *segmentioMember) mark(message kafka.Message) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if m.marked[message.Topic] == nil {
		m.marked[message.Topic] = map[int]int64{}
	}
	m.marked[message.Topic][message.Partition] = message.Offset + 1
}

func (m *segmentioMember) assigned() []pair {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if m.now == nil {
		return []pair{}
	}
	return segmentioPairs(m.now)
}

func (m *segmentioMember) commit() error {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if m.now == nil {
		return kafka.RebalanceInProgress
	}
	return m.now.CommitOffsets(m.marked)
}

func (m *segmentioMember) leave() error {
	m.over()
	<-m.ended
	return m.group.Close()
}

func (m *segmentioMember) seen() *inbox { return &m.inbox }

func segmentioPairs(generation *kafka.Generation) []pair {
	pairs := []pair{}
	for topic, partitions := range generation.Assignments {
		for _, one := range partitions {
			pairs = append(pairs, pair{topic, int32(one.ID)})
		}
	}
	return pairs
}

func (s *segmentio) commitAs(group, topic string, offsets map[int32]int64) error {
	wanted := []kafka.OffsetCommit{}
	for number, at := range offsets {
		wanted = append(wanted, kafka.OffsetCommit{Partition: int(number), Offset: at})
	}
	ctx, cancel := limited()
	defer cancel()
	answer, err := s.client.OffsetCommit(ctx, &kafka.OffsetCommitRequest{
		GroupID:      group,
		GenerationID: -1,
		Topics:       map[string][]kafka.OffsetCommit{topic: wanted},
	})
	if err != nil {
		return err
	}
	for _, one := range answer.Topics[topic] {
		if one.Error != nil {
			return one.Error
		}
	}
	return nil
}

func (s *segmentio) committed(group, topic string) (map[int32]int64, error) {
	found, err := s.topic(topic)
	if err != nil {
		return nil, err
	}
	wanted := []int{}
	for _, one := range found.Partitions {
		wanted = append(wanted, one.ID)
	}
	ctx, cancel := limited()
	defer cancel()
	answer, err := s.client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{
		GroupID: group, Topics: map[string][]int{topic: wanted},
	})
	if err == nil {
		err = answer.Error
	}
	if err != nil {
		return nil, err
	}
	offsets := map[int32]int64{}
	for _, one := range answer.Topics[topic] {
		if one.CommittedOffset >= 0 {
			offsets[int32(one.Partition)] = one.CommittedOffset
		}
	}
	return offsets, nil
}

// Admin calls

func (s *segmentio) createTopic(
	name string, partitions, replication int, configs map[string]string,
) error {
	wanted := kafka.TopicConfig{
		Topic: name, NumPartitions: partitions, ReplicationFactor: replication,
	}
	for key, value := range configs {
		one := kafka.ConfigEntry{ConfigName: key, ConfigValue: value}
		wanted.ConfigEntries = append(wanted.ConfigEntries, one)
	}
	ctx, cancel := limited()
	defer cancel()
	request := &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{wanted}}
	answer, err := s.client.CreateTopics(ctx, request)
	if err == nil {
		err = answer.Errors[name]
	}
	return err
}

func (s *segmentio) deleteTopic(name string) error {
	ctx, cancel := limited()
	defer cancel()
	answer, err := s.client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{name}})
	if err == nil {
		err = answer.Errors[name]
	}
	return err
}

func (s *segmentio) topics() ([]string, error) {
	ctx, cancel := limited()
	defer cancel()
	found, err := s.client.Metadata(ctx, &kafka.MetadataRequest{})
	if err != nil {
		return nil, err
	}
	names := []string{}
	for _, one := range found.Topics {
		names = append(names, one.Name)
	}
	return names, nil
}

func (s *segmentio) describeTopic(name string) (topicDescription, error) {
	found, err := s.topic(name)
	answer := topicDescription{Internal: found.Internal}
	for _, one := range found.Partitions {
		answer.Partitions = append(answer.Partitions, partitionDescription{
			int32(one.ID), int32(one.Leader.ID), numbersOf(one.Replicas), numbersOf(one.Isr),
		})
	}
	slices.SortFunc(answer.Partitions, func(a, b partitionDescription) int {
		return int(a.Number - b.Number)
	})
	return answer, err
}

func numbersOf(brokers []kafka.Broker) []int32 {
	numbers := []int32{}
	for _, one := range brokers {
		numbers = append(numbers, int32(one.ID))
	}
	return numbers
}

func (s *segmentio) topicConfigs(name string) (map[string]string, error) {
	return s.configs(kafka.ResourceTypeTopic, name)
}

func (s *segmentio) brokerConfigs(node int) (map[string]string, error) {
	return s.configs(kafka.ResourceTypeBroker, fmt.Sprint(node))
}

func (s *segmentio) configs(kind kafka.ResourceType, name string) (map[string]string, error) {
	ctx, cancel := limited()
	defer cancel()
	wanted := []kafka.DescribeConfigRequestResource{{ResourceType: kind, ResourceName: name}}
	found, err := s.client.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{Resources: wanted})
	if err == nil {
		err = found.Resources[0].Error
	}
	if err != nil {
		return nil, err
	}
	configs := map[string]string{}
	for _, one := range found.Resources[0].ConfigEntries {
		configs[one.ConfigName] = one.ConfigValue
	}
	return configs, nil
}

func (s *segmentio) alterTopicConfigs(name string, configs map[string]*string) error {
	wanted := kafka.IncrementalAlterConfigsRequestResource{
		ResourceType: kafka.ResourceTypeTopic, ResourceName: name,
	}
	for key, value := range configs {
		one := kafka.IncrementalAlterConfigsRequestConfig{
			Name: key, ConfigOperation: kafka.ConfigOperationDelete,
		}
		if value != nil {
			one.Value, one.ConfigOperation = *value, kafka.ConfigOperationSet
		}
		wanted.Configs = append(wanted.Configs, one)
	}
	ctx, cancel := limited()
	defer cancel()
	answer, err := s.client.IncrementalAlterConfigs(ctx, &kafka.IncrementalAlterConfigsRequest{
		Resources: []kafka.IncrementalAlterConfigsRequestResource{wanted},
	})
	if err == nil {
		err = answer.Resources[0].Error
	}
	return err
}

func (s *segmentio) addPartitions(name string, total int) error {
	ctx, cancel := limited()
	defer cancel()
	wanted := []kafka.TopicPartitionsConfig{{Name: name, Count: int32(total)}}
	answer, err := s.client.CreatePartitions(ctx, &kafka.CreatePartitionsRequest{Topics: wanted})
	if err == nil {
		err = answer.Errors[name]
	}
	return err
}

func (s *segmentio) describeCluster() (clusterDescription, error) {
	ctx, cancel := limited()
	defer cancel()
	found, err := s.client.Metadata(ctx, &kafka.MetadataRequest{})
	if err != nil {
		return clusterDescription{}, err
	}
	nodes := numbersOf(found.Brokers)
	slices.Sort(nodes)
	return clusterDescription{nodes, int32(found.Controller.ID)}, nil
}

func (s *segmentio) groups() ([]string, error) {
	ctx, cancel := limited()
	defer cancel()
	found, err := s.client.ListGroups(ctx, &kafka.ListGroupsRequest{})
	if err == nil {
		err = found.Error
	}
	if err != nil {
		return nil, err
	}
	names := []string{}
	for _, one := range found.Groups {
		names = append(names, one.GroupID)
	}
	return names, nil
}

// describeGroup returns no strategy, because kafka-go does not provide it.
func (s *segmentio) describeGroup(group string) (groupDescription, error) {
	ctx, cancel := limited()
	defer cancel()
	found, err := s.client.DescribeGroups(ctx, &kafka.DescribeGroupsRequest{
		GroupIDs: []string{group},
	})
	if err == nil {
		err = found.Groups[0].Error
	}
	if err != nil {
		return groupDescription{}, err
	}
	return groupDescription{found.Groups[0].GroupState, len(found.Groups[0].Members), nil}, nil
}

func (s *segmentio) deleteGroup(group string) error {
	ctx, cancel := limited()
	defer cancel()
	answer, err := s.client.DeleteGroups(ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{group}})
	if err == nil {
		err = answer.Errors[group]
	}
	return err
}

func (s *segmentio) deleteOffsets(group, topic string, partition int32) error {
	ctx, cancel := limited()
	defer cancel()
	answer, err := s.client.OffsetDelete(ctx, &kafka.OffsetDeleteRequest{
		GroupID: group, Topics: map[string][]int{topic: {int(partition)}},
	})
	if err == nil {
		err = answer.Error
	}
	if err == nil {
		err = answer.Topics[topic][0].Error
	}
	return err
}

func (s *segmentio) deleteRecords(string, int32, int64) (int64, error) {
	return 0, fmt.Errorf("%w: deleting records", errUnknown)
}

func (s *segmentio) transactional(string, time.Duration) (transactional, error) {
	return nil, fmt.Errorf("%w: transactions", errUnknown)
}

func (s *segmentio) transform(transformOptions) error {
	return fmt.Errorf("%w: transactions", errUnknown)
}
