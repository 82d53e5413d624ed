package main

import (
	"encoding/json"
	"fmt"
	"sync"
	"time"
)

// Special positions of ListOffsets, as on the wire.
const (
	latest   int64 = -1
	earliest int64 = -2
)

// client is the interface of a library for the driver. Calls return errors of the broker.
type client interface {
	produce(produceOptions) ([]result, error)
	// read passes rows to more until it returns false or the deadline passes.
	read(wanted readOptions, deadline time.Time, more func(...row) bool) error
	partitions(topic string) ([]int32, error)
	offsets(topic string, at position, isolation string) (map[int32]*int64, error)
	join(joinOptions) (member, error)
	commitAs(group, topic string, offsets map[int32]int64) error
	committed(group, topic string) (map[int32]int64, error)
	transactional(identity string, timeout time.Duration) (transactional, error)
	transform(transformOptions) error
	admin
	// errorCode returns Kafka's error code, or nil if the error does not come from a broker.
	errorCode(error) *int
}

// member is a group member that reads until it leaves.
type member interface {
	assigned() []pair
	commit() error
	leave() error
	seen() *inbox
}

type result struct {
	partition int32
	offset    int64
	err       error
}

type pair struct {
	topic     string
	partition int32
}

func (p pair) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{p.topic, p.partition})
}

// text is a byte string that is encoded as a latin-1 string. nil is null.
type text []byte

func (t text) MarshalJSON() ([]byte, error) {
	if t == nil {
		return []byte("null"), nil
	}
	runes := make([]rune, len(t))
	for index, one := range t {
		runes[index] = rune(one)
	}
	return json.Marshal(string(runes))
}

func (t *text) UnmarshalJSON(raw []byte) error {
	var said *string
	if err := json.Unmarshal(raw, &said); err != nil || said == nil {
		*t = nil
		return err
	}
	*t = text{}
	for _, one := range *said {
		*t = append(*t, byte(one))
	}
	return nil
}

// header is encoded as [name, value].
type header struct {
	name  string
	value text
}

func (h header) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{h.name, h.value})
}

func (h *header) UnmarshalJSON(raw []byte) error {
	return json.Unmarshal(raw, &[]any{&h.name, &h.value})
}

type record struct {
	Key       text
	Value     text
	Headers   []header
	Partition *int32
	Timestamp *int64
}

// time returns the timestamp of the record, by default the current time.
func (r record) time() time.Time {
	if r.Timestamp == nil {
		return time.Now()
	}
	return time.UnixMilli(*r.Timestamp)
}

type row struct {
	Topic     string   `json:"topic"`
	Partition int32    `json:"partition"`
	Offset    int64    `json:"offset"`
	Timestamp *int64   `json:"timestamp"`
	Key       text     `json:"key"`
	Value     text     `json:"value"`
	Headers   []header `json:"headers"`
}

// milliseconds returns the timestamp of a record in ms, or nil if its format has none.
func milliseconds(of time.Time) *int64 {
	if of.IsZero() {
		return nil
	}
	since := of.UnixMilli()
	return &since
}

// position is "earliest", "latest" or a time in ms.
type position int64

func (p *position) UnmarshalJSON(raw []byte) error {
	var name string
	if json.Unmarshal(raw, &name) != nil {
		return json.Unmarshal(raw, (*int64)(p))
	}
	named, there := map[string]int64{"earliest": earliest, "latest": latest}[name]
	if !there {
		return fmt.Errorf("%w: position %s", errUnknown, name)
	}
	*p = position(named)
	return nil
}

type produceOptions struct {
	Topic            string
	Records          []record
	Codec            string
	Acks             any
	Idempotent       bool
	LingerMs         int `json:"linger_ms"`
	Retries          *int
	RequestTimeoutMs int `json:"request_timeout_ms"`
	Version          string
}

// manual returns true if the records contain their partitions.
func (o produceOptions) manual() bool {
	return len(o.Records) > 0 && o.Records[0].Partition != nil
}

type readOptions struct {
	Topic          string
	At             position
	Start          json.RawMessage
	Count          int
	Seconds        float64
	Isolation      string
	Reset          string
	Version        string
	FetchWaitMs    int   `json:"fetch_wait_ms"`
	PartitionBytes int32 `json:"partition_bytes"`

	starts map[int32]int64
}

type joinOptions struct {
	Member     string
	Topics     []string
	Pattern    string
	Group      string
	Reset      string
	Strategy   string
	Instance   string
	SessionMs  int  `json:"session_ms"`
	AutoCommit bool `json:"auto_commit"`
}

func (o joinOptions) session() time.Duration {
	return time.Duration(o.SessionMs) * time.Millisecond
}

func (o joinOptions) heartbeat() time.Duration {
	return min(max(o.session()/10, 100*time.Millisecond), time.Second)
}

// inbox contains the records and rebalance events of a member.
type inbox struct {
	mutex  sync.Mutex
	rows   []row
	events [][]any
	err    error
}

func (i *inbox) add(rows ...row) {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	i.rows = append(i.rows, rows...)
}

func (i *inbox) told(what string, partitions []pair) {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	i.events = append(i.events, []any{what, sorted(partitions)})
}

func (i *inbox) fail(err error) {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	i.err = err
}

func (i *inbox) failed() error {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	return i.err
}

func (i *inbox) copyOfRows() []row {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	return append([]row{}, i.rows...)
}

func (i *inbox) state(assigned []pair) map[string]any {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	return map[string]any{
		"assigned": sorted(append([]pair{}, assigned...)),
		"events":   append([][]any{}, i.events...),
		"count":    len(i.rows),
	}
}
