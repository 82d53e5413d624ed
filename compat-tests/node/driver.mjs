// Runs one Node client behind the verbs of clients/driver.py.
//
// Usage: node driver.mjs kafkajs|platformatic host:port. Requests are NDJSON on stdin, and
// responses on stdout. Keys and values are encoded as latin-1 strings.

import { createInterface } from 'node:readline'

const DEFAULTS = {
  produce: { acks: 'all', request_timeout_ms: 15_000 },
  read: {
    start: 'earliest',
    count: 1,
    seconds: 20,
    reset: 'earliest',
    isolation: 'read_uncommitted',
    fetch_wait_ms: 500,
    partition_bytes: 1 << 20,
  },
  offsets: { isolation: 'read_uncommitted' },
  join: { session_ms: 10_000, auto_commit: false },
  transactional: { timeout_ms: 60_000 },
}
const ROW_WAIT_MS = 10

class Driver {
  #members = new Map()
  #producers = new Map()

  constructor(client) {
    this.client = client
  }

  async obey({ verb, arguments: given }) {
    const wanted = { ...DEFAULTS[verb], ...given }
    switch (verb) {
      case 'produce':
        return this.#produce(wanted)
      case 'read':
        return this.client.read({ ...wanted, start: await this.#positions(wanted) })
      case 'offsets':
        return Object.fromEntries(await this.client.offsets(wanted))
      case 'committed':
        return this.#committed(wanted)
      case 'commit_as':
        return this.client.commitAs(wanted.group, wanted.topic, Object.entries(wanted.offsets))
      case 'join':
        this.#members.set(wanted.member, await this.client.join(wanted))
        return null
      case 'admin':
        return this.#admin(wanted)
      case 'transactional':
        this.#producers.set(wanted.producer, await this.client.transactional(wanted))
        return null
      case 'begin':
      case 'send':
      case 'end':
      case 'close':
        return this.#transact(verb, wanted)
      case 'transform':
        return this.#transform(wanted)
      default:
        return this.#member(verb, wanted.member)
    }
  }

  async #produce(wanted) {
    try {
      return await this.client.produce(wanted)
    } catch (error) {
      return wanted.records.map(() => ({ error: this.failure(error) }))
    }
  }

  // Returns {partition: offset, "earliest" or "latest"} for all partitions.
  async #positions({ topic, start }) {
    if (typeof start !== 'string')
      return new Map(Object.entries(start).map(([n, at]) => [Number(n), at]))
    const numbers = await this.client.partitions(topic)
    return new Map(numbers.map((number) => [number, start]))
  }

  async #committed({ group, topic }) {
    const found = new Map(await this.client.committed(group, topic))
    const numbers = await this.client.partitions(topic)
    return Object.fromEntries(numbers.map((number) => [number, found.get(number) ?? null]))
  }

  async #admin({ call, ...given }) {
    const answer = await this.client.admin[call](given)
    return answer ?? null
  }

  async #transact(verb, wanted) {
    const producer = this.#producers.get(wanted.producer)
    switch (verb) {
      case 'begin':
        return producer.begin()
      case 'send':
        return producer.send(wanted.topic, wanted.records)
      case 'end':
        return producer.end(wanted.commit)
      default:
        this.#producers.delete(wanted.producer)
        return producer.close()
    }
  }

  // Consumes as a group member, produces in upper case, and commits or aborts with the offsets.
  async #transform({ identity, group, source, target, count, commit }) {
    const member = await this.client.join({ ...DEFAULTS.join, group, topics: [source] })
    const producer = await this.client.transactional({ ...DEFAULTS.transactional, identity })
    try {
      while (member.inbox.rows.length < count) {
        if (member.inbox.failure) throw member.inbox.failure
        await new Promise((resolve) => setTimeout(resolve, ROW_WAIT_MS))
      }
      await producer.begin()
      const records = member.inbox.rows.map((row) => ({ value: row.value.toUpperCase() }))
      await producer.send(target, records)
      await producer.sendOffsets(group, member.inbox.positions())
      await producer.end(commit)
    } finally {
      await producer.close()
      await member.leave()
    }
    return null
  }

  async #member(verb, name) {
    const member = this.#members.get(name)
    if (verb === 'leave') {
      this.#members.delete(name)
      await member.leave()
      return null
    }
    if (verb === 'rows') return member.inbox.rows
    if (member.inbox.failure) throw member.inbox.failure
    if (verb === 'commit') {
      await member.commit()
      return null
    }
    return member.inbox.state()
  }

  failure(error) {
    return {
      code: this.client.errorCode(error) ?? null,
      type: error.name,
      message: String(error.message),
      trace: String(error.stack),
    }
  }
}

async function main() {
  const [library, bootstrap] = process.argv.slice(2)
  const { make } = await import(`./${library}.mjs`)
  const driver = new Driver(await make(bootstrap))
  for await (const line of createInterface({ input: process.stdin })) {
    let answer
    try {
      answer = { result: (await driver.obey(JSON.parse(line))) ?? null }
    } catch (error) {
      answer = { error: driver.failure(error) }
    }
    process.stdout.write(JSON.stringify(answer) + '\n')
  }
  process.exit(0)
}

await main()
