'use strict';

// ali-ons as its users write it: sends, a group of two members, tags, retries, a restart. Prints
// what is the same at any broker. Arguments: name server, topic. The client has no one-way sends and no
// batches, and no choice of a queue.

const fs = require('fs');
const { Consumer, Message, Producer } = require('ali-ons');

const [address, topic] = process.argv.slice(2);
const PATIENCE_MS = 60000;
const LOOK_MS = 50;
const SETTLE_MS = 1500;
const COUNT = 30;
const ROUND = 8;
const QUEUES = 4;
const LARGE = 100000;
const TAGS = ['red', 'green', 'blue'];
const RED_OR_BLUE = (COUNT * 2) / TAGS.length;
const silent = { debug() {}, info() {}, warn() {}, error() {}, log() {} };
// The client asks for an HTTP client even where it needs none: the name server is given.
const shared = { nameSrv: address, httpclient: { request() {} }, logger: silent, ...login() };
let producer;
let rounds = 0;

const fact = (name, value) => process.stdout.write(`${name}=${value}\n`);
/** Whose requests they are: the file that CREDENTIALS_FILE names has a user and a secret, a line each. */
function login() {
  if (!process.env.CREDENTIALS_FILE) return {};
  const [accessKey, secretKey] = fs.readFileSync(process.env.CREDENTIALS_FILE, 'utf8').split('\n');
  return { accessKey, secretKey };
}

const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));
const sorted = values => [...new Set(values)].sort();

async function until(holds) {
  const end = Date.now() + PATIENCE_MS;
  while (!(await holds())) {
    if (Date.now() > end) return false;
    await sleep(LOOK_MS);
  }
  return true;
}

/** The members of one consumer group, and what each of them was given. */
class Group {
  constructor(name, expression, failsFirst = false) {
    Object.assign(this, { name: `${name}-${topic}`, expression, failsFirst, seen: new Map() });
  }

  async join(member) {
    const consumer = new Consumer({
      ...shared,
      consumerGroup: this.name,
      instanceName: member,
      consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
      rebalanceInterval: 1000,
    });
    consumer.on('error', () => {}); // its word for "no offset is stored yet"
    consumer.subscribe(topic, this.expression, async message => {
      const name = message.properties.name;
      const tries = this.seen.get(name) || [];
      this.seen.set(name, tries);
      tries.push({ member, queue: message.queueId, topic: message.topic, times: message.reconsumeTimes,
        tags: message.tags, keys: message.keys, mine: message.properties.mine, length: message.body.length });
      return this.failsFirst && tries.length === 1 ? Consumer.ACTION_RETRY : undefined;
    });
    await consumer.ready();
    return consumer;
  }

  names(prefix = '') {
    return [...this.seen.keys()].filter(name => name.startsWith(prefix));
  }

  count(prefix = '') {
    return this.names(prefix).length;
  }

  all() {
    return [...this.seen.values()].flat();
  }
}

function message(name, tag) {
  const made = new Message(topic, tag, name);
  made.keys = [ `key-${name}` ];
  Object.assign(made.properties, { name, mine: `grün ${name}` });
  return made;
}

const messages = kind => Array.from({ length: COUNT }, (_, n) => message(`${kind}-${n}`, TAGS[n % TAGS.length]));

async function sendOneByOne(kind) {
  const results = [];
  for (const one of messages(kind)) results.push(await producer.send(one));
  const queues = sorted(results.map(one => one.messageQueue.queueId));
  fact(`send ${kind}`, `${sorted(results.map(one => one.sendStatus))} queues ${queues}`);
}

async function sendAllWays() {
  await sendOneByOne('sync');
  const results = await Promise.all(messages('async').map(one => producer.send(one)));
  fact('send async', sorted(results.map(one => one.sendStatus)));
  const large = message('large', 'red');
  large.body = Buffer.alloc(LARGE);
  fact('send large', (await producer.send(large)).sendStatus);
  const late = message('late', 'red');
  late.delayTimeLevel = 1;
  fact('send late', (await producer.send(late)).sendStatus);
}

/** Sends a round; which members got it, each with the queues that it came from. */
async function split(group) {
  const kind = `round${rounds++}-`;
  for (let n = 0; n < ROUND; n++) await producer.send(message(`${kind}${n}`, 'round'));
  await until(() => group.count(kind) === ROUND);
  const found = {};
  for (const got of group.names(kind).flatMap(name => group.seen.get(name))) {
    found[got.member] = sorted([...(found[got.member] || []), got.queue]);
  }
  return found;
}

async function awaitSplit(name, group, members) {
  let last;
  await until(async () => {
    last = await split(group);
    const shares = Object.values(last);
    return shares.length === members && shares.every(one => one.length === QUEUES / members);
  });
  fact(name, sorted(Object.entries(last).map(([ member, queues ]) => `${member}: ${queues}`)).join('; '));
}

async function share() {
  const group = new Group('share', '*');
  const one = await group.join('one');
  await until(() => group.count() >= 2 * COUNT + 2);
  for (const kind of ['sync', 'async', 'large', 'late']) fact(`got ${kind}`, group.count(kind));
  fact('got large bytes', (group.seen.get('large') || [{}])[0].length);
  const isWrong = (name, got) => got.keys !== `key-${name}` || got.mine !== `grün ${name}`
    || got.topic !== topic || got.times !== 0;
  fact('got wrong', group.names().filter(name => group.seen.get(name).some(got => isWrong(name, got))));
  const two = await group.join('two');
  await awaitSplit('two members', group, 2);
  await sleep(SETTLE_MS);
  await one.close();
  await awaitSplit('one has gone', group, 1);
  fact('got rounds', group.count('round') === rounds * ROUND);
  await two.close();
}

async function filterAndGoOn() {
  const group = new Group('tags', 'red || blue');
  const first = await group.join('tags');
  await until(() => group.count() >= 2 * RED_OR_BLUE + 2);
  await sleep(SETTLE_MS);
  fact('by tags', `${sorted(group.all().map(got => got.tags))} ${group.count()}`);
  await first.close();
  await sendOneByOne('away');
  const again = new Group('tags', 'red || blue');
  const second = await again.join('tags again');
  await until(() => again.count('away') === RED_OR_BLUE);
  await sleep(SETTLE_MS);
  fact('goes on with', again.count('away'));
  fact('repeats', again.count() - again.count('away'));
  await second.close();
}

async function retry() {
  for (let n = 0; n < COUNT; n++) await producer.send(message(`retry-${n}`, 'again'));
  const group = new Group('retry', 'again', true);
  const consumer = await group.join('retry');
  await until(() => group.count() === COUNT && group.all().length >= 2 * COUNT);
  await sleep(SETTLE_MS);
  const histories = [...group.seen.values()].map(tries => tries.map(got => `${got.topic === topic ? 'own' : got.topic}:${got.times}`).join(' '));
  fact('retried', `${group.count()} as ${sorted(histories)}`);
  await consumer.close();
}

async function main() {
  producer = new Producer({ ...shared, producerGroup: `producers-${topic}`, instanceName: 'sender' });
  await producer.ready();
  await sendAllWays();
  await share();
  await filterAndGoOn();
  await retry();
  await producer.close();
}

main().then(() => process.exit(0), error => {
  console.error(error);
  process.exit(1);
});
