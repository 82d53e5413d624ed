package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// franz is github.com/twmb/franz-go with its admin package kadm.
type franz struct {
	bootstrap string
	admin     *kadm.Client
}

func newFranz(bootstrap string) client {
	fresh := kgo.MetadataMinAge(10 * time.Millisecond)
	plain, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), secured(), loggingIn(), fresh)
	if err != nil {
		panic(err)
	}
	return &franz{bootstrap, kadm.NewClient(plain)}
}

func secured() kgo.Opt {
	return kgo.DialTLSConfig(trusting())
}

func loggingIn() kgo.Opt {
	mechanism, user, password := credentials()
	switch mechanism {
	case "PLAIN":
		return kgo.SASL(plain.Auth{User: user, Pass: password}.AsMechanism())
	case "SCRAM-SHA-256":
		return kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha256Mechanism())
	case "SCRAM-SHA-512":
		return kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha512Mechanism())
	case "OAUTHBEARER":
		return kgo.SASL(oauth.Oauth(func(context.Context) (oauth.Auth, error) {
			text, err := token()
			return oauth.Auth{Token: text}, err
		}))
	}
	return kgo.SASL()
}

func (f *franz) errorCode(err error) *int {
	var known *kerr.Error
	if !errors.As(err, &known) {
		return nil
	}
	code := int(known.Code)
	return &code
}

func limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), callSeconds)
}

// Records

func (f *franz) produce(o produceOptions) ([]result, error) {
	options, err := f.producerOptions(o)
	if err != nil {
		return nil, err
	}
	producer, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	results := make([]result, len(o.Records))
	ctx, cancel := limited()
	defer cancel()
	var all sync.WaitGroup
	for index, one := range o.Records {
		all.Add(1)
		producer.Produce(ctx, franzRecord(one), func(done *kgo.Record, err error) {
			results[index] = result{done.Partition, done.Offset, err}
			all.Done()
		})
	}
	all.Wait()
	return results, nil
}

