// Sends singly and in batches, reads everything back, finds by key, compares.
// Prints one line of JSON; exits with 0 when all agrees, else with 1.
//
//   node run.js tcp://127.0.0.1:7850

import { isDeepStrictEqual } from "node:util"
import { connect, encodeRecord, KeelogError } from "./client.js"

const SINGLE = 50
const BATCHES = 5
const BATCH = 200

// The worked example of docs/protocol.md.
const EXAMPLE =
  "000000b9daa320a73610a68600000003000000000000000000000000000000000000000000000000" +
  "0000018bcfe568007f0000010000d4310000000000000000000000000000000000000000000000000000" +
  "00000000000568656c6c6f06466f6f4261720053544147530154616741024b455953016b31206b320255" +
  "4e49515f4b45590137463030303030313041324231384234414143323030303030303030303030" +
  "31025f5f435243333223013030303030303030303002"

const problems = []

function check(what, agrees) {
  if (!agrees) problems.push(what)
}

async function until(what, condition) {
  for (let tries = 0; tries < 200; tries++) {
    if (await condition()) return
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
  problems.push(`${what}: not within 10 s`)
}

function checkExample() {
  const message = {
    topic: "FooBar",
    body: Buffer.from("hello"),
    queue: 3,
    tags: "TagA",
    keys: ["k1", "k2"],
    unique_key: "7F0000010A2B18B4AAC2000000000001",
    born_timestamp: 1700000000000,
    born_ip: [127, 0, 0, 1],
    born_port: 54321,
  }
  check("the worked example", encodeRecord(message, true).toString("hex") === EXAMPLE)
}

/** What is compared: as sent, and as read back. */
const asSent = (m) => [m.body.toString("hex"), m.tags ?? "", m.keys ?? [], m.properties ?? {}]
const asRead = (m) => {
  const { TAGS, KEYS, UNIQ_KEY, "__CRC32#": crc, ...own } = m.properties
  return [m.body.toString("hex"), m.tags, m.keys, own]
}

function makeMessage(topic, number) {
  const bodies = [Buffer.from(`message ${number}`), Buffer.from([0, 1, 2, 255]), Buffer.alloc(0)]
  return {
    topic,
    body: bodies[number % 20 < 18 ? 0 : number % 2 ? 1 : 2],
    // Of three, not of two or four: every queue gets both tags.
    tags: number % 3 ? "rest" : "third",
    keys: [`key-${number % 10}`, "all"],
    properties: { number: String(number), text: "größer 日本" },
  }
}

async function sendAll(node, topic) {
  const sent = new Map()
  for (let number = 0; number < SINGLE; number++) {
    const message = makeMessage(topic, number)
    const { body, ...options } = message
    delete options.topic
    const receipt = await node.send(topic, body, options)
    sent.set(receipt.unique_key, { message, receipt })
  }
  for (let batch = 0; batch < BATCHES; batch++) {
    const first = SINGLE + batch * BATCH
    const messages = Array.from({ length: BATCH }, (_, i) => makeMessage(topic, first + i))
    const receipts = await node.sendBatch(messages)
    receipts.forEach((receipt, i) => sent.set(receipt.unique_key, { message: messages[i], receipt }))
  }
  return sent
}

async function readAll(node, topic, sent) {
  await until("everything can be pulled", async () => {
    let count = 0
    for await (const _ of node.readAll(topic)) count++
    return count === sent.size
  })
  const seen = new Set()
  for await (const message of node.readAll(topic)) {
    seen.add(message.unique_key)
    const { message: original, receipt } = sent.get(message.unique_key) ?? {}
    const name = message.properties.number
    if (original === undefined) {
      problems.push(`message ${name} was not sent`)
      continue
    }
    check(`message ${name} as sent`, isDeepStrictEqual(asRead(message), asSent(original)))
    for (const field of ["queue_id", "queue_offset", "physical_offset", "store_timestamp"]) {
      check(`${field} of message ${name}`, message[field] === receipt[field])
    }
  }
  check("every message was read", seen.size === sent.size)
  return seen.size
}

async function lookUp(node, topic, sent) {
  const some = [...sent.values()].filter((_, i) => i % 97 === 0)
  for (const { receipt, message } of some) {
    const place = { topic, queue: receipt.queue_id, offset: receipt.queue_offset }
    const names = [{ msg_id: receipt.msg_id }, { physical_offset: receipt.physical_offset }, place]
    for (const name of names) {
      const found = await node.get(name)
      check(`get ${Object.keys(name)}`, isDeepStrictEqual(asRead(found), asSent(message)))
    }
    await until("unique key in the index", async () => {
      const found = await node.find(topic, receipt.unique_key, { unique: true })
      return found.length === 1 && found[0].physical_offset === receipt.physical_offset
    })
  }
  await until("all keys in the index", async () => (await node.find(topic, "all")).length === sent.size)
  const found = await node.find(topic, "key-3")
  const expected = [...sent.values()].filter(({ message }) => message.keys[0] === "key-3")
  check("messages with key-3", found.length === expected.length)
  const offsets = found.map((message) => message.physical_offset)
  check("newest first", offsets.every((offset, i) => i === 0 || offset < offsets[i - 1]))
  return found.length
}

async function misbehave(node, topic) {
  const attempts = [
    [() => node.send("bad topic", Buffer.from("x")), "IllegalMessage"],
    [() => node.get({ msg_id: "7F00000100002A9F0000000FFFFFFFFF" }), "NotFound"],
    [() => node.find("never-made", "k"), "UnknownTopic"],
    [() => node.pull(topic, -1, 0), "BadRequest"],
  ]
  for (const [attempt, kind] of attempts) {
    const error = await attempt().then(() => undefined, (caught) => caught)
    check(`${kind} was answered`, error instanceof KeelogError && error.kind === kind)
  }
}

async function main(url) {
  checkExample()
  const node = await connect(url, { timeoutMs: 20000 })
  const topic = `nodejs-${process.pid}-${Date.now()}`
  await node.createTopic(topic, 4)
  const begin = Date.now()
  const sent = await sendAll(node, topic)
  const sendMs = Date.now() - begin
  const read = await readAll(node, topic, sent)
  const found = await lookUp(node, topic, sent)
  const third = await node.pull(topic, 0, 0, { tags: "third" })
  check("pull by tag", third.messages.length > 0)
  check("tags", third.messages.every((message) => message.tags === "third"))
  const end = await node.pull(topic, 0, third.maxOffset, { waitMs: 200 })
  check("an empty pull", end.status === "OFFSET_OVERFLOW_ONE" && end.messages.length === 0)
  await misbehave(node, topic)
  await node.close()
  return { sent: sent.size, read, found, send_ms: sendMs }
}

const [url] = process.argv.slice(2)
if (url === undefined) {
  console.error("usage: node run.js tcp://127.0.0.1:7850")
  process.exit(2)
}
let summary = {}
try {
  summary = await main(url)
} catch (error) {
  problems.push(String(error.stack ?? error))
}
const shown = { ok: problems.length === 0, ...summary, problems: problems.slice(0, 20) }
console.log(JSON.stringify(shown))
process.exit(problems.length === 0 ? 0 : 1)
