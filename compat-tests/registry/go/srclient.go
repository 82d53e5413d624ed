package main

import (
	"github.com/riferrei/srclient"
)

// useSrclient runs common registry operations with srclient.
func useSrclient(url string, told map[string]any) {
	client := srclient.CreateSchemaRegistryClient(url)
	client.CachingEnabled(false) // always send a request
	client.CodecCreationEnabled(true)
	made, err := client.CreateSchema("srclient", plain, srclient.Avro)
	check(err)
	again, err := client.LookupSchema("srclient", plain, srclient.Avro)
	check(err)
	told["srclient same id"] = made.ID() == again.ID()
	_, err = client.CreateSchema("srclient", wider, srclient.Avro)
	check(err)
	_, err = client.CreateSchema("srclient", broken, srclient.Avro)
	refusal, isRefusal := err.(srclient.Error)
	told["srclient refused"] = isRefusal && refusal.Code == 409
	compatible, err := client.IsSchemaCompatible("srclient", broken, "latest", srclient.Avro)
	check(err)
	told["srclient compatible"] = compatible

	latest, err := client.GetLatestSchema("srclient")
	check(err)
	told["srclient latest"] = latest.Version()
	found, err := client.GetSchema(made.ID())
	check(err)
	binary, err := found.Codec().BinaryFromNative(nil, map[string]any{"a": 7})
	check(err)
	native, _, err := found.Codec().NativeFromBinary(binary)
	check(err)
	told["srclient value"] = native.(map[string]any)["a"]
	versions, err := client.GetSchemaVersions("srclient")
	check(err)
	told["srclient versions"] = versions
	level, err := client.ChangeSubjectCompatibilityLevel("srclient", srclient.Full)
	check(err)
	told["srclient level"] = level.String()

	client.CodecCreationEnabled(false) // otherwise it parses all schemas as Avro
	_, err = client.CreateSchema("srclient-line", line, srclient.Protobuf)
	check(err)
	reference := srclient.Reference{Name: "line.proto", Subject: "srclient-line", Version: 1}
	order, err := client.CreateSchema("srclient-order", order, srclient.Protobuf, reference)
	check(err)
	told["srclient references"] = len(order.References())
	check(client.DeleteSubject("srclient", true)) // a soft delete, then a permanent one
	_, err = client.GetLatestSchema("srclient")
	refusal, isRefusal = err.(srclient.Error)
	told["srclient gone"] = isRefusal && refusal.Code == 40401
}

const (
	line  = `syntax = "proto3"; message Line { int32 count = 1; }`
	order = `syntax = "proto3"; import "line.proto"; message Order { repeated Line lines = 1; }`
)
