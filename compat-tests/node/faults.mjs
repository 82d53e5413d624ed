// Injects faults through kbroker's control socket and checks that kafkajs recovers from them.
//
// Run it with `kbroker run --control -- node faults.mjs`. It prints a line per successful
// scenario.

import assert from 'node:assert/strict'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { connect } from 'node:net'
import { createInterface } from 'node:readline'
import kafkajs from 'kafkajs'

const topic = 'orders'
const token = readFileSync(process.env.KBROKER_CONTROL_TOKEN_FILE, 'ascii').trim()

// Sends commands to one broker as NDJSON, with one line per response.
class Control {
  constructor(address) {
    const [host, port] = address.split(':')
    this.socket = connect({ host, port })
    this.lines = createInterface({ input: this.socket })
  }

  static async open(address) {
    const control = new Control(address)
    await control.command('login', { token })
    return control
  }

  async command(verb, words = {}) {
    this.socket.write(JSON.stringify({ do: verb, ...words }) + '\n')
    const [line] = await once(this.lines, 'line')
    const answer = JSON.parse(line)
    assert(answer.ok, `${verb}: ${answer.error}`)
    return answer
  }

  async values() {
    const { records } = await this.command('records', { topic })
    return records.map((record) => record.value)
  }
}

function client(bootstrap) {
  return new kafkajs.Kafka({
    brokers: [bootstrap],
    logLevel: kafkajs.logLevel.NOTHING,
    retry: { initialRetryTime: 20, retries: 20 },
  })
}

async function withProducer(bootstrap, settings, work) {
  const producer = client(bootstrap).producer({
    createPartitioner: kafkajs.Partitioners.DefaultPartitioner,
    ...settings,
  })
  await producer.connect()
  await work((value) => producer.send({ topic, messages: [{ value }] }))
  await producer.disconnect()
}

async function leaderMoves(control, bootstrap) {
  const words = { api: 'Produce', topic, error: 'NOT_LEADER_OR_FOLLOWER', times: 2 }
  const { fault } = await control.command('fault', words)
  await withProducer(bootstrap, {}, (send) => send('x'))
  assert.equal((await control.command('hits', { fault })).hits, 2)
  assert.deepEqual(await control.values(), ['x'])
}

async function answerIsLost(control, bootstrap) {
  await control.command('fault', { api: 'Produce', at: 'after', effect: 'disconnect' })
  await withProducer(bootstrap, { idempotent: true }, async (send) => {
    await send('first')
    await send('second')
  })
  assert.deepEqual(await control.values(), ['first', 'second'])
}

async function fetchIsSlow(control, bootstrap) {
  await control.command('produce', { topic, value: 'x' })
  await control.command('fault', { api: 'Fetch', effect: 'delay', ms: 300 })
  const consumer = client(bootstrap).consumer({ groupId: 'g' })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  const started = Date.now()
  const value = await new Promise((resolve) => {
    consumer.run({ eachMessage: async ({ message }) => resolve(String(message.value)) })
  })
  assert.equal(value, 'x')
  assert(Date.now() - started >= 300)
  await consumer.disconnect()
}

async function brokerRestarts(control, bootstrap) {
  await withProducer(bootstrap, {}, async (send) => {
    await send('before')
    await control.command('restart')
    await send('after')
  })
  assert.deepEqual(await control.values(), ['before', 'after'])
}

const scenarios = {
  'a leader that moves': leaderMoves,
  'an answer that is lost': answerIsLost,
  'a fetch that is slow': fetchIsSlow,
  'a broker that restarts': brokerRestarts,
}

const first = await Control.open(process.env.KBROKER_CONTROL)
for (const [name, run] of Object.entries(scenarios)) {
  const fresh = await first.command('open', { topics: { [topic]: 1 } })
  const control = await Control.open(fresh.control)
  await run(control, fresh.bootstrap_servers)
  await control.command('close') // fails if a fault was never triggered
  console.log(name)
}
process.exit(0)
