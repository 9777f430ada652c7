-- next_at is the occurrence that comes next, or NULL when there is none; while firing
-- it fails, retry_at is when tick tries again.
CREATE TABLE pulse_internal.schedule (
    name text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    payload jsonb NOT NULL,
    cron text,
    every interval,
    at timestamptz,
    timezone text NOT NULL,
    options jsonb NOT NULL,
    catch_up text COLLATE "C" NOT NULL,
    catch_up_window interval NOT NULL,
    anchor timestamptz NOT NULL,
    next_at timestamptz,
    paused_at timestamptz,
    paused_by name,
    pause_reason text,
    owner integer NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_error text,
    retry_at timestamptz,
    CONSTRAINT schedule_is_named_once PRIMARY KEY (name),
    CONSTRAINT schedule_has_one_recurrence CHECK (num_nonnulls(cron, every, at) = 1),
    CONSTRAINT schedule_catch_up_is_known CHECK (catch_up IN ('skip', 'last', 'all'))
) WITH (fillfactor = 60);

CREATE INDEX schedule_for_tick ON pulse_internal.schedule (next_at) WHERE paused_at IS NULL;

COMMENT ON TABLE pulse_internal.schedule IS
'What is enqueued on a schedule. options holds the further arguments of enqueue.';

-- No row without its occurrence and no occurrence twice: the primary key is what makes
-- one job of one occurrence, whoever ticks. A long row of skipped occurrences
-- ends in one row that says how many it stands for.
CREATE TABLE pulse_internal.schedule_run (
    name text COLLATE "C" NOT NULL,
    occurrence timestamptz NOT NULL,
    job bigint,
    skipped text,
    handled_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT schedule_run_is_one_per_occurrence PRIMARY KEY (name, occurrence),
    CONSTRAINT schedule_run_fired_or_says_why CHECK (num_nonnulls(job, skipped) = 1)
);

CREATE INDEX schedule_run_for_retention ON pulse_internal.schedule_run (handled_at);

COMMENT ON TABLE pulse_internal.schedule_run IS
'The ledger of occurrences: fired with its job, or skipped and why. Kept 90 days.';

CREATE TYPE pulse_internal.cron_fields AS (
    minutes integer [],
    hours integer [],
    days integer [],
    months integer [],
    weekdays integer [],
    either_day boolean,
    every_hour boolean
);

COMMENT ON TYPE pulse_internal.cron_fields IS
'A cron expression, read: the values of each field in order, whether one of the two day fields is enough, and whether it goes on by the hour.';

CREATE TYPE pulse_internal.recurrence AS (
    cron pulse_internal.cron_fields,
    every interval,
    at timestamptz,
    anchor timestamptz,
    timezone text
);

COMMENT ON TYPE pulse_internal.recurrence IS
'When a schedule is due: by cron, by an interval counted from the anchor, or once.';
