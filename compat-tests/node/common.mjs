// Code shared by the adapters: encodings, security settings, rows, and group members.

import { readFileSync } from 'node:fs'

// Returns the TLS options, which trust the CA certificates of a PEM file. Without one, TLS is off.
export const trusting = () =>
  process.env.COMPAT_TRUSTED && { ca: [readFileSync(process.env.COMPAT_TRUSTED, 'utf8')] }

// Returns the SASL mechanism, user and password of COMPAT_LOGIN, or nothing without SASL. For
// OAUTHBEARER, the password is a file that contains a token, and each library gets its own option.
export function credentials() {
  const [mechanism, username, password] = (process.env.COMPAT_LOGIN ?? '').split(':')
  if (mechanism === 'OAUTHBEARER') {
    const token = () => readFileSync(password, 'utf8')
    return { mechanism, token, oauthBearerProvider: async () => ({ value: token() }) }
  }
  return password && { mechanism, username, password }
}

export const encode = (text) =>
  text === null || text === undefined ? null : Buffer.from(text, 'latin1')
const decode = (raw) =>
  raw === null || raw === undefined ? null : Buffer.from(raw).toString('latin1')

// Returns a row in the format of the tests. `headers` are [name, value] pairs.
export function toRow(topic, partition, message, headers) {
  return {
    topic,
    partition,
    offset: Number(message.offset),
    timestamp: Number(message.timestamp),
    key: decode(message.key),
    value: decode(message.value),
    headers: headers.map(([name, value]) => [decode(name), decode(value)]),
  }
}

// Records and rebalance events of a group member.
export class Inbox {
  rows = []
  events = []
  failure = null
  #assigned = []

  assign(pairs) {
    this.#assigned = pairs.sort()
    this.events.push(['assigned', this.#assigned])
  }

  revoke() {
    this.events.push(['revoked', this.#assigned])
    this.#assigned = []
  }

  // Returns the offsets to commit: the next one of each assigned partition.
  positions() {
    const next = new Map()
    for (const row of this.rows) {
      if (
        this.#assigned.some(([topic, number]) => topic === row.topic && number === row.partition)
      ) {
        next.set(`${row.topic} ${row.partition}`, row)
      }
    }
    return [...next.values()]
  }

  state() {
    return { assigned: this.#assigned, events: this.events, count: this.rows.length }
  }
}

// Collects rows until there are enough or the time has elapsed. add() returns true to continue.
export class Collector {
  constructor({ count, seconds }) {
    this.rows = []
    this.done = new Promise((resolve, reject) => {
      const timer = setTimeout(resolve, seconds * 1000)
      this.add = (row) => {
        this.rows.push(row)
        if (this.rows.length >= count) {
          clearTimeout(timer)
          resolve()
        }
      }
      this.fail = (error) => {
        clearTimeout(timer)
        reject(error)
      }
    })
  }
}
