// A worker for pulse in Node.
//
//     npm install && PGDATABASE=app node worker.mjs LANE ./handlers.mjs [SLOTS]
//
// handlers.mjs exports one function for each kind; what it returns is the result, what it
// throws the error. It gets the job and an AbortSignal, and should stop when that fires:
//
//     export async function greet(job, signal) { return `hello ${job.payload.name}` }
//
// Leases and job ids are bigints. pg hands them over as strings and strings they stay: as
// a Number a lease would be rounded, and act on another job.

import os from 'node:os'
import { pathToFileURL } from 'node:url'
import pg from 'pg'

const POLL_MS = 500
const LEASE_S = Number(process.env.LEASE ?? 30)
const GRACE_MS = Number(process.env.GRACE ?? 10) * 1000

const [lane = 'default', file = './handlers.mjs', slots = '4'] = process.argv.slice(2)
const handlers = { ...(await import(pathToFileURL(file).href)) }
const kinds = Object.keys(handlers)
const me = `${os.hostname()}:${process.pid}`
const running = new Map() // lease → { abort, verdict }
const unfinished = new Set() // promises of runs and their reports
let stopping = false
let wake = () => {}

const pool = new pg.Pool({ max: 3 })
pool.on('error', (error) => console.error(`connection lost: ${error.message}`))

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

// A report may be repeated: the same lease with the same verb succeeds again.
async function report(text, values) {
  for (let round = 1; ; round++) {
    try {
      return await pool.query(text, values)
    } catch (error) {
      if (error.code === 'PU101') return console.error(error.message)
      if (error.code?.startsWith('PU') || round === 5) throw error
      await sleep(200 * 2 ** round)
    }
  }
}

async function run(job, entry) {
  let text, values
  try {
    const result = (await handlers[job.kind](job, entry.abort.signal)) ?? null
    text = 'SELECT pulse.complete($1, $2)'
    values = [job.lease, JSON.stringify(result)]
  } catch (error) {
    text = 'SELECT pulse.fail($1, $2)'
    values = [job.lease, String(error?.stack ?? error).slice(0, 100_000)]
    if (entry.verdict === 'cancel') [text, values] = ['SELECT pulse.ack_cancel($1)', [job.lease]]
    else if (stopping) [text, values] = ['SELECT pulse.release(ARRAY[$1::bigint])', [job.lease]]
  }
  try {
    // Taken out first, so that it is not given back as well; lost, there is nothing to say.
    if (running.delete(job.lease)) await report(text, values)
  } catch (error) {
    console.error(`job ${job.job_id} could not be reported: ${error.message}`)
  }
  wake()
}

// All running jobs in one statement, three times in the life of a lease.
async function heartbeat() {
  if (running.size === 0) return
  const beats = await pool.query('SELECT lease, verdict FROM pulse.heartbeat($1::bigint[])', [
    [...running.keys()],
  ])
  for (const { lease, verdict } of beats.rows) {
    const entry = running.get(lease)
    if (verdict === 'ok' || !entry) continue
    entry.verdict = verdict
    if (verdict === 'lost') running.delete(lease)
    entry.abort.abort(new Error(verdict))
  }
}

// The bell: LISTEN, and hold a shared lock on the lane while asleep, so that enqueue knows
// that a worker has to be woken. It proves itself first, by a probe from another connection
// (one's own is heard even through PgBouncer in transaction mode, and no other is). If
// nothing arrives, polling alone has to do.
async function bell() {
  const client = new pg.Client()
  client.on('error', () => {})
  await client.connect()
  let proved = () => {}
  const probe = new Promise((resolve) => (proved = resolve))
  client.on('notification', ({ payload }) => {
    if (payload === `probe ${me}`) proved(true)
    if (payload === lane) wake()
  })
  await client.query('LISTEN pulse')
  await pool.query("SELECT pg_notify('pulse', $1)", [`probe ${me}`])
  if (await Promise.race([probe, sleep(1000)])) {
    const lock = "('pulse_internal.ready'::regclass::oid::integer, hashtext($1)) AS got"
    return {
      arm: async () => (await client.query(`SELECT pg_try_advisory_lock_shared${lock}`, [lane])).rows[0].got,
      disarm: () => client.query(`SELECT pg_advisory_unlock_shared${lock}`, [lane]),
      close: () => client.end(),
    }
  }
  console.error('LISTEN receives nothing here (a pooler in transaction mode?): polling only')
  await client.end()
  return null
}

async function claim() {
  const free = Number(slots) - running.size
  if (free <= 0) return 0
  const { rows } = await pool.query(
    'SELECT * FROM pulse.claim_batch($1, $2, $3, make_interval(secs => $4), $5)',
    [me, lane, free, LEASE_S, kinds],
  )
  for (const job of rows) {
    const entry = { abort: new AbortController(), verdict: 'ok' }
    running.set(job.lease, entry)
    const done = run(job, entry).finally(() => unfinished.delete(done))
    unfinished.add(done)
  }
  return rows.length
}

for (const signal of ['SIGTERM', 'SIGINT']) {
  process.on(signal, () => {
    stopping = true
    wake()
  })
}

const beats = setInterval(
  () => heartbeat().catch((error) => console.error(`heartbeat: ${error.message}`)),
  (LEASE_S * 1000) / 3,
)
let ears = await bell().catch(() => null)

while (!stopping) {
  try {
    // Set before the look: whatever rings from here on cuts the sleep short.
    let rang = false
    const woken = new Promise((resolve) => (wake = () => resolve((rang = true))))
    await pool.query('SELECT pulse.hello($1, ARRAY[$2], $3), count(*) FROM pulse.tick()', [me, lane, kinds])
    if ((await claim()) > 0 || rang || stopping) continue
    const full = running.size >= Number(slots)
    const armed = !full && ears !== null && (await ears.arm().catch(() => (ears = null)))
    if (!armed || (await claim()) === 0) {
      await Promise.race([woken, sleep(POLL_MS * (0.9 + Math.random() * 0.2))])
    }
    if (armed) await ears.disarm().catch(() => (ears = null))
  } catch (error) {
    console.error(`trying again: ${error.message}`)
    await sleep(1000)
  }
}

// Running jobs are asked to stop and have the grace to do so; the rest is given back.
for (const { abort } of running.values()) abort.abort(new Error('the worker is stopping'))
await Promise.race([Promise.all([...unfinished]), sleep(GRACE_MS)])
clearInterval(beats)
const left = [...running.keys()]
running.clear()
if (left.length > 0) await report('SELECT * FROM pulse.release($1::bigint[])', [left])
await ears?.close().catch(() => {})
await pool.end()
process.exit(0)
