// Command driver runs one Go client library behind the verbs of clients/driver.py.
//
// Usage: driver LIBRARY host:port, where LIBRARY is franz-go, sarama or kafka-go. Requests are
// NDJSON on stdin, and responses on stdout. Keys and values are encoded as latin-1 strings.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

const callSeconds = 30 * time.Second

var errUnknown = errors.New("this driver does not know it")

type request struct {
	Verb      string          `json:"verb"`
	Arguments json.RawMessage `json:"arguments"`
}

type failure struct {
	Code    *int   `json:"code"`
	Type    string `json:"type"`
	Message string `json:"message"`
	Trace   string `json:"trace"`
}

// driver executes verbs with one client. It contains the running group members, and the producers
// with a transactional ID.
type driver struct {
	client    client
	members   map[string]member
	producers map[string]transactional
}

func main() {
	makers := map[string]func(string) client{
		"franz-go": newFranz, "sarama": newSarama, "kafka-go": newSegmentio,
	}
	if len(os.Args) != 3 || makers[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: driver franz-go|sarama|kafka-go host:port")
		os.Exit(2)
	}
	d := driver{makers[os.Args[1]](os.Args[2]), map[string]member{}, map[string]transactional{}}
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		os.Stdout.Write(append(d.answer(line), '\n'))
	}
}

func (d *driver) answer(line []byte) []byte {
	result, err := d.execute(line)
	reply := map[string]any{"result": result}
	if err != nil {
		reply = map[string]any{"error": d.failure(err)}
	}
	text, err := json.Marshal(reply)
	if err != nil {
		panic(err)
	}
	return text
}

func (d *driver) failure(err error) failure {
	return failure{d.client.errorCode(err), fmt.Sprintf("%T", err), err.Error(), ""}
}

func (d *driver) execute(line []byte) (any, error) {
	var asked request
	if err := json.Unmarshal(line, &asked); err != nil {
		return nil, err
	}
	switch asked.Verb {
	case "produce":
		return d.produce(asked.Arguments)
	case "transactional", "begin", "send", "end", "close":
		return d.transaction(asked.Verb, asked.Arguments)
	case "transform":
		return d.transform(asked.Arguments)
	case "read", "offsets":
		return d.look(asked.Verb, asked.Arguments)
	case "committed", "commit_as":
		return d.groupOffsets(asked.Verb, asked.Arguments)
	case "join":
		return nil, d.join(asked.Arguments)
	case "state", "rows", "commit", "leave":
		return d.member(asked.Verb, asked.Arguments)
	case "admin":
		return d.admin(asked.Arguments)
	}
	return nil, fmt.Errorf("%w: verb %s", errUnknown, asked.Verb)
}

func (d *driver) produce(arguments json.RawMessage) (any, error) {
	wanted := produceOptions{Acks: "all", LingerMs: 50, RequestTimeoutMs: 15_000}
	if err := decode(arguments, &wanted); err != nil {
		return nil, err
	}
	return d.answers(d.client.produce(wanted))
}

func (d *driver) answers(results []result, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	answers := make([]any, len(results))
	for index, result := range results {
		if result.err != nil {
			answers[index] = map[string]any{"error": d.failure(result.err)}
		} else {
			answers[index] = map[string]int64{
				"partition": int64(result.partition), "offset": result.offset,
			}
		}
	}
	return answers, nil
}

func (d *driver) look(verb string, arguments json.RawMessage) (any, error) {
	wanted := readOptions{
		Start: json.RawMessage(`"earliest"`), Count: 1, Seconds: 20, Isolation: "read_uncommitted",
		FetchWaitMs: 500, PartitionBytes: 1 << 20, Reset: "earliest",
	}
	if err := decode(arguments, &wanted); err != nil {
		return nil, err
	}
	if verb == "offsets" {
		return d.client.offsets(wanted.Topic, wanted.At, wanted.Isolation)
	}
	partitions, err := d.client.partitions(wanted.Topic)
	if err != nil {
		return nil, err
	}
	if wanted.starts, err = positions(wanted.Start, partitions); err != nil {
		return nil, err
	}
	rows := []row{}
	deadline := time.Now().Add(time.Duration(wanted.Seconds * float64(time.Second)))
	err = d.client.read(wanted, deadline, func(more ...row) bool {
		rows = append(rows, more...)
		return len(rows) < wanted.Count
	})
	return rows, err
}

func (d *driver) groupOffsets(verb string, arguments json.RawMessage) (any, error) {
	var wanted struct {
		Group, Topic string
		Offsets      map[int32]int64
	}
	if err := decode(arguments, &wanted); err != nil {
		return nil, err
	}
	if verb == "commit_as" {
		return nil, d.client.commitAs(wanted.Group, wanted.Topic, wanted.Offsets)
	}
	found, err := d.client.committed(wanted.Group, wanted.Topic)
	if err != nil {
		return nil, err
	}
	partitions, err := d.client.partitions(wanted.Topic)
	all := map[int32]*int64{}
	for _, number := range partitions {
		all[number] = nil
		if offset, there := found[number]; there && offset >= 0 {
			all[number] = &offset
		}
	}
	return all, err
}

func (d *driver) join(arguments json.RawMessage) error {
	wanted := joinOptions{Reset: "earliest", Strategy: "range", SessionMs: 10_000}
	if err := decode(arguments, &wanted); err != nil {
		return err
	}
	joined, err := d.client.join(wanted)
	if err == nil {
		d.members[wanted.Member] = joined
	}
	return err
}

func (d *driver) member(verb string, arguments json.RawMessage) (any, error) {
	var wanted struct{ Member string }
	if err := decode(arguments, &wanted); err != nil {
		return nil, err
	}
	one := d.members[wanted.Member]
	if one == nil {
		return nil, fmt.Errorf("no member %q", wanted.Member)
	}
	switch verb {
	case "rows":
		return one.seen().copyOfRows(), nil
	case "commit":
		if err := one.seen().failed(); err != nil {
			return nil, err
		}
		return nil, one.commit()
	case "leave":
		delete(d.members, wanted.Member)
		return nil, one.leave()
	}
	if err := one.seen().failed(); err != nil {
		return nil, err
	}
	return one.seen().state(one.assigned()), nil
}

func decode(arguments json.RawMessage, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(arguments))
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
}

// positions parses {"0": 5, ...}, or "earliest" or "latest" for all partitions.
func positions(start json.RawMessage, partitions []int32) (map[int32]int64, error) {
	var name string
	if json.Unmarshal(start, &name) == nil {
		all := map[int32]int64{}
		for _, number := range partitions {
			all[number] = map[string]int64{"earliest": earliest, "latest": latest}[name]
		}
		return all, nil
	}
	var each map[int32]int64
	err := json.Unmarshal(start, &each)
	return each, err
}

func sorted(pairs []pair) []pair {
	slices.SortFunc(pairs, func(a, b pair) int {
		if a.topic != b.topic {
			return bytes.Compare([]byte(a.topic), []byte(b.topic))
		}
		return int(a.partition - b.partition)
	})
	return pairs
}
