-- From the build that is kept as 0.9 (pulse--0.9.sql.gz) to the source, by hand: one block
-- for each change of what is stored, in the order of the parts. What is code needs nothing
-- here, unless CREATE OR REPLACE cannot do it (extension/upgrades/README.md).

-- body and lease because reports and enqueues call private functions that have other names
-- in 1.0: those that run are waited for, and others wait before their first write.
-- locks: body, lease, turn, schedule

-- turn is upkeep_run.
ALTER TABLE pulse.turn RENAME TO upkeep_run;
ALTER INDEX pulse.turn_is_versioned RENAME TO upkeep_run_is_versioned;

-- rhythm is recurrence.
ALTER TABLE pulse.schedule
RENAME CONSTRAINT schedule_has_one_rhythm TO schedule_has_one_recurrence;
ALTER TYPE pulse.rhythm RENAME TO recurrence;

-- Functions whose result or arguments have other names: CREATE OR REPLACE refuses those.
-- `python -m tests.upgrade.drops` prints what is missing here.
DROP FUNCTION pulse._cron_entries();
DROP FUNCTION pulse._register(text, text, text);
DROP FUNCTION pulse._occurrence_after(pulse.recurrence, timestamptz);
DROP FUNCTION pulse._occurrence_until(pulse.recurrence, timestamptz, timestamptz);
DROP FUNCTION pulse._interval_occurrence(pulse.recurrence, bigint);
DROP FUNCTION pulse._interval_count(pulse.recurrence, timestamptz);
DROP FUNCTION pulse._skip_occurrences(
    text, pulse.recurrence, timestamptz, timestamptz, text
);
