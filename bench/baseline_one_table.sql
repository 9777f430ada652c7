-- The design pulse is measured against: one table, the state a column.
-- A claim is an UPDATE of rows picked FOR UPDATE SKIP LOCKED; to complete is an UPDATE
-- to done (A2, history kept) or a DELETE (A1, none). It is as quick as such a design
-- honestly gets: prepared statements without functions, rows picked by a partial index
-- that holds ready jobs only, found again by ctid and by primary key, no fence beyond
-- that. It has one index for each thing such a queue must find: the next job, lapsed
-- leases, and old history.
CREATE SCHEMA one_table;

CREATE TYPE one_table.state AS ENUM ('ready', 'running', 'done', 'dead');

CREATE TABLE one_table.job (
    id bigint GENERATED ALWAYS AS IDENTITY,
    lane text COLLATE "C" NOT NULL DEFAULT 'default',
    kind text COLLATE "C" NOT NULL,
    priority integer NOT NULL DEFAULT 0,
    state one_table.state NOT NULL DEFAULT 'ready',
    payload jsonb NOT NULL,
    attempt integer NOT NULL DEFAULT 0,
    max_attempts integer NOT NULL DEFAULT 3,
    enqueued_by name NOT NULL DEFAULT current_user,
    enqueued_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    worker text,
    claimed_at timestamptz,
    lease_until timestamptz,
    finished_at timestamptz,
    result jsonb,
    CONSTRAINT job_is_one_row PRIMARY KEY (id)
);

CREATE INDEX job_for_claim ON one_table.job (lane, priority DESC, id)
WHERE state = 'ready';
CREATE INDEX job_for_reap ON one_table.job (lease_until)
WHERE state = 'running';
CREATE INDEX job_for_retention ON one_table.job (finished_at)
WHERE state = 'done';

-- What a single enqueue is measured against: an INSERT into a table with two indexes.
CREATE SCHEMA bare;

CREATE TABLE bare.job (
    id bigint GENERATED ALWAYS AS IDENTITY,
    kind text NOT NULL,
    payload jsonb NOT NULL,
    run_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT job_is_one_row PRIMARY KEY (id)
);

CREATE INDEX job_by_kind ON bare.job (kind, run_at);
