-- A lease is a value of this sequence, which carries the node as job_id does, with ten
-- random bits below it (claim/claim.sql): nobody hits a stranger's by counting on.
CREATE SEQUENCE pulse_internal.lease_seq MAXVALUE 9007199254740991;

COMMENT ON SEQUENCE pulse_internal.lease_seq IS
'The growing part of lease numbers, above the node in the bits from the 43rd on.';

-- Only lease_until changes with a heartbeat and it is not indexed, so beats stay HOT.
-- reap_at is when reap must look next: NULL until the sweep first sees the lease
-- (a short job never enters that index), never later than lease_until afterwards.
-- group_key is given where the slots of its group are limited: its end leaves a notice.
-- place is the one that its job had in the line of its group, where that is to be kept.
-- ready_at is there until the start of the run is counted, by the sweep or by its end.
CREATE TABLE pulse_internal.lease (
    lease bigint NOT NULL,
    job bigint NOT NULL,
    lane text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    rank integer NOT NULL,
    attempt integer NOT NULL,
    failures integer NOT NULL,
    keyed boolean NOT NULL,
    worker text NOT NULL,
    claimed_at timestamptz NOT NULL,
    lease_for interval NOT NULL,
    lease_until timestamptz NOT NULL,
    deadline timestamptz,
    cancel_by timestamptz,
    cancel_reason text,
    reap_at timestamptz,
    group_key text COLLATE "C",
    place bigint,
    ready_at timestamptz,
    CONSTRAINT lease_is_never_reused PRIMARY KEY (lease),
    CONSTRAINT lease_ends_by_its_deadline CHECK (lease_until <= deadline),
    CONSTRAINT lease_ends_by_the_cancel_grace CHECK (lease_until <= cancel_by),
    CONSTRAINT lease_is_looked_at_in_time CHECK (reap_at <= lease_until)
) WITH (fillfactor = 60);

CREATE UNIQUE INDEX lease_is_one_per_job ON pulse_internal.lease (job);
CREATE INDEX lease_for_reap ON pulse_internal.lease (reap_at) WHERE reap_at IS NOT NULL;

COMMENT ON TABLE pulse_internal.lease IS
'Running jobs: whoever deletes the row has ended the run.';

-- The leases of a lane with max_slots, as of its last claim: appended under the
-- roster lock, read newest first. Which of them still run is looked up by key, so the
-- count never meets a dead row (docs/decisions/slots.md).
CREATE TABLE pulse_internal.roster (
    lane text COLLATE "C" NOT NULL,
    version bigint NOT NULL DEFAULT nextval('pulse_internal.version'),
    leases bigint [] NOT NULL,
    CONSTRAINT roster_is_versioned PRIMARY KEY (lane, version)
);

COMMENT ON TABLE pulse_internal.roster IS
'A cache: the leases that count against max_slots of a lane, newest version first.';

CREATE TABLE pulse_internal.job_progress (
    job bigint NOT NULL,
    lease bigint NOT NULL,
    fraction double precision,
    note text,
    reported_at timestamptz NOT NULL,
    CONSTRAINT job_progress_is_one_per_job PRIMARY KEY (job)
) WITH (fillfactor = 60);

COMMENT ON TABLE pulse_internal.job_progress IS
'How far a job says it has come.';

CREATE TABLE pulse_internal.job_checkpoint (
    job bigint NOT NULL,
    data jsonb NOT NULL,
    saved_at timestamptz NOT NULL,
    CONSTRAINT job_checkpoint_is_one_per_job PRIMARY KEY (job)
);

COMMENT ON TABLE pulse_internal.job_checkpoint IS
'What a run left for the next attempt of its job.';

CREATE TABLE pulse_internal.worker (
    worker text NOT NULL,
    lanes text [] NOT NULL,
    kinds text [],
    seen_by name NOT NULL,
    seen_at timestamptz NOT NULL,
    CONSTRAINT worker_says_hello_once PRIMARY KEY (worker)
) WITH (fillfactor = 60);

COMMENT ON TABLE pulse_internal.worker IS
'Workers that said hello, which lanes and kinds they take, and when they were last seen.';
