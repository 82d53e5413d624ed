// kafkajs adapter, with the codecs that its documentation recommends.

import { randomUUID } from 'node:crypto'
import { zstdCompressSync, zstdDecompressSync } from 'node:zlib'
import kafkajs from 'kafkajs'
import snappy from 'kafkajs-snappy'
import lz4 from 'lz4-napi'
import { Collector, credentials, encode, Inbox, toRow, trusting } from './common.mjs'

const { CompressionCodecs, CompressionTypes, ConfigResourceTypes, Kafka, logLevel, Partitioners } =
  kafkajs

CompressionCodecs[CompressionTypes.Snappy] = snappy
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: (encoder) => lz4.compressFrame(encoder.buffer),
  decompress: (buffer) => lz4.decompressFrame(buffer),
})
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => zstdCompressSync(encoder.buffer),
  decompress: async (buffer) => zstdDecompressSync(buffer),
})

const CODECS = {
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
}
const STALE_MS = 1000
const TOPIC_ALREADY_EXISTS = 36

// Converts headers to {name: value or [values]}, because kafkajs groups headers by name.
function grouped(pairs = []) {
  const headers = {}
  for (const [name, value] of pairs) {
    headers[name] = name in headers ? [headers[name], encode(value)].flat() : encode(value)
  }
  return headers
}

function ungrouped(headers = {}) {
  return Object.entries(headers).flatMap(([name, values]) =>
    [values].flat().map((value) => [Buffer.from(name), value]),
  )
}

// Returns the error that another one wraps, in any of the ways that kafkajs uses.
const inner = (error) =>
  error.cause ??
  error.originalError ??
  error.errors?.[0] ??
  error.groups?.[0]?.error ??
  error.partitions?.[0]?.error

class KafkaJS {
  constructor(bootstrap, connected) {
    this.bootstrap = bootstrap
    this.connected = connected
    this.admin = calls(connected, bootstrap)
  }

  errorCode(error) {
    for (let one = error; one; one = inner(one)) {
      if (typeof one.code === 'number' && one.type) return one.code
    }
    return null
  }

  async produce({
    topic,
    records,
    codec,
    acks,
    idempotent = false,
    retries,
    request_timeout_ms: timeout,
  }) {
    const places = new Map()
    const producer = client(this.bootstrap).producer({
      idempotent,
      allowAutoTopicCreation: true,
      ...(retries !== undefined && { retry: { retries } }),
      createPartitioner: () => {
        const choose = Partitioners.DefaultPartitioner()
        return (given) => {
          const place = choose(given)
          places.set(given.message, place)
          return place
        }
      },
    })
    const messages = records.map((record) => ({
      key: encode(record.key),
      value: encode(record.value),
      headers: grouped(record.headers),
      partition: record.partition ?? undefined,
      timestamp: record.timestamp === undefined ? undefined : String(record.timestamp),
    }))
    await producer.connect()
    try {
      const answers = await producer.send({
        topic,
        messages,
        timeout,
        acks: acks === 'all' ? -1 : acks,
        compression: CODECS[codec],
      })
      const next = new Map((answers ?? []).map((one) => [one.partition, Number(one.baseOffset)]))
      return messages.map((message) => {
        const partition = places.get(message)
        const offset = next.get(partition) ?? -1
        next.set(partition, offset + 1)
        return { partition, offset }
      })
    } finally {
      await producer.disconnect()
    }
  }

  // kafkajs can only read as a group member, so seek once it has joined.
  async read({ topic, start, isolation, fetch_wait_ms: wait, partition_bytes: bytes, ...limits }) {
    const collector = new Collector(limits)
    const consumer = client(this.bootstrap).consumer({
      groupId: `read-${randomUUID()}`,
      maxWaitTimeInMs: wait,
      maxBytesPerPartition: bytes,
      readUncommitted: isolation === 'read_uncommitted',
    })
    const fromBeginning = [...start.values()].every((at) => at === 'earliest')
    await consumer.connect()
    await consumer.subscribe({ topics: [topic], fromBeginning })
    consumer.on(consumer.events.CRASH, ({ payload }) => collector.fail(payload.error))
    await consumer.run({
      autoCommit: false,
      eachMessage: async ({ partition, message }) =>
        collector.add(toRow(topic, partition, message, ungrouped(message.headers))),
    })
    for (const [partition, offset] of start) {
      if (typeof offset === 'number') consumer.seek({ topic, partition, offset: String(offset) })
    }
    try {
      await collector.done
      return collector.rows
    } finally {
      await consumer.disconnect()
    }
  }

