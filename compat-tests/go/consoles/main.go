// Command consoles sends the requests of each page of Redpanda Console with franz-go.
//
// Usage: consoles host:port topic group. It creates the topic, writes 30 records, commits offsets of the group, and
// makes the calls. It prints a line of JSON per call: {"call": name, "answer": result} or {"call": name, "error":
// message}.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	partitions  = 3
	records     = 30
	callSeconds = 30 * time.Second
)

type console struct {
	address string
	topic   string
	group   string
	client  *kgo.Client
	admin   *kadm.Client
}

func main() {
	c := console{address: os.Args[1], topic: os.Args[2], group: os.Args[3]}
	c.client = must(kgo.NewClient(kgo.SeedBrokers(c.address), kgo.ClientID("redpanda-console")))
	c.admin = kadm.NewClient(c.client)
	c.prepare()
	c.describeCluster()
	c.describeTopics()
	c.readMessages()
	c.describeGroups()
	c.describeSecurity()
	c.describeTransactions()
	c.change()
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func call[T any](name string, asked func(context.Context) (T, error)) {
	limited, cancel := context.WithTimeout(context.Background(), callSeconds)
	defer cancel()
	line := map[string]any{"call": name}
	if answer, err := asked(limited); err != nil {
		line["error"] = err.Error()
	} else {
		line["answer"] = answer
	}
	fmt.Println(string(must(json.Marshal(line))))
}

func (c *console) prepare() {
	limited, cancel := context.WithTimeout(context.Background(), callSeconds)
	defer cancel()
	forEver := "-1"
	made := must(c.admin.CreateTopic(limited, partitions, 1, map[string]*string{"retention.ms": &forEver}, c.topic))
	if made.Err != nil {
		panic(made.Err)
	}
	producer := must(kgo.NewClient(kgo.SeedBrokers(c.address), kgo.RecordPartitioner(kgo.ManualPartitioner())))
	defer producer.Close()
	for number := range records {
		record := kgo.StringRecord(fmt.Sprintf("v%d", number))
		record.Topic, record.Partition = c.topic, int32(number%partitions)
		record.Timestamp = time.UnixMilli(int64(number))
		if err := producer.ProduceSync(limited, record).FirstErr(); err != nil {
			panic(err)
		}
	}
	var offsets kadm.Offsets
	for number := range int32(partitions) {
		offsets.AddOffset(c.topic, number, 4, -1)
	}
	if err := c.admin.CommitAllOffsets(limited, c.group, offsets); err != nil {
		panic(err)
	}
}

func (c *console) describeCluster() {
	call("ApiVersions", func(limited context.Context) (int, error) {
		told, err := c.admin.ApiVersions(limited)
		return len(told), err
	})
	call("Metadata", func(limited context.Context) ([]bool, error) {
		told, err := c.admin.Metadata(limited)
		return []bool{len(told.Brokers) == 1, told.Cluster != "", told.Topics.Has(c.topic)}, err
	})
	call("DescribeConfigs of brokers", func(limited context.Context) (bool, error) {
		brokers, err := c.admin.ListBrokers(limited)
		if err != nil {
			return false, err
		}
		told, err := c.admin.DescribeBrokerConfigs(limited, brokers.NodeIDs()...)
		return err == nil && len(told) == 1 && len(told[0].Configs) > 50, err
	})
	call("DescribeLogDirs", func(limited context.Context) (int, error) {
		told, err := c.admin.DescribeAllLogDirs(limited, nil)
		count := 0
		told.Each(func(directory kadm.DescribedLogDir) {
			directory.Topics.Each(func(each kadm.DescribedLogDirPartition) {
				if each.Topic == c.topic && each.Size > 0 {
					count++
				}
			})
		})
		return count, err
	})
}

func (c *console) describeTopics() {
	call("DescribeConfigs of topics", func(limited context.Context) (map[string]any, error) {
		request := kmsg.NewPtrDescribeConfigsRequest()
		request.IncludeSynonyms, request.IncludeDocumentation = true, true
		resource := kmsg.NewDescribeConfigsRequestResource()
		resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeTopic, c.topic
		request.Resources = append(request.Resources, resource)
		told, err := request.RequestWith(limited, c.client)
		if err != nil {
			return nil, err
		}
		found := map[string]any{}
		for _, each := range told.Resources[0].Configs {
			if each.Name == "cleanup.policy" || each.Name == "retention.ms" {
				found[each.Name] = *each.Value
				found[each.Name+" is told"] = each.Documentation != nil && len(each.ConfigSynonyms) > 0
			}
		}
		return found, nil
	})
	call("ListOffsets", func(limited context.Context) (map[string][]int64, error) {
		first, err := c.admin.ListStartOffsets(limited, c.topic)
		if err != nil {
			return nil, err
		}
		last, err := c.admin.ListEndOffsets(limited, c.topic)
		if err != nil {
			return nil, err
		}
		at, err := c.admin.ListOffsetsAfterMilli(limited, 15, c.topic)
		return map[string][]int64{"start": c.each(first), "end": c.each(last), "at 15 ms": c.each(at)}, err
	})
}

func (c *console) each(listed kadm.ListedOffsets) []int64 {
	found := make([]int64, 0, partitions)
	for number := range int32(partitions) {
		one, _ := listed.Lookup(c.topic, number)
		found = append(found, one.Offset)
	}
	return found
}

// readMessages reads like a page of messages: without a group, from an offset to an end offset known in advance.
func (c *console) readMessages() {
	call("messages from the oldest", func(limited context.Context) ([]string, error) {
		return c.read(limited, kgo.NewOffset().AtStart(), records)
	})
	call("messages from the newest", func(limited context.Context) ([]string, error) {
		return c.read(limited, kgo.NewOffset().AtEnd().Relative(-2), 2*partitions)
	})
}

func (c *console) read(limited context.Context, from kgo.Offset, count int) ([]string, error) {
	places := map[int32]kgo.Offset{}
	for number := range int32(partitions) {
		places[number] = from
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(c.address), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{c.topic: places}))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	found := []string{}
	for len(found) < count {
		fetched := client.PollFetches(limited)
		if err := fetched.Err(); err != nil {
			return nil, err
		}
		fetched.EachRecord(func(each *kgo.Record) { found = append(found, string(each.Value)) })
	}
	slices.Sort(found)
	return found, nil
}

