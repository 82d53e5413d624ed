//! Runs rskafka behind the verbs of clients/driver.py.
//!
//! Usage: driver rskafka host:port. Requests are NDJSON on stdin, and responses on stdout. Keys and
//! values are encoded as latin-1 strings. rskafka has no groups and few admin calls.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use rskafka::client::error::{Error as KafkaError, ProtocolError};
use rskafka::client::partition::{Compression, OffsetAt, PartitionClient, UnknownTopicHandling};
use rskafka::client::{Client, ClientBuilder};
use rskafka::record::{Record, RecordAndOffset};
use serde_json::{Map, Value, json};

const TIMEOUT_MS: i32 = 30_000;

/// An error of this driver or of rskafka.
enum Failure {
    Unknown(String),
    Kafka(KafkaError),
}

impl From<KafkaError> for Failure {
    fn from(error: KafkaError) -> Self {
        Self::Kafka(error)
    }
}

impl Failure {
    fn to_json(&self) -> Value {
        let (code, message) = match self {
            Self::Unknown(what) => (None, format!("this driver does not know {what}")),
            Self::Kafka(error) => {
                let code = match error {
                    KafkaError::ServerError { protocol_error, .. } => number_of(*protocol_error),
                    _ => None,
                };
                (code, error.to_string())
            }
        };
        json!({"code": code, "type": "rskafka", "message": message, "trace": ""})
    }
}

/// Returns the error code of an error. rskafka only maps codes to errors.
fn number_of(error: ProtocolError) -> Option<i16> {
    (-1..=200).find(|number| ProtocolError::new(*number) == Some(error))
}

type Answer = Result<Value, Failure>;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, _, bootstrap] = arguments.as_slice() else {
        eprintln!("usage: driver rskafka host:port");
        std::process::exit(2);
    };
    let client = ClientBuilder::new(vec![bootstrap.clone()])
        .build()
        .await
        .expect("no connection");
    for line in std::io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line.expect("stdin")).expect("JSON");
        let answer = match obey(&client, &request["verb"], &request["arguments"]).await {
            Ok(result) => json!({"result": result}),
            Err(failure) => json!({"error": failure.to_json()}),
        };
        println!("{answer}");
    }
}

async fn obey(client: &Client, verb: &Value, arguments: &Value) -> Answer {
    match verb.as_str() {
        Some("produce") => produce(client, arguments).await,
        Some("read") => read(client, arguments).await,
        Some("offsets") => offsets(client, arguments).await,
        Some("admin") => admin(client, arguments).await,
        _ => Err(Failure::Unknown(format!("verb {verb}"))),
    }
}

async fn partition_client(
    client: &Client,
    topic: &str,
    partition: i32,
) -> Result<PartitionClient, Failure> {
    let missing = UnknownTopicHandling::Retry;
    Ok(client.partition_client(topic, partition, missing).await?)
}

/// Sends the records of each partition in one batch. rskafka has no partitioner.
async fn produce(client: &Client, arguments: &Value) -> Answer {
    let compression = match arguments["codec"].as_str() {
        None => Compression::NoCompression,
        Some("gzip") => Compression::Gzip,
        Some("snappy") => Compression::Snappy,
        Some("lz4") => Compression::Lz4,
        Some("zstd") => Compression::Zstd,
        Some(other) => return Err(Failure::Unknown(format!("codec {other}"))),
    };
    let mut batches: BTreeMap<i32, Vec<(usize, Record)>> = BTreeMap::new();
    let wanted = arguments["records"].as_array().expect("records");
    for (index, record) in wanted.iter().enumerate() {
        let partition = record["partition"].as_i64().unwrap_or(0) as i32;
        let batch = batches.entry(partition).or_default();
        batch.push((index, to_record(record)));
    }
    let mut answers = vec![Value::Null; wanted.len()];
    for (partition, batch) in batches {
        let (places, records): (Vec<usize>, Vec<Record>) = batch.into_iter().unzip();
        let to = partition_client(client, text(&arguments["topic"]), partition).await?;
        match to.produce(records, compression).await {
            Ok(offsets) => {
                for (place, offset) in places.iter().zip(offsets) {
                    answers[*place] = json!({"partition": partition, "offset": offset});
                }
            }
            Err(error) => {
                let failure = Failure::Kafka(error).to_json();
                for place in places {
                    answers[place] = json!({"error": failure});
                }
            }
        }
    }
    Ok(Value::Array(answers))
}

