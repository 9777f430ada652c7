-- From the build that is kept as 0.9 (pulse--0.9.sql.gz) to the source, by hand: one block
-- for each change of what is stored, in the order of the parts. What is code needs nothing
-- here, unless CREATE OR REPLACE cannot do it (extension/upgrades/README.md).

-- Reports and enqueues that run are waited for, and others wait before their first write:
-- the private functions that they call further down have other names in 1.0.
LOCK TABLE pulse.body, pulse.lease IN ACCESS EXCLUSIVE MODE;

-- turn is upkeep_run.
SELECT pg_advisory_xact_lock('pulse.turn'::regclass::oid::integer, hashtext(s.step))
FROM unnest('{due, backstop, sample, sweep}'::text []) AS s (step);

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
