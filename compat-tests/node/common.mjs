// What the adapters share: texts and bytes, rows, members and their records.

import { readFileSync } from 'node:fs'

// How clients speak TLS: they trust the certificates of this PEM file. Without one they speak none.
export const trusting = () =>
  process.env.COMPAT_TRUSTED && { ca: [readFileSync(process.env.COMPAT_TRUSTED, 'utf8')] }

// Who logs in: mechanism, user and password of COMPAT_LOGIN; nothing for nobody. By OAUTHBEARER the last
// one is a file that has a token, and there are the names by which the libraries ask for it.
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

// A row as the tests know it. headers: [name, value] pairs.
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

// What a member of a group received and was told.
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

  // The next offset of each partition held: what a commit says.
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

// Collects rows until there are enough or the time is over; add() answers whether to go on.
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
