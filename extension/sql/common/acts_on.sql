-- The states on which each verb acts: the verbs themselves and pulse.verbs() ask here.

-- A verb by job id and its bulk form share a row, without _where. In any other state the verb
-- refuses the job, or leaves it as it is. find is what find_jobs calls itself in a filter.
CREATE FUNCTION pulse_internal.acts_on(verb text)
RETURNS text []
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        CASE
            WHEN verb IN ('cancel', 'reprioritize')
                THEN '{blocked,awaiting_approval,scheduled,retrying,ready,running}'
            WHEN verb = 'move' THEN '{blocked,awaiting_approval,scheduled,retrying,ready}'
            WHEN verb = 'run_now' THEN '{scheduled,retrying}'
            WHEN verb = 'reschedule' THEN '{scheduled,retrying,ready}'
            WHEN verb = 'retry' THEN '{dead,cancelled}'
            WHEN verb IN ('rerun', 'discard', 'delete_job') THEN '{completed,dead,cancelled}'
            WHEN verb IN ('approve', 'reject') THEN '{awaiting_approval}'
            WHEN verb = 'claim_batch' THEN '{ready}'
            WHEN verb = 'exchange' THEN '{ready,running}'
            -- Those that take a lease: only a running job has one.
            WHEN verb = ANY (
                '{heartbeat,progress,checkpoint,complete,complete_batch,fail,fail_batch,'
                'snooze,release,ack_cancel,upstream,steps,spawn,save_step,wait_for}'::text []
            )
                THEN '{running}'
            WHEN verb IN ('find', 'find_jobs')
                THEN '{blocked,awaiting_approval,scheduled,ready,running,retrying,completed,dead,cancelled}'
        END::text []
$$;

COMMENT ON FUNCTION pulse_internal.acts_on(text) IS
'The states of a job on which a verb acts; NULL for a verb that acts on no job.';
