// @platformatic/kafka adapter.

import { randomUUID } from 'node:crypto'
import {
  Admin,
  ConfigResourceTypes,
  Consumer,
  defaultPartitioner,
  FetchIsolationLevels,
  IncrementalAlterConfigOperationTypes,
  Producer,
} from '@platformatic/kafka'
import { Collector, credentials, encode, Inbox, toRow, trusting } from './common.mjs'

const POSITIONS = { earliest: -2n, latest: -1n }
const STRATEGIES = { roundrobin: 'roundrobin', cooperative: 'cooperative-sticky' }

const isolationOf = (name) => FetchIsolationLevels[name.toUpperCase()]
const rowOf = (message) => toRow(message.topic, message.partition, message, message.headerEntries)

class Platformatic {
  constructor(bootstrap) {
    this.base = { clientId: 'platformatic', bootstrapBrokers: [bootstrap], tls: trusting(), sasl: credentials() }
    this.cluster = new Admin(this.base)
    this.admin = calls(this)
  }

  errorCode(error) {
    for (const one of [error, error.cause, ...(error.errors ?? [])]) {
      if (one && typeof one.apiCode === 'number') return one.apiCode
      if (one && one !== error && this.errorCode(one) !== null) return this.errorCode(one)
    }
    return null
  }

  async produce({
    topic,
    records,
    codec = 'none',
    acks,
    idempotent = false,
    retries,
    request_timeout_ms: timeout,
  }) {
    const places = new Map()
    const producer = new Producer({
      ...this.base,
      timeout,
      ...(retries !== undefined && { retries }),
    })
    const messages = records.map((record, index) => ({
      topic,
      key: encode(record.key),
      value: encode(record.value),
      headers: new Map(
        (record.headers ?? []).map(([name, value]) => [Buffer.from(name, 'latin1'), encode(value)]),
      ),
      timestamp: record.timestamp === undefined ? undefined : BigInt(record.timestamp),
      metadata: { index, partition: record.partition },
    }))
    try {
      const known = await producer.metadata({ topics: [topic], autocreateTopics: true })
      const count = known.topics.get(topic).partitionsCount
      // The result has only the first offset per partition, so store the partition of each record.
      const partitioner = (message, key) => {
        const { index, partition } = message.metadata
        const chosen = partition ?? defaultPartitioner(message, key) % count
        places.set(index, chosen)
        return chosen
      }
      const answer = await producer.send({
        messages,
        partitioner,
        idempotent,
        compression: codec,
        acks: acks === 'all' ? -1 : acks,
        autocreateTopics: true,
      })
      const next = new Map((answer.offsets ?? []).map((one) => [one.partition, Number(one.offset)]))
      return records.map((_, index) => {
        const partition = places.get(index)
        const offset = next.get(partition) ?? -1
        next.set(partition, offset + 1)
        return { partition, offset }
      })
    } finally {
      await producer.close()
    }
  }

  async read({
    topic,
    start,
    reset,
    isolation,
    fetch_wait_ms: wait,
    partition_bytes: bytes,
    ...limits
  }) {
    const collector = new Collector(limits)
    const consumer = new Consumer({ ...this.base, groupId: `read-${randomUUID()}` })
    const first = [...start.values()][0]
    const where =
      typeof first === 'string'
        ? { mode: first }
        : {
            mode: 'manual',
            offsets: [...start].map(([partition, offset]) => ({
              topic,
              partition,
              offset: BigInt(offset),
            })),
          }
    try {
      const stream = await consumer.consume({
        topics: [topic],
        autocommit: false,
        fallbackMode: reset === 'none' ? 'fail' : reset,
        isolationLevel: isolationOf(isolation),
        maxWaitTime: wait,
        maxBytesPerPartition: bytes,
        ...where,
      })
      stream.on('data', (message) => collector.add(rowOf(message)))
      stream.on('error', (error) => collector.fail(error))
      await collector.done
      return collector.rows
    } finally {
      await consumer.close(true)
    }
  }

  async partitions(topic) {
    const found = await this.cluster.metadata({ topics: [topic], forceUpdate: true })
    return [...Array(found.topics.get(topic).partitionsCount).keys()]
  }

  async offsets({ topic, at, isolation }) {
    const timestamp = POSITIONS[at] ?? BigInt(at)
    const numbers = await this.partitions(topic)
    const [found] = await this.cluster.listOffsets({
      topics: [
        {
          name: topic,
          partitions: numbers.map((partitionIndex) => ({ partitionIndex, timestamp })),
        },
      ],
      isolationLevel: isolationOf(isolation),
    })
    return found.partitions.map((one) => [
      one.partitionIndex,
      one.offset < 0n ? null : Number(one.offset),
    ])
  }

  async committed(group, topic) {
    const [found] = await this.cluster.listConsumerGroupOffsets({ groups: [group] })
    const partitions = found.topics.find((one) => one.name === topic)?.partitions ?? []
    return partitions
      .map((one) => [one.partitionIndex, Number(one.committedOffset)])
      .filter(([, offset]) => offset >= 0)
  }

  async commitAs(group, topic, offsets) {
    const partitionOffsets = offsets.map(([partition, offset]) => ({
      partition: Number(partition),
      offset: BigInt(offset),
    }))
    await this.cluster.alterConsumerGroupOffsets({
      groupId: group,
      topics: [{ name: topic, partitionOffsets }],
    })
  }

  transactional({ identity }) {
    return new Transactional(this.base, identity)
  }