func (c *console) describeGroups() {
	call("ListGroups", func(limited context.Context) ([]string, error) {
		told, err := c.admin.ListGroups(limited)
		one := told[c.group]
		return []string{one.State, one.ProtocolType}, err
	})
	call("DescribeGroups", func(limited context.Context) ([]any, error) {
		told, err := c.admin.DescribeGroups(limited, c.group)
		one := told[c.group]
		return []any{one.State, len(one.Members)}, err
	})
	call("OffsetFetch", func(limited context.Context) (int64, error) {
		told := c.admin.FetchManyOffsets(limited, c.group)
		sum := int64(0)
		told[c.group].Fetched.Each(func(each kadm.OffsetResponse) { sum += each.At })
		return sum, told.Error()
	})
	call("Lag", func(limited context.Context) (int64, error) {
		told, err := c.admin.Lag(limited, c.group)
		one := told[c.group]
		return one.Lag.Total(), err
	})
}

func (c *console) describeSecurity() {
	call("DescribeACLs", func(limited context.Context) (int16, error) {
		request := kmsg.NewPtrDescribeACLsRequest()
		request.ResourceType, request.ResourcePatternType = kmsg.ACLResourceTypeAny, kmsg.ACLResourcePatternTypeAny
		request.Operation, request.PermissionType = kmsg.ACLOperationAny, kmsg.ACLPermissionTypeAny
		told, err := request.RequestWith(limited, c.client)
		if err != nil {
			return 0, err
		}
		return told.ErrorCode, nil
	})
	call("DescribeClientQuotas", func(limited context.Context) (int, error) {
		told, err := c.admin.DescribeClientQuotas(limited, false, nil)
		return len(told), err
	})
	call("DescribeUserScramCredentials", func(limited context.Context) (int, error) {
		told, err := c.admin.DescribeUserSCRAMs(limited)
		return len(told), err
	})
}

func (c *console) describeTransactions() {
	call("ListTransactions", func(limited context.Context) (int, error) {
		told, err := c.admin.ListTransactions(limited, nil, nil)
		return len(told), err
	})
	call("DescribeProducers", func(limited context.Context) (int, error) {
		told, err := c.admin.DescribeProducers(limited, c.places())
		count := 0
		told.EachProducer(func(kadm.DescribedProducer) { count++ })
		return count, err
	})
	call("ListPartitionReassignments", func(limited context.Context) (int, error) {
		told, err := c.admin.ListPartitionReassignments(limited, nil)
		return len(told), err
	})
}

func (c *console) places() kadm.TopicsSet {
	set := kadm.TopicsSet{}
	set.Add(c.topic, 0, 1, 2)
	return set
}

// change makes the calls of its buttons.
func (c *console) change() {
	call("IncrementalAlterConfigs", func(limited context.Context) (string, error) {
		value := "7200000"
		set := kadm.AlterConfig{Op: kadm.SetConfig, Name: "retention.ms", Value: &value}
		told, err := c.admin.AlterTopicConfigs(limited, []kadm.AlterConfig{set}, c.topic)
		if err != nil {
			return "", err
		}
		return "set", told[0].Err
	})
	call("CreatePartitions", func(limited context.Context) (string, error) {
		told, err := c.admin.UpdatePartitions(limited, partitions+1, c.topic)
		if err != nil {
			return "", err
		}
		return "made", told.Error()
	})
	call("DeleteRecords", func(limited context.Context) (int64, error) {
		var before kadm.Offsets
		before.AddOffset(c.topic, 0, 5, -1)
		told, err := c.admin.DeleteRecords(limited, before)
		one, _ := told.Lookup(c.topic, 0)
		return one.LowWatermark, err
	})
	call("OffsetCommit", func(limited context.Context) (int64, error) {
		var offsets kadm.Offsets
		offsets.AddOffset(c.topic, 1, 9, -1)
		if err := c.admin.CommitAllOffsets(limited, c.group, offsets); err != nil {
			return 0, err
		}
		told, err := c.admin.FetchOffsets(limited, c.group)
		one, _ := told.Lookup(c.topic, 1)
		return one.At, err
	})
	call("OffsetDelete", func(limited context.Context) (bool, error) {
		set := kadm.TopicsSet{}
		set.Add(c.topic, 2)
		told, err := c.admin.DeleteOffsets(limited, c.group, set)
		if err != nil {
			return false, err
		}
		return true, told.Error()
	})
	call("DeleteGroups", func(limited context.Context) (string, error) {
		told, err := c.admin.DeleteGroup(limited, c.group)
		if err != nil {
			return "", err
		}
		return told.Group, told.Err
	})
	call("DeleteTopics", func(limited context.Context) (string, error) {
		told, err := c.admin.DeleteTopic(limited, c.topic)
		if err != nil {
			return "", err
		}
		return told.Topic, told.Err
	})
}
