-- Lanes whose jobs stand in groups, by their group_key (docs/decisions/limits.md). The group
-- '' is of the jobs that have none. A key above 1,000 bytes is filed under its md5.

CREATE TYPE pulse_internal.lane_group AS (
    lane text,
    group_key text
);

COMMENT ON TYPE pulse_internal.lane_group IS
'A group of a lane.';

CREATE TYPE pulse_internal.group_turn AS (
    state tid,
    group_key text,
    rank integer,
    place bigint,
    turn bigint,
    may_start integer
);

COMMENT ON TYPE pulse_internal.group_turn IS
'A group whose turn it is: the address of its row of group_state, where its first job stands, and how many jobs it may start.';

CREATE TYPE pulse_internal.group_pick AS (
    tid tid,
    job bigint,
    group_key text,
    kind text
);

COMMENT ON TYPE pulse_internal.group_pick IS
'A job that a claim of a lane with groups has locked: the address of its row of ready, and what it is.';

CREATE TYPE pulse_internal.rate_window AS (
    times timestamptz [],
    counts integer []
);

COMMENT ON TYPE pulse_internal.rate_window IS
'How many starts there were, by hundredths of a period, each dated by its latest one.';

-- rank, place and kind are those of a job that arrived. Without kind: the job at this place
-- was taken out, look who is first now. Without all three: a run has ended; where several
-- have, ended has the groups.
CREATE TABLE pulse_internal.group_notice (
    lane text COLLATE "C" NOT NULL,
    seq bigint NOT NULL DEFAULT nextval('pulse_internal.ready_seq'),
    group_key text COLLATE "C" NOT NULL,
    rank integer,
    place bigint,
    kind text COLLATE "C",
    ended text [] COLLATE "C",
    CONSTRAINT group_notice_is_in_order PRIMARY KEY (lane, seq)
);

COMMENT ON TABLE pulse_internal.group_notice IS
'Groups that the next claim of their lane has to look at: a job arrived, or a run ended.';

-- What set_group said of a group; NULL is what the lane says. A group that is not enabled
-- says who stopped it, when and why.
CREATE TABLE pulse_internal.group_rule (
    lane text COLLATE "C" NOT NULL,
    group_key text COLLATE "C" NOT NULL,
    max_slots integer,
    rate integer,
    rate_per interval,
    enabled boolean NOT NULL DEFAULT true,
    held_by name,
    held_at timestamptz,
    reason text,
    CONSTRAINT group_rule_is_one_per_group PRIMARY KEY (lane, group_key),
    CONSTRAINT group_rule_is_for_a_named_group CHECK (group_key <> ''),
    CONSTRAINT group_rule_slots_are_positive CHECK (max_slots BETWEEN 1 AND 10000),
    CONSTRAINT group_rule_rate_has_a_period CHECK (num_nonnulls(rate, rate_per) <> 1),
    CONSTRAINT group_rule_says_something
    CHECK (num_nonnulls(max_slots, rate) > 0 OR NOT enabled)
);

-- Whether any group of a lane has a rate of its own is asked by every claim.
CREATE INDEX group_rule_with_rate ON pulse_internal.group_rule (lane) WHERE rate IS NOT NULL;

COMMENT ON TABLE pulse_internal.group_rule IS
'Exceptions that set_group made for groups of a lane.';

-- The caches, as in schema/marks.sql. Of a group, rank, place and kind are those of its first
-- job, or of one before it that is gone; a claim reads on from there. jobs are those that count
-- against its slots, some of which may have ended (NULL: no limit). turn is its place in the
-- round, NULL while it cannot run. starts is for its rate, and wake_at is when that lets it run
-- again. lasting: the row is kept when the group goes idle (groups/state.sql says why).
CREATE TABLE pulse_internal.group_state (
    lane text COLLATE "C" NOT NULL,
    group_key text COLLATE "C" NOT NULL,
    version bigint NOT NULL DEFAULT nextval('pulse_internal.version'),
    rank integer,
    place bigint,
    kind text COLLATE "C",
    jobs bigint [],
    turn bigint,
    starts pulse_internal.rate_window,
    wake_at timestamptz,
    written_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    lasting boolean NOT NULL DEFAULT true
);

CREATE UNIQUE INDEX group_state_is_versioned
ON pulse_internal.group_state (lane, group_key, version DESC);
ALTER TABLE pulse_internal.group_state REPLICA IDENTITY USING INDEX group_state_is_versioned;

-- As with ready, every row that has a turn meets both conditions, and a statement states
-- that of the index it is meant for.
CREATE INDEX group_state_in_turn ON pulse_internal.group_state (lane, rank, turn)
WHERE turn IS NOT NULL AND version > 0;
CREATE INDEX group_state_in_turn_by_kind ON pulse_internal.group_state (lane, kind, rank, turn)
WHERE turn IS NOT NULL AND place >= 0;

CREATE INDEX group_state_to_wake ON pulse_internal.group_state (lane, wake_at)
WHERE wake_at IS NOT NULL AND rank IS NOT NULL;

COMMENT ON TABLE pulse_internal.group_state IS
'A cache: what the last claim knew of a group, newest version first.';

-- The roll has yet to be taken from the group roll_from on; NULL when it was. All groups
-- that were to wake by woken_until have.
CREATE TABLE pulse_internal.group_mark (
    lane text COLLATE "C" NOT NULL,
    version bigint NOT NULL DEFAULT nextval('pulse_internal.version'),
    notice_from bigint NOT NULL,
    ranks integer [] NOT NULL,
    turns bigint [] NOT NULL,
    roll_from text COLLATE "C",
    woken_until timestamptz NOT NULL DEFAULT '-infinity'
);

CREATE UNIQUE INDEX group_mark_is_versioned ON pulse_internal.group_mark (lane, version DESC);
ALTER TABLE pulse_internal.group_mark REPLICA IDENTITY USING INDEX group_mark_is_versioned;

COMMENT ON TABLE pulse_internal.group_mark IS
'A cache: for each grouped lane, the smallest notice that can be unread, and for each level the smallest turn that can be live.';

-- Of a lane, with the kind '', or of a kind in all lanes, with the lane ''.
CREATE TABLE pulse_internal.quota (
    lane text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    version bigint NOT NULL DEFAULT nextval('pulse_internal.version'),
    starts pulse_internal.rate_window,
    CONSTRAINT quota_is_versioned PRIMARY KEY (lane, kind, version)
);

COMMENT ON TABLE pulse_internal.quota IS
'A cache: the starts that count against the rate of a lane or of a kind, newest version first.';
