-- A step of tick: what a sender could not wake, and signals that nobody came for.
CREATE FUNCTION pulse._tick_signals(max_rows integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_sort = off
AS $$
DECLARE
    v_signal record;
    v_woken integer := 0;
BEGIN
    FOR v_signal IN
        SELECT s.signal, s.owner
        FROM pulse.signal AS s
        WHERE s.undelivered_at IS NOT NULL
        ORDER BY s.undelivered_at
        LIMIT _tick_signals.max_rows
        FOR UPDATE SKIP LOCKED
    LOOP
        v_woken := v_woken + pulse._deliver_signal(
            v_signal.signal, v_signal.owner, _tick_signals.max_rows - v_woken
        );
        EXIT WHEN v_woken >= _tick_signals.max_rows;
    END LOOP;
    RETURN greatest(v_woken, pulse._prune_signals(_tick_signals.max_rows));
END;
$$;

COMMENT ON FUNCTION pulse._tick_signals(integer) IS
'Wake jobs that a signal met while they were held, and remove expired signals; returns how many of these or those.';
