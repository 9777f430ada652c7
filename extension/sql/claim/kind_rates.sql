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

-- The number is 0 where another claim has the lock of the kind, or where no start is left. A kind
-- without a rate is not in the answer.
CREATE FUNCTION pulse_internal.open_kinds(
    kinds text [], at timestamptz DEFAULT clock_timestamp()
)
RETURNS jsonb
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    v_kind text;
    v_left integer;
    v_starts_left jsonb := jsonb '{}';
BEGIN
    FOR v_kind IN
        SELECT k.kind
        FROM pulse_internal.kind AS k
        WHERE k.rate IS NOT NULL
            AND k.kind = ANY (open_kinds.kinds)
        ORDER BY k.kind
    LOOP
        v_left := 0;
        IF pg_try_advisory_xact_lock('pulse_internal.quota'::regclass::oid::integer, hashtext(v_kind)) THEN
            -- In a statement after the lock, the setting as well.
            SELECT f.free INTO v_left
            FROM pulse_internal.kind AS k
            CROSS JOIN LATERAL pulse_internal.free_starts(
                (pulse_internal.current_quota('', k.kind)).starts, k.rate, k.rate_per, open_kinds.at
            ) AS f
            WHERE k.kind = v_kind;
        END IF;
        v_starts_left := v_starts_left || jsonb_build_object(v_kind, v_left);
    END LOOP;
    RETURN v_starts_left;
END;
$$;

COMMENT ON FUNCTION pulse_internal.open_kinds(text [], timestamptz) IS
'Lock those of these kinds that have a rate, as far as that is possible without waiting, and say how many starts each has left.';

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
-- before them in line is picked again, locked as it is. A job that had to start by now takes
-- no start: it ends here.
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
    v_starts_left jsonb;
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

        IF pulse_internal.expire_picked(v_picked, clock_timestamp()) > 0 THEN
            CONTINUE WHEN pulse_internal.expire_all(clock_timestamp() + interval '50 milliseconds');
            tids := '{}';
            EXIT;
        END IF;

        v_starts_left := pulse_internal.open_kinds(
            array(SELECT r.kind FROM pulse_internal.ready AS r WHERE r.ctid = ANY (v_picked))
        );
        open := open || array(
            SELECT l.kind
            FROM jsonb_each(v_starts_left) AS l (kind, starts)
            WHERE l.starts <> '0'
        );

        -- place is among those of its kind.
        WITH picked AS (
            SELECT
                r.ctid AS tid,
                r.kind,
                row_number() OVER (PARTITION BY r.kind ORDER BY r.rank, r.seq) AS place,
                (v_starts_left ->> r.kind)::integer AS free
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
        v_spent := v_spent || v_cut;
    END LOOP;

    -- After the locks: what other claims of this lane started before is not counted again.
    after_lease := pulse_internal.last_lease();
END;
$$;

COMMENT ON FUNCTION pulse_internal.pick_within_rates(text, text [], integer, pulse_internal.mark) IS
'Like pick and pick_kinds where kinds have a rate, of each no more than it has starts left; open are the kinds whose starts are to be counted, of leases above after_lease.';

-- For a lane with groups: the jobs of a batch that the rates of their kinds let start, judged one
-- after the other in claim order. A group stops at its first job whose kind has no start left,
-- because its jobs start in their order. starts_left has what is left of each kind that
-- this claim has asked for.
CREATE FUNCTION pulse_internal.keep_within_rates(
    INOUT picks pulse_internal.group_pick [],
    INOUT starts_left jsonb,
    at timestamptz,
    OUT open text [],
    OUT spent text [],
    OUT passed text []
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_new jsonb;
    v_pick pulse_internal.group_pick;
    v_kept pulse_internal.group_pick [] := ARRAY[]::pulse_internal.group_pick [];
    v_stopped text [] := ARRAY[]::text [];
    v_left integer;
BEGIN
    v_new := pulse_internal.open_kinds(
        array(
            SELECT DISTINCT p.kind
            FROM unnest(keep_within_rates.picks) AS p
            WHERE keep_within_rates.starts_left -> p.kind IS NULL
        ),
        keep_within_rates.at
    );
    open := array(
        SELECT l.kind FROM jsonb_each(v_new) AS l (kind, starts) WHERE l.starts <> '0'
    );
    spent := '{}';
    starts_left := starts_left || v_new;

    FOREACH v_pick IN ARRAY picks LOOP
        CONTINUE WHEN v_pick.group_key = ANY (v_stopped);
        v_left := (starts_left ->> v_pick.kind)::integer;
        IF v_left = 0 THEN
            v_stopped := v_stopped || v_pick.group_key;
            spent := spent || v_pick.kind;
        ELSE
            v_kept := v_kept || v_pick;
            IF v_left IS NOT NULL THEN
                starts_left := starts_left || jsonb_build_object(v_pick.kind, v_left - 1);
            END IF;
        END IF;
    END LOOP;

    picks := v_kept;
    passed := array(
        SELECT s.group_key
        FROM unnest(v_stopped) AS s (group_key)
        WHERE s.group_key NOT IN (SELECT p.group_key FROM unnest(v_kept) AS p)
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.keep_within_rates(
    pulse_internal.group_pick [], jsonb, timestamptz
) IS
'Of jobs in claim order those that the rates of their kinds let start; open are the kinds that were locked for this, spent those without a start, passed the groups that start nothing because of it.';

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

CREATE FUNCTION pulse_internal.kinds_in_turn(lane text, kinds text [], without text [])
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
    IF kinds_in_turn.kinds IS NOT NULL THEN
        RETURN array(
            SELECT u.kind
            FROM unnest(kinds_in_turn.kinds) AS u (kind)
            WHERE u.kind <> ALL (kinds_in_turn.without)
        );
    END IF;

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

COMMENT ON FUNCTION pulse_internal.kinds_in_turn(text, text [], text []) IS
'Of these kinds (NULL: of those that groups of a lane with a turn have first) all without some.';

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
