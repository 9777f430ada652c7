-- Caches, each appended by one writer at a time and read newest first: an updated row
-- would itself become a pile of dead versions under an old snapshot. None of them
-- is dumped; an empty table means "from the start". Their indexes have the newest
-- version first, so that a jump to the next key lands on a live row; a primary key
-- cannot, so the index is named as the replica identity.

-- A transaction that may still commit something that it drew: in which counter (lane, group,
-- lease, tally or note) and, for lane, in which of the 256 parts that lanes are divided into by
-- their names. What it draws is above floor_q, and due at floor_t or later.
CREATE TYPE pulse_internal.open_writer AS (
    counter text,
    part integer,
    virtual_transaction text,
    floor_q bigint,
    floor_t timestamptz
);

COMMENT ON TYPE pulse_internal.open_writer IS
'An open transaction that writes to a lane or a table, and above what its numbers are.';

-- One row is one look at the open transactions (common/horizon.sql). What is at most ready_q,
-- lease_q, tally_q or note_q has ended, whatever its lane. The next_ columns are what was drawn,
-- or the clock, at this look; waiting_t is the clock of the look before.
CREATE TABLE pulse_internal.horizon (
    version bigint NOT NULL DEFAULT nextval('pulse_internal.version'),
    seen_at timestamptz NOT NULL,
    ready_q bigint NOT NULL,
    waiting_t timestamptz NOT NULL,
    lease_q bigint NOT NULL,
    tally_q bigint NOT NULL,
    note_q bigint NOT NULL,
    next_ready_q bigint NOT NULL,
    next_waiting_t timestamptz NOT NULL,
    next_lease_q bigint NOT NULL,
    next_tally_q bigint NOT NULL,
    next_note_q bigint NOT NULL,
    writers pulse_internal.open_writer [] NOT NULL,
    CONSTRAINT horizon_is_versioned PRIMARY KEY (version)
);

COMMENT ON TABLE pulse_internal.horizon IS
'A cache: up to where every place in line, due time, lease number and tally is decided.';

-- One row is the marks of one line: kind '' is the whole lane, in the order of
-- ready_for_claim; any other kind is that kind's part, in ready_for_claim_by_kind.
-- patchy_at is when a claim last found the whole line full of holes behind jobs of
-- kinds it could not take, dry_at since when the line has had no job.
CREATE TABLE pulse_internal.mark (
    lane text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    version bigint NOT NULL DEFAULT nextval('pulse_internal.version'),
    ranks integer [] NOT NULL,
    seqs bigint [] NOT NULL,
    marked_at timestamptz NOT NULL,
    patchy_at timestamptz,
    dry_at timestamptz
);

CREATE UNIQUE INDEX mark_is_versioned ON pulse_internal.mark (lane, kind, version DESC);
ALTER TABLE pulse_internal.mark REPLICA IDENTITY USING INDEX mark_is_versioned;

COMMENT ON TABLE pulse_internal.mark IS
'A cache: for each level of a line, the smallest place that can still be live.';

-- run_at is for the whole lane, in the order of waiting_by_time; run_ats for each level,
-- in waiting_for_promotion: the urgent ones are ahead of the rest. dry_at is since when
-- nothing of the lane was due.
CREATE TABLE pulse_internal.due_mark (
    lane text COLLATE "C" NOT NULL,
    version bigint NOT NULL DEFAULT nextval('pulse_internal.version'),
    run_at timestamptz NOT NULL,
    marked_at timestamptz NOT NULL,
    ranks integer [] NOT NULL DEFAULT '{}',
    run_ats timestamptz [] NOT NULL DEFAULT '{}',
    dry_at timestamptz
);

CREATE UNIQUE INDEX due_mark_is_versioned ON pulse_internal.due_mark (lane, version DESC);
ALTER TABLE pulse_internal.due_mark REPLICA IDENTITY USING INDEX due_mark_is_versioned;

COMMENT ON TABLE pulse_internal.due_mark IS
'A cache: for each lane and its levels, the earliest due time that can still be live in waiting.';

-- One row for each run of a part of the upkeep (due, sweep, sample, backstop), newest first.
CREATE TABLE pulse_internal.upkeep_run (
    step text COLLATE "C" NOT NULL,
    version bigint NOT NULL DEFAULT nextval('pulse_internal.version'),
    taken_at timestamptz NOT NULL,
    state jsonb
);

CREATE UNIQUE INDEX upkeep_run_is_versioned ON pulse_internal.upkeep_run (step, version DESC);
ALTER TABLE pulse_internal.upkeep_run REPLICA IDENTITY USING INDEX upkeep_run_is_versioned;

COMMENT ON TABLE pulse_internal.upkeep_run IS
'A cache: when tick last did which part of the upkeep, and where it stopped.';
