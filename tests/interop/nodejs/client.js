// A small Keelog client for Node.js, written from docs/protocol.md.
//
//   const node = await connect("tcp://127.0.0.1:7850")
//   const receipt = await node.send("orders", Buffer.from("hello"), { keys: ["o-17"] })
//   const { messages, next } = await node.pull("orders", receipt.queue_id, 0, { waitMs: 1000 })

import { randomInt } from "node:crypto"
import zlib from "node:zlib"
import { decode, encode } from "@msgpack/msgpack"
import { Dealer } from "zeromq"

const VERSION = 1
const HEAD_BYTES = 88
const MAGIC_V1 = 0xdaa320a7
const MAGIC_V2 = 0xdaa320ab
const BORN_HOST_V6 = 0x10
const STORE_HOST_V6 = 0x20
const CRC_ROOM_BYTES = 20
const CRC_NAME = "__CRC32#"

/** An error answer: `kind`, `code`, `status`, `retriable` are those of the page. */
export class KeelogError extends Error {
  constructor(error) {
    super(`${error.kind}: ${error.reason}`)
    Object.assign(this, error)
  }
}

/** No answer in time. `outcomeUnknown`: the messages may be stored. */
export class TimeoutError extends Error {
  constructor(operation, outcomeUnknown) {
    super(`${operation}: no answer in time`)
    this.outcomeUnknown = outcomeUnknown
  }
}

/** One DEALER: numbers the requests and gives each answer to the one who waits for it. */
class Connection {
  constructor(endpoint, timeoutMs) {
    this.timeoutMs = timeoutMs
    this.waiting = new Map()
    this.sending = Promise.resolve()
    this.nextId = 1
    this.socket = new Dealer({
      immediate: true,
      linger: 1000,
      maxMessageSize: 256 * 1024 * 1024,
      handshakeInterval: 2000,
      heartbeatInterval: 2000,
      heartbeatTimeout: 8000,
    })
    this.socket.connect(endpoint)
    this.reading = this.read()
  }

  async read() {
    for await (const [head, payload] of this.socket) {
      const header = decode(head)
      const call = this.waiting.get(header.id)
      if (call === undefined) continue
      this.waiting.delete(header.id)
      clearTimeout(call.timer)
      if (header.ok) call.resolve({ header, payload: payload ?? Buffer.alloc(0) })
      else call.reject(new KeelogError(header.error))
    }
  }

  ask(operation, fields, { payload, holdMs = 0, changes = false } = {}) {
    const id = this.nextId++
    const frames = [encode({ v: VERSION, op: operation, id, ...fields })]
    if (payload !== undefined) frames.push(payload)
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.waiting.delete(id)
        reject(new TimeoutError(operation, changes))
      }, this.timeoutMs + holdMs)
      this.waiting.set(id, { resolve, reject, timer })
      // zeromq.js takes one send at a time.
      this.sending = this.sending.then(() => this.socket.send(frames)).catch(reject)
    })
  }

  async close() {
    await this.sending
    this.socket.close()
    await this.reading.catch(() => undefined)
  }
}

/** An address as `routes` has it, with the host of `url` where it leaves out its own. */
function atHost(address, url) {
  return address.replace("//*:", `//${url.slice("tcp://".length, url.lastIndexOf(":"))}:`)
}

