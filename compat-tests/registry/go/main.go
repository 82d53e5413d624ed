// Runs common registry operations with franz-go's sr package and with srclient, and prints the results.
package main

import (
	"context"
	"encoding/json"
	"os"

	"github.com/twmb/franz-go/pkg/sr"
)

const (
	plain  = `{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}`
	wider  = `{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"b","type":"string","default":""}]}`
	broken = `{"type":"record","name":"R","fields":[{"name":"c","type":"string"}]}`
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	told := map[string]any{}
	ctx := context.Background()
	client, err := sr.NewClient(sr.URLs(os.Args[1]))
	check(err)
	made, err := client.CreateSchema(ctx, "go-sr", sr.Schema{Schema: plain})
	check(err)
	again, err := client.CreateSchema(ctx, "go-sr", sr.Schema{Schema: plain})
	check(err)
	told["sr same id"] = made.ID == again.ID
	_, err = client.CreateSchema(ctx, "go-sr", sr.Schema{Schema: wider})
	check(err)
	_, err = client.CreateSchema(ctx, "go-sr", sr.Schema{Schema: broken})
	told["sr refused"] = err != nil && err.(*sr.ResponseError).ErrorCode == 409
	compatible, err := client.CheckCompatibility(ctx, "go-sr", -1, sr.Schema{Schema: broken})
	check(err)
	told["sr compatible"] = compatible.Is
	found, err := client.SchemaByID(ctx, made.ID)
	check(err)
	told["sr text"] = found.Schema == plain
	versions, err := client.SubjectVersions(ctx, "go-sr")
	check(err)
	told["sr versions"] = len(versions)
	levels := client.SetCompatibility(ctx, sr.SetCompatibility{Level: sr.CompatFull}, "go-sr")
	check(levels[0].Err)
	told["sr level"] = client.Compatibility(ctx, "go-sr")[0].Level.String()
	types, err := client.SupportedTypes(ctx)
	check(err)
	told["sr types"] = len(types)

	for subject, schema := range map[string]sr.Schema{
		"go-json":     {Type: sr.TypeJSON, Schema: `{"type":"object"}`},
		"go-protobuf": {Type: sr.TypeProtobuf, Schema: `syntax = "proto3"; message M { int32 a = 1; }`},
	} {
		_, err = client.CreateSchema(ctx, subject, schema)
		check(err)
	}
	subjects, err := client.Subjects(ctx)
	check(err)
	told["sr subjects"] = len(subjects)
	_, err = client.DeleteSubject(ctx, "go-sr", sr.SoftDelete)
	check(err)
	_, err = client.DeleteSubject(ctx, "go-sr", sr.HardDelete)
	check(err)
	useSrclient(os.Args[1], told)
	check(json.NewEncoder(os.Stdout).Encode(told))
}
