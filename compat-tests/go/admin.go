package main

import (
	"encoding/json"
	"fmt"
)

// admin contains the admin calls of a library that the tests use.
type admin interface {
	createTopic(name string, partitions, replication int, configs map[string]string) error
	deleteTopic(name string) error
	topics() ([]string, error)
	describeTopic(name string) (topicDescription, error)
	topicConfigs(name string) (map[string]string, error)
	alterTopicConfigs(name string, configs map[string]*string) error
	brokerConfigs(node int) (map[string]string, error)
	addPartitions(name string, total int) error
	describeCluster() (clusterDescription, error)
	groups() ([]string, error)
	describeGroup(group string) (groupDescription, error)
	deleteGroup(group string) error
	deleteOffsets(group, topic string, partition int32) error
	deleteRecords(topic string, partition int32, before int64) (int64, error)
}

type topicDescription struct {
	Internal   bool                   `json:"internal"`
	Partitions []partitionDescription `json:"partitions"`
}

type partitionDescription struct {
	Number   int32   `json:"number"`
	Leader   int32   `json:"leader"`
	Replicas []int32 `json:"replicas"`
	Isr      []int32 `json:"isr"`
}

type clusterDescription struct {
	Nodes      []int32 `json:"nodes"`
	Controller int32   `json:"controller"`
}

type groupDescription struct {
	State    string  `json:"state"`
	Members  int     `json:"members"`
	Strategy *string `json:"strategy"`
}

type adminArguments struct {
	Call        string
	Name        string
	Partitions  int
	Replication int
	Configs     map[string]*string
	Total       int
	Node        int
	Group       string
	Topic       string
	Partition   int32
	Before      int64
}

// plainConfigs returns the configs that have a value.
func (a adminArguments) plainConfigs() map[string]string {
	plain := map[string]string{}
	for key, value := range a.Configs {
		if value != nil {
			plain[key] = *value
		}
	}
	return plain
}

func (d *driver) admin(arguments json.RawMessage) (any, error) {
	a := adminArguments{Partitions: 1, Replication: 1}
	if err := decode(arguments, &a); err != nil {
		return nil, err
	}
	c := d.client
	switch a.Call {
	case "create_topic":
		return nil, c.createTopic(a.Name, a.Partitions, a.Replication, a.plainConfigs())
	case "delete_topic":
		return nil, c.deleteTopic(a.Name)
	case "topics":
		return c.topics()
	case "describe_topic":
		return c.describeTopic(a.Name)
	case "topic_configs":
		return c.topicConfigs(a.Name)
	case "alter_topic_configs":
		return nil, c.alterTopicConfigs(a.Name, a.Configs)
	case "broker_configs":
		return c.brokerConfigs(a.Node)
	case "add_partitions":
		return nil, c.addPartitions(a.Name, a.Total)
	case "describe_cluster":
		return c.describeCluster()
	}
	return d.groupAdmin(a)
}

func (d *driver) groupAdmin(a adminArguments) (any, error) {
	c := d.client
	switch a.Call {
	case "groups":
		return c.groups()
	case "describe_group":
		return c.describeGroup(a.Group)
	case "delete_group":
		return nil, c.deleteGroup(a.Group)
	case "group_offsets":
		return c.committed(a.Group, a.Topic)
	case "delete_offsets":
		return nil, c.deleteOffsets(a.Group, a.Topic, a.Partition)
	case "delete_records":
		return c.deleteRecords(a.Topic, a.Partition, a.Before)
	}
	return nil, fmt.Errorf("%w: call %s", errUnknown, a.Call)
}
