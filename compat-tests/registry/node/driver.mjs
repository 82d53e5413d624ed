// Runs common registry operations with two clients for Node, and prints the results.
import { SchemaRegistry, SchemaType } from "@kafkajs/confluent-schema-registry";
import {
  AvroDeserializer, AvroSerializer, JsonDeserializer, JsonSerializer, SchemaRegistryClient, SerdeType,
} from "@confluentinc/schemaregistry";

const url = process.argv[2];
const plain = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}';
const broken = '{"type":"record","name":"R","fields":[{"name":"b","type":"string"}]}';
const json = '{"type":"object","properties":{"a":{"type":"integer"}}}';
const proto = 'syntax = "proto3"; package p; message M { int32 a = 1; }';
const told = {};

const kafkajs = new SchemaRegistry({ host: url });
for (const [type, schema] of [[SchemaType.AVRO, plain], [SchemaType.JSON, json], [SchemaType.PROTOBUF, proto]]) {
  const { id } = await kafkajs.register({ type, schema }, { subject: `node-kafkajs-${type}` });
  const data = await kafkajs.encode(id, { a: 7 });
  told[`kafkajs ${type}`] = (await new SchemaRegistry({ host: url }).decode(data)).a;
}
const latest = await kafkajs.getLatestSchemaId("node-kafkajs-AVRO");
told["kafkajs found"] = latest === (await kafkajs.getRegistryId("node-kafkajs-AVRO", 1));
try {
  await kafkajs.register({ type: SchemaType.AVRO, schema: broken }, { subject: "node-kafkajs-AVRO" });
} catch (error) {
  told["kafkajs refused"] = error.status ?? error.message;
}

const client = new SchemaRegistryClient({ baseURLs: [url] });
await client.register("node-avro-value", { schema: plain, schemaType: "AVRO" });
await client.register("node-json-value", { schema: json, schemaType: "JSON" });
const settings = { useLatestVersion: true };
let data = await new AvroSerializer(client, SerdeType.VALUE, settings).serialize("node-avro", { a: 7 });
told["confluent AVRO"] = (await new AvroDeserializer(client, SerdeType.VALUE, {}).deserialize("node-avro", data)).a;
data = await new JsonSerializer(client, SerdeType.VALUE, settings).serialize("node-json", { a: 7 });
told["confluent JSON"] = (await new JsonDeserializer(client, SerdeType.VALUE, {}).deserialize("node-json", data)).a;
told["confluent compatible"] = await client.testCompatibility("node-avro-value", 1, { schema: broken });
told["confluent versions"] = await client.getAllVersions("node-avro-value");
told["confluent deleted"] = await client.deleteSubject("node-avro-value");
console.log(JSON.stringify(told));
