CREATE FUNCTION pulse.unschedule(name text)
RETURNS void
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse._do_unschedule(pulse._sign(), unschedule.name)
$$;

COMMENT ON FUNCTION pulse.unschedule(text) IS
'Remove a schedule. Its ledger stays for 90 days and its jobs go on. PU005 no such schedule. Writes schedule and audit_entry.';

CREATE FUNCTION pulse._do_unschedule(signature pulse._signature, name text)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse._redeem(_do_unschedule.signature);
    v_schedule pulse.schedule;
BEGIN
    PERFORM pulse._require_read_committed('unschedule');
    v_schedule := pulse._require_schedule(_do_unschedule.name);

    DELETE FROM pulse.schedule AS s
    WHERE s.name = v_schedule.name;

    PERFORM pulse._audit(
        v_who, 'unschedule', NULL, NULL, pulse._schedule_facts(v_schedule), NULL, NULL
    );
END;
$$;

COMMENT ON FUNCTION pulse._do_unschedule(pulse._signature, text) IS
'unschedule for the role that signed. Writes the same.';
