package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// transactional is an initialized producer with a transactional ID.
type transactional interface {
	begin() error
	send(topic string, records []record) ([]result, error)
	end(commit bool) error
	close() error
}

// transformOptions are the arguments of transform. It consumes count records as a group member,
// produces their values to target in upper case, and commits or aborts that with the offsets.
type transformOptions struct {
	Identity, Group, Source, Target string
	Count                           int
	Commit                          bool
}

const transformTimeout = time.Minute

func capitals(value []byte) []byte {
	return bytes.ToUpper(value)
}

type transactionArguments struct {
	Producer, Identity, Topic string
	TimeoutMs                 int `json:"timeout_ms"`
	Records                   []record
	Commit                    bool
}

func (d *driver) transaction(verb string, arguments json.RawMessage) (any, error) {
	wanted := transactionArguments{TimeoutMs: 60_000}
	if err := decode(arguments, &wanted); err != nil {
		return nil, err
	}
	if verb == "transactional" {
		timeout := time.Duration(wanted.TimeoutMs) * time.Millisecond
		made, err := d.client.transactional(wanted.Identity, timeout)
		if err == nil {
			d.producers[wanted.Producer] = made
		}
		return nil, err
	}
	producer := d.producers[wanted.Producer]
	if producer == nil {
		return nil, fmt.Errorf("no producer %q", wanted.Producer)
	}
	switch verb {
	case "begin":
		return nil, producer.begin()
	case "send":
		return d.answers(producer.send(wanted.Topic, wanted.Records))
	case "end":
		return nil, producer.end(wanted.Commit)
	}
	delete(d.producers, wanted.Producer)
	return nil, producer.close()
}

func (d *driver) transform(arguments json.RawMessage) (any, error) {
	var wanted transformOptions
	if err := decode(arguments, &wanted); err != nil {
		return nil, err
	}
	return nil, d.client.transform(wanted)
}
