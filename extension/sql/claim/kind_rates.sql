-- Rates of kinds, in whatever lanes their jobs are.
--
-- The starts of a kind are counted under a lock of its name, which claims of all lanes try
-- and never wait for: refused, the kind is left out this time. So is one without a start.
-- Only kinds whose jobs a claim is about to take are locked, so that a claim that would
-- take any kind keeps nobody from one that it has no job of.

-- What this says is used up is; what it does not say may be, by claims that are open. A kind
-- whose starts are dated after now is left to open_kinds, which dates them under the lock.
CREATE FUNCTION pulse_internal.spent_kinds(kinds text [])
RETURNS text []
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
BEGIN
    RETURN array(
        SELECT k.kind::text
        FROM pulse_internal.kind AS k
        CROSS JOIN LATERAL (
            SELECT n.starts
            FROM pulse_internal.newest_quota('', k.kind) AS n
            OFFSET 0
        ) AS q
        CROSS JOIN LATERAL pulse_internal.free_starts(
            q.starts, k.rate, k.rate_per, clock_timestamp()
        ) AS f
        WHERE k.rate IS NOT NULL
            AND (spent_kinds.kinds IS NULL OR k.kind = ANY (spent_kinds.kinds))
            AND f.free = 0
            AND NOT pulse_internal.dated_ahead(q.starts, clock_timestamp())
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.spent_kinds(text []) IS
'Which of these kinds (NULL: of all) have a rate that is used up, by what was committed.';

-- open and free are those of the kinds given that have a rate and starts left; spent are
-- those that were tried in vain, rated all that have a rate.
CREATE FUNCTION pulse_internal.open_kinds(
    kinds text [],
    INOUT spent text [],
    OUT open text [],
    OUT free integer [],
    OUT rated text []
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    v_kind text;
    v_free integer;
BEGIN
    open := '{}';
    free := '{}';
    rated := array(SELECT k.kind::text FROM pulse_internal.kind AS k WHERE k.rate IS NOT NULL);
    FOR v_kind IN
        SELECT DISTINCT u.kind COLLATE "C"
        FROM unnest(open_kinds.kinds) AS u (kind)
        WHERE u.kind = ANY (rated)
        ORDER BY 1
    LOOP
        v_free := 0;
        IF pg_try_advisory_xact_lock('pulse_internal.quota'::regclass::oid::integer, hashtext(v_kind)) THEN
            -- In a statement after the lock, the setting as well.
            SELECT f.free INTO v_free
            FROM pulse_internal.kind AS k
            CROSS JOIN LATERAL pulse_internal.free_starts(
                (pulse_internal.current_quota('', k.kind)).starts, k.rate, k.rate_per, clock_timestamp()
            ) AS f
            WHERE k.kind = v_kind;
        END IF;
        IF v_free = 0 THEN
            spent := spent || v_kind;
        ELSE
            open := open || v_kind;
            free := free || v_free;
        END IF;
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse_internal.open_kinds(text [], text []) IS
'Lock the starts of those of these kinds that have a rate, as far as that is possible without waiting, and say how many are left.';

-- Of the kinds that the claim has locked: what it took since the lease given is its own.
CREATE FUNCTION pulse_internal.spend_kinds(lane text, kinds text [], after_lease bigint)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
BEGIN
    PERFORM pulse_internal.spend_quota(
        pulse_internal.newest_quota('', k.kind), '', k.kind, u.n::integer, k.rate_per,
        clock_timestamp()
    )
    FROM (
        SELECT l.kind, count(*) AS n
        FROM pulse_internal.lease AS l
        WHERE l.lease > spend_kinds.after_lease
            AND l.lane = spend_kinds.lane
            AND l.kind = ANY (spend_kinds.kinds)
        GROUP BY l.kind
    ) AS u
    INNER JOIN pulse_internal.kind AS k ON k.kind = u.kind
    WHERE k.rate IS NOT NULL;
END;
$$;

COMMENT ON FUNCTION pulse_internal.spend_kinds(text, text [], bigint) IS
'Count the starts of a claim against the rates of kinds.';

CREATE FUNCTION pulse_internal.last_lease()
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (
        SELECT (s.last_value - (NOT s.is_called)::integer) << 10 | 1023
        FROM pulse_internal.lease_seq AS s
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.last_lease() IS
'A lease that is above all drawn so far and below all that will be.';

-- Picks, in a lane without groups. Of a kind that has fewer starts left than jobs were picked,
-- the first ones are kept, and the line is looked through again without it: what stood
-- before them in line is picked again, locked as it is.
CREATE FUNCTION pulse_internal.pick_within_rates(
    lane text,
    kinds text [],
    need integer,
    mark pulse_internal.mark,
    OUT tids tid [],
    OUT open text [],
    OUT after_lease bigint
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    v_spent text [] := pulse_internal.spent_kinds(pick_within_rates.kinds);
    v_kinds text [];
    v_kept tid [] := ARRAY[]::tid [];
    v_picked tid [];
    v_now record;
    v_cut text [];
BEGIN
    tids := '{}';
    open := '{}';
    LOOP
        IF pick_within_rates.kinds IS NOT NULL THEN
            v_kinds := array(
                SELECT u.kind
                FROM unnest(pick_within_rates.kinds) AS u (kind)
                WHERE u.kind <> ALL (v_spent)
            );
        END IF;
        EXIT WHEN v_kinds = '{}' OR cardinality(v_kept) >= pick_within_rates.need;

        IF v_kinds IS NULL AND v_spent = '{}' THEN
            v_picked := pulse_internal.pick(
                pick_within_rates.lane, pick_within_rates.need,
                pick_within_rates.mark
            );
        ELSE
            v_picked := pulse_internal.pick_kinds(
                pick_within_rates.lane, v_kinds,
                pick_within_rates.need - cardinality(v_kept), pick_within_rates.mark,
                v_spent
            );
        END IF;

        SELECT o.* INTO v_now
        FROM pulse_internal.open_kinds(
            array(SELECT r.kind FROM pulse_internal.ready AS r WHERE r.ctid = ANY (v_picked)),
            v_spent
        ) AS o;
        open := open || v_now.open;

        -- place is among those of its kind.
        WITH picked AS (
            SELECT
                r.ctid AS tid,
                r.kind,
                row_number() OVER (PARTITION BY r.kind ORDER BY r.rank, r.seq) AS place,
                CASE
                    WHEN r.kind = ANY (v_now.spent) THEN 0
                    ELSE v_now.free[array_position(v_now.open, r.kind::text)]
                END AS free
            FROM pulse_internal.ready AS r
            WHERE r.ctid = ANY (v_picked)
        ),

        cut AS (SELECT DISTINCT p.kind::text FROM picked AS p WHERE p.place > p.free)

        SELECT
            array_agg(p.tid) FILTER (WHERE (p.place > p.free) IS NOT TRUE),
            array_agg(p.tid) FILTER (WHERE p.place <= p.free AND c.kind IS NOT NULL),
            array(SELECT o.kind FROM cut AS o)
        INTO tids, v_picked, v_cut
        FROM picked AS p
        LEFT JOIN cut AS c ON c.kind = p.kind;

        tids := v_kept || tids;
        EXIT WHEN v_cut = '{}';
        v_kept := v_kept || v_picked;
        v_spent := v_now.spent || v_cut;
    END LOOP;

    after_lease := pulse_internal.last_lease();
END;
$$;

COMMENT ON FUNCTION pulse_internal.pick_within_rates(text, text [], integer, pulse_internal.mark) IS
'Like pick and pick_kinds where kinds have a rate, of each no more than it has starts left; open are the kinds whose starts are to be counted, of leases above after_lease.';

-- By their places in an index: a look for each kind.
CREATE FUNCTION pulse_internal.kinds_in_line(lane text, without text [])
RETURNS text []
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
    v_kind text COLLATE "C" := '';
    v_kinds text [] := ARRAY[]::text [];
BEGIN
    LOOP
        SELECT r.kind INTO v_kind
        FROM pulse_internal.ready AS r
        WHERE r.lane = kinds_in_line.lane
            AND r.kind > v_kind
            AND r.attempts >= 0
            AND r.group_key IS NULL
        ORDER BY r.kind
        LIMIT 1;
        EXIT WHEN v_kind IS NULL;
        IF v_kind <> ALL (kinds_in_line.without) THEN
            v_kinds := v_kinds || v_kind;
        END IF;
    END LOOP;
    RETURN v_kinds;
END;
$$;

COMMENT ON FUNCTION pulse_internal.kinds_in_line(text, text []) IS
'The kinds that stand in line in a lane without groups, without some.';

CREATE FUNCTION pulse_internal.kinds_in_turn(lane text, without text [])
RETURNS text []
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
    v_kind text COLLATE "C" := '';
    v_kinds text [] := ARRAY[]::text [];
BEGIN
    LOOP
        SELECT s.kind INTO v_kind
        FROM pulse_internal.group_state AS s
        WHERE s.lane = kinds_in_turn.lane
            AND s.kind > v_kind
            AND s.turn IS NOT NULL
            AND s.place >= 0
        ORDER BY s.kind
        LIMIT 1;
        EXIT WHEN v_kind IS NULL;
        IF v_kind <> ALL (kinds_in_turn.without) THEN
            v_kinds := v_kinds || v_kind;
        END IF;
    END LOOP;
    RETURN v_kinds;
END;
$$;

COMMENT ON FUNCTION pulse_internal.kinds_in_turn(text, text []) IS
'The kinds that groups of a lane have first, of those that have a turn, without some.';

CREATE FUNCTION pulse_internal.kind_obstacle(kind text)
RETURNS SETOF text
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    RETURN QUERY
    SELECT
        format(
            'the rate of kind %s is used up until %s: %s starts in %s',
            k.kind, to_char(f.free_at, 'YYYY-MM-DD HH24:MI:SS.MS TZ'), k.rate,
            pulse_internal.duration(k.rate_per)
        )
    FROM pulse_internal.kind AS k
    CROSS JOIN LATERAL pulse_internal.free_starts(
        (pulse_internal.newest_quota('', k.kind)).starts, k.rate, k.rate_per, clock_timestamp()
    ) AS f
    WHERE k.kind = kind_obstacle.kind
        AND k.rate IS NOT NULL
        AND f.free_at IS NOT NULL;

    RETURN QUERY
    SELECT
        format(
            'kind %s is kept out by %s, which is no call of pulse: %s',
            k.kind, f.holder, pulse_internal.foreign_lock_remedy(f.pid)
        )
    FROM pulse_internal.kind AS k
    CROSS JOIN LATERAL pulse_internal.foreign_locks() AS f
    WHERE k.kind = kind_obstacle.kind
        AND k.rate IS NOT NULL
        AND f.class = 'pulse_internal.quota'::regclass
        AND f.key = hashtext(k.kind);
END;
$$;

COMMENT ON FUNCTION pulse_internal.kind_obstacle(text) IS
'In words: that the rate of a kind is used up, and until when; or who has its lock and is no call of pulse.';
