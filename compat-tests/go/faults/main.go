// Command faults injects faults through kbroker's control socket and checks that franz-go recovers from them.
//
// Run it with `kbroker run --control -- faults`. It prints a line per successful scenario.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const topic = "orders"

type words map[string]any

// control sends commands to one broker as NDJSON, with one line per response.
type control struct {
	connection net.Conn
	answers    *bufio.Scanner
}

func dial(address string) *control {
	connection := must(net.Dial("tcp", address))
	c := &control{connection, bufio.NewScanner(connection)}
	token := must(os.ReadFile(os.Getenv("KBROKER_CONTROL_TOKEN_FILE")))
	c.command("login", words{"token": strings.TrimSpace(string(token))})
	return c
}

func (c *control) command(do string, command words) words {
	command["do"] = do
	_ = must(c.connection.Write(append(must(json.Marshal(command)), '\n')))
	if !c.answers.Scan() {
		panic("the broker takes no commands any more")
	}
	var answer words
	check(json.Unmarshal(c.answers.Bytes(), &answer))
	if answer["ok"] != true {
		panic(fmt.Sprintf("%s: %s", do, answer["error"]))
	}
	return answer
}

func (c *control) values() []any {
	values := []any{}
	for _, record := range c.command("records", words{"topic": topic})["records"].([]any) {
		values = append(values, record.(map[string]any)["value"])
	}
	return values
}

// broker is a new broker for one scenario.
type broker struct {
	*control
	bootstrap string
}

func (b broker) client(more ...kgo.Opt) *kgo.Client {
	options := append(more,
		kgo.SeedBrokers(b.bootstrap),
		kgo.DefaultProduceTopic(topic),
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }),
		kgo.MetadataMinAge(20*time.Millisecond),
	)
	return must(kgo.NewClient(options...))
}

func send(ctx context.Context, client *kgo.Client, value string) {
	check(client.ProduceSync(ctx, kgo.StringRecord(value)).FirstErr())
}

func leaderMoves(ctx context.Context, b broker) {
	fault := b.command("fault", words{
		"api": "Produce", "topic": topic, "error": "NOT_LEADER_OR_FOLLOWER", "times": 2,
	})["fault"]
	client := b.client()
	defer client.Close()
	send(ctx, client, "x")
	equal(b.command("hits", words{"fault": fault})["hits"], 2.0)
	equal(b.values(), []any{"x"})
}

func answerIsLost(ctx context.Context, b broker) {
	b.command("fault", words{"api": "Produce", "at": "after", "effect": "disconnect"})
	client := b.client() // idempotent by default
	defer client.Close()
	send(ctx, client, "first")
	send(ctx, client, "second")
	equal(b.values(), []any{"first", "second"})
}

func fetchIsSlow(ctx context.Context, b broker) {
	b.command("produce", words{"topic": topic, "value": "x"})
	b.command("fault", words{"api": "Fetch", "effect": "delay", "ms": 300})
	started := time.Now()
	client := b.client(
		kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	defer client.Close()
	fetches := client.PollFetches(ctx)
	check(fetches.Err())
	equal(string(fetches.Records()[0].Value), "x")
	equal(time.Since(started) >= 300*time.Millisecond, true)
}

func brokerRestarts(ctx context.Context, b broker) {
	client := b.client()
	defer client.Close()
	send(ctx, client, "before")
	b.command("restart", words{})
	send(ctx, client, "after")
	equal(b.values(), []any{"before", "after"})
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	scenarios := []struct {
		name string
		run  func(context.Context, broker)
	}{
		{"a leader that moves", leaderMoves},
		{"an answer that is lost", answerIsLost},
		{"a fetch that is slow", fetchIsSlow},
		{"a broker that restarts", brokerRestarts},
	}
	first := dial(os.Getenv("KBROKER_CONTROL"))
	for _, scenario := range scenarios {
		fresh := first.command("open", words{"topics": words{topic: 1}})
		b := broker{dial(fresh["control"].(string)), fresh["bootstrap_servers"].(string)}
		scenario.run(ctx, b)
		b.command("close", words{}) // fails if a fault was never triggered
		fmt.Println(scenario.name)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func equal(found, wanted any) {
	if fmt.Sprint(found) != fmt.Sprint(wanted) {
		panic(fmt.Sprintf("%v, not %v", found, wanted))
	}
}
