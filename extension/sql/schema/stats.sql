-- Numbers. Every statement that enqueues or ends jobs, or a run of them, appends what it did
-- to tally, in its own transaction: a row for each lane, kind and event, however many jobs.
-- tick takes these rows out and adds them up in stat (stats/count.sql says why so).

-- Drawn by the DEFAULT alone, as ready_seq is (common/marks.sql).
CREATE SEQUENCE pulse_internal.tally_seq;

COMMENT ON SEQUENCE pulse_internal.tally_seq IS
'Numbers of what happened and was not yet counted.';

-- waited and ran are sums; where waited is given, the row counts starts as well, whatever
-- its event is. The buckets are places in the two histograms: of a single job they
-- are left to the tick.
CREATE TABLE pulse_internal.tally (
    seq bigint NOT NULL DEFAULT nextval('pulse_internal.tally_seq'),
    lane text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    event text COLLATE "C" NOT NULL,
    jobs bigint NOT NULL DEFAULT 1,
    wait_bucket integer,
    waited interval,
    run_bucket integer,
    ran interval,
    CONSTRAINT tally_is_numbered PRIMARY KEY (seq)
);

COMMENT ON TABLE pulse_internal.tally IS
'What happened to jobs and was not yet counted.';

-- Each row is what there was from the start to that moment: the newest of a lane and kind are
-- its counters, and what happened between two moments is the difference of two rows. So
-- rows may be removed between others, and nothing is lost. A lane or kind '' stands for those
-- that came when there were too many; in a total, for all of them: one of each lane, one of
-- each kind and one of everything are kept, so that a chart reads a series and not thousands.
-- A total also says what was ready and ran at its last sample (stats/samples.sql).
CREATE TABLE pulse_internal.stat (
    lane text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    at timestamptz NOT NULL,
    enqueued bigint NOT NULL,
    started bigint NOT NULL,
    completed bigint NOT NULL,
    failed bigint NOT NULL,
    dead bigint NOT NULL,
    retried bigint NOT NULL,
    cancelled bigint NOT NULL,
    reaped bigint NOT NULL,
    wait_seconds double precision NOT NULL,
    wait_counts bigint [] NOT NULL,
    run_seconds double precision NOT NULL,
    run_counts bigint [] NOT NULL,
    total boolean NOT NULL DEFAULT false,
    ready bigint NOT NULL DEFAULT 0,
    running bigint NOT NULL DEFAULT 0,
    CONSTRAINT stat_is_one_per_moment PRIMARY KEY (total, lane, kind, at)
);

CREATE INDEX stat_by_time ON pulse_internal.stat (at);

COMMENT ON TABLE pulse_internal.stat IS
'Counters of each lane and kind, as they were at a moment; in totals also the jobs that were ready and ran at the last sample.';