async fn read(client: &Client, arguments: &Value) -> Answer {
    let topic = text(&arguments["topic"]);
    let count = arguments["count"].as_u64().unwrap_or(1) as usize;
    let seconds = arguments["seconds"].as_f64().unwrap_or(20.0);
    let deadline = Instant::now() + Duration::from_secs_f64(seconds);
    let bytes = arguments["partition_bytes"].as_i64().unwrap_or(1 << 20) as i32;
    let wait = arguments["fetch_wait_ms"].as_i64().unwrap_or(500) as i32;
    let mut sources = vec![];
    for partition in partitions(client, topic).await? {
        let from = partition_client(client, topic, partition).await?;
        let start = match &arguments["start"] {
            Value::Object(each) => each[&partition.to_string()].as_i64().expect("offset"),
            Value::String(name) if name == "latest" => from.get_offset(OffsetAt::Latest).await?,
            _ => from.get_offset(OffsetAt::Earliest).await?,
        };
        sources.push((from, start));
    }
    let mut rows = vec![];
    while rows.len() < count && Instant::now() < deadline {
        // A single partition uses the requested wait time. Several are polled one after the other.
        let wait = if sources.len() == 1 { wait } else { 50 };
        for (from, next) in &mut sources {
            let (records, _) = from.fetch_records(*next, 1..bytes, wait).await?;
            for one in records {
                *next = one.offset + 1;
                rows.push(to_row(topic, from.partition(), one));
            }
        }
    }
    Ok(Value::Array(rows))
}

async fn offsets(client: &Client, arguments: &Value) -> Answer {
    let topic = text(&arguments["topic"]);
    let mut found = Map::new();
    for partition in partitions(client, topic).await? {
        let at = match &arguments["at"] {
            Value::String(name) if name == "earliest" => OffsetAt::Earliest,
            Value::String(_) => OffsetAt::Latest,
            time => OffsetAt::Timestamp(moment(time)),
        };
        let from = partition_client(client, topic, partition).await?;
        let offset = from.get_offset(at).await?;
        let value = if offset < 0 {
            Value::Null
        } else {
            json!(offset)
        };
        found.insert(partition.to_string(), value);
    }
    Ok(Value::Object(found))
}

async fn admin(client: &Client, arguments: &Value) -> Answer {
    let name = text(&arguments["name"]);
    match text(&arguments["call"]) {
        "create_topic" if arguments["configs"].is_null() => {
            let partitions = arguments["partitions"].as_i64().unwrap_or(1) as i32;
            let replication = arguments["replication"].as_i64().unwrap_or(1) as i16;
            let controller = client.controller_client()?;
            controller
                .create_topic(name, partitions, replication, TIMEOUT_MS)
                .await?;
            Ok(Value::Null)
        }
        "delete_topic" => {
            let controller = client.controller_client()?;
            controller.delete_topic(name, TIMEOUT_MS).await?;
            Ok(Value::Null)
        }
        "topics" => {
            let topics = client.list_topics().await?;
            Ok(topics.into_iter().map(|one| json!(one.name)).collect())
        }
        "delete_records" => {
            let partition = arguments["partition"].as_i64().expect("partition") as i32;
            let before = arguments["before"].as_i64().expect("before");
            let of = partition_client(client, text(&arguments["topic"]), partition).await?;
            of.delete_records(before, TIMEOUT_MS).await?;
            Ok(json!(of.get_offset(OffsetAt::Earliest).await?))
        }
        other => Err(Failure::Unknown(format!("call {other}"))),
    }
}

async fn partitions(client: &Client, topic: &str) -> Result<Vec<i32>, Failure> {
    let topics = client.list_topics().await?;
    let found = topics.into_iter().find(|one| one.name == topic);
    Ok(found
        .map(|one| one.partitions.into_iter().collect())
        .unwrap_or_default())
}

fn to_record(record: &Value) -> Record {
    let headers = record["headers"].as_array().into_iter().flatten();
    Record {
        key: to_bytes(&record["key"]),
        value: to_bytes(&record["value"]),
        headers: headers
            .map(|pair| {
                (
                    text(&pair[0]).to_owned(),
                    to_bytes(&pair[1]).unwrap_or_default(),
                )
            })
            .collect(),
        timestamp: moment(&record["timestamp"]),
    }
}

fn to_row(topic: &str, partition: i32, one: RecordAndOffset) -> Value {
    let headers = one.record.headers.into_iter();
    json!({
        "topic": topic,
        "partition": partition,
        "offset": one.offset,
        "timestamp": one.record.timestamp.timestamp_millis(),
        "key": to_text(one.record.key),
        "value": to_text(one.record.value),
        "headers": headers.map(|(name, value)| json!([name, to_text(Some(value))])).collect::<Value>(),
    })
}

/// Parses a time in ms, by default the current time.
fn moment(value: &Value) -> DateTime<Utc> {
    let given = value.as_i64().and_then(DateTime::from_timestamp_millis);
    given.unwrap_or_else(Utc::now)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn to_bytes(value: &Value) -> Option<Vec<u8>> {
    Some(value.as_str()?.chars().map(|one| one as u8).collect())
}

fn to_text(raw: Option<Vec<u8>>) -> Option<String> {
    Some(raw?.into_iter().map(char::from).collect())
}