func (f *franz) producerOptions(o produceOptions) ([]kgo.Opt, error) {
	codecs := map[string]kgo.CompressionCodec{
		"": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	codec, there := codecs[o.Codec]
	if !there {
		return nil, fmt.Errorf("%w: codec %s", errUnknown, o.Codec)
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(f.bootstrap),
		secured(),
		loggingIn(),
		kgo.DefaultProduceTopic(o.Topic),
		kgo.ProducerBatchCompression(codec),
		kgo.ProducerBatchMaxBytes(64 << 20),
		kgo.ProducerLinger(time.Duration(o.LingerMs) * time.Millisecond),
		kgo.ProduceRequestTimeout(time.Duration(o.RequestTimeoutMs) * time.Millisecond),
		kgo.AllowAutoTopicCreation(),
		kgo.UnknownTopicRetries(20),
	}
	switch o.Acks {
	case 0.0:
		options = append(options, kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite())
	case 1.0:
		options = append(options, kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite())
	}
	if o.manual() {
		options = append(options, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	}
	if o.Retries != nil {
		options = append(options, kgo.RecordRetries(*o.Retries), kgo.DisableIdempotentWrite())
	}
	return options, nil
}

func franzRecord(one record) *kgo.Record {
	made := &kgo.Record{Key: one.Key, Value: one.Value, Timestamp: one.time()}
	if one.Partition != nil {
		made.Partition = *one.Partition
	}
	for _, each := range one.Headers {
		made.Headers = append(made.Headers, kgo.RecordHeader{Key: each.name, Value: each.value})
	}
	return made
}

func (f *franz) read(o readOptions, deadline time.Time, more func(...row) bool) error {
	starts := map[int32]kgo.Offset{}
	for number, at := range o.starts {
		switch at {
		case earliest:
			starts[number] = kgo.NewOffset().AtStart()
		case latest:
			starts[number] = kgo.NewOffset().AtEnd()
		default:
			starts[number] = kgo.NewOffset().At(at)
		}
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(f.bootstrap),
		secured(),
		loggingIn(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{o.Topic: starts}),
		kgo.FetchMaxWait(time.Duration(o.FetchWaitMs) * time.Millisecond),
		kgo.FetchMaxPartitionBytes(o.PartitionBytes),
	}
	if o.Isolation == "read_committed" {
		options = append(options, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	if o.Reset == "none" {
		options = append(options, kgo.ConsumeResetOffset(kgo.NoResetOffset()))
	}
	consumer, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	defer consumer.Close()
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	for {
		fetches := consumer.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err := fetches.Err(); err != nil {
			return err
		}
		if !more(franzRows(fetches)...) {
			return nil
		}
	}
}

func franzRows(fetches kgo.Fetches) []row {
	rows := []row{}
	fetches.EachRecord(func(one *kgo.Record) {
		headers := []header{}
		for _, each := range one.Headers {
			headers = append(headers, header{each.Key, each.Value})
		}
		rows = append(rows, row{
			one.Topic, one.Partition, one.Offset, milliseconds(one.Timestamp),
			one.Key, one.Value, headers,
		})
	})
	return rows
}

func (f *franz) partitions(topic string) ([]int32, error) {
	found, err := f.topic(topic)
	if err != nil {
		return nil, err
	}
	return found.Partitions.Numbers(), nil
}

func (f *franz) topic(name string) (kadm.TopicDetail, error) {
	ctx, cancel := limited()
	defer cancel()
	found, err := f.admin.ListTopics(ctx, name)
	if err == nil {
		err = found[name].Err
	}
	return found[name], err
}

func (f *franz) offsets(topic string, at position, isolation string) (map[int32]*int64, error) {
	ctx, cancel := limited()
	defer cancel()
	var found kadm.ListedOffsets
	var err error
	switch {
	case int64(at) == earliest:
		found, err = f.admin.ListStartOffsets(ctx, topic)
	case int64(at) == latest && isolation == "read_committed":
		found, err = f.admin.ListCommittedOffsets(ctx, topic)
	case int64(at) == latest:
		found, err = f.admin.ListEndOffsets(ctx, topic)
	default:
		return f.offsetsAfter(ctx, topic, int64(at))
	}
	if err == nil {
		err = found.Error()
	}
	all := map[int32]*int64{}
	found.Each(func(one kadm.ListedOffset) { all[one.Partition] = &one.Offset })
	return all, err
}

// offsetsAfter returns nil for partitions without such a record, where kadm returns the end offset.
func (f *franz) offsetsAfter(
	ctx context.Context, topic string, at int64,
) (map[int32]*int64, error) {
	found, err := f.admin.ListOffsetsAfterMilli(ctx, at, topic)
	if err == nil {
		err = found.Error()
	}
	all := map[int32]*int64{}
	found.Each(func(one kadm.ListedOffset) {
		all[one.Partition] = nil
		if one.Timestamp >= 0 {
			all[one.Partition] = &one.Offset
		}
	})
	return all, err
}

// Groups

type franzMember struct {
	client *kgo.Client
	inbox  inbox
	mutex  sync.Mutex
	held   map[pair]bool
	over   context.CancelFunc
	ended  chan struct{}
}

func (f *franz) join(o joinOptions) (member, error) {
	balancers := map[string]kgo.GroupBalancer{
		"range": kgo.RangeBalancer(), "roundrobin": kgo.RoundRobinBalancer(),
		"cooperative": kgo.CooperativeStickyBalancer(),
	}
	one := &franzMember{held: map[pair]bool{}, ended: make(chan struct{})}
	options := []kgo.Opt{
		kgo.SeedBrokers(f.bootstrap),
		secured(),
		loggingIn(),
		kgo.ConsumerGroup(o.Group),
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.MetadataMaxAge(time.Second),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.OnPartitionsAssigned(one.changed("assigned", true)),
		kgo.OnPartitionsRevoked(one.changed("revoked", false)),
		kgo.OnPartitionsLost(one.changed("revoked", false)),
	}
	if o.Strategy == "consumer" { // KIP-848: assignor and session timeout are broker settings
		options = append(options, kgo.ServerSideBalancer())
	} else {
		options = append(options, kgo.Balancers(balancers[o.Strategy]),
			kgo.SessionTimeout(o.session()), kgo.HeartbeatInterval(o.heartbeat()))
	}
	if o.Pattern != "" {
		options = append(options, kgo.ConsumeRegex(), kgo.ConsumeTopics(o.Pattern))
	} else {
		options = append(options, kgo.ConsumeTopics(o.Topics...))
	}
	if o.AutoCommit {
		options = append(options, kgo.AutoCommitInterval(100*time.Millisecond))
	} else {
		options = append(options, kgo.DisableAutoCommit())
	}
	if o.Instance != "" {
		options = append(options, kgo.InstanceID(o.Instance))
	}
	var err error
	if one.client, err = kgo.NewClient(options...); err != nil {
		return nil, err
	}
	var ctx context.Context
	ctx, one.over = context.WithCancel(context.Background())
	go one.run(ctx)
	return one, nil
}

func (m *franzMember) run(ctx context.Context) {
	defer close(m.ended)
	for {
		fetches := m.client.PollFetches(ctx)
		if ctx.Err() != nil {
			return
		}
		// Other errors are lost connections, from which the library recovers.
		var known *kerr.Error
		if err := fetches.Err(); errors.As(err, &known) {
			m.inbox.fail(err)
		}
		m.inbox.add(franzRows(fetches)...)
	}
}

func (m *franzMember) changed(
	what string, held bool,
) func(context.Context, *kgo.Client, map[string][]int32) {
	return func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
		m.mutex.Lock()
		defer m.mutex.Unlock()
		pairs := pairsOf(partitions)
		for _, one := range pairs {
			if held {
				m.held[one] = true
			} else {
				delete(m.held, one)
			}
		}
		m.inbox.told(what, pairs)
	}
}

func (m *franzMember) assigned() []pair {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	pairs := []pair{}
	for one := range m.held {
		pairs = append(pairs, one)
	}
	return pairs
}

func (m *franzMember) commit() error {
	ctx, cancel := limited()
	defer cancel()
	return m.client.CommitUncommittedOffsets(ctx)
}

func (m *franzMember) leave() error {
	m.over()
	<-m.ended
	m.client.Close()
	return nil
}

func (m *franzMember) seen() *inbox { return &m.inbox }

func pairsOf(partitions map[string][]int32) []pair {
	pairs := []pair{}
	for topic, numbers := range partitions {
		for _, number := range numbers {
			pairs = append(pairs, pair{topic, number})
		}
	}
	return pairs
}

func (f *franz) commitAs(group, topic string, offsets map[int32]int64) error {
	ctx, cancel := limited()
	defer cancel()
	wanted := kadm.Offsets{}
	for number, at := range offsets {
		wanted.AddOffset(topic, number, at, -1)
	}
	return f.admin.CommitAllOffsets(ctx, group, wanted)
}

func (f *franz) committed(group, topic string) (map[int32]int64, error) {
	ctx, cancel := limited()
	defer cancel()
	found, err := f.admin.FetchOffsets(ctx, group)
	if err == nil {
		err = found.Error()
	}
	offsets := map[int32]int64{}
	for number, one := range found[topic] {
		offsets[number] = one.At
	}
	return offsets, err
}

// Admin calls

func (f *franz) createTopic(
	name string, partitions, replication int, configs map[string]string,
) error {
	ctx, cancel := limited()
	defer cancel()
	wanted := map[string]*string{}
	for key, value := range configs {
		wanted[key] = &value
	}
	_, err := f.admin.CreateTopic(ctx, int32(partitions), int16(replication), wanted, name)
	return err
}

func (f *franz) deleteTopic(name string) error {
	ctx, cancel := limited()
	defer cancel()
	_, err := f.admin.DeleteTopic(ctx, name)
	return err
}

func (f *franz) topics() ([]string, error) {
	ctx, cancel := limited()
	defer cancel()
	found, err := f.admin.ListTopics(ctx)
	return found.Names(), err
}

func (f *franz) describeTopic(name string) (topicDescription, error) {
	found, err := f.topic(name)
	answer := topicDescription{Internal: found.IsInternal}
	for _, one := range found.Partitions.Sorted() {
		answer.Partitions = append(answer.Partitions, partitionDescription{
			one.Partition, one.Leader, one.Replicas, one.ISR,
		})
	}
	return answer, err
}

func (f *franz) topicConfigs(name string) (map[string]string, error) {
	ctx, cancel := limited()
	defer cancel()
	return franzConfigs(f.admin.DescribeTopicConfigs(ctx, name))
}

func (f *franz) brokerConfigs(node int) (map[string]string, error) {
	ctx, cancel := limited()
	defer cancel()
	return franzConfigs(f.admin.DescribeBrokerConfigs(ctx, int32(node)))
}

func franzConfigs(found kadm.ResourceConfigs, err error) (map[string]string, error) {
	configs := map[string]string{}
	for _, resource := range found {
		if resource.Err != nil {
			return nil, resource.Err
		}
		for _, one := range resource.Configs {
			configs[one.Key] = one.MaybeValue()
		}
	}
	return configs, err
}

func (f *franz) alterTopicConfigs(name string, configs map[string]*string) error {
	ctx, cancel := limited()
	defer cancel()
	wanted := []kadm.AlterConfig{}
	for key, value := range configs {
		operation := kadm.SetConfig
		if value == nil {
			operation = kadm.DeleteConfig
		}
		wanted = append(wanted, kadm.AlterConfig{Op: operation, Name: key, Value: value})
	}
	answer, err := f.admin.AlterTopicConfigs(ctx, wanted, name)
	if err == nil {
		_, err = answer.On(name, func(one *kadm.AlterConfigsResponse) error { return one.Err })
	}
	return err
}

func (f *franz) addPartitions(name string, total int) error {
	ctx, cancel := limited()
	defer cancel()
	answer, err := f.admin.UpdatePartitions(ctx, total, name)
	if err == nil {
		err = answer[name].Err
	}
	return err
}

func (f *franz) describeCluster() (clusterDescription, error) {
	ctx, cancel := limited()
	defer cancel()
	found, err := f.admin.BrokerMetadata(ctx)
	return clusterDescription{found.Brokers.NodeIDs(), found.Controller}, err
}

func (f *franz) groups() ([]string, error) {
	ctx, cancel := limited()
	defer cancel()
	found, err := f.admin.ListGroups(ctx)
	return found.Groups(), err
}

func (f *franz) describeGroup(group string) (groupDescription, error) {
	ctx, cancel := limited()
	defer cancel()
	found, err := f.admin.DescribeGroups(ctx, group)
	if err == nil {
		err = found.Error()
	}
	one := found[group]
	return groupDescription{one.State, len(one.Members), &one.Protocol}, err
}

func (f *franz) deleteGroup(group string) error {
	ctx, cancel := limited()
	defer cancel()
	_, err := f.admin.DeleteGroup(ctx, group)
	return err
}

func (f *franz) deleteOffsets(group, topic string, partition int32) error {
	ctx, cancel := limited()
	defer cancel()
	wanted := kadm.TopicsSet{}
	wanted.Add(topic, partition)
	answer, err := f.admin.DeleteOffsets(ctx, group, wanted)
	if err == nil {
		err = answer.Error()
	}
	return err
}

func (f *franz) deleteRecords(topic string, partition int32, before int64) (int64, error) {
	ctx, cancel := limited()
	defer cancel()
	wanted := kadm.Offsets{}
	wanted.AddOffset(topic, partition, before, -1)
	answer, err := f.admin.DeleteRecords(ctx, wanted)
	if err == nil {
		err = answer.Error()
	}
	return answer[topic][partition].LowWatermark, err
}

// Transactions

type franzTransactional struct {
	client *kgo.Client
}

func (f *franz) transactional(identity string, timeout time.Duration) (transactional, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(f.bootstrap),
		secured(),
		loggingIn(),
		kgo.TransactionalID(identity),
		kgo.TransactionTimeout(timeout),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	if err != nil {
		return nil, err
	}
	ctx, cancel := limited()
	defer cancel()
	// Otherwise it sends InitProducerId with the first record.
	_, _, err = client.ProducerID(ctx)
	return &franzTransactional{client}, err
}

func (t *franzTransactional) begin() error {
	return t.client.BeginTransaction()
}

func (t *franzTransactional) send(topic string, records []record) ([]result, error) {
	ctx, cancel := limited()
	defer cancel()
	results := []result{}
	for _, one := range records {
		made := franzRecord(one)
		made.Topic = topic
		sent, err := t.client.ProduceSync(ctx, made).First()
		results = append(results, result{sent.Partition, sent.Offset, err})
	}
	return results, nil
}

func (t *franzTransactional) end(commit bool) error {
	ctx, cancel := limited()
	defer cancel()
	return t.client.EndTransaction(ctx, kgo.TransactionEndTry(commit))
}

func (t *franzTransactional) close() error {
	t.client.Close()
	return nil
}

func (f *franz) transform(o transformOptions) error {
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(f.bootstrap),
		secured(),
		loggingIn(),
		kgo.TransactionalID(o.Identity),
		kgo.TransactionTimeout(transformTimeout),
		kgo.ConsumerGroup(o.Group),
		kgo.ConsumeTopics(o.Source),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
	)
	if err != nil {
		return err
	}
	defer session.Close()
	ctx, cancel := limited()
	defer cancel()
	var sources []*kgo.Record
	for len(sources) < o.Count {
		fetches := session.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		sources = append(sources, fetches.Records()...)
	}
	if err := session.Begin(); err != nil {
		return err
	}
	for _, one := range sources {
		sent := &kgo.Record{Topic: o.Target, Value: capitals(one.Value)}
		if err := session.ProduceSync(ctx, sent).FirstErr(); err != nil {
			return err
		}
	}
	committed, err := session.End(ctx, kgo.TransactionEndTry(o.Commit))
	if err == nil && committed != o.Commit {
		err = errors.New("the session did not commit")
	}
	return err
}