  async partitions(topic) {
    const found = await this.connected.fetchTopicMetadata({ topics: [topic] })
    return found.topics[0].partitions.map((one) => one.partitionId).sort((a, b) => a - b)
  }

  async offsets({ topic, at }) {
    const now = await this.connected.fetchTopicOffsets(topic)
    if (at === 'earliest') return now.map((one) => [one.partition, Number(one.low)])
    if (at === 'latest') return now.map((one) => [one.partition, Number(one.high)])
    // kafkajs returns the end offset if the broker reports that there is no such record.
    const ends = new Map(now.map((one) => [one.partition, one.high]))
    const found = await this.connected.fetchTopicOffsetsByTimestamp(topic, at)
    return found.map((one) => [
      one.partition,
      one.offset === ends.get(one.partition) ? null : Number(one.offset),
    ])
  }

  async committed(group, topic) {
    const [found] = await this.connected.fetchOffsets({ groupId: group, topics: [topic] })
    return found.partitions
      .map((one) => [one.partition, Number(one.offset)])
      .filter(([, offset]) => offset >= 0)
  }

  async commitAs(group, topic, offsets) {
    const partitions = offsets.map(([partition, offset]) => ({
      partition: Number(partition),
      offset: String(offset),
    }))
    await this.connected.setOffsets({ groupId: group, topic, partitions })
  }

  async transactional(options) {
    const made = new Transactional(this.bootstrap, options)
    await made.producer.connect()
    return made
  }

  async join({ group, topics, session_ms: session, auto_commit: autoCommit }) {
    const consumer = client(this.bootstrap).consumer({
      groupId: group,
      sessionTimeout: session,
      rebalanceTimeout: Math.max(session, 10_000),
      heartbeatInterval: Math.min(Math.max(session / 10, 100), 1000),
      maxWaitTimeInMs: 100,
      metadataMaxAge: STALE_MS,
    })
    const inbox = new Inbox()
    consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
      const pairs = Object.entries(payload.memberAssignment).flatMap(([topic, numbers]) =>
        numbers.map((number) => [topic, number]),
      )
      inbox.assign(pairs)
    })
    consumer.on(consumer.events.REBALANCING, () => inbox.revoke())
    consumer.on(consumer.events.CRASH, ({ payload }) => {
      if (!payload.restart) inbox.failure = payload.error
    })
    await consumer.connect()
    await consumer.subscribe({ topics, fromBeginning: true })
    await consumer.run({
      autoCommit,
      autoCommitInterval: 100,
      eachMessage: async ({ topic, partition, message }) => {
        inbox.rows.push(toRow(topic, partition, message, ungrouped(message.headers)))
      },
    })
    return {
      inbox,
      commit: () =>
        consumer.commitOffsets(
          inbox.positions().map((row) => ({
            topic: row.topic,
            partition: row.partition,
            offset: String(row.offset + 1),
          })),
        ),
      leave: () => consumer.disconnect(),
    }
  }
}

// A producer with a transactional ID. connect() sends InitProducerId.
class Transactional {
  #transaction = null

  constructor(bootstrap, { identity, timeout_ms: transactionTimeout }) {
    this.producer = client(bootstrap).producer({
      transactionalId: identity,
      transactionTimeout,
      idempotent: true,
      maxInFlightRequests: 1,
    })
  }

  async begin() {
    this.#transaction = await this.producer.transaction()
  }

  async send(topic, records) {
    const answers = []
    for (const { value, partition } of records) {
      const messages = [{ value: encode(value), partition: partition ?? undefined }]
      const [answer] = await this.#transaction.send({ topic, messages })
      answers.push({ partition: answer.partition, offset: Number(answer.baseOffset) })
    }
    return answers
  }

