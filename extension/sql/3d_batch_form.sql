-- How enqueue_many hands over who calls: a form that is filled in with the caller's rights
-- (11_access.sql).

-- As pulse._request, one row for all the jobs of a call.
CREATE VIEW pulse._batch
WITH (security_barrier)
AS
SELECT
    NULL::text AS kind,
    NULL::jsonb [] AS payloads,
    NULL::pulse._item AS options,
    NULL::jsonb AS jobs,
    NULL::bigint [] AS job_ids,
    NULL::name AS who
WHERE false;

ALTER VIEW pulse._batch ALTER COLUMN who SET DEFAULT current_user;

COMMENT ON VIEW pulse._batch IS
'Many jobs that are asked for at once, and by whom; written by pulse itself.';

COMMENT ON COLUMN pulse._batch.kind IS
'As in enqueue_many.';

COMMENT ON COLUMN pulse._batch.payloads IS
'What enqueue_many(kind, payloads) was given.';

COMMENT ON COLUMN pulse._batch.options IS
'Its further arguments; NULL for a list.';

COMMENT ON COLUMN pulse._batch.jobs IS
'What enqueue_many(jobs) was given.';

COMMENT ON COLUMN pulse._batch.job_ids IS
'The answer: the jobs, in order.';

COMMENT ON COLUMN pulse._batch.who IS
'The role that asks.';

CREATE VIEW pulse._batch_form
WITH (security_barrier)
AS
SELECT
    b.kind,
    b.payloads,
    b.options,
    b.jobs,
    b.job_ids
FROM pulse._batch AS b;

COMMENT ON VIEW pulse._batch_form IS
'Where enqueue_many asks for jobs.';

COMMENT ON COLUMN pulse._batch_form.kind IS
'As in enqueue_many.';

COMMENT ON COLUMN pulse._batch_form.payloads IS
'What enqueue_many(kind, payloads) was given.';

COMMENT ON COLUMN pulse._batch_form.options IS
'Its further arguments; NULL for a list.';

COMMENT ON COLUMN pulse._batch_form.jobs IS
'What enqueue_many(jobs) was given.';

COMMENT ON COLUMN pulse._batch_form.job_ids IS
'The answer: the jobs, in order.';

CREATE FUNCTION pulse._take_batch()
RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_owner integer := pulse._role_number(new.who);
    v_item pulse._item := new.options;
BEGIN
    IF v_item IS DISTINCT FROM NULL THEN
        new.job_ids := ARRAY(
            SELECT m.job_id
            FROM pulse._enqueue_payloads(
                new.kind, new.payloads, v_item, v_owner
            ) AS m (job_id)
        );
    ELSE
        new.job_ids := ARRAY(
            SELECT m.job_id
            FROM pulse._enqueue_jobs(new.jobs, v_owner) AS m
        );
    END IF;
    RETURN new;
END;
$$;

COMMENT ON FUNCTION pulse._take_batch() IS
'Enqueue what was asked for, for the role that asked.';

CREATE TRIGGER batch_is_taken
INSTEAD OF INSERT ON pulse._batch
FOR EACH ROW EXECUTE FUNCTION pulse._take_batch();