/** Reaches the node whose control socket is at `url`. */
export async function connect(url, { timeoutMs = 5000 } = {}) {
  const control = new Connection(url, timeoutMs)
  for (let tries = 0; tries < 50; tries++) {
    const { header } = await control.ask("routes", {})
    if (header.writer !== null && header.readers.length > 0) {
      header.writer = atHost(header.writer, url)
      header.readers = header.readers.map((address) => atHost(address, url))
      return new Client(control, header, timeoutMs)
    }
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
  throw new Error(`the node at ${url} has no writer or no reader`)
}

export class Client {
  constructor(control, routes, timeoutMs) {
    this.routes = routes
    this.control = control
    this.writer = new Connection(routes.writer, timeoutMs)
    this.reader = new Connection(routes.readers[0], timeoutMs)
    this.newKey = uniqueKeys()
    this.turns = new Map()
  }

  /** Stores one message. Options: queue, tags, keys, properties, unique_key, flag, wait … */
  async send(topic, body, options = {}) {
    const fields = { topic, body, unique_key: this.newKey(), ...options }
    const { header } = await this.writer.ask("send", fields, { changes: true })
    return header
  }

  /**
   * Stores many messages, { topic, body, queue?, tags?, keys?, properties? } each, in one batch of
   * records. Queues that are not named are taken in turn. Answers a receipt for each.
   */
  async sendBatch(messages, { wait } = {}) {
    const queues = new Map((await this.topics()).map((t) => [t.topic, t.write_queues]))
    const placed = messages.map((message) => ({
      ...message,
      queue: message.queue ?? this.nextQueue(message.topic, queues),
      unique_key: message.unique_key ?? this.newKey(),
    }))
    const records = placed.map((message) => encodeRecord(message, this.routes.crc))
    const payload = Buffer.concat(records)
    const fields = {
      count: records.length,
      bytes: payload.length,
      crc: crc32(payload),
      sizes: sizesOf(records),
    }
    if (wait !== undefined) fields.wait = wait
    const { header } = await this.writer.ask("append", fields, { payload, changes: true })
    return receiptsOf(placed, records, header)
  }

  nextQueue(topic, queues) {
    const count = queues.get(topic)
    if (!count) throw new Error(`topic ${topic} is not there: create it first`)
    const turn = this.turns.get(topic) ?? randomInt(count)
    this.turns.set(topic, turn + 1)
    return turn % count
  }

  async createTopic(topic, queues = 8) {
    return (await this.writer.ask("create_topic", { topic, queues })).header
  }

  async topics() {
    return (await this.writer.ask("topics", {})).header.topics
  }

  /** One pull: { status, next, minOffset, maxOffset, messages }. */
  async pull(topic, queue, offset, { maxMessages = 32, tags, waitMs = 0 } = {}) {
    const fields = { topic, queue, offset, max_messages: maxMessages, wait_ms: waitMs }
    if (tags !== undefined) fields.tags = tags
    const { header, payload } = await this.reader.ask("pull", fields, { holdMs: waitMs })
    return {
      status: header.status,
      next: header.next_begin_offset,
      minOffset: header.min_offset,
      maxOffset: header.max_offset,
      messages: splitRecords(payload, header.sizes),
    }
  }

  /** All messages of a topic that its queues hold now. */
  async *readAll(topic) {
    const { header } = await this.reader.ask("offsets", { topic })
    for (const { queue_id: queue, min_offset: min, max_offset: max } of header.queues) {
      for (let offset = min; offset < max; ) {
        const { messages, next } = await this.pull(topic, queue, offset)
        yield* messages
        offset = next
      }
    }
  }

  /** One message: { msg_id }, { physical_offset }, { topic, unique_key } or { topic, queue, offset }. */
  async get(name) {
    const { payload } = await this.reader.ask("get", name)
    return decodeRecord(payload)
  }

  /** All messages with a key, newest first. */
  async find(topic, key, { begin, end, unique } = {}) {
    const found = []
    let cursor
    do {
      const fields = Object.entries({ topic, key, begin, end, unique, cursor })
      const given = Object.fromEntries(fields.filter(([, value]) => value !== undefined))
      const { header, payload } = await this.reader.ask("find", given)
      found.push(...splitRecords(payload, header.sizes))
      cursor = header.cursor ?? undefined
    } while (cursor !== undefined)
    return found
  }

  async close() {
    await Promise.all([this.control, this.writer, this.reader].map((one) => one.close()))
  }
}

/** The record of a message, as the page's section "Records" says; `room`: for the checksum. */
export function encodeRecord(message, room) {
  const body = message.body
  const topic = Buffer.from(message.topic)
  const long = message.topic.length > 127
  const properties = encodeProperties(message, room)
  const head = Buffer.alloc(HEAD_BYTES)
  const tail = Buffer.alloc((long ? 2 : 1) + topic.length + 2)
  if (long) tail.writeInt16BE(topic.length, 0)
  else tail.writeInt8(topic.length, 0)
  topic.copy(tail, long ? 2 : 1)
  tail.writeInt16BE(properties.length, tail.length - 2)
  head.writeInt32BE(HEAD_BYTES + body.length + tail.length + properties.length, 0)
  head.writeUInt32BE(long ? MAGIC_V2 : MAGIC_V1, 4)
  head.writeInt32BE(crc32(body) & 0x7fffffff, 8)
  head.writeInt32BE(message.queue, 12)
  head.writeInt32BE(message.flag ?? 0, 16)
  head.writeBigInt64BE(BigInt(message.born_timestamp ?? Date.now()), 40)
  if (message.born_ip !== undefined) Buffer.from(message.born_ip).copy(head, 48)
  head.writeInt32BE(message.born_port ?? 0, 52)
  head.writeInt32BE(body.length, 84)
  return Buffer.concat([head, body, tail, properties])
}

function encodeProperties(message, room) {
  const pairs = []
  if (message.tags) pairs.push(["TAGS", message.tags])
  if (message.keys?.length) pairs.push(["KEYS", message.keys.join(" ")])
  pairs.push(["UNIQ_KEY", message.unique_key])
  pairs.push(...Object.entries(message.properties ?? {}))
  if (room) pairs.push([CRC_NAME, "0000000000"])
  return Buffer.from(pairs.map(([name, value]) => `${name}\x01${value}\x02`).join(""))
}

function sizesOf(records) {
  const sizes = Buffer.alloc(4 * records.length)
  records.forEach((record, i) => sizes.writeUInt32LE(record.length, 4 * i))
  return sizes
}

function receiptsOf(messages, records, header) {
  const next = new Map(header.queues.map(([topic, queue, first]) => [`${topic}/${queue}`, first]))
  let at = header.physical_offset
  return messages.map((message, i) => {
    const name = `${message.topic}/${message.queue}`
    const offset = next.get(name)
    next.set(name, offset + 1)
    const receipt = {
      status: header.status,
      topic: message.topic,
      queue_id: message.queue,
      queue_offset: offset,
      physical_offset: at,
      msg_id: messageId(header.store_host, at),
      unique_key: message.unique_key,
      store_timestamp: header.store_timestamp,
      flushed: header.flushed,
    }
    at += records[i].length
    return receipt
  })
}

function messageId(storeHost, offset) {
  const [ip, port] = storeHost.split(":")
  const id = Buffer.alloc(16)
  Buffer.from(ip.split(".").map(Number)).copy(id, 0)
  id.writeInt32BE(Number(port), 4)
  id.writeBigInt64BE(BigInt(offset), 8)
  return id.toString("hex").toUpperCase()
}

/** The records of an answer's payload, decoded. */
export function splitRecords(payload, sizes) {
  const view = Buffer.from(sizes ?? [])
  const messages = []
  let start = 0
  for (let i = 0; i < view.length; i += 4) {
    const end = start + view.readUInt32LE(i)
    messages.push(decodeRecord(payload.subarray(start, end)))
    start = end
  }
  return messages
}

/** A record's fields. Sizes and checksums are checked before anything else is believed. */
export function decodeRecord(raw) {
  if (raw.readInt32BE(0) !== raw.length) throw new Error("the record has another size")
  const magic = raw.readUInt32BE(4)
  if (magic !== MAGIC_V1 && magic !== MAGIC_V2) throw new Error("this is no record")
  const flags = raw.readInt32BE(36)
  const bornIp = flags & BORN_HOST_V6 ? 16 : 4
  const storeIp = flags & STORE_HOST_V6 ? 16 : 4
  const storeAt = 48 + bornIp + 4
  const afterHosts = storeAt + 8 + storeIp + 4
  const bodyAt = afterHosts + 16
  const bodyEnd = bodyAt + raw.readInt32BE(bodyAt - 4)
  const topicAt = bodyEnd + (magic === MAGIC_V2 ? 2 : 1)
  const topicEnd = topicAt + (magic === MAGIC_V2 ? raw.readInt16BE(bodyEnd) : raw.readInt8(bodyEnd))
  const propertiesAt = topicEnd + 2
  if (propertiesAt + raw.readInt16BE(topicEnd) !== raw.length) throw new Error("lengths disagree")
  const body = raw.subarray(bodyAt, bodyEnd)
  checkSums(raw, body)
  const properties = decodeProperties(raw.subarray(propertiesAt).toString())
  return {
    topic: raw.subarray(topicAt, topicEnd).toString(),
    body: Buffer.from(body),
    queue_id: raw.readInt32BE(12),
    flag: raw.readInt32BE(16),
    queue_offset: Number(raw.readBigInt64BE(20)),
    physical_offset: Number(raw.readBigInt64BE(28)),
    born_timestamp: Number(raw.readBigInt64BE(40)),
    store_timestamp: Number(raw.readBigInt64BE(storeAt)),
    tags: properties.TAGS ?? "",
    keys: (properties.KEYS ?? "").split(" ").filter((key) => key !== ""),
    unique_key: properties.UNIQ_KEY ?? "",
    properties,
  }
}

function checkSums(raw, body) {
  const room = raw.subarray(raw.length - CRC_ROOM_BYTES)
  if (room.subarray(0, 9).toString("latin1") !== `${CRC_NAME}\x01`) {
    if (body.length > 0 && (crc32(body) & 0x7fffffff) !== raw.readInt32BE(8)) {
      throw new Error("the body's checksum does not agree")
    }
    return
  }
  const digits = room.subarray(9, 19).toString("latin1")
  const said = Number([...digits].reverse().join(""))
  const found = crc32(raw.subarray(0, raw.length - CRC_ROOM_BYTES)) & 0x7fffffff
  if (said !== found) throw new Error("the record's checksum does not agree")
}

function decodeProperties(text) {
  const pairs = text.split("\x02").filter((pair) => pair.includes("\x01"))
  return Object.fromEntries(
    pairs.map((pair) => [pair.slice(0, pair.indexOf("\x01")), pair.slice(pair.indexOf("\x01") + 1)])
  )
}

/** Makes unique keys; the address is left 127.0.0.1, process and instance tell clients apart. */
function uniqueKeys() {
  const key = Buffer.from([127, 0, 0, 1, ...new Array(12).fill(0)])
  key.writeUInt16BE(process.pid & 0xffff, 4)
  key.writeUInt32BE(randomInt(2 ** 32), 6)
  let counter = 0
  return () => {
    const now = new Date()
    const month = new Date(now.getFullYear(), now.getMonth(), 1)
    key.writeUInt32BE((now - month) % 2 ** 32, 10)
    key.writeUInt16BE(counter++ & 0xffff, 14)
    return key.toString("hex").toUpperCase()
  }
}

const CRC_TABLE = Array.from({ length: 256 }, (_, n) => {
  for (let bit = 0; bit < 8; bit++) n = n & 1 ? (n >>> 1) ^ 0xedb88320 : n >>> 1
  return n >>> 0
})

/** CRC-32 as zlib has it. Node.js has its own from 20.15 and 22.2 on. */
export function crc32(data) {
  if (zlib.crc32 !== undefined) return zlib.crc32(data)
  let crc = 0xffffffff
  for (const byte of data) crc = CRC_TABLE[(crc ^ byte) & 0xff] ^ (crc >>> 8)
  return (crc ^ 0xffffffff) >>> 0
}