  async join({
    group,
    topics,
    session_ms: session,
    auto_commit: autoCommit,
    strategy = 'roundrobin',
    instance,
  }) {
    const inbox = new Inbox()
    const consumer = new Consumer({
      ...this.base,
      groupId: group,
      sessionTimeout: session,
      rebalanceTimeout: Math.max(session, 10_000),
      heartbeatInterval: Math.min(Math.max(session / 10, 100), 1000),
      protocols: [{ name: STRATEGIES[strategy], version: 1 }],
      maxWaitTime: 500,
      metadataMaxAge: 1000,
      ...(instance && { groupInstanceId: instance }),
    })
    consumer.on('consumer:group:join', ({ assignments }) => {
      inbox.assign(
        (assignments ?? []).flatMap((one) => one.partitions.map((number) => [one.topic, number])),
      )
    })
    consumer.on('consumer:group:rebalance', () => inbox.revoke())
    const stream = await consumer.consume({
      topics,
      mode: 'committed',
      fallbackMode: 'earliest',
      autocommit: autoCommit ? 100 : false,
    })
    stream.on('data', (message) =>
      inbox.rows.push({ ...rowOf(message), epoch: message.leaderEpoch }),
    )
    stream.on('error', (error) => {
      inbox.failure = error
    })
    return {
      inbox,
      commit: () =>
        consumer.commit({
          offsets: inbox.positions().map((row) => ({
            topic: row.topic,
            partition: row.partition,
            offset: BigInt(row.offset + 1),
            leaderEpoch: row.epoch,
          })),
        }),
      leave: () => consumer.close(true),
    }
  }
}

// A producer with a transactional ID. It sends InitProducerId when a transaction begins.
class Transactional {
  #transaction = null

  constructor(base, identity) {
    this.producer = new Producer({ ...base, idempotent: true, transactionalId: identity })
  }

  async begin() {
    this.#transaction = await this.producer.beginTransaction()
  }

  async send(topic, records) {
    const answers = []
    for (const { value, partition } of records) {
      const answer = await this.#transaction.send({
        messages: [{ topic, value: encode(value), partition }],
      })
      const [sent] = answer.offsets
      answers.push({ partition: sent.partition, offset: Number(sent.offset) })
    }
    return answers
  }

  end(commit) {
    return commit ? this.#transaction.commit() : this.#transaction.abort()
  }

  close() {
    return this.producer.close(true)
  }
}

function calls(client) {
  const { cluster } = client
  const configs = async (resourceType, name) => {
    const [found] = await cluster.describeConfigs({
      resources: [{ resourceType, resourceName: String(name) }],
    })
    return Object.fromEntries(found.configs.map((one) => [one.name, one.value]))
  }
  return {
    create_topic: async ({ name, partitions = 1, replication = 1, configs = {} }) => {
      await cluster.createTopics({
        topics: [name],
        partitions,
        replicas: replication,
        configs: Object.entries(configs).map(([name, value]) => ({ name, value })),
      })
    },
    delete_topic: ({ name }) => cluster.deleteTopics({ topics: [name] }),
    topics: () => cluster.listTopics({ includeInternals: true }),
    describe_topic: async ({ name }) => {
      const found = await cluster.metadata({ topics: [name], forceUpdate: true })
      const partitions = found.topics.get(name).partitions.map((one, number) => ({
        number,
        leader: one.leader,
        replicas: one.replicas,
        isr: one.isr,
      }))
      return { internal: null, partitions }
    },
    topic_configs: ({ name }) => configs(ConfigResourceTypes.TOPIC, name),
    broker_configs: ({ node }) => configs(ConfigResourceTypes.BROKER, node),
    alter_topic_configs: ({ name, configs }) =>
      cluster.incrementalAlterConfigs({
        resources: [
          {
            resourceType: ConfigResourceTypes.TOPIC,
            resourceName: name,
            configs: Object.entries(configs).map(([name, value]) =>
              value === null
                ? { name, configOperation: IncrementalAlterConfigOperationTypes.DELETE }
                : { name, value, configOperation: IncrementalAlterConfigOperationTypes.SET },
            ),
          },
        ],
      }),
    add_partitions: ({ name, total }) =>
      cluster.createPartitions({ topics: [{ name, count: total, assignments: null }] }),
    describe_cluster: async () => {
      const found = await cluster.metadata({ topics: [], forceUpdate: true })
      return { nodes: [...found.brokers.keys()].sort(), controller: found.controllerId }
    },
    groups: async () => [...(await cluster.listGroups()).keys()],
    describe_group: async ({ group }) => {
      const found = (await cluster.describeGroups({ groups: [group] })).get(group)
      const state = found.state
        .toLowerCase()
        .replace(/(^|_)(\w)/g, (_, __, letter) => letter.toUpperCase())
      return { state, members: found.members.size, strategy: found.protocol }
    },
    delete_group: ({ group }) => cluster.deleteGroups({ groups: [group] }),
    group_offsets: async ({ group, topic }) =>
      Object.fromEntries(await client.committed(group, topic)),
    delete_offsets: ({ group, topic, partition }) =>
      cluster
        .deleteConsumerGroupOffsets({
          groupId: group,
          topics: [{ name: topic, partitionIndexes: [partition] }],
        })
        .then(() => null),
    delete_records: async ({ topic, partition, before }) => {
      const [found] = await cluster.deleteRecords({
        topics: [{ name: topic, partitions: [{ partition, offset: BigInt(before) }] }],
      })
      return Number(found.partitions[0].lowWatermark)
    },
  }
}

export async function make(bootstrap) {
  return new Platformatic(bootstrap)
}