  sendOffsets(group, rows) {
    const topics = rows.map((row) => ({
      topic: row.topic,
      partitions: [{ partition: row.partition, offset: String(row.offset + 1) }],
    }))
    return this.#transaction.sendOffsets({ consumerGroupId: group, topics })
  }

  end(commit) {
    return commit ? this.#transaction.commit() : this.#transaction.abort()
  }

  close() {
    return this.producer.disconnect()
  }
}

function client(bootstrap) {
  return new Kafka({
    clientId: 'kafkajs',
    brokers: [bootstrap],
    ssl: trusting(),
    sasl: credentials(),
    logLevel: logLevel.WARN,
  })
}

function calls(admin, bootstrap) {
  const configs = async (type, name) => {
    const found = await admin.describeConfigs({
      includeSynonyms: false,
      resources: [{ type, name: String(name) }],
    })
    return Object.fromEntries(
      found.resources[0].configEntries.map((one) => [one.configName, one.configValue]),
    )
  }
  return {
    create_topic: async ({ name, partitions = 1, replication = 1, configs = {} }) => {
      const configEntries = Object.entries(configs).map(([name, value]) => ({ name, value }))
      const topics = [
        { topic: name, numPartitions: partitions, replicationFactor: replication, configEntries },
      ]
      // kafkajs returns false if the topic exists.
      if (!(await admin.createTopics({ topics }))) {
        throw Object.assign(new Error('createTopics answered false'), {
          type: 'exists',
          code: TOPIC_ALREADY_EXISTS,
        })
      }
    },
    delete_topic: ({ name }) => admin.deleteTopics({ topics: [name] }),
    topics: () => admin.listTopics(),
    describe_topic: async ({ name }) => {
      const found = await admin.fetchTopicMetadata({ topics: [name] })
      const partitions = found.topics[0].partitions.map((one) => ({
        number: one.partitionId,
        leader: one.leader,
        replicas: one.replicas,
        isr: one.isr,
      }))
      return { internal: null, partitions: partitions.sort((a, b) => a.number - b.number) }
    },
    topic_configs: ({ name }) => configs(ConfigResourceTypes.TOPIC, name),
    broker_configs: ({ node }) => configs(ConfigResourceTypes.BROKER, node),
    alter_topic_configs: ({ name, configs }) =>
      admin
        .alterConfigs({
          validateOnly: false,
          resources: [
            {
              type: ConfigResourceTypes.TOPIC,
              name,
              configEntries: Object.entries(configs)
                .filter(([, value]) => value !== null)
                .map(([name, value]) => ({ name, value })),
            },
          ],
        })
        .then(() => null),
    add_partitions: ({ name, total }) =>
      admin.createPartitions({ topicPartitions: [{ topic: name, count: total }] }).then(() => null),
    describe_cluster: async () => {
      const found = await admin.describeCluster()
      return { nodes: found.brokers.map((one) => one.nodeId).sort(), controller: found.controller }
    },
    groups: async () => (await admin.listGroups()).groups.map((one) => one.groupId),
    describe_group: async ({ group }) => {
      const {
        groups: [found],
      } = await admin.describeGroups([group])
      return { state: found.state, members: found.members.length, strategy: found.protocol }
    },
    delete_group: ({ group }) => admin.deleteGroups([group]).then(() => null),
    group_offsets: async ({ group, topic }) => {
      const [found] = await admin.fetchOffsets({ groupId: group, topics: [topic] })
      return Object.fromEntries(found.partitions.map((one) => [one.partition, Number(one.offset)]))
    },
    delete_records: async ({ topic, partition, before }) => {
      // kafkajs finds leaders only of topics that it has already requested.
      await admin.fetchTopicOffsets(topic)
      await admin.deleteTopicRecords({ topic, partitions: [{ partition, offset: String(before) }] })
      const now = await admin.fetchTopicOffsets(topic)
      return Number(now.find((one) => one.partition === partition).low)
    },
  }
}

export async function make(bootstrap) {
  const admin = client(bootstrap).admin()
  await admin.connect()
  return new KafkaJS(bootstrap, admin)
}
