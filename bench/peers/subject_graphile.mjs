// graphile-worker with the settings its page on performance recommends:
// node subject_graphile.mjs install|work DSN FLAVOUR CONCURRENCY
import { createRequire } from 'node:module'
const require = createRequire(process.env.PEERS_NODE + '/')
const { run, runMigrations, Logger } = require('graphile-worker')
const pg = require('pg')

const [verb, dsn, flavour, concurrency] = process.argv.slice(2)
const words = Object.fromEntries(dsn.split(' ').map((word) => word.split('=')))
const pgPool = new pg.Pool({
  host: words.host, port: Number(words.port), user: words.user, database: words.dbname, max: 30,
})
const logger = new Logger(() => () => {})

let count = 0, first = 0, last = 0, told = -1
const latencies = []
const now = () => Number(process.hrtime.bigint()) / 1e9

if (verb === 'install') {
  await runMigrations({ pgPool, logger })
  await pgPool.end()
} else {
  setInterval(() => {
    if (count === told) return
    told = count
    process.stdout.write(JSON.stringify([count, first, last, latencies]) + '\n')
  }, 20)
  // Latency is measured without the local queue, throughput with it: each at its best.
  const batching = flavour === 'batched'
    ? { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } : {}
  await run({
    pgPool,
    logger,
    noHandleSignals: true,
    preset: { worker: { concurrentJobs: Number(concurrency), ...batching } },
    taskList: {
      noop: ({ t }) => {
        last = now()
        if (count++ === 0) first = last
        if (t) latencies.push(last - t)
      },
    },
  })
}
